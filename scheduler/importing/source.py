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

    def package(self, level: int) -> str:
        """Return the package that an import of this level begins at; "" for level 0."""
        parts = self.module.split(".") if self.module else []
        up = level - (PurePath(self.file).stem == "__init__")
        return ".".join(parts[: len(parts) - up] if level else [])

    def origin(self, node: ast.ImportFrom) -> str:
        """Return the path of the module that names are imported from."""
        return ".".join(each for each in (self.package(node.level), node.module) if each)


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
        return Source(file, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UsageError(f"{file}{line}, is no Python: {shown(str(error))}.") from None
