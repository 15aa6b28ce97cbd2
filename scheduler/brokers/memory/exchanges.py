"""Match messages with the bindings of an in-process exchange."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.protocol.topology import Binding, Exchange


class MemoryExchange:
    """Hold the bindings of one exchange, and the headers that it checks."""

    def __init__(self, spec: Exchange) -> None:
        self.spec = spec
        self.heeded: set[str] = set()
        self._exact: dict[str, dict[Binding, None]] = {}
        self._patterns = _Patterns()

    def bind(self, binding: Binding) -> None:
        self.heeded |= binding.arguments.keys() - {"x-match"}
        pattern = self._pattern(binding)
        if pattern is None:
            self._exact.setdefault(binding.routing_key, {})[binding] = None
        else:
            self._patterns.at(pattern).bindings[binding] = None

    def unbind(self, binding: Binding) -> None:
        if (pattern := self._pattern(binding)) is not None:
            self._patterns.at(pattern).bindings.pop(binding, None)
        self._exact.get(binding.routing_key, {}).pop(binding, None)

    def matching(self, keys: Iterable[str], headers: Mapping[str, Any]) -> list[Binding]:
        """List the bindings that match any of a message's keys, or all their required headers."""
        if self.spec.type == "headers":
            bound = (binding for each in self._exact.values() for binding in each)
            return [each for each in bound if _matches(each, headers)]
        found: dict[Binding, None] = {}
        for key in keys:
            words = key.split(".") if key else []
            found |= self._exact.get(key, {}) | dict.fromkeys(self._patterns.matching(words))
        return list(found)

    def _pattern(self, binding: Binding) -> Sequence[str] | None:
        words = binding.routing_key.split(".")
        match self.spec.type:
            case "fanout":
                return ["#"]
            case "topic" if "*" in words or "#" in words:
                return words
            case _:
                return None


def _matches(binding: Binding, headers: Mapping[str, Any]) -> bool:
    wanted = binding.arguments.items()
    return all(headers.get(name) == value for name, value in wanted if name != "x-match")


@dataclass(slots=True)
class _Patterns:
    """Match patterns word by word: a trie, so that a key is not compared with each of hundreds.

    Attributes:
        bindings: those whose pattern ends here.
    """

    bindings: dict[Binding, None] = field(default_factory=dict[Binding, None])
    after: dict[str, "_Patterns"] = field(default_factory=dict[str, "_Patterns"])

    def at(self, words: Sequence[str]) -> "_Patterns":
        """Return the node where a pattern of these words ends."""
        found = self
        for word in words:
            if (after := found.after.get(word)) is None:
                after = found.after[word] = _Patterns()
            found = after
        return found

    def matching(self, words: Sequence[str], begin: int = 0) -> Iterator[Binding]:
        """Yield the bindings that match these words from an index on, some of them twice."""
        if (any_number := self.after.get("#")) is not None:
            for end in range(begin, len(words) + 1):
                yield from any_number.matching(words, end)
        if begin == len(words):
            yield from self.bindings
            return
        for word in (words[begin], "*"):
            if (following := self.after.get(word)) is not None:
                yield from following.matching(words, begin + 1)
