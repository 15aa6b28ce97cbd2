"""Where messages go: all exchanges, queues, streams and bindings of a server."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from scheduler.brokers.contract import missing_exchange
from scheduler.brokers.memory.exchanges import MemoryExchange
from scheduler.brokers.memory.letters import Letter, Place
from scheduler.brokers.memory.queues import MemoryQueue
from scheduler.brokers.memory.streams import Stream
from scheduler.errors import IncompatibleBroker, OtherArguments, QueueNotFound
from scheduler.protocol.topology import Binding, Exchange, Queue, Topology
from scheduler.timing.clock import Clock

BUILT_IN = tuple(Exchange(f"amq.{type}", type) for type in ("topic", "fanout", "direct"))
CACHED_ROUTES = 100_000


class Router:
    """All exchanges, queues and bindings: which queues does a message go to?"""

    def __init__(self, clock: Clock) -> None:
        self.queues: dict[str, MemoryQueue] = {}
        self.streams: dict[str, Stream] = {}
        self.stuck: dict[MemoryQueue, None] = {}
        self._routed = lru_cache(CACHED_ROUTES)(self._route)
        self._exchanges = {spec.name: MemoryExchange(spec) for spec in BUILT_IN}
        self._bindings: dict[str, dict[Binding, None]] = {}
        self._heeded: list[str] = []
        self._clock = clock

    def place(self, name: str) -> Place | None:
        return self.queues.get(name) or self.streams.get(name)

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
                self.queues[queue.name] = MemoryQueue(queue, self)
        for binding in topology.bindings:
            self._exchanges[binding.source].bind(binding)
            if binding.to == "queue":
                self._bindings.setdefault(binding.destination, {})[binding] = None
        self._changed()

    def route(self, letter: Letter) -> tuple[Place, ...]:
        """Find where a letter goes: by all its keys, and by those of its headers that count."""
        found = letter.message.headers
        headers = [(name, found[name]) for name in self._heeded if isinstance(found.get(name), str)]
        return self._routed(letter.exchange, letter.keys, frozenset(headers))

    def delete(self, name: str) -> None:
        if place := self.place(name):
            place.close()
            self.queues.pop(name, None)
            self.streams.pop(name, None)
            for binding in self._bindings.pop(name, ()):
                self._exchanges[binding.source].unbind(binding)
            self._changed()

    def unbind(self, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            if self._bindings.get(binding.destination, {}).pop(binding, self) is None:
                self._exchanges[binding.source].unbind(binding)
        self._changed()

    def _changed(self) -> None:
        self._routed.cache_clear()
        self._heeded = sorted({name for each in self._exchanges.values() for name in each.heeded})
        for queue in tuple(self.stuck):
            queue.retry_stranded()

    def _route(
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
                _refuse_other_terms(queue.name, _terms(known.spec), _terms(queue))
        for exchange in topology.exchanges:
            known = self._exchanges.get(exchange.name)
            if known is None and exchange.passive:
                raise missing_exchange(exchange.name)
            if known is not None and not exchange.passive:
                _refuse_other_exchange(exchange.name, _terms(known.spec), _terms(exchange))

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


def _refuse_other_terms(queue: str, known: dict[str, Any], wanted: dict[str, Any]) -> None:
    differing = sorted(name for name, _ in known.items() ^ wanted.items())
    if differing:
        raise OtherArguments(
            _with_other("queue", queue, known, wanted), queue=queue, argument=differing[0]
        )


def _refuse_other_exchange(exchange: str, known: dict[str, Any], wanted: dict[str, Any]) -> None:
    if known != wanted:
        raise IncompatibleBroker(_with_other("exchange", exchange, known, wanted))


def _with_other(kind: str, name: str, known: dict[str, Any], wanted: dict[str, Any]) -> str:
    return (
        f"The {kind} {name!r} exists with other arguments: it has {known}, this program wants "
        f"{wanted}. What exists was left as it is."
    )
