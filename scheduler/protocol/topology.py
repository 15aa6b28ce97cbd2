"""Calculate the exchanges, queues and bindings of a set of tasks and loops: data, from one
function.

::

    scheduler ──loop.{task}.{digits}.{slice}.{key}──► hatchery.{n}{unit}
        └► (only zeros) ──► processor                     └──TTL──► hatchery.{next unit}
    hatchery.{unit} likewise: to the timer of the next digit that is not zero, or to processor

    processor ──loop.{task}.#──► processor.{task} ──(too many deliveries)──task.{task}──► failed
        └► (no queue) ──► unrouted ──TTL──► rerouted ──► processor.{task}
                                               └► (no queue) ──► unmatched
    processor ──loop.{task}.{digits}.{slice}.#──► processor.{task}.{shard}, if it has shards
    failed ──► failed.{task}; (no queue) ──► unmatched ──► failed
      └─trash─► trash: deleted messages, for a day

    scheduler ──► journal (stream): each settlement, and records of parked messages
    control ──imprint──► imprint: the app and the settings that everything was declared for
            ──head.{task}──► head.{task}: the progress of the first message of an ordered task
            ─roster─► roster (stream): the loops
            ─snapshots─► snapshots (stream): the roster so far
            ──rollcall─► rollcall (stream): the runs of each processor
            ──history─► history (stream): the outcomes of calls

    calls ──task.{task}──► processor.{task}
    later ──retry.#──► later.refused: returned to the sender as unroutable
        └► (no such key) ──► later.sent ──task.{task}──► later.192d
    later.{unit} ──header at-{unit}──► later.{n}{unit} ──TTL──► later.{next unit}
        └► (no such header) ──► delayed
    delayed ──retry.{task}, and task.{task} if it is called──► processor.{task}
        └► (no queue) ──► later.unrouted ──TTL──► later.rerouted ──► processor.{task}
                                                       └► (no queue) ──► unmatched

Each exchange is bound straight to the timers of all later digits: bindings through the zeros, from
exchange to exchange, cost the broker more than all the rest.

A queue is one process of the broker. A task with shards has several processor queues, of which
each serves some slices of the loops; the first one has the name of the only one, and gets all else.
The slice of a loop never changes, whatever the number of shards: only bindings depend on it.

An unroutable message never stays in its timer: a quorum queue that can dead-letter none of its
first 32 messages holds up all others. So senders cannot stop the timers with keys or headers that
are no delay.

Users with send rights alone write only to `calls` and `later`, and to exchanges of other
applications. A message has as many keys as its sender likes: RabbitMQ also routes by its headers CC
and BCC, again at each dead-lettering. So no key proves the origin of a message:

- No key leads from there to an exchange or a timer of tokens. What arrives by one of these is a
  token. Both ways end in the queue of a task, and in its failed queue.
- `later` refuses a message if any of its keys is that of a retry. So a message that leaves the
  timers of calls with such a key was sent by a processor, and its headers can be trusted.
- In the timers of calls a message is routed by its one set of headers: however many keys it has, it
  stays one message until it leaves them, and becomes one for each task then.
- A processor queue dead-letters by a key of its own, which replaces all other keys.

A task that was never seeded is not bound to `calls` and `later`, so publishing to it fails as
unroutable.

No stream is bound to an exchange that messages of other applications pass: a decimal in their
headers crashes RabbitMQ's conversion (3.10 to 4.3), and with it the publishing or dead-lettering
channel.

Every name contains the namespace and a version segment, so that namespaces share a broker and a
future layout can coexist with this one.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Literal, Self, overload

from scheduler.protocol.calls import RETRY_KEY, retry_key, task_key
from scheduler.protocol.hatchery import UNITS, Timer, end_pattern, header_at, timer_pattern, timers
from scheduler.protocol.tokens import LOOP_KEY, SLICES
from scheduler.timing.durations import SECOND
from scheduler.timing.moments import milliseconds

QueueType = Literal["quorum", "classic"]

# Broker 3.10 reads -1 as zero, and 4.x without a limit stops at delivery 20. Browsing the head of a
# timer counts as a delivery, so a timer needs a limit that is never reached.
UNREACHABLE_DELIVERY_LIMIT = 2_000_000_000

# Parked messages, and those that other programs wait for, are always in quorum queues.
SAFE: Mapping[str, Any] = MappingProxyType(
    {"x-queue-type": "quorum", "x-delivery-limit": UNREACHABLE_DELIVERY_LIMIT}
)
LAST_ALONE: Mapping[str, Any] = MappingProxyType({"x-max-length": 1, "x-overflow": "drop-head"})

# A processor parks a message that was delivered too often; after this many deliveries without a
# processor doing so, the broker does. Not a setting: the limit of an existing queue cannot be
# changed.
DELIVERY_BACKSTOP = 100

TRASH_KEY = "trash"  # no key of a task or a loop
TRASHED_FOR = timedelta(days=1)

# Each priority of a classic queue costs processes in the broker; quorum queues have theirs anyway.
CLASSIC_PRIORITIES = 5

AT_LEAST_ONCE: Mapping[str, Any] = MappingProxyType(
    {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
)

# A broker before 4.3 starts its quorum queues before their bindings: a message that comes due in
# that moment finds no queue, and is tried again after this time.
UNROUTED_FOR = 5 * SECOND
# Supervision replaces tokens, not calls: so a call waits longer than it takes until a deleted task
# queue is declared again.
UNROUTED_CALL_FOR = 15 * SECOND

PROBE_WAITS = timedelta(milliseconds=100)
GONE_UNUSED: Mapping[str, Any] = MappingProxyType({"x-expires": milliseconds(60 * SECOND)})

# A stream drops its oldest segment as a whole, and never the one being written.
JOURNAL_SEGMENT = 20_000_000
ROSTER_SEGMENT = 50_000_000
ROSTER_BYTES = 20 * ROSTER_SEGMENT  # millions of entries; snapshots come after thousands
SNAPSHOTS_SEGMENT = 10_000_000
# Ten snapshots of a million loops: one whose writer is stopped is of no use, and takes its room.
SNAPSHOTS_BYTES = 100 * SNAPSHOTS_SEGMENT
HISTORY_SEGMENT = 10_000_000
HISTORY_BYTES = 50 * HISTORY_SEGMENT  # some millions of attempts
ROLL_CALL_SEGMENT = 1_000_000
ROLL_CALL_BYTES = 10 * ROLL_CALL_SEGMENT

ExchangeType = Literal["topic", "fanout", "direct"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Describe an exchange.

    Attributes:
        passive: another application declares it; it must exist already.
    """

    name: str
    type: ExchangeType | Literal["headers"]
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    passive: bool = False


