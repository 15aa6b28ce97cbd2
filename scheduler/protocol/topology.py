"""Which exchanges, queues and bindings a set of tasks and loops needs: data, made by one function.

::

    scheduler ──loop.{task}.{digits}.{key}──► hatchery.{n}{unit} ──TTL──► hatchery.{next unit}
        └► (only zeros) ──► processor
    hatchery.{unit} likewise: to the timer of the next digit that is not zero, or to processor

    processor ──loop.{task}.#──► processor.{task} ──(too many deliveries)──task.{task}──► failed
        └► (no queue) ──► unrouted ──TTL──► rerouted ──► processor.{task}
                                               └► (no queue) ──► unmatched
    failed ──► failed.{task}; (no queue) ──► unmatched ──► failed

    scheduler ──► journal (stream): each settlement, and records of what was parked
    control ──imprint──► imprint: of which app all this is, and for what it was declared
            ──head.{task}──► head.{task}: how far the first message of an ordered task has come
            ─roster─► roster (stream): which loops there are
            ─snapshots─► snapshots (stream): what the roster has told so far
            ──rollcall─► rollcall (stream): who is running what
            ──history─► history (stream): what became of calls

    calls ──task.{task}──► processor.{task}
    later ──retry.#──► later.refused: its sender is told that nothing took it
        └► (no such key) ──► later.sent ──task.{task}──► later.192d
    later.{unit} ──header at-{unit}──► later.{n}{unit} ──TTL──► later.{next unit}
        └► (no such header) ──► delayed
    delayed ──retry.{task}, and task.{task} if it is called──► processor.{task}
        └► (no queue) ──► later.unrouted ──TTL──► later.rerouted ──► processor.{task}
                                                       └► (no queue) ──► unmatched

Each exchange is bound straight to the timers of all later digits: bindings through the zeros, from
exchange to exchange, cost the broker more than all the rest.

What no queue is bound for is never left where it is: a quorum queue that can dead-letter none of
the first 32 of its messages holds up all the others. So whoever may send cannot stop the timers
with keys or headers that are no delay.

Who may only send writes to `calls` and `later` alone, and to the exchanges of other applications.
A message has as many keys as its sender likes: RabbitMQ routes by its headers CC and BCC as well,
and by all of them wherever it is dead-lettered. So origin is never told by a key:

- Whatever the keys, no way leads from there to an exchange or a timer of tokens. What comes by one
  of these is a token. Both ways end in the queue of a task, and in its failed queue.
- `later` refuses a message if any of its keys is that of a retry. So what comes out of the timers
  of calls with such a key was sent by a processor, and may tell what only processors know.
- In the timers of calls a message goes by its headers, of which it has one set: however many keys
  it has, there is one of it until it leaves them, and one for each task then.
- A processor queue dead-letters by a key of its own, which takes the place of all others.

A task that was never seeded is not bound to `calls` and `later`, so that its sender is told.

No stream hears an exchange that messages of others pass: a decimal in their headers breaks off
RabbitMQ's conversion (3.10 to 4.3), and with it whatever published or dead-lettered the message.

Every name carries the namespace and a version segment, so that namespaces share a broker and a
future layout can live beside this one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Self, overload

from scheduler.protocol.calls import RETRY_KEY, retry_key, task_key
from scheduler.protocol.hatchery import UNITS, Timer, end_pattern, header_at, timer_pattern, timers
from scheduler.protocol.tokens import LoopId
from scheduler.timing.durations import SECOND, milliseconds

QueueType = Literal["quorum", "classic"]

# Broker 3.10 reads -1 as zero and 4.x without a limit gives up at delivery 20. Looking at the head
# of a timer counts as a delivery, so a timer needs a limit that is never reached.
UNREACHABLE_DELIVERY_LIMIT = 2_000_000_000

# What waits for people, and what others wait for, is in quorum queues whatever the others are.
SAFE: Mapping[str, Any] = MappingProxyType(
    {"x-queue-type": "quorum", "x-delivery-limit": UNREACHABLE_DELIVERY_LIMIT}
)
LAST_ALONE: Mapping[str, Any] = MappingProxyType({"x-max-length": 1, "x-overflow": "drop-head"})

# A processor parks what was delivered too often; after so many deliveries none got round to it, and
# the broker does. No setting: a queue that exists cannot be given another one.
DELIVERY_BACKSTOP = 100

# Each priority of a classic queue costs processes in the broker; quorum queues have theirs anyway.
CLASSIC_PRIORITIES = 5

AT_LEAST_ONCE: Mapping[str, Any] = MappingProxyType(
    {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
)

# A broker before 4.3 starts its quorum queues before their bindings: what comes due in that moment
# finds no queue, and is given this time until it is tried once more.
UNROUTED_FOR = 5 * SECOND
# A call is not put again by supervision as a token is: so it waits for longer than it takes until
# a task's queue that somebody has deleted is declared again.
UNROUTED_CALL_FOR = 15 * SECOND

PROBE_WAITS = timedelta(milliseconds=100)
GONE_UNUSED: Mapping[str, Any] = MappingProxyType({"x-expires": milliseconds(60 * SECOND)})

# A stream drops its oldest segment as a whole, and never the one that is written to.
JOURNAL_SEGMENT = 20_000_000
ROSTER_SEGMENT = 50_000_000
ROSTER_BYTES = 20 * ROSTER_SEGMENT  # some millions of entries; a snapshot comes after some thousand
SNAPSHOTS_SEGMENT = 10_000_000
SNAPSHOTS_BYTES = 50 * SNAPSHOTS_SEGMENT  # two snapshots of a million loops
HISTORY_SEGMENT = 10_000_000
HISTORY_BYTES = 50 * HISTORY_SEGMENT  # some millions of attempts
ROLL_CALL_SEGMENT = 1_000_000
ROLL_CALL_BYTES = 10 * ROLL_CALL_SEGMENT

ExchangeType = Literal["topic", "fanout", "direct"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Attributes: passive means that it is somebody else's, and must be there already."""

    name: str
    type: ExchangeType | Literal["headers"]
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    passive: bool = False


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue or a stream: its arguments say which."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue, or to another exchange."""

    source: str
    destination: str
    routing_key: str
    to: Literal["queue", "exchange"] = "queue"
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


