"""A queue in process: RabbitMQ's rules for its order, its limits and its timers."""

import asyncio
import math
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, Protocol

from scheduler.brokers.contract import Depth
from scheduler.brokers.memory.lanes import Lanes, QueueEntry
from scheduler.brokers.memory.letters import DeathCause, Letter, Place
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Queue

STRANDED_RETRY = timedelta(minutes=3)  # RabbitMQ waits as long for a dead letter's confirmation


class Receiver(Protocol):
    """Whom a queue hands its messages to."""

    @property
    def has_credit(self) -> bool: ...

    def receive(self, queue: "MemoryQueue", entry: QueueEntry) -> None: ...


class Routes(Protocol):
    """Where a queue's dead letters go.

    Attributes:
        stuck: the queues with letters that found no place.
    """

    stuck: "dict[MemoryQueue, None]"

    def route(self, letter: Letter) -> Sequence[Place]: ...


class MemoryQueue:
    """The messages of one queue, in order, with one timer for the one at the head."""

    def __init__(self, spec: Queue, routes: Routes) -> None:
        self.spec = spec
        self.consumers: deque[Receiver] = deque()
        self.getters = 0
        self.deleted = False
        self._routes = routes
        self._ready = Lanes(spec.arguments)
        self._stranded: list[tuple[Letter, frozenset[Place]]] = []
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

    @property
    def counts_deliveries(self) -> bool:
        return self._quorum

    def depth(self) -> Depth:
        # A quorum queue sees a consumer in whoever holds a message that it was asked for.
        getters = self.getters if self._quorum else 0
        return Depth(len(self._ready), len(self.consumers) + getters)

    def letters(self) -> list[Letter]:
        """What is ready, in the order in which it would be taken."""
        return [entry.letter for entry in self._ready]

    def offer(self, letter: Letter) -> bool:
        """Put a letter at the end of the queue; False when the queue is full and rejects it."""
        now = asyncio.get_running_loop().time()
        self._expire(now)
        if self._rejects and len(self._ready) + len(self._stranded) >= self._room:
            self._set_timer()
            return False
        position = next(self._positions)
        expires = now + self._time_to_live(letter.message)
        self._ready.push(QueueEntry(letter, position, expires), position)
        self._deliver()  # before it can expire: with a TTL of 0 it still reaches a free consumer
        self._after_change(now)
        return True

    def take(self) -> QueueEntry | None:
        """Take the message at the head, if there is one."""
        now = asyncio.get_running_loop().time()
        self._expire(now)
        entry = self._ready.pop() if self._ready else None
        self._after_change(now)
        return entry

    def take_back(self, entry: QueueEntry) -> None:
        """Put a message back at its place, with its old expiry."""
        if self.deleted:
            return
        entry.returns += 1
        if entry.returns > self._delivery_limit:
            self._bury(entry, "delivery_limit")
        else:
            position = next(self._returned_positions) if self._quorum else entry.position
            self._ready.push(entry, position)
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
            self._bury(self._ready.pop(), "maxlen")
        self._set_timer()

    def _expire(self, now: float) -> None:
        while entry := self._ready.pop_expired(now):
            self._bury(entry, "expired")

    def _deliver(self) -> None:
        while self._ready and self.consumers and (consumer := self._next_consumer()):
            consumer.receive(self, self._ready.pop())

    def _next_consumer(self) -> Receiver | None:
        if self._single_active:
            return self.consumers[0] if self.consumers[0].has_credit else None
        for _ in range(len(self.consumers)):
            consumer = self.consumers[0]
            self.consumers.rotate(-1)
            if consumer.has_credit:
                return consumer
        return None

    def _set_timer(self) -> None:
        due = self._ready.due
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
        if self._dead_letter_exchange is not None:
            exchange, key = self._dead_letter_exchange, self._dead_letter_key
            self._post(entry.letter.died(self.name, reason, exchange, key))

    def _post(self, letter: Letter, delivered: frozenset[Place] = frozenset()) -> None:
        queues = self._routes.route(letter)
        # Nobody would ever take a message out of a circle of queues: RabbitMQ drops it.
        wanted = [q for q in queues if q not in delivered and not letter.has_died_in(q.name)]
        refused = [queue for queue in wanted if not queue.offer(letter)]
        if self._keeps_stranded and (refused or not queues):
            self._strand(letter, delivered.union(wanted).difference(refused))

    def _strand(self, letter: Letter, delivered: frozenset[Place]) -> None:
        self._stranded.append((letter, delivered))
        self._routes.stuck[self] = None
        if not self._retry:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(STRANDED_RETRY.total_seconds(), self.retry_stranded)

    def _forget_stranded(self) -> list[tuple[Letter, frozenset[Place]]]:
        stranded, self._stranded = self._stranded, []
        self._routes.stuck.pop(self, None)
        if self._retry:
            self._retry.cancel()
            self._retry = None
        return stranded
