"""YAML and JSON documents whose every value knows its line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from scheduler.errors import UsageError

if TYPE_CHECKING:
    import yaml


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a document: a scalar, a mapping or a list.

    Attributes:
        line: where it begins; of the value of a key, where the key stands.
        plain: what a scalar is.
        keys: the values of a mapping.
        items: the values of a list.
    """

    line: int
    plain: Any = None
    keys: Mapping[str, "Value"] = field(default_factory=dict[str, "Value"])
    items: Sequence["Value"] = ()

    def __getitem__(self, key: str) -> "Value":
        """What a mapping has for a key; else, nothing."""
        return self.keys.get(key, Value(self.line))

    @property
    def text(self) -> str:
        """A scalar as it would stand in a document; else, nothing."""
        if self.plain is None:
            return ""
        return str(self.plain).lower() if isinstance(self.plain, bool) else str(self.plain)

    @property
    def number(self) -> int | None:
        return self.plain if type(self.plain) is int else None


def documents_in(text: str, file: str) -> list[Value]:
    """The documents of a YAML file, of which JSON is one.

    Raises:
        UsageError: it cannot be read, or PyYAML is not there.
    """
    try:
        import yaml
    except ImportError:
        raise UsageError(
            "Reading YAML needs PyYAML, which the extra `import` has: "
            "pip install 'rabbit-scheduler[import]'."
        ) from None

    loader = yaml.SafeLoader(text)
    reader = _Reader(loader)
    try:
        nodes = list(_nodes(loader))
        return [reader.value(node, node.start_mark.line + 1) for node in nodes]
    except (yaml.YAMLError, RecursionError) as error:
        told = " ".join(str(error).replace('"<unicode string>"', file).split())
        hint = " A template is rendered first: helm template." if "{{" in text else ""
        raise UsageError(f"{file} is no YAML: {told}.{hint}") from None


def _nodes(loader: "yaml.SafeLoader") -> Iterator["yaml.Node"]:
    while loader.check_node():
        if (node := loader.get_node()) is not None:
            yield node


class _Reader:
    """Makes values of nodes; of one that is referred to again and again, once."""

    def __init__(self, loader: "yaml.SafeLoader") -> None:
        self._loader = loader
        self._made: dict[int, Value] = {}

    def value(self, node: "yaml.Node", line: int) -> Value:
        if id(node) not in self._made:
            self._made[id(node)] = self._value(node)
        return replace(self._made[id(node)], line=line)

    def _value(self, node: "yaml.Node") -> Value:
        import yaml

        if isinstance(node, yaml.MappingNode):
            self._loader.flatten_mapping(node)  # what `<<` brings
            if any(not isinstance(key, yaml.ScalarNode) for key, _ in node.value):
                raise yaml.MarkedYAMLError(problem="{{", problem_mark=node.start_mark)
            keys = {
                str(key.value): self.value(value, key.start_mark.line + 1)
                for key, value in node.value
            }
            return Value(0, keys=keys)
        if isinstance(node, yaml.SequenceNode):
            items = [self.value(each, each.start_mark.line + 1) for each in node.value]
            return Value(0, items=items)
        return Value(0, cast("Any", self._loader).construct_object(node))
