"""Hold the state of the in-process broker: exchanges, queues and streams, by RabbitMQ's rules.

RabbitMQ drops old entries of a stream by the segment, when one is full: more stays than requested.
Here each is dropped by itself, at the next write or read; its size is that of its body. The newest
one stays in either.
"""

import asyncio
import math
import re
import uuid
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from scheduler.brokers.contract import Depth, Since, is_mark, missing_exchange
from scheduler.errors import (
    IncompatibleBroker,
    OtherArguments,
    QueueNotFound,
    Rejected,
    Unroutable,
)
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Exchange, Queue, Topology
from scheduler.timing.moments import Clock, SystemClock

if TYPE_CHECKING:
    from scheduler.brokers.memory.broker import MemoryBroker, MemoryConsumer

DeathCause = Literal["expired", "maxlen", "delivery_limit"]
HIGHEST_OF_QUORUM, USUAL_OF_QUORUM = 31, 4  # priorities, as in RabbitMQ 4.3


@dataclass(slots=True, eq=False)
class Letter:
    """Track a message: its destination, and the queues that dead-lettered it.

    Attributes:
        copies: further keys that route it.
    """

    message: Message
    exchange: str
    routing_key: str
    copies: tuple[str, ...] = ()
    deaths: tuple[dict[str, Any], ...] = ()

    def died(
        self, queue: str, reason: DeathCause, exchange: str, routing_key: str | None
    ) -> "Letter":
        death = {
            "queue": queue,
            "reason": reason,
            "exchange": self.exchange,
            "routing-keys": list(self.keys),
            "count": 1,  # never more: a letter that dies twice in a queue travels in a circle
        }
        deaths = death, *self.deaths
        headers = {**self.message.headers, "x-death": list(deaths)}
        if not self.deaths:
            headers["x-first-death-queue"] = queue
            headers["x-first-death-reason"] = reason
            headers["x-first-death-exchange"] = self.exchange
        key, *copies = self.keys if routing_key is None else (routing_key,)
        message = replace(self.message, headers=headers, expiration=None)
        return Letter(message, exchange, key, tuple(copies), deaths)

    @property
    def keys(self) -> tuple[str, ...]:
        return self.routing_key, *self.copies

    def has_died_in(self, queue: str) -> bool:
        return any(death["queue"] == queue for death in self.deaths)


@dataclass(slots=True, eq=False)
class QueueEntry:
    letter: Letter
    position: int
    expires: float
    returns: int = 0


