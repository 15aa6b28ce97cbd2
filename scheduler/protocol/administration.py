"""List what administrators set in the broker: the permissions of users, and policies.

The rules of permissions are RabbitMQ's (https://www.rabbitmq.com/docs/access-control):

- *configure* is needed to declare and to delete;
- *write*, to publish to an exchange, to bind a destination, and on the dead-letter or alternate
  exchange that a declaration names;
- *read*, to consume from a queue, to bind to a source, and on what is declared with such an
  exchange.

Only `scheduler seed` declares. To look at a queue, RabbitMQ 4.3 asks for any one of the three.

Policies may change the package's queues. RabbitMQ applies one policy to each queue: the matching
one of the highest priority. An operator policy comes on top of it. Settings from both, and from the
queue's own arguments, are combined: of limits, the lowest holds. A shield keeps policies away.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.protocol.topology import Exchange, Names, Queue, Topology

TARGETS = ("alternate-exchange", "x-dead-letter-exchange")
NOTHING = "^$"


@dataclass(frozen=True, slots=True)
class Rights:
    """Hold regular expressions for the names that a user may configure, write to and read from."""

    configure: str
    write: str
    read: str


def rights_to_seed(names: Names, wanted: Topology) -> Rights:
    """Return the rights for `scheduler seed`: also to bind to exchanges of other applications."""
    declared = (*(each for each in wanted.exchanges if not each.passive), *wanted.queues)
    targets = {each.name: [each.arguments.get(name) for name in TARGETS] for each in declared}
    return Rights(
        configure=_pattern(names, targets),
        write=_pattern(
            names,
            (each.destination for each in wanted.bindings),
            (target for each in targets.values() for target in each if target),
        ),
        read=_pattern(
            names,
            (each.source for each in wanted.bindings),
            (name for name, each in targets.items() if any(each)),
        ),
    )


def rights_to_process(names: Names) -> Rights:
    """Return the rights for `scheduler run`, the operator's verbs and starting loops."""
    return Rights(NOTHING, _pattern(names), _pattern(names))


def rights_to_send(names: Names) -> Rights:
    """Return the rights for a program that only sends messages to the tasks of an app."""
    exchanges = names.calls, names.later
    endings = "|".join(_escaped(each.removeprefix(f"{names.prefix}.")) for each in exchanges)
    return Rights(NOTHING, f"{_pattern(names)}({endings})$", NOTHING)


def rights_to_look(names: Names) -> Rights:
    """Return the rights for a read-only dashboard."""
    return Rights(NOTHING, NOTHING, _pattern(names))


def command(rights: Rights, *, user: str, vhost: str) -> str:
    """Return the command that gives a user exactly these rights in a virtual host."""
    patterns = (rights.configure, rights.write, rights.read)
    return shlex.join(["rabbitmqctl", "set_permissions", "-p", vhost, user, *patterns])


def _pattern(names: Names, *used: Iterable[str]) -> str:
    """Match everything of the namespace, and otherwise only the names in use."""
    prefix = f"{names.prefix}."
    others = sorted({name for each in used for name in each if not name.startswith(prefix)})
    if not others:
        return f"^{_escaped(prefix)}"
    exact = "".join(f"|{_escaped(name)}$" for name in others)
    return f"^({_escaped(prefix)}{exact})"


def _escaped(name: str) -> str:
    # The broker's regular expressions are Perl's. Python's `re.escape` escapes more than they need,
    # which hurts readability.
    return re.sub(r"[\\.^$*+?()\[\]{}|]", r"\\\g<0>", name)


# Kept from queues of these types: RabbitMQ ignores a policy that sets one of them.
UNSUPPORTED: Mapping[str, frozenset[str]] = {
    "stream": frozenset(
        {
            "dead-letter-exchange",
            "dead-letter-routing-key",
            "delivery-limit",
            "expires",
            "max-length",
            "message-ttl",
            "overflow",
        }
    ),
    "classic": frozenset({"delivery-limit"}),
}
APPLIED_TO: Mapping[str, frozenset[str]] = {
    "quorum": frozenset({"all", "queues", "quorum_queues"}),
    "classic": frozenset({"all", "queues", "classic_queues"}),
    "stream": frozenset({"all", "queues", "streams"}),
    "exchange": frozenset({"all", "exchanges"}),
}
LIMITS = "message-ttl", "max-length", "max-length-bytes", "delivery-limit"
OTHERWISE_SET = "dead-letter-exchange", "dead-letter-routing-key"
"""The keys that count only if the queue's arguments do not set them."""
ALTERNATE = "alternate-exchange"
"""The keys of exchanges that hide unroutable messages from senders."""

