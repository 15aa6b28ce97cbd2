"""Statements that change names, tables and settings, in modules that are followed."""

import ast
from collections.abc import Sequence
from typing import Any, cast

from scheduler.importing.celery_names import is_relevant, is_setting, named
from scheduler.importing.expressions import Evaluator
from scheduler.importing.findings import Note
from scheduler.importing.names import ERRORS
from scheduler.importing.operations import combined
from scheduler.importing.values import (
    Bound,
    Class,
    Conf,
    Made,
    Ref,
    Table,
    Unread,
    Unreadable,
    items_of,
    plain,
    shown_source,
)

Block = Sequence[ast.stmt]
LEAVING = (ast.Return, ast.Break, ast.Continue, ast.Raise)
TRANSPARENT = ("lru_cache", "cache", "staticmethod", "classmethod")


class Assigner(Evaluator):
    """Follows the assignments of a module, of a class or of a function."""

    @property
    def globals(self) -> set[str]:
        return self.project.globals_of(self.scopes[-1])

    def assign(self, target: ast.expr, bound: Bound) -> None:
        match target:
            case ast.Name(name) if name in self.globals:
                self.scopes[0][name] = bound
            case ast.Attribute(owner, name):
                self._assign_attribute(owner, name, bound)
            case ast.Subscript(owner, key):
                self._assign_item(self.value(owner), target, key, bound)
            case _:
                super().assign(target, bound)

    def _assign_attribute(self, owner: ast.expr, name: str, bound: Bound) -> None:
        match self.value(owner):
            case Conf(is_shared) if not is_shared or is_setting(name):
                self.world.conf[named(name)] = bound
            case Class(attributes=attributes):
                attributes[name] = bound
            case _ if named(name) == "beat_schedule":
                self.world.conf["beat_schedule"] = bound
            case _:
                pass

    def _assign_item(self, owner: Any, target: ast.expr, key: ast.expr, bound: Bound) -> None:
        match owner:
            case Table():
                self.put(owner, key, bound)
            case Conf(is_shared):
                self._assign_setting(key, bound, is_shared)
            case list():
                owner[:] = [self.unread(target)]
            case Unread() | Ref() | Made():
                self._hidden(target)
            case _:
                pass

    def _assign_setting(self, key: ast.expr, bound: Bound, is_shared: bool) -> None:
        try:
            name = str(self.plain(key))
        except Unreadable as error:
            self.world.notes.append(Note(error.place, f"a setting of Celery's: {error}"))
            return
        if name == "CELERY" and isinstance(bound.value, Table):
            entries = bound.value.entries.items()
            self.world.conf.update({named(str(inner)): each for inner, each in entries})
        elif not is_shared or is_setting(name):
            self.world.conf[named(name)] = bound

    def _hidden(self, target: ast.expr) -> None:
        """Note a change of what is not known, where it may be a part of a table."""
        if is_relevant(target):
            self._unfollowed(target)

    def _unfollowed(self, node: ast.AST) -> None:
        told = f"`{shown_source(node)}` may change settings of Celery's, and is not followed"
        self.world.notes.append(Note(self.source.place(node), told))

    def _change(self, target: ast.expr, operation: ast.operator, value: ast.expr) -> None:
        now = self.value(target)
        if isinstance(now, Table):
            if isinstance(operation, ast.BitOr):
                return self.update(now, self.bound(value))
            now.missing.append(Note(self.source.place(target), str(self.unread(target))))
            return None
        if isinstance(now, list) and isinstance(operation, ast.Add):
            added = items_of(self.value(value))
            cast("list[Any]", now).extend([self.unread(value)] if added is None else added)
            return None
        given, place = self.bound(value), self.source.place(target)
        try:
            parts = plain(now, place), plain(given.value, place)
            self.assign(target, Bound(combined(operation, *parts), place, given.notes))
        except (Unreadable, *ERRORS):
            self.assign(target, Bound(self.unread(target), place))

    def _delete(self, target: ast.expr) -> None:
        match target:
            case ast.Name(name):
                self.scopes[-1].pop(name, None)
            case ast.Subscript(owner, key) if isinstance(table := self.value(owner), Table):
                try:
                    table.entries.pop(self.plain(key), None)
                except (Unreadable, *ERRORS):
                    told = f"`del {shown_source(target)}` is not followed"
                    table.missing.append(Note(self.source.place(target), told))
            case ast.Subscript(owner, key) if isinstance(self.value(owner), Conf):
                self.world.conf.pop(named(str(self.value(key))), None)
            case ast.Attribute(owner, name) if isinstance(self.value(owner), Conf):
                self.world.conf.pop(named(name), None)
            case _:
                self._hidden(target)
