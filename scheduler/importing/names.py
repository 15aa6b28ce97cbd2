"""Names, attributes and tables in the expressions of modules that are followed."""

import ast
import builtins
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from scheduler.importing.celery_names import is_setting, named
from scheduler.importing.findings import Note
from scheduler.importing.source import Source
from scheduler.importing.values import (
    Bound,
    Class,
    Conf,
    Function,
    Made,
    Member,
    Module,
    Ref,
    Scope,
    Table,
    Unread,
    Unreadable,
    items_of,
    plain,
    shown_source,
)
from scheduler.importing.world import World

if TYPE_CHECKING:
    from scheduler.importing.project import Project

ERRORS = (ArithmeticError, TypeError, ValueError, LookupError, AttributeError, RecursionError)
Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class Tables:
    """Values of one module, and what they depend on.

    Attributes:
        touched: guesses and conditions that the values depend on which were read last.
    """

    def __init__(self, project: "Project", source: Source, scopes: Sequence[Scope]) -> None:
        self.project = project
        self.world: World = project.world
        self.source = source
        self.scopes = [*scopes]
        self.touched: list[Note] = []

    def bound(self, node: ast.expr) -> Bound:
        """Return the value of an expression, with all that it depends on."""
        outer, self.touched = self.touched, []
        value = self.value(node)
        notes, self.touched = tuple(dict.fromkeys(self.touched)), outer
        return Bound(value, self.source.place(node), notes)

    def value(self, node: ast.expr) -> Any:
        self.world.step()
        try:
            return self._value(node)
        except Unreadable as error:
            return error.unread
        except ERRORS:
            return self.unread(node)

    def _value(self, node: ast.expr) -> Any:
        raise NotImplementedError

    def plain(self, node: ast.expr) -> Any:
        """Return the value of an expression as Python has it.

        Raises:
            Unreadable: a part of it is not known.
        """
        return plain(self.value(node), self.source.place(node), self.touched)

    def unread(self, node: ast.AST, hint: str = "") -> Unread:
        return Unread(self.source.place(node), shown_source(node), hint)

    def take(self, bound: Bound) -> Any:
        self.touched += bound.notes
        return bound.value

    def put(self, table: Table, key: ast.expr, bound: Bound) -> None:
        """Set an entry of a table."""
        outer, self.touched = self.touched, []
        try:
            wanted = self.plain(key)
            hash(wanted)
        except (Unreadable, TypeError) as error:
            said = error if isinstance(error, Unreadable) else self.unread(key)
            table.missing.append(Note(self.source.place(key), f"an entry is left out: {said}"))
        else:
            table.entries[wanted] = bound.under(*self.touched)
        self.touched = outer

    def update(self, table: Table, given: Bound) -> None:
        """Add the entries of another table."""
        match given.value:
            case Table(entries, missing):
                table.entries.update(
                    {key: each.under(*given.notes) for key, each in entries.items()}
                )
                table.missing += missing
            case _ if (items := items_of(given.value)) is not None and _are_pairs(items):
                for key, value in items:
                    table.entries[key] = Bound(value, given.place, given.notes)
            case Unread() as unread:
                table.missing.append(Note(given.place, str(unread)))
            case Ref(unread=unread) | Made(unread=Unread() as unread):
                table.missing.append(Note(given.place, str(unread)))
            case other:
                said = Unread(given.place, f"{type(other).__name__}")
                table.missing.append(Note(given.place, str(said)))

    def union(self, *bounds: Bound) -> Table:
        table = self.world.table()
        for each in bounds:
            self.update(table, each)
        return table

    def assign(self, target: ast.expr, bound: Bound) -> None:
        """Bind names to a value, or to the parts of it."""
        match target:
            case ast.Name(name):
                self.scopes[-1][name] = bound
            case ast.Tuple(targets) | ast.List(targets):
                parts = items_of(bound.value) or ()
                known = len(parts) == len(targets)
                for number, each in enumerate(targets):
                    part = parts[number] if known else self.unread(each)
                    self.assign(each, Bound(part, bound.place, bound.notes))
            case ast.Starred(inner):
                self.assign(inner, Bound(self.unread(inner), bound.place))
            case _:
                pass


