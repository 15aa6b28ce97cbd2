"""Hold the state of followed modules, and of two branches, either of which may run."""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from scheduler.importing.findings import Note, Place
from scheduler.importing.values import (
    Bound,
    Class,
    Scope,
    Source,
    Table,
    Unread,
    is_same,
    shown_value,
)

MOST_STEPS = 60_000


class TooLong(Exception):
    """The module computes for too long to be followed."""


@dataclass(frozen=True, slots=True)
class Left:
    """Leave a block: by `return`, `break`, `continue` or `raise`."""

    how: str
    bound: Bound | None = None


Branch = tuple[str, Callable[[], Left | None]]


class State:
    """Hold all names, tables and settings.

    Attributes:
        conf: the settings of Celery apps.
        config: those of frameworks.
        classes: those of modules.
        added: calls of `add_periodic_task`.
        app: the call that makes an app.
        read: names of modules that were read, and whether their value can be changed in place.
        configured: the objects that an app takes its settings from.
        namespaces: what the names of its settings begin with there.
        asked: where `beat_schedule` is read, and is not set before.
    """

    def __init__(self) -> None:
        self._heap: list[dict[Any, Any] | list[Any]] = []
        self._steps = 0
        self._conditions: list[str] = []
        self.conf = Table(self.scope(), self.listed(), "conf")
        self.config = self.scope()
        self.classes: list[tuple[Source, Class]] = []
        self.added: list[Bound] = []
        self.notes: list[Note] = []
        self.app: ast.Call | None = None
        self.read: dict[str, bool] = {}
        self.configured: list[str] = []
        self.namespaces: list[str] = []
        self.asked: list[Note] = []

    def step(self, count: int = 1) -> None:
        """Count steps.

        Raises:
            TooLong: there were too many.
        """
        self._steps += count
        if self._steps > MOST_STEPS:
            raise TooLong

    def scope(self) -> Scope:
        scope: Scope = {}
        self._heap.append(scope)
        return scope

    def listed(self, items: Iterable[Any] = ()) -> list[Any]:
        made = list(items)
        self._heap.append(made)
        return made

    def table(self, entries: Scope | None = None, missing: Iterable[Note] = ()) -> Table:
        table = Table(self.scope(), self.listed(missing))
        table.entries.update(entries or {})
        return table

    def names(self, scope: Scope) -> Table:
        """Return the names of a module or of a class as a table."""
        return Table(scope, self.conf.missing, "names")

    def changes(self, run: Callable[[], object]) -> bool:
        """Return whether code changes what there is, or notes something."""
        self.step(len(self._heap) // 16)  # by its cost
        before, count = self._contents(), len(self.notes) + len(self.added)
        run()
        noted = len(self.notes) + len(self.added) > count
        return noted or any(container != copied for container, copied in before)

    def beat_schedule(self, place: Place) -> Table:
        """Return the table of the settings, created if missing."""
        scope = self.conf.entries
        if "beat_schedule" not in scope:
            self.asked.append(Note(place, "beat_schedule: the table is not in these files"))
        bound = scope.setdefault("beat_schedule", Bound(self.table(), place))
        if not isinstance(bound.value, Table):
            missing = [Note(place, str(bound.value))] if isinstance(bound.value, Unread) else []
            bound = scope["beat_schedule"] = Bound(self.table(missing=missing), place)
        return bound.value

    def conditional(self, place: Place) -> tuple[Note, ...]:
        return tuple(note for each in self._conditions for note in _only(place, each))

    def either(self, first: Branch, second: Branch) -> Left | None:
        """Follow two branches, and keep the state of both, each with its condition.

        Args:
            first: its condition may be empty if it is the usual branch.
        """
        self.step(len(self._heap))  # by its cost
        before = self._contents()
        one = self._follow(first)
        after = self._contents()
        _restore(before)
        other = self._follow(second)
        if other is not None and other.how == "raise":
            _restore(after)
            return one
        if one is not None and one.how == "raise":
            return other
        for container, contents in after:
            self._merge(container, contents, first[0], second[0])
        if one and other and one.bound and other.bound:
            return Left("return", self.merged(one.bound, other.bound, first[0], second[0]))
        return next((each for each in (one, other) if each and each.bound), None)

    def _follow(self, branch: Branch) -> Left | None:
        condition, run = branch
        self._conditions.append(condition)
        try:
            return run()
        finally:
            self._conditions.pop()

    def _contents(self) -> list[tuple[Any, Any]]:
        return [(each, each.copy()) for each in self._heap]

    def _merge(self, container: Any, contents: Any, first: str, second: str) -> None:
        if isinstance(container, dict):
            scope = cast("Scope", container)
            merged = self._merged(contents, scope, first, second)
            scope.clear()
            scope.update(merged)
        elif container != contents:
            both = [*contents, *(each for each in container if each not in contents)]
            is_missing = all(isinstance(each, Note) for each in both)
            hidden = Unread(Place("", 0), f"{shown_value(contents)} under `{first}`")
            container[:] = both if is_missing else [hidden]

    def _merged(self, one: Scope, other: Scope, first: str, second: str) -> Scope:
        merged: Scope = {}
        for key in one | other:
            if key not in other:
                merged[key] = one[key].under(*_only(one[key].place, first))
            elif key not in one:
                merged[key] = other[key].under(*_only(other[key].place, second))
            else:
                merged[key] = self.merged(one[key], other[key], first, second)
        return merged

    def merged(self, one: Bound, other: Bound, first: str, second: str) -> Bound:
        """Return a value that depends on a condition: for tables, the entries of both."""
        mine, theirs = one.value, other.value
        if is_same(mine, theirs):
            return one
        if all(
            isinstance(each, Table) and not {"task", "schedule"} & each.entries.keys()
            for each in (mine, theirs)
        ):
            entries = self._merged(mine.entries, theirs.entries, first, second)
            return Bound(self.table(entries, [*mine.missing, *theirs.missing]), one.place)
        where = f", under `{second}`" if second else ""
        used = f"under `{first}`" if first else "of the other branch"
        told = f"`{shown_value(theirs)}` is left out{where}: the value {used} is taken"
        return one.under(Note(other.place, told))


def _restore(contents: list[tuple[Any, Any]]) -> None:
    for container, copied in contents:
        container.clear()
        if isinstance(container, dict):
            cast("Scope", container).update(copied)
        else:
            container.extend(copied)


def _only(place: Place, condition: str) -> list[Note]:
    told = f"it is under `{condition}` there, and always applies here"
    return [Note(place, told)] if condition else []
