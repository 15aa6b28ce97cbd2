"""Hold the state of the in-process broker: its exchanges and queues."""

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from scheduler.brokers.contract import missing_exchange
from scheduler.brokers.memory.queues import Letter, MemoryQueue, Place, Stream
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
    from scheduler.brokers.memory.broker import MemoryBroker


WILDCARDS = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}  # a word, any number of words


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
            parts = [WILDCARDS.get(word) or re.escape(f"{word}.") for word in words]
            self._patterns[binding] = re.compile("".join(parts))
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
        self._stuck: dict[MemoryQueue, None] = {}

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
        for queue in tuple(self._stuck):
            queue.retry_stranded()

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