class MemoryQueue:
    """Hold the messages of one queue, in order, with one timer for the one at the head.

    Args:
        route: finds the destination of a dead letter.
    """

    def __init__(self, spec: Queue, route: "Callable[[Letter], Sequence[Place]]") -> None:
        self.spec, self.name, arguments = spec, spec.name, spec.arguments
        self.consumers: deque[MemoryConsumer] = deque()
        self.getters = 0
        self.deleted = False
        self._route = route
        # By priority, and of one priority by position: no two have the same.
        self._ready: list[tuple[int, int, QueueEntry]] = []
        self._positions, self._returned = count(), count()
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        quorum = self.counts_deliveries = arguments.get("x-queue-type") == "quorum"
        self._highest = HIGHEST_OF_QUORUM if quorum else arguments.get("x-max-priority", 0)
        self._usual = USUAL_OF_QUORUM if quorum else 0
        limit = arguments.get("x-delivery-limit", -1) if quorum else -1
        self._delivery_limit: float = math.inf if limit < 0 else limit
        self._ttl = arguments.get("x-message-ttl", math.inf) / 1000
        self._limit: float = arguments.get("x-max-length", math.inf)
        self._rejects = arguments.get("x-overflow") == "reject-publish"
        # A quorum queue stops publishers when it is over its limit, not when it reaches it.
        self._room = self._limit + quorum
        self._single_active = bool(arguments.get("x-single-active-consumer"))
        self._dead_letter_exchange: str | None = arguments.get("x-dead-letter-exchange")
        self._dead_letter_key: str | None = arguments.get("x-dead-letter-routing-key")

    def depth(self) -> Depth:
        # A quorum queue counts the holder of a message from `get` as a consumer.
        getters = self.getters if self.counts_deliveries else 0
        return Depth(len(self._ready), len(self.consumers) + getters)

    def letters(self) -> list[Letter]:
        return [entry.letter for *_, entry in sorted(self._ready)]

    def offer(self, letter: Letter) -> bool:
        """Accept a letter; False if the queue is full and rejects it."""
        now = asyncio.get_running_loop().time()
        self._expire(now)
        if self._rejects and len(self._ready) >= self._room:
            self._set_timer()
            return False
        wait = letter.message.expiration
        expires = now + (self._ttl if wait is None else min(self._ttl, wait.total_seconds()))
        self._put(QueueEntry(letter, next(self._positions), expires))
        self._deliver(now)  # before it can expire: with a TTL of 0 it still reaches a free consumer
        self._after_change(now)
        return True

    def take(self) -> QueueEntry | None:
        """Get the message at the head, if there is one."""
        now = asyncio.get_running_loop().time()
        self._expire(now)
        entry = self._pop() if self._ready else None
        self._after_change(now)
        return entry

    def take_back(self, entry: QueueEntry) -> None:
        """Requeue a message at its place, with its old expiry."""
        if self.deleted:
            return
        entry.returns += 1
        if entry.returns > self._delivery_limit:
            self._bury(entry, "delivery_limit")
        else:
            self._put(entry)
        self.advance()

    def advance(self) -> None:
        """Expire due messages at the head, and deliver up to the consumers' credit."""
        self._after_change(asyncio.get_running_loop().time())

    def close(self) -> None:
        self.deleted = True
        self.consumers.clear()
        self._ready.clear()
        self._set_timer()

    def _after_change(self, now: float) -> None:
        self._expire(now)
        self._deliver(now)
        while not self._rejects and len(self._ready) > self._limit:
            self._bury(self._pop(), "maxlen")
        self._set_timer()

    def _expire(self, now: float) -> None:
        while self._head_expires <= now:
            self._bury(self._pop(), "expired")

    @property
    def _head_expires(self) -> float:
        return self._ready[0][-1].expires if self._ready else math.inf

    def _put(self, entry: QueueEntry) -> None:
        if entry.returns and self.counts_deliveries:
            # Before the rest, whatever its priority, and behind those that were requeued earlier.
            rank, position = HIGHEST_OF_QUORUM + 1, next(self._returned)
        else:
            priority, position = entry.letter.message.priority, entry.position
            rank = min(self._usual if priority is None else priority, self._highest)
        heappush(self._ready, (-rank, position, entry))

    def _pop(self) -> QueueEntry:
        return heappop(self._ready)[-1]

    def _deliver(self, now: float) -> None:
        while self._ready and self.consumers and (consumer := self._next_consumer()):
            consumer.receive(self, self._pop())
            self._expire(now)  # what is at the head now

    def _next_consumer(self) -> "MemoryConsumer | None":
        if self._single_active:
            return self.consumers[0] if self.consumers[0].has_credit else None
        for _ in range(len(self.consumers)):
            consumer = self.consumers[0]
            self.consumers.rotate(-1)
            if consumer.has_credit:
                return consumer
        return None

    def _set_timer(self) -> None:
        due = self._head_expires
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

    def _bury(self, entry: QueueEntry, reason: DeathCause) -> None:
        exchange, key = self._dead_letter_exchange, self._dead_letter_key
        if exchange is None:
            return
        letter = entry.letter.died(self.name, reason, exchange, key)
        for place in self._route(letter):
            # No consumer could take a message out of a circle of queues: RabbitMQ drops it.
            if not letter.has_died_in(place.name):
                place.offer(letter)


_AGE = re.compile(r"([0-9]+)([YMDhms])")
_SECONDS = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3600, "m": 60, "s": 1}


class Stream:
    """Hold the entries of one stream, each under its offset.

    Attributes:
        followers: called on new entries.
        end: the offset of the next entry.
    """

    def __init__(self, spec: Queue, clock: Clock) -> None:
        self.spec, self.name = spec, spec.name
        self.followers: dict[Callable[[], None], None] = {}
        self.end = 0
        self._begin = 0
        self._entries: dict[int, tuple[Message, datetime]] = {}
        self._size = 0
        self._clock = clock
        self._max_age = _max_age(spec)
        self._max_size: int | None = spec.arguments.get("x-max-length-bytes")

    def depth(self) -> Depth:
        self._forget_old()
        return Depth(len(self._entries), consumers=0)

    def offer(self, letter: Letter) -> bool:
        """Append a letter, without tables and lists; True, because a stream is never full."""
        headers = letter.message.headers.items()
        kept = {name: value for name, value in headers if not isinstance(value, list | dict)}
        message = replace(letter.message, headers=kept, offset=self.end)
        self._entries[self.end] = message, self._clock.now()
        self._size += len(letter.message.body)
        self.end += 1
        self._forget_old()
        for advance in tuple(self.followers):
            advance()
        return True

    def read(self, offset: int) -> Iterator[tuple[int, Message]]:
        """Yield offsets and messages from an offset on, including new ones."""
        self._forget_old()
        while (offset := max(offset, self._begin)) < self.end:
            yield offset, self._entries[offset][0]
            offset += 1

    def last(self) -> Message | None:
        """Return the last entry that is not a mark."""
        offsets = reversed(range(self._begin, self.end))
        messages = (self._entries[offset][0] for offset in offsets)
        return next((message for message in messages if not is_mark(message)), None)

    def offset_at(self, since: Since) -> int:
        """Return the offset of the first entry from this moment or offset on."""
        match since:
            case datetime():
                entries, offsets = self._entries, range(self._begin, self.end)
                return self._begin + bisect_left(offsets, since, key=lambda each: entries[each][1])
            case int() if since <= self.end:
                return since
            case _:
                return self._begin

    def begin_of(self, since: Literal["first", "next"] | int) -> int:
        """Return the offset at which a follower begins."""
        if since == "next":
            return self.end
        return since if isinstance(since, int) and since < self.end else 0

    def close(self) -> None:
        self.followers.clear()

    def _forget_old(self) -> None:
        while self._begin < self.end - 1 and self._is_too_much(self._entries[self._begin][1]):
            self._size -= len(self._entries.pop(self._begin)[0].body)
            self._begin += 1

    def _is_too_much(self, oldest_at: datetime) -> bool:
        if self._max_size is not None and self._size > self._max_size:
            return True
        return self._max_age is not None and self._clock.now() - oldest_at > self._max_age


