"""RabbitMQ's rules in process: for development, for examples, for tests.

A `MemoryServer` is the broker, each `MemoryBroker` a connection to it. All timers are those of the
running event loop: where the loop's time is virtual, a year passes in milliseconds.

What takes RabbitMQ some milliseconds happens at once here: dead-lettering, the freeing of a slot,
a reconnect. Not here at all: priorities, limits in bytes (but for streams), transient queues, users
and rights.
"""

import asyncio
import math
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal, Self, TypeAlias

from scheduler.brokers.contract import (
    DEFAULT_QUIET,
    DEFAULT_TIMEOUT,
    BrokerInfo,
    Consumer,
    Delivery,
    Depth,
    missing_exchange,
)
from scheduler.brokers.memory.streams import Follower, Stream
from scheduler.errors import (
    BrokerUnavailable,
    DeliveryLost,
    IncompatibleBroker,
    Locked,
    QueueNotFound,
    Rejected,
    Unroutable,
)
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Exchange, Queue, Topology
from scheduler.timing.clock import Clock, SystemClock

DeathCause = Literal["expired", "maxlen", "delivery_limit"]

_BUILT_IN = tuple(Exchange(f"amq.{type}", type) for type in ("topic", "fanout", "direct"))
_CACHED_ROUTES = 100_000
_STRANDED_RETRY_S = 180.0  # as long as RabbitMQ waits for the confirmation of a dead letter


@dataclass(frozen=True, slots=True)
class _Death:
    queue: str
    reason: DeathCause
    exchange: str
    routing_key: str

    def table(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "reason": self.reason,
            "exchange": self.exchange,
            "routing-keys": [self.routing_key],
            "count": 1,  # never more: who dies twice in a queue has gone in a circle
        }


@dataclass(slots=True, eq=False)
class _Letter:
    """A message on its way: to where, and in which queues it has died before."""

    message: Message
    exchange: str
    routing_key: str
    deaths: tuple[_Death, ...] = ()

    def died(
        self, queue: str, reason: DeathCause, exchange: str, routing_key: str | None
    ) -> "_Letter":
        deaths = (_Death(queue, reason, self.exchange, self.routing_key), *self.deaths)
        headers = {**self.message.headers, "x-death": [death.table() for death in deaths]}
        if not self.deaths:
            headers["x-first-death-queue"] = queue
            headers["x-first-death-reason"] = reason
            headers["x-first-death-exchange"] = self.exchange
        message = replace(self.message, headers=headers, expiration=None)
        key = self.routing_key if routing_key is None else routing_key
        return _Letter(message, exchange, key, deaths)

    def has_died_in(self, queue: str) -> bool:
        return any(death.queue == queue for death in self.deaths)


@dataclass(slots=True, eq=False)
class _Entry:
    """A letter in a queue."""

    letter: _Letter
    position: int
    expires: float
    returns: int = 0