@dataclass(frozen=True, slots=True)
class Topology:
    """Exchanges, queues and bindings: what exists in a broker."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()

    def only(self, queues: Collection[str]) -> "Topology":
        """The part that these queues need: them, their bindings, and all exchanges."""
        exchanges = {exchange.name for exchange in self.exchanges}
        return Topology(
            self.exchanges,
            tuple(queue for queue in self.queues if queue.name in queues),
            tuple(
                binding
                for binding in self.bindings
                if binding.destination in queues
                or (binding.to == "exchange" and binding.destination in exchanges)
            ),
        )

    def in_place_of(self, queue: str, other: str) -> "Topology":
        """A queue that keeps what comes to this one, in its place."""
        bindings = [each for each in self.bindings if each.destination == queue]
        return Topology(
            self.exchanges,
            (Queue(other, dict(SAFE)),),
            tuple(replace(each, destination=other) for each in bindings),
        )

    def __add__(self, other: "Topology") -> "Topology":
        return Topology(
            self.exchanges + other.exchanges,
            self.queues + other.queues,
            self.bindings + other.bindings,
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    """A task that gets messages of an exchange.

    Attributes:
        routing_key: a binding key of that exchange, with its wildcards.
        declare: the type to declare the exchange with; None: it is somebody else's.
    """

    task: str
    exchange: str
    routing_key: str
    declare: ExchangeType | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """How long, and how much, the journal remembers."""

    max_age: timedelta = timedelta(days=7)
    max_bytes: int = 1_000_000_000


LOOP_KEY = "loop."
REST_KEY = "rest."


class Named:
    """A name of one object of each namespace; its docstring says what of."""

    def __init__(self, name: str, what: str) -> None:
        self._name = name
        self.__doc__ = what

    @overload
    def __get__(self, names: None, owner: type) -> Self: ...
    @overload
    def __get__(self, names: "Names", owner: type) -> str: ...
    def __get__(self, names: "Names | None", owner: type) -> Self | str:
        return self if names is None else f"{names.prefix}.{self._name}"


@dataclass(frozen=True)
class Names:
    """What the objects of a namespace are called in the broker."""

    namespace: str

    @cached_property
    def prefix(self) -> str:
        return f"{self.namespace}.v1"

    scheduler = Named(
        "scheduler", "The exchange by which tokens come to their timers, and to the journal."
    )
    processor = Named(
        "processor", "The exchange by which tokens that are due come to the queues of their tasks."
    )
    calls = Named("calls", "The exchange of calls that are sent now.")
    later = Named(
        "later", "The exchange of calls that are sent to come later: it leads to their timers."
    )
    delayed = Named("delayed", "The exchange of calls whose delay has ended.")
    later_sent = Named("later.sent", "The exchange of calls that `later` has let in.")
    later_refused = Named(
        "later.refused",
        "The exchange of what `later` has not let in: no queue is bound to it.",
    )
    unrouted = Named(
        "unrouted",
        "The exchange, and the timer queue, for tokens that had no queue at their end.",
    )
    rerouted = Named("rerouted", "The exchange that tries those once more.")
    later_unrouted = Named(
        "later.unrouted",
        "The exchange, and the timer queue, for calls that had no queue at their end.",
    )
    later_rerouted = Named("later.rerouted", "The exchange that tries those once more.")
    failed = Named(
        "failed", "The exchange, and the queue for what no task's failed queue is bound for."
    )
    unmatched = Named("unmatched", "The exchange of what is parked and is no task's.")
    journal = Named("journal", "The stream of everything that was settled, done or parked.")
    control = Named("control", "The exchange of what processors tell each other.")
    roster = Named("roster", "The stream of loops that came and went.")
    snapshots = Named("snapshots", "The stream of what the roster has told so far.")
    roll_call = Named(
        "rollcall", "The stream over which processors ask each other what they have in hand."
    )
    history = Named("history", "The stream of what became of calls.")
    presence = Named(
        "presence",
        "The queue that each processor consumes from, to be counted: nothing is put there.",
    )
    imprint = Named("imprint", "The queue of one message, which tells what was seeded last.")

    def probe(self, id: str) -> str:
        """Return the timer queue of a probe, which tells if the broker hands on what is due."""
        return f"{self.prefix}.probe.{id}"

    def probed(self, id: str) -> str:
        """Return the queue that a probe's timer queue leads to."""
        return f"{self.probe(id)}.back"

    def hatchery_exchange(self, unit: int) -> str:
        """The exchange that routes tokens by their digits from a unit on; behind all, the end."""
        if unit == 0:
            return self.scheduler
        return f"{self.prefix}.hatchery.{UNITS[unit].name}" if unit < len(UNITS) else self.processor

    def timer(self, timer: Timer) -> str:
        """A timer queue of tokens."""
        return f"{self.prefix}.hatchery.{timer.name}"

    def later_exchange(self, unit: int) -> str:
        """The exchange that routes calls by their digits from a unit on; behind all, the end."""
        return f"{self.later}.{UNITS[unit].name}" if unit < len(UNITS) else self.delayed

    def later_timer(self, timer: Timer) -> str:
        """A timer queue of calls."""
        return f"{self.later}.{timer.name}"

    @cached_property
    def _token_exchanges(self) -> frozenset[str]:
        by_unit = map(self.hatchery_exchange, range(len(UNITS) + 1))
        return frozenset((*by_unit, self.rerouted))

    @cached_property
    def _retry_exchanges(self) -> frozenset[str]:
        by_unit = map(self.later_exchange, range(len(UNITS) + 1))
        return frozenset((*by_unit, self.later_rerouted))

    def bring_tokens(self, exchange: str) -> bool:
        """Tell whether a delivery is a token's: nothing that senders write to leads there.

        Args:
            exchange: the one to which it was published or dead-lettered last.
        """
        return exchange in self._token_exchanges

    def bring_retries(self, exchange: str, routing_key: str) -> bool:
        """Tell whether a processor has sent what is no token, and not somebody else.

        Args:
            exchange: the one to which it was published or dead-lettered last.
        """
        return exchange in self._retry_exchanges and routing_key.startswith(RETRY_KEY)

    def head(self, task: str) -> str:
        """The queue of what is known of the message at the head of an ordered task's queue."""
        return f"{self.prefix}.head.{task}"

    def processor_queue(self, task: str) -> str:
        """The queue of what is due of a task, from which processors take."""
        return f"{self.processor}.{task}"

    def failed_queue(self, task: str) -> str:
        """The queue of what is parked of a task."""
        return f"{self.failed}.{task}"

    def moving(self, queue: str) -> str:
        """The queue that takes the place of another one, while that is made anew."""
        return f"{queue}.moving"