@dataclass(frozen=True, slots=True)
class Queue:
    """Describe a queue or a stream: its arguments say which."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Binding:
    """Bind an exchange to a queue, or to another exchange."""

    source: str
    destination: str
    routing_key: str
    to: Literal["queue", "exchange"] = "queue"
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


@dataclass(frozen=True, slots=True)
class Topology:
    """Hold exchanges, queues and bindings."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()

    def only(self, queues: Collection[str]) -> "Topology":
        """Return the part that these queues need: them, their bindings, and all exchanges."""
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
        """Return a queue that stores the messages of this one while it is recreated."""
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
    """Subscribe a task to the messages of an exchange.

    Attributes:
        routing_key: a binding key of that exchange, with its wildcards.
        declare: the type to declare the exchange with; None: another application declares it.
    """

    task: str
    exchange: str
    routing_key: str
    declare: ExchangeType | None = None


class Named:
    """Name one object of each namespace; the docstring describes the object."""

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
    """Name the objects of a namespace in the broker."""

    namespace: str

    @cached_property
    def prefix(self) -> str:
        return f"{self.namespace}.v1"

    scheduler = Named("scheduler", "The exchange of tokens, to their timers and to the journal.")
    processor = Named("processor", "The exchange of due tokens, to the queues of their tasks.")
    calls = Named("calls", "The exchange of calls that are sent now.")
    later = Named("later", "The exchange of delayed calls, which leads to their timers.")
    delayed = Named("delayed", "The exchange of calls whose delay has ended.")
    later_sent = Named("later.sent", "The exchange of calls that `later` accepts.")
    later_refused = Named("later.refused", "The exchange of messages that `later` rejects.")
    unrouted = Named("unrouted", "The exchange, and the timer, of tokens with no queue.")
    rerouted = Named("rerouted", "The exchange that routes those again.")
    later_unrouted = Named("later.unrouted", "The exchange, and the timer, of calls with no queue.")
    later_rerouted = Named("later.rerouted", "The exchange that routes those again.")
    failed = Named("failed", "The exchange of parked messages, and the queue of unmatched ones.")
    trash = Named("trash", "The queue of deleted parked messages, which keeps each for a day.")
    unmatched = Named("unmatched", "The exchange of parked messages without a known task.")
    journal = Named("journal", "The stream of everything that was settled, done or parked.")
    control = Named("control", "The exchange of messages between processors.")
    roster = Named("roster", "The stream of the loops' epochs.")
    snapshots = Named("snapshots", "The stream of snapshots of the roster.")
    roll_call = Named("rollcall", "The stream by which processors ask for tokens and runs.")
    history = Named("history", "The stream of the outcomes of calls.")
    presence = Named("presence", "An empty queue that each processor consumes from, to be counted.")
    imprint = Named("imprint", "The queue of one message, which records the last seed.")

    def probe(self, id: str) -> str:
        """Return the timer queue of a probe, which tests if the broker dead-letters on time."""
        return f"{self.prefix}.probe.{id}"

    def probed(self, id: str) -> str:
        """Return the queue that a probe's timer queue leads to."""
        return f"{self.probe(id)}.back"

    def hatchery_exchange(self, unit: int) -> str:
        """Return the exchange that routes tokens from a unit on; after the last one, their end."""
        if unit == 0:
            return self.scheduler
        return f"{self.prefix}.hatchery.{UNITS[unit].name}" if unit < len(UNITS) else self.processor

    def timer(self, timer: Timer) -> str:
        """Return a timer queue of tokens."""
        return f"{self.prefix}.hatchery.{timer.name}"

    def later_exchange(self, unit: int) -> str:
        """Return the exchange that routes calls from a unit on; after the last one, their end."""
        return f"{self.later}.{UNITS[unit].name}" if unit < len(UNITS) else self.delayed

    def later_timer(self, timer: Timer) -> str:
        """Return a timer queue of calls."""
        return f"{self.later}.{timer.name}"

    @cached_property
    def token_exchanges(self) -> frozenset[str]:
        """Return the exchanges that bring tokens: senders cannot write to any path that leads
        there.

        A delivery names the one to which it was published or dead-lettered last.
        """
        by_unit = map(self.hatchery_exchange, range(len(UNITS) + 1))
        return frozenset((*by_unit, self.rerouted))

    @cached_property
    def _retry_exchanges(self) -> frozenset[str]:
        by_unit = map(self.later_exchange, range(len(UNITS) + 1))
        return frozenset((*by_unit, self.later_rerouted))

    def bring_retries(self, exchange: str, routing_key: str) -> bool:
        """Return whether a processor, not another sender, sent a message that is not a token.

        Args:
            exchange: the one to which it was published or dead-lettered last.
        """
        return exchange in self._retry_exchanges and routing_key.startswith(RETRY_KEY)

    def head(self, task: str) -> str:
        """Return the queue of the progress of an ordered task's first message."""
        return f"{self.prefix}.head.{task}"

    def processor_queue(self, task: str) -> str:
        """Return the queue from which processors take due messages; of several, the first."""
        return f"{self.processor}.{task}"

    def processor_queues(self, task: str, shards: int) -> list[str]:
        """Return the queues of due messages of a task: one for each of its shards."""
        first = self.processor_queue(task)
        return [first, *(f"{first}.{shard}" for shard in range(1, shards))]

    def failed_queue(self, task: str) -> str:
        """Return the queue of parked messages of a task."""
        return f"{self.failed}.{task}"

    def moving(self, queue: str) -> str:
        """Return the queue that replaces another queue while that is recreated."""
        return f"{queue}.moving"