Place = MemoryQueue | Stream


def _max_age(spec: Queue) -> timedelta | None:
    age = spec.arguments.get("x-max-age")
    if age is None:
        return None
    if not (read := _AGE.fullmatch(age)):
        raise IncompatibleBroker(
            f"The x-max-age of the stream {spec.name!r} cannot be read: expected a number and "
            f"a unit of Y, M, D, h, m, s, such as '7D', got: {age!r}. Nothing was declared."
        )
    return timedelta(seconds=int(read[1]) * _SECONDS[read[2]])


WILDCARDS = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}  # a word, any number of words


@lru_cache(maxsize=4096)
def _pattern(key: str) -> re.Pattern[str]:
    parts = [WILDCARDS.get(word) or re.escape(f"{word}.") for word in key.split(".")]
    return re.compile("".join(parts))


class MemoryExchange:
    """Hold the bindings of one exchange, and the headers that it checks."""

    def __init__(self, spec: Exchange) -> None:
        self.spec = spec
        self.heeded: set[str] = set()
        self._exact: dict[str, dict[Binding, None]] = {}
        self._patterns: dict[Binding, re.Pattern[str]] = {}

    def bind(self, binding: Binding) -> None:
        self.heeded |= binding.arguments.keys() - {"x-match"}
        words = ["#"] if self.spec.type == "fanout" else binding.routing_key.split(".")
        if self.spec.type in ("fanout", "topic") and not WILDCARDS.keys().isdisjoint(words):
            self._patterns[binding] = _pattern(".".join(words))
        else:
            self._exact.setdefault(binding.routing_key, {})[binding] = None

    def unbind(self, binding: Binding) -> None:
        self._patterns.pop(binding, None)
        self._exact.get(binding.routing_key, {}).pop(binding, None)

    def matching(self, keys: Iterable[str], headers: Mapping[str, Any]) -> list[Binding]:
        """List the bindings that match any of a message's keys, or all their required headers."""
        if self.spec.type == "headers":
            bound = (binding for each in self._exact.values() for binding in each)
            return [each for each in bound if _matches(each, headers)]
        found: dict[Binding, None] = {}
        for key in keys:
            words = f"{key}." if key else ""
            found |= self._exact.get(key, {})
            found |= {each: None for each, of in self._patterns.items() if of.fullmatch(words)}
        return list(found)


def _matches(binding: Binding, headers: Mapping[str, Any]) -> bool:
    wanted = binding.arguments.items()
    return all(headers.get(name) == value for name, value in wanted if name != "x-match")


BUILT_IN = tuple(Exchange(f"amq.{type}", type) for type in ("topic", "fanout", "direct"))
CACHED_ROUTES = 100_000