class _Queue:
    """The messages of one queue, in order, with one timer for the one at the head."""

    def __init__(self, spec: Queue, router: "_Router") -> None:
        self.spec = spec
        self.consumers: deque[_Consumer] = deque()
        self.getters = 0
        self.deleted = False
        self._router = router
        self._ready: list[tuple[int, _Entry]] = []
        self._stranded: list[tuple[_Letter, frozenset[_Place]]] = []
        self._positions = count()
        # What comes back to a quorum queue goes before the rest, in the order in which it came.
        self._returned_positions = count(-sys.maxsize)
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._retry: asyncio.TimerHandle | None = None
        self._read(spec.arguments)

    def _read(self, arguments: Mapping[str, Any]) -> None:
        quorum = self._quorum = arguments.get("x-queue-type") == "quorum"
        limit = arguments.get("x-delivery-limit", -1) if quorum else -1
        self._delivery_limit: float = math.inf if limit < 0 else limit
        self._ttl = arguments.get("x-message-ttl", math.inf) / 1000
        self._limit: float = arguments.get("x-max-length", math.inf)
        self._rejects = arguments.get("x-overflow") == "reject-publish"
        # A quorum queue tells publishers to stop when it is over its limit, not when it reaches it.
        self._room = self._limit + quorum
        self._single_active = bool(arguments.get("x-single-active-consumer"))
        self._dead_letter_exchange: str | None = arguments.get("x-dead-letter-exchange")
        self._dead_letter_key: str | None = arguments.get("x-dead-letter-routing-key")
        strategy = arguments.get("x-dead-letter-strategy")
        self._keeps_stranded = quorum and self._rejects and strategy == "at-least-once"

    @property
    def name(self) -> str:
        return self.spec.name

    def depth(self) -> Depth:
        # A quorum queue sees a consumer in whoever holds a message that it was asked for.
        getters = self.getters if self._quorum else 0
        return Depth(len(self._ready), len(self.consumers) + getters)

    def offer(self, letter: _Letter) -> bool:
        """Put a letter at the end of the queue; False when the queue is full and rejects it."""
        now = asyncio.get_running_loop().time()
        self._expire(now)
        if self._rejects and len(self._ready) + len(self._stranded) >= self._room:
            self._set_timer()
            return False
        position = next(self._positions)
        expires = now + self._time_to_live(letter.message)
        heappush(self._ready, (position, _Entry(letter, position, expires)))
        self._deliver()  # before it can expire: with a TTL of 0 it still reaches a free consumer
        self._after_change(now)
        return True

    def take(self) -> _Entry | None:
        """Take the message at the head, if there is one."""
        now = asyncio.get_running_loop().time()
        self._expire(now)
        entry = heappop(self._ready)[1] if self._ready else None
        self._after_change(now)
        return entry

    def take_back(self, entry: _Entry) -> None:
        """Put a message back at its place, with its old expiry."""
        if self.deleted:
            return
        entry.returns += 1
        if entry.returns > self._delivery_limit:
            self._bury(entry, "delivery_limit")
        else:
            position = next(self._returned_positions) if self._quorum else entry.position
            heappush(self._ready, (position, entry))
        self.advance()

    def advance(self) -> None:
        """Expire what is due at the head, and hand out what the consumers have credit for."""
        self._after_change(asyncio.get_running_loop().time())

    def retry_stranded(self) -> None:
        """Try again to dead-letter what found no queue that takes it."""
        for letter, delivered in self._forget_stranded():
            self._post(letter, delivered)

    def purge(self) -> int:
        purged = len(self._ready)
        self._ready.clear()
        self._set_timer()
        return purged

    def close(self) -> None:
        self.deleted = True
        self._forget_stranded()
        self.consumers.clear()
        self.purge()

    def _time_to_live(self, message: Message) -> float:
        if message.expiration is None:
            return self._ttl
        return min(self._ttl, message.expiration.total_seconds())

    def _after_change(self, now: float) -> None:
        self._expire(now)
        self._deliver()
        while not self._rejects and len(self._ready) > self._limit:
            self._bury(heappop(self._ready)[1], "maxlen")
        self._set_timer()

    def _expire(self, now: float) -> None:
        while self._ready and self._ready[0][1].expires <= now:
            self._bury(heappop(self._ready)[1], "expired")

    def _deliver(self) -> None:
        while self._ready and self.consumers and (consumer := self._next_consumer()):
            consumer.receive(self, heappop(self._ready)[1])

    def _next_consumer(self) -> "_Consumer | None":
        if self._single_active:
            return self.consumers[0] if self.consumers[0].has_credit else None
        for _ in range(len(self.consumers)):
            consumer = self.consumers[0]
            self.consumers.rotate(-1)
            if consumer.has_credit:
                return consumer
        return None

    def _set_timer(self) -> None:
        due = self._ready[0][1].expires if self._ready else math.inf
        if due == self._due:
            return
        if self._timer:
            self._timer.cancel()
        self._due = due
        loop = asyncio.get_running_loop()
        self._timer = None if due == math.inf else loop.call_at(due, self._on_due)

    def _on_due(self) -> None:
        # Not the loop's time: a loop may call a timer a clock tick early.
        now, self._due, self._timer = self._due, math.inf, None
        self._after_change(now)

    def _bury(self, entry: _Entry, reason: DeathCause) -> None:
        if self._dead_letter_exchange is not None:
            exchange, key = self._dead_letter_exchange, self._dead_letter_key
            self._post(entry.letter.died(self.name, reason, exchange, key))

    def _post(self, letter: _Letter, delivered: "frozenset[_Place]" = frozenset()) -> None:
        queues = self._router.route(letter.exchange, letter.routing_key)
        # Nobody would ever take a message out of a circle of queues: RabbitMQ drops it.
        wanted = [q for q in queues if q not in delivered and not letter.has_died_in(q.name)]
        refused = [queue for queue in wanted if not queue.offer(letter)]
        if self._keeps_stranded and (refused or not queues):
            self._strand(letter, delivered.union(wanted).difference(refused))

    def _strand(self, letter: _Letter, delivered: "frozenset[_Place]") -> None:
        self._stranded.append((letter, delivered))
        self._router.stuck[self] = None
        if not self._retry:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(_STRANDED_RETRY_S, self.retry_stranded)

    def _forget_stranded(self) -> "list[tuple[_Letter, frozenset[_Place]]]":
        stranded, self._stranded = self._stranded, []
        self._router.stuck.pop(self, None)
        if self._retry:
            self._retry.cancel()
            self._retry = None
        return stranded


