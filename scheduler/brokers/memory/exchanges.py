"""An exchange in process: which of its bindings a routing key matches."""

from collections.abc import Sequence

from scheduler.protocol.topology import Binding, Exchange


class MemoryExchange:
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
        wild = [b for b, pattern in self._patterns.items() if matches(pattern, words)]
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


def matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return not rest or any(matches(rest, words[n:]) for n in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and matches(rest, words[1:])
