"""Calls in modules that are followed: of constants, tables and settings, and of their functions."""

import ast
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from scheduler.importing.celery_names import CONTAINERS, DATABASES, named
from scheduler.importing.findings import Note
from scheduler.importing.methods import Methods
from scheduler.importing.names import default_of
from scheduler.importing.operations import CONVERSIONS, called, method
from scheduler.importing.source import dotted
from scheduler.importing.values import (
    Bound,
    Class,
    Conf,
    Function,
    Made,
    Ref,
    Table,
    Unread,
    items_of,
    plain,
    shown_source,
)
from scheduler.importing.world import Added

MAPPINGS = ("dict", "OrderedDict", "MappingProxyType", "copy", "deepcopy")
LISTED = ("list", "tuple", "sorted", "enumerate", "reversed")
CREATING = (*DATABASES, "create", "get_or_create", "update_or_create", "bulk_create")
FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


class Calls(Methods):
    """Evaluates the calls of one module."""

    def value(self, node: ast.Call) -> Any:
        name = dotted(node.func)
        if name.rpartition(".")[2] == "getenv" or name.endswith("environ.get"):
            return self._default(node, node.args[1:])
        if DATABASES & set(name.split(".")) and name.rpartition(".")[2] in CREATING:
            told = f"left out, `{shown_source(node)}`: a schedule in a database"
            self._world.notes.append(Note(self._evaluator.source.place(node), told))
        match node.func:
            case ast.Attribute(attr="add_periodic_task"):
                return self._add(node)
            case ast.Attribute(receiver, attribute):
                owner = self._evaluator.value(receiver)
                match owner:
                    case Conf():
                        return self._of_conf(owner, attribute, node)
                    case Table():
                        return self._of_owner(owner, attribute, node)
                    case str():
                        return method(owner, attribute, *self._plain_arguments(node))
                    case list():
                        return self._of_list(cast("list[Any]", owner), attribute, node)
                    case timedelta() if attribute == "total_seconds":
                        return owner.total_seconds()
                    case Made() if not self._has_default(node):
                        return self._made(attribute, node, of=owner)
                    case _:
                        callee = self._evaluator.attribute(owner, attribute, node.func)
            case _:
                callee = self._evaluator.value(node.func)
        return self._called(callee, node)

    def _called(self, callee: Any, node: ast.Call) -> Any:
        if not isinstance(callee, Function | Class) and self._has_default(node):
            return self._default(node, ())
        match callee:
            case Function():
                return self._followed(callee, node)
            case Ref(path, unread):
                return self._of_ref(path, path.rpartition(".")[2], node, unread.hint)
            case Class(name=name):
                return self._made(name, node)
            case _:
                self._tell(node, *self._arguments(node))
                return self._evaluator.unread(node)

    def _followed(self, function: Function, node: ast.Call) -> Any:
        args, kwargs = self._arguments(node)
        bound = self._project.call(
            function, args, kwargs.entries, self._evaluator.source.place(node)
        )
        if isinstance(bound.value, Unread):
            self._tell(node, args, kwargs)
        return self._evaluator.take(bound)

    def _of_ref(self, path: str, last: str, node: ast.Call, hint: str) -> Any:
        if last in MAPPINGS:
            return self._mapping(last, node)
        if last in CONVERSIONS and path in (last, f"datetime.{last}", f"{self._module}.{last}"):
            made = called(last, *self._of_python(last, node))
            return self._world.listed(items_of(made) or ()) if isinstance(made, list) else made
        if path.endswith("crontab.from_string"):
            fields = str(self._evaluator.plain(node.args[0])).split()
            return Made("crontab", (), dict(zip(FIELDS, fields, strict=True)))
        if path == "setattr" and isinstance(self._evaluator.value(node.args[0]), Conf):
            _, name, value = node.args
            self._world.conf[named(self._evaluator.plain(name))] = self._evaluator.bound(value)
            return None
        if path == "map" and isinstance(name := self._evaluator.value(node.args[0]), Ref):
            items = [
                plain(each, self._evaluator.source.place(node))
                for each in self._evaluator.items(node.args[1])
            ]
            return self._world.listed(called(name.path, [each], {}) for each in items)
        if last == "config_from_object":
            return self._configure(node)
        return self._made(last, node, path=path, hint=hint)

    def _of_python(self, name: str, node: ast.Call) -> tuple[list[Any], Mapping[str, Any]]:
        """Return the arguments of a function of Python's: those of lists may contain tables."""
        if name not in LISTED or not node.args:
            return self._plain_arguments(node)
        rest = [self._evaluator.plain(each) for each in node.args[1:]]
        kwargs = {str(each.arg): self._evaluator.plain(each.value) for each in node.keywords}
        return [self._evaluator.items(node.args[0]), *rest], kwargs

    @property
    def _module(self) -> str:
        return self._evaluator.source.module

    def _made(
        self, kind: str, node: ast.Call, *, of: Any = None, path: str = "", hint: str = ""
    ) -> Made:
        args, table = self._arguments(node)
        kwargs = {key: self._evaluator.take(each) for key, each in table.entries.items()}
        if table.missing:
            kwargs["**"] = self._evaluator.unread(node)
        for name in (*CONTAINERS, *(["changes"] if kind == "Celery" else [])):
            if name in kwargs:
                self._configured_with(kwargs[name], node)
        self._tell(node, args, table)
        return Made(kind, tuple(args), kwargs, of or path, self._evaluator.unread(node, hint))

    def _has_default(self, node: ast.Call) -> bool:
        """Return whether a call asks for a setting by its name, such as `env("X", default=1)`."""
        given = {each.arg: each.value for each in node.keywords}
        name = next(iter(node.args), given.get("name"))
        return (
            "default" in given and name is not None and isinstance(self._evaluator.value(name), str)
        )

    def _default(self, node: ast.Call, given: Sequence[ast.expr]) -> Any:
        """Return the default of a value of the environment: that is a guess."""
        keywords = {each.arg: each.value for each in node.keywords}
        if not (found := [*given, *(keywords[key] for key in ("default",) if key in keywords)]):
            return self._evaluator.unread(node)
        place = self._evaluator.source.place(node)
        self._evaluator.touched.append(Note(place, default_of(node)))
        cast_ = dotted(keywords["cast"]) if "cast" in keywords else ""
        if cast_ in ("int", "float", "str", "bool"):
            return called(cast_, [self._evaluator.plain(found[0])], {})
        return self._evaluator.value(found[0])

    def _add(self, node: ast.Call) -> Unread:
        outer, self._evaluator.touched = self._evaluator.touched, []
        args, table = self._arguments(node)
        place = self._evaluator.source.place(node)
        notes = [*self._evaluator.touched, *self._world.conditional(place)]
        notes += [note for each in table.entries.values() for note in each.notes]
        kwargs = {key: each.value for key, each in table.entries.items()}
        if table.missing:
            kwargs["**"] = Unread(place, "**", table.missing[0].text)
        self._world.added.append(Added(place, tuple(args), kwargs, tuple(dict.fromkeys(notes))))
        self._evaluator.touched = outer
        return self._evaluator.unread(node)

    def _configure(self, node: ast.Call) -> None:
        (first, *_), _ = self._arguments(node)
        if isinstance(first, str):
            self._world.configured.append(first)
        elif isinstance(first, Ref):
            self._world.configured.append(first.path)
        elif isinstance(first, Table):
            self._configured_with(first, node)

    def _mapping(self, name: str, node: ast.Call) -> Any:
        args, kwargs = self._arguments(node)
        if name in ("copy", "deepcopy"):
            return self._copied(args[0], deep=name == "deepcopy")
        place = self._evaluator.source.place(node)
        return self._evaluator.union(*(Bound(each, place) for each in (*args, kwargs)))