def is_of_task(queue: str) -> bool:
    """Return whether this is the name of a task's processor queue, of any namespace."""
    return queue.partition(".")[2].startswith("v1.processor.")


def bindings_of_loops(names: Names, task: str, shards: int) -> list[Binding]:
    """Bind the processor queues of a task to its slices, so that each slice has one queue.

    Those of the exchange that gets no tokens, but in an emergency, come first.
    """
    queues, of_task = names.processor_queues(task, shards), f"{LOOP_KEY}{task}."
    any_wait = ".".join("*" * len(UNITS))
    slices = {f"{of_task}{any_wait}.{each}.#": queues[each % shards] for each in range(SLICES)}
    keys = slices if shards > 1 else {f"{of_task}#": queues[0]}
    return [
        Binding(source, queue, key)
        for source in (names.rerouted, names.processor)
        for key, queue in keys.items()
    ]


def is_rerouted(exchange: str) -> bool:
    """Return whether this exchange brings messages that had no queue at the end of their way."""
    return exchange.partition(".")[2] == "v1.rerouted"


def topology(
    namespace: str,
    tasks: Iterable[str],
    *,
    subscriptions: Iterable[Subscription] = (),
    alone: Collection[str] = (),
    ordered: Collection[str] = (),
    called: Collection[str] = (),
    shards: Mapping[str, int] = MappingProxyType({}),
    queue_type: QueueType = "quorum",
    journal_max_age: timedelta = timedelta(days=7),
    journal_max_bytes: int = 1_000_000_000,
) -> Topology:
    """Return everything that these tasks and loops need in the broker.

    Args:
        subscriptions: to the exchanges of other applications.
        alone: the tasks whose messages all go to one processor at a time.
        ordered: the tasks whose messages are run one at a time, in order.
        called: the tasks that get one-off messages; any of them needs the timers of calls. The
            timers of tokens always exist.
        shards: the number of processor queues of a task; by default, one.
        queue_type: quorum queues are replicated and dead-letter at least once, classic ones not.
            The timers of calls and the failed queues are always quorum queues: supervision replaces
            a lost token, but a lost message would go unnoticed.
    """
    names, max_age = Names(namespace), f"{int(journal_max_age.total_seconds())}s"
    build = _Builder(names, queue_type, max_age, journal_max_bytes, alone, ordered, called, shards)
    parts = [
        _timers_of_tokens(names, queue_type),
        *([_timers_of_calls(names, max_age)] if called else []),
        *map(build.of_task, tasks),
        *map(build.of_subscription, subscriptions),
    ]
    return sum(parts, start=build.of_namespace())


