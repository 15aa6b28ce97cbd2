"""Hold the state of the in-process broker, shared by all its connections."""

import uuid
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from scheduler.brokers.contract import missing_exchange
from scheduler.brokers.memory.connection import MemoryConnection
from scheduler.brokers.memory.exchanges import MemoryExchange
from scheduler.brokers.memory.queues import Letter, MemoryQueue
from scheduler.brokers.memory.streams import Stream
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
        self.connections: list[MemoryConnection] = []
        self._clock = clock or SystemClock()
        self._routed = lru_cache(CACHED_ROUTES)(self._find_places)
        self._exchanges = {spec.name: MemoryExchange(spec) for spec in BUILT_IN}
        self._bindings: dict[str, dict[Binding, None]] = {}
        self._heeded: list[str] = []
        self._stuck: dict[MemoryQueue, None] = {}

    def disconnect_all(self) -> None:
        """Break every connection. They reconnect at once; their deliveries are lost."""
        for connection in self.connections:
            connection.detach()  # all first: none may take what another one loses
        for connection in self.connections:
            connection.lose()
        for connection in self.connections:
            connection.attach()

    def connect(self) -> MemoryConnection:
        connection = MemoryConnection(self.queues, self.streams)
        self.connections.append(connection)
        return connection

    def close(self, connection: MemoryConnection) -> None:
        self.connections.remove(connection)
        connection.detach()
        connection.lose()
        for each in connection.subscriptions:
            each.wake_queue()
        connection.subscriptions.clear()

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
                self.queues[queue.name] = MemoryQueue(queue, self._route, self._stuck)
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
        """Put a letter into its queues."""
        places = self._route(letter)
        if not places:
            raise Unroutable(
                f"No queue is bound for {letter.routing_key!r} of exchange {letter.exchange!r}."
            )
        full = [place.name for place in places if not place.offer(letter)]
        if full:
            raise Rejected(f"The queue {full[0]!r} is full.")

    def place(self, name: str) -> MemoryQueue | Stream | None:
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
        for queue in tuple(self._stuck):
            queue.retry_stranded()

    def _route(self, letter: Letter) -> tuple[MemoryQueue | Stream, ...]:
        """Find the destinations of a letter: by all its keys, and its relevant headers."""
        found = letter.message.headers
        headers = [(name, found[name]) for name in self._heeded if isinstance(found.get(name), str)]
        return self._routed(letter.exchange, letter.keys, frozenset(headers))

    def _find_places(
        self, exchange: str, keys: tuple[str, ...], heeded: frozenset[tuple[str, str]]
    ) -> tuple[MemoryQueue | Stream, ...]:
        if not exchange:
            return tuple({place: None for key in keys if (place := self.place(key))})
        headers, found = dict(heeded), dict[MemoryQueue | Stream, None]()
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