class _Exchange:
    """The bindings of one exchange: those with wildcards apart from those without."""

    def __init__(self, spec: Exchange) -> None:
        self.spec = spec
        self._exact: dict[str, dict[Binding, None]] = {}
        self._patterns: dict[Binding, Sequence[str]] = {}

    def bind(self, binding: Binding) -> None:
        pattern = self._pattern(binding)
        if pattern is None:
            self._exact.setdefault(binding.routing_key, {})[binding] = None
        else:
            self._patterns[binding] = pattern

    def unbind(self, binding: Binding) -> None:
        self._patterns.pop(binding, None)
        self._exact.get(binding.routing_key, {}).pop(binding, None)

    def matching(self, routing_key: str) -> list[Binding]:
        words = routing_key.split(".") if routing_key else []
        wild = [b for b, pattern in self._patterns.items() if _matches(pattern, words)]
        return [*self._exact.get(routing_key, ()), *wild]

    def _pattern(self, binding: Binding) -> Sequence[str] | None:
        words = binding.routing_key.split(".")
        match self.spec.type:
            case "fanout":
                return ["#"]
            case "topic" if "*" in words or "#" in words:
                return words
            case _:
                return None


def _matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return not rest or any(_matches(rest, words[n:]) for n in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and _matches(rest, words[1:])


_Place: TypeAlias = _Queue | Stream
"""Where a message may go: to an exchange they are the same."""


class _Router:
    """All exchanges, queues and bindings: which queues does a message go to?"""

    def __init__(self, clock: Clock) -> None:
        self.queues: dict[str, _Queue] = {}
        self.streams: dict[str, Stream] = {}
        self.stuck: dict[_Queue, None] = {}
        self.route = lru_cache(_CACHED_ROUTES)(self._route)
        self._exchanges = {spec.name: _Exchange(spec) for spec in _BUILT_IN}
        self._bindings: dict[str, dict[Binding, None]] = {}
        self._clock = clock

    def place(self, name: str) -> _Place | None:
        return self.queues.get(name) or self.streams.get(name)

    def declare(self, topology: Topology) -> None:
        self._refuse_other_arguments(topology)
        self._refuse_loose_ends(topology)
        for exchange in topology.exchanges:
            if not exchange.passive:
                self._exchanges.setdefault(exchange.name, _Exchange(exchange))
        for queue in topology.queues:
            if self.place(queue.name):
                continue
            if queue.arguments.get("x-queue-type") == "stream":
                self.streams[queue.name] = Stream(queue, self._clock)
            else:
                self.queues[queue.name] = _Queue(queue, self)
        for binding in topology.bindings:
            self._exchanges[binding.source].bind(binding)
            if binding.to == "queue":
                self._bindings.setdefault(binding.destination, {})[binding] = None
        self._changed()

    def delete(self, name: str) -> None:
        if place := self.place(name):
            place.close()
            self.queues.pop(name, None)
            self.streams.pop(name, None)
            for binding in self._bindings.pop(name, ()):
                self._exchanges[binding.source].unbind(binding)
            self._changed()

    def _changed(self) -> None:
        self.route.cache_clear()
        for queue in tuple(self.stuck):
            queue.retry_stranded()

    def _route(self, exchange: str, routing_key: str) -> tuple[_Place, ...]:
        if not exchange:
            return (place,) if (place := self.place(routing_key)) else ()
        found: dict[_Place, None] = {}
        ahead, seen = [exchange], set[str]()
        while ahead:
            name = ahead.pop()
            if name in seen or name not in self._exchanges:
                continue
            seen.add(name)
            bindings = self._exchanges[name].matching(routing_key)
            alternate = self._exchanges[name].spec.arguments.get("alternate-exchange")
            if not bindings and alternate:
                ahead.append(alternate)
            ahead += [b.destination for b in bindings if b.to == "exchange"]
            places = [self.place(b.destination) for b in bindings if b.to == "queue"]
            found |= {place: None for place in places if place}
        return tuple(found)

    def _refuse_other_arguments(self, topology: Topology) -> None:
        for queue in topology.queues:
            if known := self.place(queue.name):
                _refuse_change("queue", queue.name, _terms(known.spec), _terms(queue))
        for exchange in topology.exchanges:
            known = self._exchanges.get(exchange.name)
            if known is None and exchange.passive:
                raise missing_exchange(exchange.name)
            if known is not None and not exchange.passive:
                _refuse_change("exchange", exchange.name, _terms(known.spec), _terms(exchange))

    def _refuse_loose_ends(self, topology: Topology) -> None:
        known = {"exchange": self._exchanges, "queue": {**self.queues, **self.streams}}
        new = {
            "exchange": {exchange.name for exchange in topology.exchanges},
            "queue": {queue.name for queue in topology.queues},
        }
        for binding in topology.bindings:
            for kind, name in ("exchange", binding.source), (binding.to, binding.destination):
                if name not in known[kind] and name not in new[kind]:
                    raise QueueNotFound(f"There is no {kind} {name!r} for {binding}. Declare it.")


def _terms(spec: Queue | Exchange) -> dict[str, Any]:
    if isinstance(spec, Exchange):
        return {"type": spec.type, **spec.arguments}
    return {"x-queue-type": "classic", **spec.arguments}


def _refuse_change(kind: str, name: str, known: dict[str, Any], wanted: dict[str, Any]) -> None:
    if known != wanted:
        raise IncompatibleBroker(
            f"The {kind} {name!r} exists with other arguments: it has {known}, this program wants "
            f"{wanted}. Nothing was changed. Delete the {kind} when nothing needs it any more, or "
            "use another namespace."
        )


@dataclass(slots=True, eq=False)
class _Hold:
    """A message in the hands of a connection, until it is acked or back in its queue."""

    connection: "_Connection"
    queue: _Queue
    entry: _Entry
    consumer: "_Consumer | None"
    lost: asyncio.Future[None]

    def delivery(self) -> Delivery:
        letter, queue = self.entry.letter, self.queue.name
        redelivered = self.entry.returns > 0
        exchange, key = letter.exchange, letter.routing_key
        ack, requeue = self._ack, self._requeue
        return Delivery(letter.message, queue, exchange, key, redelivered, self.lost, ack, requeue)

    async def _ack(self) -> None:
        self._let_go()
        if self.consumer:
            self.queue.advance()

    async def _requeue(self) -> None:
        self._let_go()
        self.queue.take_back(self.entry)

    def _let_go(self) -> None:
        if self not in self.connection.holds:
            raise DeliveryLost
        del self.connection.holds[self]
        if self.consumer:
            self.consumer.unacked -= 1
        else:
            self.queue.getters -= 1

    def hand_over(self) -> None:
        """Call the consumer's handler, unless the message or the consumer has gone meanwhile."""
        if self not in self.connection.holds or not self.consumer:
            return
        if self.consumer.cancelled:
            self._let_go()
            self.queue.take_back(self.entry)
        else:
            self.consumer.handler(self.delivery())

    def lose(self) -> None:
        self._let_go()
        if not self.lost.done():
            self.lost.set_result(None)
        self.queue.take_back(self.entry)


class _Consumer:
    """A standing order of one connection; attached while its queue exists."""

    def __init__(
        self,
        connection: "_Connection",
        queue: str,
        handler: Callable[[Delivery], None],
        prefetch: int,
    ) -> None:
        self.queue = queue
        self.handler = handler
        self.unacked = 0
        self.cancelled = False
        self._connection = connection
        self._prefetch = prefetch or math.inf
        # Whose message it is, the handler must not see: it is called as if it came over a wire.
        self._context = copy_context()

    @property
    def active(self) -> bool:
        queue = self._connection.router.queues.get(self.queue)
        return queue is not None and self in queue.consumers

    @property
    def has_credit(self) -> bool:
        return self.unacked < self._prefetch

    async def cancel(self) -> None:
        self.cancelled = True
        self._connection.consumers.pop(self, None)
        self.detach()
        self.wake_queue()

    def attach(self) -> None:
        queue = self._connection.router.queues.get(self.queue)
        if queue and self not in queue.consumers:
            queue.consumers.append(self)
            queue.advance()

    def detach(self) -> None:
        queue = self._connection.router.queues.get(self.queue)
        if queue and self in queue.consumers:
            queue.consumers.remove(self)

    def wake_queue(self) -> None:
        """Let the next consumer go on, where only one may be active."""
        if queue := self._connection.router.queues.get(self.queue):
            queue.advance()

    def receive(self, queue: _Queue, entry: _Entry) -> None:
        self.unacked += 1
        hold = self._connection.hold(queue, entry, self)
        asyncio.get_running_loop().call_soon(hold.hand_over, context=self._context)


class _Connection:
    """What the server knows of a connection, and forgets when it dies."""

    def __init__(self, router: _Router) -> None:
        self.router = router
        self.consumers: dict[_Consumer, None] = {}
        self.followers: dict[Follower, None] = {}
        self.holds: dict[_Hold, None] = {}

    def stream(self, name: str) -> Stream | None:
        return self.router.streams.get(name)

    def hold(self, queue: _Queue, entry: _Entry, consumer: _Consumer | None = None) -> _Hold:
        lost = asyncio.get_running_loop().create_future()
        hold = _Hold(self, queue, entry, consumer, lost)
        self.holds[hold] = None
        return hold

    def attach(self) -> None:
        for consumer in (*self.consumers, *self.followers):
            consumer.attach()

    def detach(self) -> None:
        for consumer in (*self.consumers, *self.followers):
            consumer.detach()

    def lose(self) -> None:
        for hold in tuple(self.holds):
            hold.lose()

    def wake_queues(self) -> None:
        for consumer in self.consumers:
            consumer.wake_queue()


class _Locks:
    """Who holds which lock."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._holders: dict[str, tuple[_Connection, object]] = {}

    async def acquire(self, name: str, connection: _Connection, timeout: timedelta) -> object:
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await lock.acquire()
        except TimeoutError:
            raise Locked(f"Somebody else held the lock {name!r} for {timeout}.") from None
        claim = object()
        self._holders[name] = connection, claim
        return claim

    def release(self, name: str, claim: object) -> None:
        """Free the lock, unless the broker has freed it before."""
        if name in self._holders and self._holders[name][1] is claim:
            del self._holders[name]
            self._locks[name].release()

    def release_all(self, connection: _Connection) -> None:
        for name, (holder, claim) in tuple(self._holders.items()):
            if holder is connection:
                self.release(name, claim)


class MemoryServer:
    """A broker in this process. Connections that are given the same one see the same queues.

    Args:
        clock: tells when an entry of a stream came.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.router = _Router(clock or SystemClock())
        self.locks = _Locks()
        self.connections: list[_Connection] = []

    def disconnect_all(self) -> None:
        """Break every connection. They come back at once; their deliveries and locks do not."""
        for connection in self.connections:
            connection.detach()  # all of them first: nobody may take what another one loses
        for connection in self.connections:
            connection.lose()
            self.locks.release_all(connection)
        for connection in self.connections:
            connection.attach()

    def restart(self) -> None:
        """Stop the broker and start it again: all but connections and locks is durable."""
        self.disconnect_all()

    def connect(self) -> _Connection:
        connection = _Connection(self.router)
        self.connections.append(connection)
        return connection

    def close(self, connection: _Connection) -> None:
        self.connections.remove(connection)
        connection.detach()
        connection.lose()
        connection.wake_queues()
        connection.followers.clear()
        self.locks.release_all(connection)

    def declare(self, topology: Topology) -> None:
        self.router.declare(topology)
        for connection in self.connections:
            connection.attach()

    def publish(self, message: Message, exchange: str, routing_key: str) -> None:
        queues = self.router.route(exchange, routing_key)
        if not queues:
            raise Unroutable(f"No queue is bound for {routing_key!r} of exchange {exchange!r}.")
        letter = _Letter(message, exchange, routing_key)
        full = [queue.name for queue in queues if not queue.offer(letter)]
        if full:
            raise Rejected(f"The queue {full[0]!r} is full: its slot is taken.")

    def queue(self, name: str) -> _Queue:
        if name in self.router.streams:
            raise IncompatibleBroker(f"{name!r} is a stream: it is read or followed, not consumed.")
        if name not in self.router.queues:
            raise QueueNotFound(f"There is no queue {name!r}.")
        return self.router.queues[name]

    def stream(self, name: str) -> Stream:
        if name in self.router.queues:
            raise IncompatibleBroker(
                f"{name!r} is no stream: it is consumed, not read or followed."
            )
        if name not in self.router.streams:
            raise QueueNotFound(f"There is no stream {name!r}.")
        return self.router.streams[name]


class MemoryBroker:
    """A connection to a `MemoryServer`; without one, to a server of its own."""

    def __init__(self, server: MemoryServer | None = None) -> None:
        self._server = server or MemoryServer()
        self._connection: _Connection | None = None

    @property
    def address(self) -> str:
        return "memory://"

    @property
    def info(self) -> BrokerInfo:
        return BrokerInfo("memory", "1")

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def __aenter__(self) -> Self:
        self._connection = self._server.connect()
        return self

    async def __aexit__(self, *exception: object) -> None:
        connection, self._connection = self._connection, None
        if connection:
            self._server.close(connection)

    async def declare(self, topology: Topology) -> None:
        self._open()
        self._server.declare(topology)

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._open()
        self._server.publish(message, exchange, routing_key)
        await asyncio.sleep(0)  # whoever publishes without end must not keep others from running

    async def get(self, queue: str) -> Delivery | None:
        connection, source = self._open(), self._server.queue(queue)
        entry = source.take()
        if not entry:
            return None
        source.getters += 1
        return connection.hold(source, entry).delivery()

    async def wake(self, queue: str) -> None:
        """Nothing to do: this broker's queues do not fall asleep."""

    async def consume(
        self, queue: str, handler: Callable[[Delivery], None], *, prefetch: int
    ) -> Consumer:
        connection = self._open()
        self._server.queue(queue)
        consumer = _Consumer(connection, queue, handler, prefetch)
        connection.consumers[consumer] = None
        consumer.attach()
        return consumer

    async def follow(
        self,
        stream: str,
        handler: Callable[[Message], None],
        *,
        since: Literal["first", "next"] = "next",
    ) -> Consumer:
        connection = self._open()
        follower = Follower(connection, self._server.stream(stream), handler, since)
        connection.followers[follower] = None
        follower.attach()
        return follower

    async def read(
        self,
        stream: str,
        *,
        since: datetime | None = None,
        quiet: timedelta = DEFAULT_QUIET,
    ) -> AsyncGenerator[Message]:
        self._open()
        source = self._server.stream(stream)
        end = source.end
        for offset, message in source.read(source.offset_at(since)):
            if offset >= end:
                break
            yield message
            self._open()
            self._server.stream(stream)  # it may be gone, and the rest of it

    async def depth(self, queue: str) -> Depth | None:
        self._open()
        known = self._server.router.place(queue)
        return known.depth() if known else None

    async def purge(self, queue: str) -> int:
        self._open()
        return self._server.queue(queue).purge()

    async def delete(self, queue: str) -> None:
        self._open()
        self._server.router.delete(queue)

    @asynccontextmanager
    async def mutex(
        self, name: str, *, timeout: timedelta = DEFAULT_TIMEOUT
    ) -> AsyncGenerator[None]:
        connection, locks = self._open(), self._server.locks
        claim = await locks.acquire(name, connection, timeout)
        try:
            if connection is not self._connection:
                raise BrokerUnavailable
            yield
        finally:
            locks.release(name, claim)

    def _open(self) -> _Connection:
        if self._connection is None:
            raise BrokerUnavailable("The connection is not open: use `async with`.")
        return self._connection
