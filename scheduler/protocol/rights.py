"""List the permissions that a user of the broker needs, for each kind of use.

The rules are RabbitMQ's (https://www.rabbitmq.com/docs/access-control):

- *configure* is needed to declare and to delete;
- *write*, to publish to an exchange, to bind a destination, and on the dead-letter or alternate
  exchange that a declaration names;
- *read*, to consume from a queue, to bind to a source, and on what is declared with such an
  exchange.

Only `scheduler seed` declares. To look at a queue, RabbitMQ 4.3 asks for any one of the three.
"""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.protocol.topology import Names, Topology

TARGETS = ("alternate-exchange", "x-dead-letter-exchange")
NOTHING = "^$"


@dataclass(frozen=True, slots=True)
class Rights:
    """Hold regular expressions for the names that a user may configure, write to and read from."""

    configure: str
    write: str
    read: str


def rights_to_seed(names: Names, wanted: Topology) -> Rights:
    """Return the rights for `scheduler seed`: everything of the namespace, and to bind to, or
    declare, the exchanges of other applications.
    """
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