# A policy has to set something. This one counts when a queue is declared, and spreads the leaders.
HARMLESS = {"queue-leader-locator": "balanced"}
SHIELD_PRIORITY = 999


@dataclass(frozen=True, slots=True)
class BrokerPolicy:
    """Describe a policy of a virtual host.

    Attributes:
        is_operator: whether it is an operator policy, which no other policy overrides.
    """

    name: str
    pattern: str
    definition: Mapping[str, Any]
    apply_to: str = "all"
    priority: int = 0
    is_operator: bool = False


@dataclass(frozen=True, slots=True)
class Harm:
    """Describe what a policy changes of the package's queues and exchanges.

    Attributes:
        settings: the harmful ones.
        changed: the names of the changed queues and exchanges.
    """

    policy: BrokerPolicy
    settings: Mapping[str, Any]
    changed: Sequence[str]

    @property
    def about(self) -> str:
        """Name the policy."""
        kind = "operator policy" if self.policy.is_operator else "policy"
        return f"{kind} {self.policy.name!r}"

    @property
    def detail(self) -> str:
        """Say what it changes."""
        settings = ", ".join(f"{name}: {value}" for name, value in self.settings.items())
        others = f" and {len(self.changed) - 1} more" if len(self.changed) > 1 else ""
        return f"changes {self.changed[0]}{others} ({settings})"


def harms(declared: Iterable[Queue | Exchange], policies: Sequence[BrokerPolicy]) -> list[Harm]:
    found = dict[tuple[str, bool], Harm]()
    for each in declared:
        for policy in _effective(each, policies):
            settings = _harmful(each, policy.definition)
            if settings:
                key = policy.name, policy.is_operator
                before = found.get(key, Harm(policy, {}, ()))
                found[key] = Harm(
                    policy, {**before.settings, **settings}, (*before.changed, each.name)
                )
    return list(found.values())


def advice(harm: Harm, namespace: str, vhost: str) -> str:
    """Return the command that shields the namespace, or what to do if no shield works."""
    shielding = shield(namespace)
    if harm.policy.is_operator:
        return (
            f"No policy overrides an operator policy: change its pattern, {harm.policy.pattern}"
            f", so that it does not match {shielding.pattern}"
        )
    words = ["rabbitmqctl", "set_policy", "-p", vhost, shielding.name, shielding.pattern]
    words += [json.dumps(shielding.definition), "--apply-to", shielding.apply_to]
    priority = max(shielding.priority, harm.policy.priority + 1)
    return shlex.join([*words, "--priority", str(priority)])


def shield(namespace: str) -> BrokerPolicy:
    """Return the policy that keeps other policies from queues and exchanges of a namespace."""
    pattern = f"^{re.escape(Names(namespace).prefix)}\\."
    return BrokerPolicy(f"{namespace}-shield", pattern, HARMLESS, "all", SHIELD_PRIORITY)


def _effective(declared: Queue | Exchange, policies: Iterable[BrokerPolicy]) -> list[BrokerPolicy]:
    applicable = [each for each in policies if _applies(each, declared)]
    of_each_kind = (
        [each for each in applicable if each.is_operator is is_operator]
        for is_operator in (False, True)
    )
    return [max(each, key=lambda policy: policy.priority) for each in of_each_kind if each]


def _applies(policy: BrokerPolicy, declared: Queue | Exchange) -> bool:
    is_queue = isinstance(declared, Queue)
    kind = declared.arguments["x-queue-type"] if is_queue else "exchange"
    if policy.apply_to not in APPLIED_TO[kind]:
        return False
    if not UNSUPPORTED.get(kind, frozenset()).isdisjoint(policy.definition):
        return False
    try:
        return re.search(policy.pattern, declared.name) is not None
    except re.error:  # Perl expressions can do more: rather match too many
        return True


def _harmful(declared: Queue | Exchange, definition: Mapping[str, Any]) -> dict[str, Any]:
    arguments = declared.arguments
    if isinstance(declared, Exchange):
        is_set = ALTERNATE in definition and ALTERNATE not in arguments
        return {ALTERNATE: definition[ALTERNATE]} if is_set else {}
    found = {
        name: value
        for name, value in definition.items()
        if name == "expires"
        or (name in LIMITS and _lowers(arguments.get(f"x-{name}"), value))
        or (name in OTHERWISE_SET and f"x-{name}" not in arguments)
    }
    if "overflow" in definition and found.keys() & {"max-length", "max-length-bytes"}:
        found["overflow"] = definition["overflow"]
    return found


def _lowers(ours: int | None, value: object) -> bool:
    if not isinstance(value, int):
        return True
    return value >= 0 and (ours is None or value < ours)
