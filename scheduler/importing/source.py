"""Python source that is read, and never run: what its names stand for, where that is written."""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from scheduler.errors import UsageError
from scheduler.importing.findings import Place
from scheduler.timing.durations import shown

_CONVERSIONS: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "list": list,
    "tuple": tuple,
    "set": set,
    "dict": dict,
    "timedelta": timedelta,
}
_LONG = (str, bytes, list, tuple, set, dict)
LARGEST = 10**12


class Unreadable(Exception):
    """What a piece of source stands for is not written down.

    Attributes:
        node: the piece.
    """

    def __init__(self, node: ast.AST) -> None:
        super().__init__(f"what `{shown_source(node)}` is cannot be told without running it")
        self.node = node


def shown_source(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Made:
    """A value that a call of something else would make: `crontab(minute=5)`."""

    kind: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(slots=True)
class Source:
    """A module.

    Attributes:
        names: what is assigned at its top, and in its classes.
        imports: what the names that it imports are, as paths.
        defaults: where a value of the environment was read: what is taken is its default.
    """

    file: str
    tree: ast.Module
    names: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    imports: dict[str, str] = field(default_factory=dict[str, str])
    defaults: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def module(self) -> str:
        """Its path for `import`, by where it lies."""
        parts = PurePath(self.file).with_suffix("").parts
        parts = [part for part in parts if part.isidentifier()]
        parts = parts[1:] if parts[:1] == ["src"] else parts
        return ".".join(parts[:-1] if parts[-1:] == ["__init__"] else parts)

    def place(self, node: ast.AST) -> Place:
        return Place(self.file, getattr(node, "lineno", 1))

    def path(self, node: ast.expr) -> str:
        """The path of what a name stands for, as another module would import it."""
        written = dotted(node)
        first, dot, rest = written.partition(".")
        if first in self.imports:
            return f"{self.imports[first]}{dot}{rest}"
        return f"{self.module}.{written}" if written else ""

    def items(self, node: ast.expr) -> Iterator[tuple[Any, ast.expr]]:
        """The pairs of a mapping, with the source of each value.

        Raises:
            Unreadable: it is something else.
        """
        node = self.resolved(node)
        match node:
            case ast.Dict():
                for key, value in zip(node.keys, node.values, strict=True):
                    if key is None:
                        yield from self.items(value)
                    else:
                        yield self.value(key), value
            case ast.Call(func=ast.Name("dict"), args=args, keywords=keywords):
                for each in args:
                    yield from self.items(each)
                for each in keywords:
                    if each.arg is None:
                        yield from self.items(each.value)
                    else:
                        yield each.arg, each.value
            case _:
                raise Unreadable(node)

    def resolved(self, node: ast.expr) -> ast.expr:
        """What a name was given, at the top of the module."""
        for _ in range(20):
            name = dotted(node).rpartition(".")[2] if isinstance(node, ast.Name) else ""
            if name not in self.names:
                break
            node = self.names[name]
        return node

    def value(self, node: ast.expr) -> Any:
        """What an expression is.

        Raises:
            Unreadable: that depends on more than the module.
        """
        try:
            return self._value(self.resolved(node))
        except (ArithmeticError, TypeError, ValueError, RecursionError):
            raise Unreadable(node) from None

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.UnaryOp(ast.USub(), operand):
                return -self.value(operand)
            case ast.BinOp(left, operation, right):
                return _combined(operation, self.value(left), self.value(right))
            case ast.List(elements):
                return [self.value(each) for each in elements]
            case ast.Tuple(elements):
                return tuple(self.value(each) for each in elements)
            case ast.Set(elements):
                return {self.value(each) for each in elements}
            case ast.Dict():
                return {key: self.value(each) for key, each in self.items(node)}
            case ast.Call():
                return self._made(node)
            case _:
                raise Unreadable(node)

    def _made(self, node: ast.Call) -> Any:
        name = dotted(node.func)
        last = name.rpartition(".")[2]
        if last == "getenv" or name.endswith("environ.get"):
            return self._default(node)
        args = tuple(self.value(each) for each in node.args)
        kwargs = {each.arg: self.value(each.value) for each in node.keywords if each.arg}
        if len(kwargs) != len(node.keywords) or not last:
            raise Unreadable(node)
        if last in _CONVERSIONS:
            return _CONVERSIONS[last](*args, **kwargs)
        return Made(last, args, kwargs)

    def _default(self, node: ast.Call) -> Any:
        named = [each.value for each in node.keywords if each.arg == "default"]
        if not (given := [*node.args[1:], *named]):
            raise Unreadable(node)
        self.defaults.append((node.lineno, shown_source(node)))
        return self.value(given[0])


def _combined(operation: ast.operator, left: Any, right: Any) -> Any:
    """What is not quick to compute, or would be long, is none."""
    if not isinstance(operation, ast.Add) and isinstance(left, _LONG) | isinstance(right, _LONG):
        raise ValueError
    match operation:
        case ast.Add():
            value = left + right
        case ast.Sub():
            value = left - right
        case ast.Mult():
            value = left * right
        case ast.Div():
            value = left / right
        case ast.FloorDiv():
            value = left // right
        case _:
            raise ValueError
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise ValueError
    return value


def dotted(node: ast.expr) -> str:
    """A name with its dots; of anything else, nothing."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, name) if before := dotted(value):
            return f"{before}.{name}"
        case _:
            return ""


def source_of(text: str, file: str) -> Source:
    """Read a module.

    Raises:
        UsageError: it is no Python of this version.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UsageError(f"{file}{line}, is no Python: {shown(str(error))}.") from None
    source = Source(file, tree)
    for statement in _at_the_top(tree.body):
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                source.names[name] = value
            case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                source.names[name] = value
            case _:
                pass
    for node in ast.walk(tree):
        source.imports.update(_imported(node, source.module))
    return source


def _at_the_top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        match statement:
            case ast.ClassDef(body=inner):
                yield from _at_the_top(inner)
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                yield from _at_the_top(other)
                yield from _at_the_top(inner)
            case _:
                pass


def _imported(node: ast.AST, module: str) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Import(names):
            for each in names:
                name = each.asname or each.name.partition(".")[0]
                yield name, each.name if each.asname else name
        case ast.ImportFrom(module=start, names=names, level=level):
            package = module.split(".")[:-level] if level else []
            for each in names:
                path = [*package, *([start] if start else []), each.name]
                yield each.asname or each.name, ".".join(path)
        case _:
            pass
