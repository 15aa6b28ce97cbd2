"""Modules as text: their names for `import`, and what they import."""

import ast
from dataclasses import dataclass
from pathlib import PurePath

from scheduler.errors import UsageError
from scheduler.importing.findings import Place
from scheduler.timing.durations import shown


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A module."""

    file: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """Its path for `import`, by where it lies."""
        parts = PurePath(self.file).with_suffix("").parts
        parts = [part for part in parts if part.isidentifier()]
        parts = parts[1:] if parts[:1] == ["src"] else parts
        return ".".join(parts[:-1] if parts[-1:] == ["__init__"] else parts)

    def place(self, node: ast.AST) -> Place:
        return Place(self.file, getattr(node, "lineno", 1))

    def origin(self, node: ast.ImportFrom) -> str:
        """Return the path of the module that names are imported from."""
        parts = self.module.split(".") if node.level and self.module else []
        up = node.level - (PurePath(self.file).stem == "__init__")
        return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])


def dotted(node: ast.expr) -> str:
    """A name with its dots, of what is called for a call; of anything else, nothing."""
    match node:
        case ast.Call(func):
            return dotted(func)
        case ast.Name(name):
            return name
        case ast.Attribute(value, name) if before := dotted(value):
            return f"{before}.{name}"
        case _:
            return ""


def last(path: str) -> str:
    """Return the last part of a name with dots."""
    return path.rpartition(".")[2]


def defaults_of(given: ast.arguments) -> dict[str, ast.expr]:
    """Return the defaults of parameters, by their names."""
    positional = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(positional[::-1], given.defaults[::-1], strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return {each.arg: default for each, default in pairs if default is not None}


def source_of(text: str, file: str) -> Source:
    """Read a module.

    Raises:
        UsageError: it is no Python of this version.
    """
    try:
        return Source(file, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UsageError(f"{file}{line}, is no Python: {shown(str(error))}.") from None