class Names(Tables):
    """The values that names have, and attributes, and items of tables."""

    def _named(self, name: str, node: ast.expr) -> Any:
        for scope in reversed(self.scopes):
            if name in scope:
                return self.take(scope[name])
        if name == "__name__":
            return self.unread(node)
        if named(name) == "beat_schedule" and is_setting(name) and name.isupper():
            return self.world.beat_schedule(self.source.place(node))
        is_builtin = hasattr(builtins, name)
        return Ref(name if is_builtin else f"{self.source.module}.{name}", self.unread(node))

    def attribute(self, value: Any, name: str, node: ast.AST) -> Any:
        if name in ("conf", "config") and not isinstance(value, Class | Module | Table):
            return Conf(name == "config")
        match value:
            case Conf():
                return self._setting(named(name), node)
            case Class() if (bound := value.find(name)) is not None:
                return value.member(name) if value.is_enum else self.take(bound)
            case Member(member, of):
                return of if name == "value" else member if name == "name" else self.unread(node)
            case Module(source):
                scope = self.project.names(source)
                return self.take(scope[name]) if name in scope else self.unread(node)
            case Function(path=path) | Class(name=path):
                return Ref(f"{path}.{name}", self.unread(node))
            case Ref(path, unread):
                return self._of_ref(f"{path}.{name}", name, node, unread.hint)
            case timedelta() if name in ("days", "seconds"):
                return getattr(value, name)
            case Made(kind="Celery"):
                return Ref(f"{self.source.module}.{name}", self.unread(node))
            case _:
                return self.unread(node)

    def _of_ref(self, path: str, name: str, node: ast.AST, hint: str) -> Any:
        if path.startswith("django.conf.settings.") and (bound := self.project.setting(name)):
            return self.take(bound)
        if named(name) == "beat_schedule":
            return self.world.beat_schedule(self.source.place(node))
        if (found := self.project.module_at(path)) is not None:
            return found
        if hint.endswith(".py"):
            hint = hint_of(path.rpartition(".")[0])
        return Ref(path, self.unread(node, hint))

    def _setting(self, name: str, node: ast.AST) -> Any:
        if name == "beat_schedule":
            return self.world.beat_schedule(self.source.place(node))
        if name in self.world.conf:
            return self.take(self.world.conf[name])
        return self.unread(node)

    def _item(self, value: Any, key: ast.expr, node: ast.AST) -> Any:
        match value:
            case Table(entries, missing):
                wanted = self.plain(key)
                return (
                    self.take(entries[wanted]) if wanted in entries else self._lost(missing, node)
                )
            case Conf():
                return self._setting(named(str(self.plain(key))), node)
            case Ref(path) if path.endswith(".tasks"):
                return Ref(str(self.plain(key)), self.unread(node))
            case Class(is_enum=True):
                return value.member(self.plain(key))
            case list() | tuple() | str():
                index = self._slice(key) if isinstance(key, ast.Slice) else self.plain(key)
                found = cast("Any", value)[index]
                return (
                    self.world.listed(items_of(found) or ()) if isinstance(found, list) else found
                )
            case _:
                return self.unread(node)

    def _lost(self, missing: Sequence[Note], node: ast.AST) -> Unread:
        return self.unread(node, f": {missing[0].text}" if missing else "")

    def _slice(self, node: ast.Slice) -> slice:
        bounds = (node.lower, node.upper, node.step)
        return slice(*(None if each is None else self.plain(each) for each in bounds))


def _are_pairs(items: Sequence[Any]) -> bool:
    return all(len(items_of(each) or ()) == 2 for each in items)


def hint_of(path: str) -> str:
    """Return which file to add, for a module, or a name of one."""
    parts = path.split(".")
    while len(parts) > 1 and not parts[-1].islower():
        parts.pop()
    return f": add {'/'.join(parts)}.py"


def default_of(node: ast.AST) -> str:
    return f"the default is taken of `{shown_source(node)}`"
