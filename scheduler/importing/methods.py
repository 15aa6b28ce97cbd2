"""Calls of methods of tables, lists and settings, in modules that are followed."""

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from scheduler.importing.celery_names import CONTAINERS, named
from scheduler.importing.expressions import Evaluator
from scheduler.importing.findings import Note
from scheduler.importing.names import ERRORS
from scheduler.importing.values import (
    Bound,
    Conf,
    Table,
    Unreadable,
    plain,
    shown_source,
)

if TYPE_CHECKING:
    from scheduler.importing.project import Project

MAPPINGS = ("dict", "OrderedDict", "MappingProxyType", "copy", "deepcopy")
FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


class Methods:
    """Evaluates the calls of methods in one module."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._project: Project = evaluator.project
        self._world = evaluator.world

    def _arguments(self, node: ast.Call) -> tuple[list[Any], Table]:
        args: list[Any] = []
        for each in node.args:
            if isinstance(each, ast.Starred):
                items = self._evaluator.value(each.value)
                known = isinstance(items, list | tuple)
                args += cast("Sequence[Any]", items) if known else [self._evaluator.unread(each)]
            else:
                args.append(self._evaluator.value(each))
        table = self._world.table()
        for each in node.keywords:
            bound = self._evaluator.bound(each.value)
            if each.arg is None:
                self._evaluator.update(table, bound)
            else:
                table.entries[each.arg] = bound
        return args, table

    def _plain_arguments(self, node: ast.Call) -> tuple[list[Any], Mapping[str, Any]]:
        place, notes = self._evaluator.source.place(node), self._evaluator.touched
        args, table = self._arguments(node)
        return [plain(each, place, notes) for each in args], plain(table, place, notes)

    def _tell(self, node: ast.Call, args: Sequence[Any], kwargs: Table) -> None:
        """Note what a call that is not followed may change."""
        place, text = self._evaluator.source.place(node), shown_source(node)
        for each in (*args, *(each.value for each in kwargs.entries.values())):
            if isinstance(each, Table):
                each.missing.append(Note(place, f"`{text}` may change it, and is not followed"))
            elif isinstance(each, Conf) or (
                isinstance(each, str) and named(each) == "beat_schedule" and "_" in each
            ):
                told = f"`{text}` may change settings of Celery's, and is not followed"
                self._world.notes.append(Note(place, told))

        if any(named(str(name)) == "beat_schedule" for name in kwargs.entries):
            told = f"`{text}` may change settings of Celery's, and is not followed"
            self._world.notes.append(Note(place, told))

    def _configured_with(self, value: Any, node: ast.AST) -> None:
        """Take the entries of a table as settings."""
        if not isinstance(value, Table):
            told = f"settings of Celery's: {self._evaluator.unread(node)}"
            self._world.notes.append(Note(self._evaluator.source.place(node), told))
            return
        self._world.conf.update({named(str(key)): each for key, each in value.entries.items()})
        self._world.notes += [
            Note(each.place, f"settings of Celery's: {each.text}") for each in value.missing
        ]

    def _of_conf(self, conf: Conf, name: str, node: ast.Call) -> Any:
        args, kwargs = self._arguments(node)
        if name in ("update", "from_mapping", "add_defaults") and (
            not conf.is_shared or CONTAINERS[0] in kwargs.entries
        ):
            inner = kwargs.entries.get(CONTAINERS[0])
            given = [*args, inner.value if conf.is_shared and inner else kwargs]
            for each in given:
                self._configured_with(each, node)
        elif name in ("update", "from_mapping"):
            for each in (*args, kwargs):
                self._configured_with_own(each)
        elif name == "get" and args and isinstance(args[0], str):
            return self._evaluator.attribute(conf, args[0], node)
        return self._evaluator.unread(node)

    def _configured_with_own(self, value: Any) -> None:
        """Take the settings of Celery's out of those of a framework."""
        if isinstance(value, Table):
            own = {key: each for key, each in value.entries.items() if "celery" in str(key).lower()}
            self._world.conf.update({named(str(key)): each for key, each in own.items()})

    def _copied(self, value: Any, *, deep: bool) -> Any:
        match value:
            case Table(entries, missing):
                pairs = entries.items()
                if deep:
                    pairs = [
                        (key, Bound(self._copied(each.value, deep=True), each.place, each.notes))
                        for key, each in pairs
                    ]
                return self._world.table(dict(pairs), missing)
            case list():
                return self._world.listed(cast("list[Any]", value))
            case _:
                return value

    def _of_list(self, owner: list[Any], name: str, node: ast.Call) -> Any:
        args, _ = self._arguments(node)
        if name == "copy":
            return self._world.listed(owner)
        if name not in ("append", "extend", "index", "count"):
            owner[:] = [self._evaluator.unread(node)]
            return self._evaluator.unread(node)
        return getattr(owner, name)(*args)

    def _of_owner(self, table: Table, name: str, node: ast.Call) -> Any:
        """Call a method of a table; what it may change is noted where that is not known."""
        try:
            return self._of_table(table, name, node)
        except (Unreadable, *ERRORS):
            place = self._evaluator.source.place(node)
            table.missing.append(Note(place, str(self._evaluator.unread(node))))
            return self._evaluator.unread(node)

    def _of_table(self, table: Table, name: str, node: ast.Call) -> Any:
        match name, node.args:
            case "update", _:
                args, kwargs = self._arguments(node)
                place = self._evaluator.source.place(node)
                for each in (*args, kwargs):
                    self._evaluator.update(table, Bound(each, place))
            case "setdefault", [key, value]:
                if self._evaluator.plain(key) not in table.entries:
                    self._evaluator.put(table, key, self._evaluator.bound(value))
                return self._evaluator.take(table.entries[self._evaluator.plain(key)])
            case (("get" | "pop"), [key, *_]):
                return self._found(table, name, key, node)
            case "clear", []:
                table.entries.clear()
                table.missing.clear()
            case "copy", []:
                return self._copied(table, deep=False)
            case (("items" | "keys" | "values"), []) if not table.missing:
                pairs = [(key, self._evaluator.take(each)) for key, each in table.entries.items()]
                parts = {"items": pairs, "keys": [*table.entries], "values": [b for _, b in pairs]}
                return self._world.listed(parts[name])
            case _:
                place = self._evaluator.source.place(node)
                told = f"`{shown_source(node)}` may change it, and is not followed"
                table.missing.append(Note(place, told))
                return self._evaluator.unread(node)
        return None

    def _found(self, table: Table, name: str, key: ast.expr, node: ast.Call) -> Any:
        wanted = self._evaluator.plain(key)
        if wanted in table.entries:
            bound = table.entries.pop(wanted) if name == "pop" else table.entries[wanted]
            return self._evaluator.take(bound)
        if table.missing:
            return self._evaluator.unread(node, f": {table.missing[0].text}")
        return self._evaluator.value(node.args[1]) if len(node.args) > 1 else None