def is_of_task(queue: str) -> bool:
    """Whether this is the name of a task's processor queue, of any namespace."""
    return queue.partition(".")[2].startswith("v1.processor.")


def is_rerouted(exchange: str) -> bool:
    """Return whether messages come by this exchange that had no queue at the end of their way."""
    return exchange.partition(".")[2] == "v1.rerouted"


def loop_named_by(key: str) -> LoopId | None:
    """Return the loop whose tokens have this routing key, whatever their wait; None: no loop."""
    prefix, *parts = key.split(".", len(UNITS) + 2)
    if f"{prefix}." != LOOP_KEY or len(parts) <= len(UNITS):
        return None
    return LoopId(parts[0], ".".join(parts[len(UNITS) + 1 :]))


def token_key(loop: LoopId, digits: str) -> str:
    """Build the routing key of a token that waits for the time of these digits."""
    key = f"{LOOP_KEY}{loop.task}.{digits}"
    return f"{key}.{loop.key}" if loop.key else key


def rest_key(loop: LoopId) -> str:
    """Build the routing key of a token that waits nowhere: only the journal hears it."""
    return f"{REST_KEY}{loop}"


def topology(
    namespace: str,
    tasks: Iterable[str],
    *,
    subscriptions: Iterable[Subscription] = (),
    alone: Collection[str] = (),
    ordered: Collection[str] = (),
    called: Collection[str] = (),
    queue_type: QueueType = "quorum",
    retention: Retention = Retention(),
) -> Topology:
    """Everything that these tasks and loops need in the broker.

    Args:
        subscriptions: to the exchanges of others.
        alone: those of the tasks whose messages all go to one processor at a time.
        ordered: those of the tasks whose messages are run one at a time, in order.
        called: those of the tasks that get one-off messages; any of them brings the timers of
            calls. Those of tokens are always there.
        queue_type: quorum queues are replicated and dead-letter at least once, classic ones not.
            The timers of calls, and what is parked, are in quorum queues in any case:
            what a classic one loses on its way is put again if it is a loop's token, but nobody
            would know of a message.
        retention: how much the journal remembers.
    """
    build = _Builder(Names(namespace), queue_type, retention, alone, ordered, called)
    parts = [
        build.of_tokens(),
        *([build.of_calls()] if called else []),
        *map(build.of_task, tasks),
        *map(build.of_subscription, subscriptions),
    ]
    return sum(parts, start=build.of_namespace())


