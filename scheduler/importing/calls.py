"""Evaluate calls in followed modules: of constants, tables and settings, and of their functions."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from scheduler.importing.expressions import Evaluator
from scheduler.importing.findings import Note
from scheduler.importing.values import (
    CONTAINERS,
    DATABASES,
    DECORATORS,
    ERRORS,
    FUNCTIONS,
    Bound,
    Class,
    Function,
    Made,
    Module,
    Ref,
    Scope,
    Table,
    Unread,
    Unreadable,
    called,
    dotted,
    is_read,
    last,
    method,
    plain,
    shown_source,
)

CREATING = (*DATABASES, "create", "get_or_create", "update_or_create", "bulk_create")
# What an app is given; all else are settings.
OF_APPS = {
    *("main", "loader", "backend", "amqp", "events", "log", "control", "set_as_current", "tasks"),
    *("broker", "include", "fixups", "task_cls", "autofinalize", "namespace", "strict_typing"),
    *("result_backend", "broker_url"),
}
OF_ITEMS = ("list", "tuple", "sorted", "enumerate", "reversed")


class Caller(Evaluator):
    def _call(self, node: ast.Call) -> Any:
        name = dotted(node.func)
        if last(name) == "getenv" or name.endswith("environ.get"):
            return self._default(node, node.args[1:])
        if DATABASES & set(name.split(".")) and last(name) in CREATING:
            self.note(node, f"left out, `{shown_source(node)}`: a schedule in a database")
        match node.func:
            case ast.Attribute(attr="add_periodic_task"):
                bound = self.depending(node, lambda: self._made("add_periodic_task", node))
                self.state.added.append(bound.under(*self.state.conditional(bound.place)))
                return self.unread(node)
            case ast.Attribute(receiver, attribute):
                match owner := self.value(receiver):
                    case Made("crontab" | "from_string" | "schedule"):
                        self.unfollowed(node)
                        return self.unread(node)
                    case Table():
                        return self._of_table(owner, attribute, node)
                    case str() | timedelta():
                        return self.kept(method(owner, attribute, *self._constants(node)))
                    case list() | set():
                        return self._of_items(cast("Any", owner), attribute, node)
                    case Made(kind) if kind != "Celery" and not self._has_default(node):
                        return self._unknown(attribute, node, owner)
                    case _:
                        return self._called(self.attribute(owner, attribute, node.func), node)
            case _:
                return self._called(self.value(node.func), node)

    def _called(self, callee: Any, node: ast.Call) -> Any:
        match callee:
            case Function():
                args, kwargs = self.arguments(node)
                place = self.source.place(node)
                value = self.take(self.project.call(callee, args, kwargs, place))
                if isinstance(value, Unread):
                    self._tell(node, args, kwargs)
                return value
            case Class(name=name):
                return self._unknown(name, node, "")
            case _ if self._has_default(node):
                return self._default(node, ())
            case Ref(path, hint=hint):
                return self._of_ref_called(path, last(path), node, hint)
            case _:
                args, kwargs = self.arguments(node)
                self._tell(node, args, kwargs)
                return self.unread(node)

    def _of_ref_called(self, path: str, name: str, node: ast.Call, hint: str) -> Any:
        match name, node.args:
            case "exec" | "eval" | "include", _ if path in (name, "split_settings.tools.include"):
                self.unfollowed(node)
                return self.unread(node)
            case "globals" | "locals" | "vars", [] if path == name:
                return self.state.names(self.scopes[0 if name == "globals" else -1])
            case "vars", [owner] if path == name:
                return self.attribute(self.value(owner), "__dict__", node)
            case "getattr", [owner, attribute, *_] if path == name:
                return self.attribute(self.value(owner), str(self.plain(attribute)), node)
            case "copy" | "deepcopy", [copied]:
                return self._copied(self.value(copied), deep=name == "deepcopy")
            case "dict" | "OrderedDict" | "MappingProxyType", _:
                args, kwargs = self.arguments(node)
                given = (Bound(each, self.source.place(node)) for each in (*args, kwargs))
                return self.update(self.state.table(), *given)
            case "setattr", [owner, attribute, value] if path == name:
                try:
                    name = str(self.plain(attribute))
                    self.set(self.value(owner), name, self.bound(value), node)
                except Unreadable:
                    self.unfollowed(node)
                return None
            case "map", [ast.Name(function), items] if function in FUNCTIONS:
                values = self.items(self.value(items), items)
                place = self.source.place(items)
                return self.state.listed(called(function, [plain(v, place)], {}) for v in values)
            case "config_from_object", [first, *_]:
                self._named_by(self.arguments(node)[1].entries)
                self.configure(self.bound(first), node)
                return None
            case "config_from_envvar", _:
                self.unfollowed(node)
                return None
            case "add_defaults", [first]:
                old = dict(self.state.conf.entries)
                self.configure(self.bound(first), node)
                self.state.conf.entries.update(old)
                return None
            case _ if name in FUNCTIONS and path.removesuffix(name) in (
                *("", "datetime.", "celery.schedules."),
                f"{self.source.module}.",
            ):
                return self.kept(called(name, *self._constants(node)))
            case _:
                return self._unknown(name, node, path, hint)

    def configure(self, bound: Bound, node: ast.AST) -> None:
        """Take the settings of an object; note those that are not in the files."""
        match bound.value:
            case str(path) | Ref(path):
                self.state.configured.append(path)
                if not self.project.has_object(path):
                    place = self.source.place(node)
                    told = f"the settings of {path} are not known{self.project.hint(path)}"
                    self.state.notes.append(Note(place, told))
            case Table():
                self.update(self.state.conf, bound)
            case Module(source):
                self.state.configured.append(source.module)
            case Made(of="") | Class():
                self.state.configured.append("")
            case _:
                self.unfollowed(node)

    def _named_by(self, given: Scope) -> None:
        """Note the prefix that names of settings have."""
        match given.get("namespace"):
            case Bound(str(namespace)) if namespace:
                self.state.namespaces.append(f"{namespace.upper()}_")
            case _:
                pass

    def _unknown(self, kind: str, node: ast.Call, of: Any, hint: str = "") -> Made:
        """Return the result of a call that is not followed, which may change its arguments."""
        made, place = self._made(kind, node, of, hint), self.source.place(node)
        given = {name: Bound(each, place) for name, each in made.kwargs.items()}
        for name in CONTAINERS:
            if name in given:
                self.update(self.state.conf, given[name])
        if kind != "Celery":
            self._tell(node, made.args, Table(given, []))
            return made
        if self.state.app not in (None, node):
            self.note(node, "another app: the settings of both are taken together")
        self.state.app = node
        self._named_by(given)
        for name, bound in given.items():
            if name in ("changes", "config_source"):
                self.configure(bound, node)
            elif name not in OF_APPS:
                self.set(self.state.conf, name, bound, node)
        return made

    def _made(self, kind: str, node: ast.Call, of: Any = None, hint: str = "") -> Made:
        args, table = self.arguments(node)
        kwargs = {key: self.take(each) for key, each in table.entries.items()}
        if table.missing:
            kwargs["**"] = table.missing[0].text
        place = self.source.place(node)
        return Made(place, shown_source(node), hint, kind, tuple(args), kwargs, of)

    def expanded(self, node: ast.expr) -> list[Any]:
        """Return the values that an argument passes; one, if their number is unknown."""
        try:
            return [*self.elements([node])]
        except Unreadable as error:
            return [error.unread]

    def arguments(self, node: ast.Call) -> tuple[list[Any], Table]:
        args = [value for each in node.args for value in self.expanded(each)]
        table = self.state.table()
        for each in node.keywords:
            bound = self.bound(each.value)
            if each.arg is None:
                self.update(table, bound)
            else:
                table.entries[each.arg] = bound
        return args, table

    def _constants(self, node: ast.Call) -> tuple[list[Any], Mapping[str, Any]]:
        """Return the arguments of a builtin: items may be tables."""
        place, notes = self.source.place(node), self.touched
        args, table = self.arguments(node)
        first: list[Any] = []
        if args and isinstance(node.func, ast.Name) and node.func.id in OF_ITEMS:
            first = [self.items(args.pop(0), node)]
        return [*first, *(plain(each, place, notes) for each in args)], plain(table, place, notes)

    def _tell(self, node: ast.Call, args: Sequence[Any], kwargs: Table) -> None:
        """Note what a call that is not followed may change."""
        texts = [*filter(is_read, kwargs.entries)]
        given: list[Any] = [*args, *(each.value for each in kwargs.entries.values())]
        for each in given:  # grows during the iteration
            match each:
                case Table() as table:
                    self.hidden(table, node)
                case list() | tuple() | set():
                    given += cast("Iterable[Any]", each)
                case Made() as made:
                    of = () if isinstance(made.of, str) else (made.of,)
                    given += [*made.args, *made.kwargs.values(), *of]
                case Function(node=task) if last(dotted(node)) in DECORATORS:
                    self.note(node, f"left out, the task {task.name}: it has no decorator")
                case str(text) if is_read(text) and (text.islower() or "BEAT" in text):
                    texts.append(text)
                case str(text) | Ref(text) if text.startswith(
                    ("celery.schedules.", "celery.beat.")
                ):
                    texts.append(text)  # may be patched
                case _:
                    pass
        if texts:
            self.unfollowed(node)

    def _has_default(self, node: ast.Call) -> bool:
        """Return whether a call asks for a setting by its name, such as `env("X", default=1)`."""
        given = {each.arg: each.value for each in node.keywords}
        name = next(iter(node.args), given.get("name"))
        return "default" in given and name is not None and isinstance(self.value(name), str)

    def _default(self, node: ast.Call, given: Sequence[ast.expr]) -> Any:
        """Return the default of a value of the environment: that is a guess."""
        keywords = {each.arg: each.value for each in node.keywords}
        default = next(iter(given), keywords.get("default"))
        if default is None:
            return self.unread(node)
        self.guess(node)
        kind = dotted(keywords["cast"]) if "cast" in keywords else ""
        is_known = kind in ("int", "float", "str", "bool")
        return called(kind, [self.plain(default)], {}) if is_known else self.value(default)

    def _copied(self, value: Any, *, deep: bool) -> Any:
        if not isinstance(value, Table):
            return self.kept(value)
        entries = dict(value.entries)
        if deep:
            for key, each in value.entries.items():
                entries[key] = Bound(self._copied(each.value, deep=True), each.place, each.notes)
        return self.state.table(entries, value.missing)

    def _of_items(self, owner: list[Any] | set[Any], name: str, node: ast.Call) -> Any:
        args, _ = self.arguments(node)
        try:
            return self.kept(method(owner, name, args, {}))
        except ERRORS:
            owner.clear()
            cast("Any", owner.append if isinstance(owner, list) else owner.add)(self.unread(node))
            return self.unread(node)

    def _of_table(self, table: Table, name: str, node: ast.Call) -> Any:
        """Call a method of a table; note possible changes."""
        match name, node.args:
            case "update" | "from_mapping", _:
                args, kwargs = self.arguments(node)
                given = (Bound(each, self.source.place(node)) for each in (*args, kwargs))
                self.update(table, *given)
            case (("setdefault" | "get" | "pop"), [key, *default]):
                try:
                    return self._of_key(table, name, key, default, node)
                except (Unreadable, *ERRORS):
                    told = str(self.unread(node))
                    table.missing.append(Note(self.source.place(node), told))
                    return self.unread(node)
            case "clear", []:
                table.entries.clear()
                table.missing.clear()
            case "copy", []:
                return self._copied(table, deep=False)
            case (("items" | "keys" | "values"), []) if table.is_whole:
                pairs = [(key, self.take(each)) for key, each in table.entries.items()]
                parts = {"items": pairs, "keys": [*table.entries], "values": [b for _, b in pairs]}
                return self.state.listed(parts[name])
            case _:
                if table.settings != "config":
                    self.hidden(table, node)
                return self.unread(node)
        return None

    def _of_key(
        self, table: Table, name: str, key: ast.expr, default: list[ast.expr], node: ast.Call
    ) -> Any:
        wanted = table.key(self.plain(key))
        if name == "setdefault" and wanted not in table.entries:
            self.put(table, key, self.bound(default[0]))
        if wanted in table.entries or not table.is_whole:
            value = self._entry(table, wanted, node)
            if name == "pop":
                table.entries.pop(wanted, None)
            return value
        return self.value(default[0]) if default else None