class MemoryServer:
    """Serve a broker in this process. Connections with the same server see the same queues.

    Args:
        clock: timestamps the entries of streams.

    Attributes:
        cluster: a unique name.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.queues: dict[str, MemoryQueue] = {}
        self.streams: dict[str, Stream] = {}
        self.cluster = f"memory-{uuid.uuid4().hex}"
        self.connections: list[MemoryBroker] = []
        self._clock = clock or SystemClock()
        self._routed = lru_cache(CACHED_ROUTES)(self._find_places)
        self._exchanges = {spec.name: MemoryExchange(spec) for spec in BUILT_IN}
        self._bindings: dict[str, dict[Binding, None]] = {}
        self._heeded: list[str] = []

    def disconnect_all(self) -> None:
        """Break every connection. They reconnect at once; their deliveries are lost."""
        for connection in self.connections:
            connection.detach()  # all first: none may take what another one loses
        for connection in self.connections:
            connection.lose()
        for connection in self.connections:
            connection.attach()

    def declare(self, topology: Topology) -> None:
        self._refuse_other_arguments(topology)
        self._refuse_loose_ends(topology)
        for exchange in topology.exchanges:
            if not exchange.passive:
                self._exchanges.setdefault(exchange.name, MemoryExchange(exchange))
        for queue in topology.queues:
            if self.place(queue.name):
                continue
            if queue.arguments.get("x-queue-type") == "stream":
                self.streams[queue.name] = Stream(queue, self._clock)
            else:
                self.queues[queue.name] = MemoryQueue(queue, self._route)
        for binding in topology.bindings:
            self._exchanges[binding.source].bind(binding)
            if binding.to == "queue":
                self._bindings.setdefault(binding.destination, {})[binding] = None
        self._renew_routes()
        for connection in self.connections:
            connection.attach()

    def unbind(self, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            bound = self._bindings.get(binding.destination, {})
            if binding.to == "exchange" or bound.pop(binding, self) is None:
                self._exchanges[binding.source].unbind(binding)
        self._renew_routes()

    def delete(self, name: str) -> None:
        if place := self.place(name):
            place.close()
            self.queues.pop(name, None)
            self.streams.pop(name, None)
            for binding in self._bindings.pop(name, ()):
                self._exchanges[binding.source].unbind(binding)
            self._renew_routes()

    def publish(self, message: Message, exchange: str, routing_key: str) -> None:
        """Publish as any client may: the headers CC and BCC list further keys."""
        copies = tuple(key for name in ("CC", "BCC") for key in message.headers.get(name, ()))
        headers = {name: value for name, value in message.headers.items() if name != "BCC"}
        self.post(Letter(replace(message, headers=headers), exchange, routing_key, copies))

    def post(self, letter: Letter) -> None:
        places = self._route(letter)
        if not places:
            raise Unroutable(
                f"No queue is bound for {letter.routing_key!r} of exchange {letter.exchange!r}."
            )
        full = [place.name for place in places if not place.offer(letter)]
        if full:
            raise Rejected(f"The queue {full[0]!r} is full.")

    def place(self, name: str) -> Place | None:
        return self.queues.get(name) or self.streams.get(name)

    def queue(self, name: str) -> MemoryQueue:
        if name in self.streams:
            raise IncompatibleBroker(f"{name!r} is a stream: it is read or followed, not consumed.")
        if name not in self.queues:
            raise QueueNotFound(f"There is no queue {name!r}.")
        return self.queues[name]

    def stream(self, name: str) -> Stream:
        if name in self.queues:
            raise IncompatibleBroker(
                f"{name!r} is not a stream: it is consumed, not read or followed."
            )
        if name not in self.streams:
            raise QueueNotFound(f"There is no stream {name!r}.")
        return self.streams[name]

    def _renew_routes(self) -> None:
        self._routed.cache_clear()
        self._heeded = sorted({name for each in self._exchanges.values() for name in each.heeded})

    def _route(self, letter: Letter) -> tuple[Place, ...]:
        """Find the destinations of a letter: by all its keys, and its relevant headers."""
        found = letter.message.headers
        headers = [(name, found[name]) for name in self._heeded if isinstance(found.get(name), str)]
        return self._routed(letter.exchange, letter.keys, frozenset(headers))

    def _find_places(
        self, exchange: str, keys: tuple[str, ...], heeded: frozenset[tuple[str, str]]
    ) -> tuple[Place, ...]:
        if not exchange:
            return tuple({place: None for key in keys if (place := self.place(key))})
        headers, found = dict(heeded), dict[Place, None]()
        ahead, seen = [exchange], set[str]()
        while ahead:
            name = ahead.pop()
            if name in seen or name not in self._exchanges:
                continue
            seen.add(name)
            bindings = self._exchanges[name].matching(keys, headers)
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
                has, wants = _terms(known.spec), _terms(queue)
                if differing := sorted(name for name, _ in has.items() ^ wants.items()):
                    text = _with_other("queue", queue.name, has, wants)
                    raise OtherArguments(text, queue=queue.name, argument=differing[0])
        for exchange in topology.exchanges:
            known = self._exchanges.get(exchange.name)
            if known is None and exchange.passive:
                raise missing_exchange(exchange.name)
            if known is not None and not exchange.passive:
                has, wants = _terms(known.spec), _terms(exchange)
                if has != wants:
                    raise IncompatibleBroker(_with_other("exchange", exchange.name, has, wants))

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


def _with_other(kind: str, name: str, known: dict[str, Any], wanted: dict[str, Any]) -> str:
    return (
        f"The {kind} {name!r} exists with other arguments: it has {known}, this program wants "
        f"{wanted}. Nothing was changed."
    )