def probe(namespace: str, id: str) -> Topology:
    """Return the queues of one probe: it tells if the broker hands on what is due.

    They expire by themselves when nobody uses them.
    """
    names = Names(namespace)
    probe, probed = names.probe(id), names.probed(id)
    timer = _timer_queue(probe, PROBE_WAITS, names.control)
    back = {"x-dead-letter-routing-key": probed, "x-queue-leader-locator": "client-local"}
    return Topology(
        queues=(
            Queue(probe, {**timer.arguments, **back, **GONE_UNUSED}),
            Queue(probed, {"x-queue-type": "classic", **GONE_UNUSED}),
        ),
        # By an exchange that has no alternate: what is left on its way is parked nowhere.
        bindings=tuple(Binding(names.control, each, each) for each in (probe, probed)),
    )


def definitions(wanted: Topology, vhost: str = "/") -> dict[str, Any]:
    """The topology as a RabbitMQ definitions file (https://www.rabbitmq.com/docs/definitions)."""
    placed = {"vhost": vhost, "durable": True, "auto_delete": False}
    outer = placed | {"internal": False}
    return {
        "exchanges": [
            {"name": exchange.name, "type": exchange.type, "arguments": exchange.arguments} | outer
            for exchange in wanted.exchanges
            if not exchange.passive
        ],
        "queues": [asdict(queue) | placed for queue in wanted.queues],
        "bindings": [
            {
                "source": binding.source,
                "vhost": vhost,
                "destination": binding.destination,
                "destination_type": binding.to,
                "routing_key": binding.routing_key,
                "arguments": dict(binding.arguments),
            }
            for binding in wanted.bindings
        ],
    }


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes the parts of a topology."""

    names: Names
    queue_type: QueueType
    retention: Retention
    alone: Collection[str]
    ordered: Collection[str]
    called: Collection[str]

    def of_namespace(self) -> Topology:
        names = self.names
        told = names.roster, names.snapshots, names.roll_call, names.imprint
        return Topology(
            exchanges=(
                Exchange(names.unmatched, "fanout"),
                Exchange(names.failed, "topic", {"alternate-exchange": names.unmatched}),
                Exchange(names.rerouted, "topic", {"alternate-exchange": names.unmatched}),
                Exchange(names.unrouted, "fanout"),
                Exchange(names.processor, "topic", {"alternate-exchange": names.unrouted}),
                Exchange(names.later_rerouted, "direct", {"alternate-exchange": names.unmatched}),
                Exchange(names.later_unrouted, "fanout"),
                Exchange(names.delayed, "direct", {"alternate-exchange": names.later_unrouted}),
                Exchange(names.calls, "direct"),
                Exchange(names.later_refused, "fanout"),
                Exchange(names.later_sent, "direct"),
                Exchange(names.later, "topic", {"alternate-exchange": names.later_sent}),
                Exchange(names.scheduler, "topic"),
                Exchange(names.control, "direct"),
            ),
            queues=(
                Queue(names.failed, dict(SAFE)),
                _timer_queue(names.unrouted, UNROUTED_FOR, names.rerouted),
                _timer_queue(names.later_unrouted, UNROUTED_CALL_FOR, names.later_rerouted),
                _stream(names.journal, self.retention.max_bytes, JOURNAL_SEGMENT, self._max_age()),
                _stream(names.roster, ROSTER_BYTES, ROSTER_SEGMENT),
                _stream(names.snapshots, SNAPSHOTS_BYTES, SNAPSHOTS_SEGMENT),
                _stream(names.roll_call, ROLL_CALL_BYTES, ROLL_CALL_SEGMENT),
                self._queue(names.presence, {}),
                Queue(names.imprint, {**SAFE, **LAST_ALONE}),
            ),
            bindings=(
                Binding(names.unmatched, names.failed, ""),
                Binding(names.unrouted, names.unrouted, ""),
                Binding(names.later_unrouted, names.later_unrouted, ""),
                Binding(names.later, names.later_refused, f"{RETRY_KEY}#", "exchange"),
                Binding(names.scheduler, names.journal, "#"),
                *(Binding(names.control, queue, queue) for queue in told),
            ),
        )

    def of_task(self, task: str) -> Topology:
        names, key = self.names, task_key(task)
        processor, failed = names.processor_queue(task), names.failed_queue(task)
        is_ordered, is_called = task in self.ordered, task in self.called
        # An ordered message is left at the head of its queue by whoever may not run it yet.
        limit = UNREACHABLE_DELIVERY_LIMIT if is_ordered else DELIVERY_BACKSTOP
        arguments: dict[str, Any] = {
            "x-dead-letter-exchange": names.failed,
            "x-dead-letter-routing-key": key,
            **self._if_quorum({**AT_LEAST_ONCE, "x-delivery-limit": limit}),
        }
        if is_ordered or task in self.alone:
            arguments["x-single-active-consumer"] = True
        elif is_called and self.queue_type == "classic":
            arguments["x-max-priority"] = CLASSIC_PRIORITIES
        of_loops, of_calls = f"{LOOP_KEY}{task}.#", [retry_key(task), *([key] if is_called else [])]
        bindings = [
            *(Binding(each, processor, of_loops) for each in (names.processor, names.rerouted)),
            *(Binding(names.delayed, processor, each) for each in of_calls),
            *(Binding(names.later_rerouted, processor, each) for each in of_calls),
            *(Binding(names.failed, failed, each) for each in (of_loops, key)),
        ]
        queues = [self._queue(processor, arguments), Queue(failed, dict(SAFE))]
        if is_called:
            bindings.append(Binding(names.calls, processor, key))
            bindings.append(Binding(names.later_sent, names.later_exchange(0), key, "exchange"))
        if is_ordered:
            head = names.head(task)
            queues.append(self._queue(head, {**self._peekable(), **LAST_ALONE}))
            bindings.append(Binding(names.control, head, head))
        return Topology(queues=tuple(queues), bindings=tuple(bindings))

    def of_subscription(self, wanted: Subscription) -> Topology:
        passive = wanted.declare is None
        exchange = Exchange(wanted.exchange, wanted.declare or "topic", passive=passive)
        queue = self.names.processor_queue(wanted.task)
        return Topology(
            exchanges=(exchange,),
            bindings=(Binding(wanted.exchange, queue, wanted.routing_key),),
        )

    def of_tokens(self) -> Topology:
        """The timers of tokens: at most once, so that no queue which refuses them stops a timer."""
        names = self.names

        def timer_queue(timer: Timer) -> Queue:
            waits = {"x-message-ttl": milliseconds(timer.wait)}
            then = {"x-dead-letter-exchange": names.hatchery_exchange(timer.unit + 1)}
            return self._queue(names.timer(timer), {**then, **waits, **self._peekable()})

        def leading(unit: int) -> Iterable[Binding]:
            source, before = names.hatchery_exchange(unit), f"{LOOP_KEY}*."
            for timer in timers(unit):
                pattern = f"{before}{timer_pattern(unit, timer)}.#"
                yield Binding(source, names.timer(timer), pattern)
            yield Binding(source, names.processor, f"{before}{end_pattern(unit)}.#", "exchange")

        # The first exchange is the entrance, which the namespace has.
        exchanges = map(names.hatchery_exchange, range(1, len(UNITS)))
        return _timers(exchanges, "topic", names.unrouted, timer_queue, leading)

    def of_calls(self) -> Topology:
        """The timers of calls, at least once; and their history."""
        names = self.names

        def timer_queue(timer: Timer) -> Queue:
            then = names.later_exchange(timer.unit + 1)
            return _timer_queue(names.later_timer(timer), timer.wait, then)

        def leading(unit: int) -> Iterable[Binding]:
            for timer in timers(unit):
                matched = {"x-match": "all", header_at(unit): timer.name}
                source, queue = names.later_exchange(unit), names.later_timer(timer)
                yield Binding(source, queue, "", arguments=matched)

        exchanges = map(names.later_exchange, range(len(UNITS)))
        history = Topology(
            queues=(_stream(names.history, HISTORY_BYTES, HISTORY_SEGMENT, self._max_age()),),
            bindings=(Binding(names.control, names.history, names.history),),
        )
        return history + _timers(exchanges, "headers", names.delayed, timer_queue, leading)

    def _max_age(self) -> Mapping[str, Any]:
        return {"x-max-age": f"{int(self.retention.max_age.total_seconds())}s"}

    def _queue(self, name: str, arguments: dict[str, Any]) -> Queue:
        return Queue(name, {"x-queue-type": self.queue_type} | arguments)

    def _peekable(self) -> dict[str, Any]:
        return self._if_quorum({"x-delivery-limit": UNREACHABLE_DELIVERY_LIMIT})

    def _if_quorum(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(arguments) if self.queue_type == "quorum" else {}


def _stream(
    name: str, max_bytes: int, segment: int, more: Mapping[str, Any] = MappingProxyType({})
) -> Queue:
    return Queue(
        name,
        {
            "x-queue-type": "stream",
            "x-max-length-bytes": max_bytes,
            "x-stream-max-segment-size-bytes": segment,
            **more,
        },
    )


def _timers(
    exchanges: Iterable[str],
    type: Literal["topic", "headers"],
    otherwise: str,
    timer_queue: Callable[[Timer], Queue],
    leading: Callable[[int], Iterable[Binding]],
) -> Topology:
    """Build a set of timers.

    Args:
        otherwise: the exchange of what leads to no timer.
        timer_queue: makes the queue of a timer.
        leading: makes the bindings of the exchange of a unit.
    """
    alternate = {"alternate-exchange": otherwise}
    return Topology(
        exchanges=tuple(Exchange(name, type, dict(alternate)) for name in exchanges),
        queues=tuple(map(timer_queue, timers())),
        bindings=tuple(binding for unit in range(len(UNITS)) for binding in leading(unit)),
    )


def _timer_queue(name: str, time_to_live: timedelta, then: str) -> Queue:
    return Queue(
        name,
        {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": then,
            **AT_LEAST_ONCE,
            "x-message-ttl": milliseconds(time_to_live),
            "x-delivery-limit": UNREACHABLE_DELIVERY_LIMIT,
        },
    )