def probe(namespace: str, id: str) -> Topology:
    """Return the queues of one probe: it tests if the broker dead-letters on time.

    They expire when unused.
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
        # By an exchange without an alternate: what is lost on its way is parked nowhere.
        bindings=tuple(Binding(names.control, each, each) for each in (probe, probed)),
    )


def definitions(wanted: Topology, vhost: str = "/") -> dict[str, Any]:
    """Return the topology as a RabbitMQ definitions file (https://www.rabbitmq.com/docs/definitions)."""
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
    """Build the parts of a topology."""

    names: Names
    queue_type: QueueType
    max_age: str
    max_bytes: int
    alone: Collection[str]
    ordered: Collection[str]
    called: Collection[str]
    shards: Mapping[str, int]

    def of_namespace(self) -> Topology:
        names = self.names
        streams = names.roster, names.snapshots, names.roll_call, names.imprint
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
                Queue(names.trash, {**SAFE, "x-message-ttl": milliseconds(TRASHED_FOR)}),
                _timer_queue(names.unrouted, UNROUTED_FOR, names.rerouted),
                _timer_queue(names.later_unrouted, UNROUTED_CALL_FOR, names.later_rerouted),
                _stream(names.journal, self.max_bytes, JOURNAL_SEGMENT, self.max_age),
                _stream(names.roster, ROSTER_BYTES, ROSTER_SEGMENT),
                _stream(names.snapshots, SNAPSHOTS_BYTES, SNAPSHOTS_SEGMENT),
                _stream(names.roll_call, ROLL_CALL_BYTES, ROLL_CALL_SEGMENT),
                self._queue(names.presence, {}),
                Queue(names.imprint, {**SAFE, **LAST_ALONE}),
            ),
            bindings=(
                Binding(names.unmatched, names.failed, ""),
                Binding(names.failed, names.trash, TRASH_KEY),
                Binding(names.unrouted, names.unrouted, ""),
                Binding(names.later_unrouted, names.later_unrouted, ""),
                Binding(names.later, names.later_refused, f"{RETRY_KEY}#", "exchange"),
                Binding(names.scheduler, names.journal, "#"),
                *(Binding(names.control, queue, queue) for queue in streams),
            ),
        )

    def of_task(self, task: str) -> Topology:
        names, key = self.names, task_key(task)
        processor, failed = names.processor_queue(task), names.failed_queue(task)
        shards = self.shards.get(task, 1)
        is_ordered, is_called = task in self.ordered, task in self.called
        # A processor that may not run an ordered message yet leaves it at the head of its queue.
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
            *bindings_of_loops(names, task, shards),
            *(Binding(names.delayed, processor, each) for each in of_calls),
            *(Binding(names.later_rerouted, processor, each) for each in of_calls),
            *(Binding(names.failed, failed, each) for each in (of_loops, key)),
        ]
        of_shards = [self._queue(each, arguments) for each in names.processor_queues(task, shards)]
        queues = [*of_shards, Queue(failed, dict(SAFE))]
        if is_called:
            bindings.append(Binding(names.calls, processor, key))
            bindings.append(Binding(names.later_sent, names.later_exchange(0), key, "exchange"))
        if is_ordered:
            head = names.head(task)
            queues.append(self._queue(head, {**_peekable(self.queue_type), **LAST_ALONE}))
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

    def _queue(self, name: str, arguments: dict[str, Any]) -> Queue:
        return Queue(name, {"x-queue-type": self.queue_type} | arguments)

    def _if_quorum(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(arguments) if self.queue_type == "quorum" else {}


def _peekable(queue_type: QueueType) -> dict[str, Any]:
    limit = {"x-delivery-limit": UNREACHABLE_DELIVERY_LIMIT}
    return limit if queue_type == "quorum" else {}


@lru_cache(maxsize=8)  # supervision asks in each round
def _timers_of_tokens(names: Names, queue_type: QueueType) -> Topology:
    """Build the timers of tokens, at most once: a queue that rejects them stops no timer."""
    before, otherwise = f"{LOOP_KEY}*.", {"alternate-exchange": names.unrouted}
    queues, bindings = list[Queue](), list[Binding]()
    for timer in timers():
        then = names.hatchery_exchange(timer.unit + 1)
        arguments = {
            "x-queue-type": queue_type,
            "x-dead-letter-exchange": then,
            "x-message-ttl": milliseconds(timer.wait),
            **_peekable(queue_type),
        }
        queues.append(Queue(names.timer(timer), arguments))
    for unit in range(len(UNITS)):
        source, end = names.hatchery_exchange(unit), f"{before}{end_pattern(unit)}.#"
        for timer in timers(unit):
            pattern = f"{before}{timer_pattern(unit, timer)}.#"
            bindings.append(Binding(source, names.timer(timer), pattern))
        bindings.append(Binding(source, names.processor, end, "exchange"))
    # The first exchange is the entrance, which the namespace has.
    exchanges = map(names.hatchery_exchange, range(1, len(UNITS)))
    return Topology(
        tuple(Exchange(each, "topic", dict(otherwise)) for each in exchanges),
        tuple(queues),
        tuple(bindings),
    )


@lru_cache(maxsize=8)
def _timers_of_calls(names: Names, max_age: str) -> Topology:
    """Build the timers of calls, at least once, and their history."""
    otherwise = {"alternate-exchange": names.delayed}
    queues = [_stream(names.history, HISTORY_BYTES, HISTORY_SEGMENT, max_age)]
    bindings = [Binding(names.control, names.history, names.history)]
    for timer in timers():
        then = names.later_exchange(timer.unit + 1)
        queues.append(_timer_queue(names.later_timer(timer), timer.wait, then))
    for unit in range(len(UNITS)):
        for timer in timers(unit):
            matched = {"x-match": "all", header_at(unit): timer.name}
            source, queue = names.later_exchange(unit), names.later_timer(timer)
            bindings.append(Binding(source, queue, "", arguments=matched))
    exchanges = map(names.later_exchange, range(len(UNITS)))
    return Topology(
        tuple(Exchange(each, "headers", dict(otherwise)) for each in exchanges),
        tuple(queues),
        tuple(bindings),
    )


def _stream(name: str, max_bytes: int, segment: int, max_age: str | None = None) -> Queue:
    limits = {"x-max-length-bytes": max_bytes, "x-stream-max-segment-size-bytes": segment}
    aged = {} if max_age is None else {"x-max-age": max_age}
    return Queue(name, {"x-queue-type": "stream", **limits, **aged})


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
