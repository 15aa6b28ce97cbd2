"""Evaluate expressions of followed modules, as far as the source contains their values."""

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from scheduler.importing.values import (
    CONTAINERS,
    DATABASES,
    DECORATORS,
    ERRORS,
    FUNCTIONS,
    OPTIONS,
    Bound,
    Class,
    Function,
    Made,
    Member,
    Ref,
    Scope,
    Source,
    TableValue,
    Unread,
    Unreadable,
    called,
    combined,
    defaults_of,
    dotted,
    formatted,
    hint_of,
    holds_entries,
    is_of_celery,
    is_read,
    is_relevant,
    is_setting,
    items_of,
    last,
    method,
    named,
    plain,
    shown_source,
    unread_of,
)
from scheduler.importing.writing import Note

if TYPE_CHECKING:
    from scheduler.importing.project import Project

Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
CREATING = (*DATABASES, "create", "get_or_create", "update_or_create", "bulk_create")
# What an app is given; all else are settings.
OF_APPS = {
    *("main", "loader", "backend", "amqp", "events", "log", "control", "set_as_current", "tasks"),
    *("broker", "include", "fixups", "task_cls", "autofinalize", "namespace", "strict_typing"),
    *("result_backend", "broker_url"),
}
# These may change any name.
CHANGING = {"exec", "eval", "globals", "locals", "vars", "split_settings.tools.include"}
OF_ITEMS = ("list", "tuple", "sorted", "enumerate", "reversed")


class Evaluator:
    """Evaluate the expressions of one module.

    Attributes:
        touched: guesses and conditions that the values depend on which were read last.
    """

    def __init__(self, project: "Project", source: Source, scopes: Sequence[Scope]) -> None:
        self.project = project
        self.state = project.state
        self.source = source
        self.scopes = [*scopes]
        self.touched: list[Note] = []

    def bound(self, node: ast.expr) -> Bound:
        """Return the value of an expression, with its dependencies."""
        return self.depending(node, lambda: self.value(node))

    def depending(self, node: ast.AST, read: Callable[[], Any]) -> Bound:
        outer, self.touched = self.touched, []
        try:
            value = read()
            return Bound(value, self.source.place(node), tuple(dict.fromkeys(self.touched)))
        finally:
            self.touched = outer

    def value(self, node: ast.expr) -> Any:
        self.state.step()
        try:
            return self._value(node)
        except Unreadable as error:
            return error.unread
        except ERRORS:
            return self.unread(node)

    def plain(self, node: ast.expr) -> Any:
        """Return the value of an expression as a Python object, or raise Unreadable."""
        return plain(self.value(node), self.source.place(node), self.touched)

    def unread(self, node: ast.AST, hint: str = "") -> Unread:
        return Unread(self.source.place(node), shown_source(node), hint)

    def note(self, node: ast.AST, detail: str) -> None:
        self.state.notes.append(Note(self.source.place(node), detail))

    def take(self, bound: Bound) -> Any:
        self.touched += bound.notes
        return bound.value

    def guess(self, node: ast.AST) -> None:
        detail = f"the default is taken of `{shown_source(node)}`"
        self.touched.append(Note(self.source.place(node), detail))

    def unfollowed(self, node: ast.AST) -> Unread:
        """Note that code may change settings; return its value."""
        detail = f"`{shown_source(node)}` may change settings of Celery's, and is not followed"
        self.state.notes.append(Note(self.source.place(node), detail))
        return self.unread(node)

    def put(self, table: TableValue, key: ast.expr, bound: Bound) -> None:
        try:
            wanted = self.depending(key, lambda: table.key(self.plain(key)))
            table.entries[wanted.value] = bound.under(*wanted.notes)
        except (Unreadable, TypeError) as error:
            said = error if isinstance(error, Unreadable) else self.unread(key)
            table.missing.append(Note(self.source.place(key), f"an entry is left out: {said}"))

    def update(self, table: TableValue, *given: Bound) -> TableValue:
        for each in given:
            match each.value:
                case TableValue(entries, missing):
                    pairs = [(key, inner.under(*each.notes)) for key, inner in entries.items()]
                    table.missing += missing
                case value if (items := items_of(value)) is not None and _are_pairs(items):
                    pairs = [(key, Bound(value, each.place, each.notes)) for key, value in items]
                case value:
                    pairs = []
                    table.missing.append(Note(each.place, str(unread_of(value, each.place))))
            table.entries.update({table.key(key): inner for key, inner in pairs})
        return table

    def assign(self, target: ast.expr, bound: Bound) -> None:
        """Bind a name, an attribute or a key to a value, or several to its parts."""
        match target:
            case ast.Name(name):
                self.scopes[-1][name] = bound
            case ast.Tuple(targets) | ast.List(targets):
                parts = items_of(bound.value) or ()
                if len(parts) != len(targets):
                    parts = [*map(self.unread, targets)]
                for each, part in zip(targets, parts, strict=True):
                    self.assign(each, replace(bound, value=part))
            case ast.Starred(inner):
                self.assign(inner, Bound(self.unread(inner), bound.place))
            case ast.Attribute(owner, name):
                match self.value(owner):
                    case Made("Celery") if name == "conf":
                        self.configure(bound, target)
                    case changed:
                        self.store(changed, name, bound, target)
            case ast.Subscript(owner, key):
                match changed := self.value(owner):
                    case TableValue():
                        self.put(changed, key, bound)
                    case list():
                        changed[:] = [self.unread(target)]
                    case _ if (
                        is_relevant(target)
                        or holds_entries(bound.value)
                        or is_of_celery(changed)
                        or is_of_celery(self.value(target))
                    ):
                        self.unfollowed(target)
                    case _:
                        pass
            case _:
                pass

    def store(self, owner: Any, name: str, bound: Bound, node: ast.AST) -> None:
        match owner:
            case TableValue(entries):
                entries[owner.key(name)] = bound
            case Class(attributes=scope):
                scope[name] = bound
            case Source():
                self.project.names(owner)[name] = bound
            case Made("crontab" | "from_string" | "schedule"):
                self.unfollowed(node)
            case _ if named(name) == "beat_schedule":
                self.state.conf.entries["beat_schedule"] = bound
            case _ if (
                is_read(name)
                or name in OPTIONS
                or holds_entries(bound.value)
                or is_of_celery(owner)
            ):
                self.unfollowed(node)
            case _:
                pass

    def decided(self, test: ast.expr) -> bool | None:
        """Return whether a condition holds; None if that is not certain."""
        bound = self.bound(test)
        return None if bound.notes else _truth(bound.value)

    def items(self, value: Any, node: ast.AST) -> list[Any]:
        """Return the items that a loop over a value would visit, or raise Unreadable."""
        match value:
            case TableValue(entries) if value.is_whole:
                return [*entries]
            case list() | tuple() | set() | range() | str():
                return [*cast("Iterable[Any]", value)]
            case Class() if value.is_enum:
                return [value.member(name) for name in value.attributes]
            case _:
                raise Unreadable(self.unread(node))

    def elements(self, nodes: Iterable[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self.items(self.value(node.value), node.value)
            else:
                yield self.value(node)

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self._named(name, node)
            case ast.Attribute(owner, name):
                return self.attribute(self.value(owner), name, node)
            case ast.Subscript(owner, key):
                return self._item(self.value(owner), key, node)
            case ast.Call():
                return self._call(node)
            case ast.Dict():
                return self._table(node)
            case ast.List(elements):
                return self.state.listed(self.elements(elements))
            case ast.Tuple(elements):
                return tuple(self.elements(elements))
            case ast.Set(elements):
                return set(self.elements(elements))
            case ast.UnaryOp(ast.Not(), operand):
                known = _truth(self.value(operand))
                return self.unread(node) if known is None else not known
            case ast.UnaryOp(ast.USub(), operand):
                return -self.plain(operand)
            case ast.BinOp():
                return self._combined(node)
            case ast.Compare(left, operations, others):
                pairs = zip(operations, others, strict=True)
                values = [self.plain(left), *(self._operand(*each) for each in pairs)]
                steps = zip(operations, values, values[1:], strict=False)
                return all(combined(*each) for each in steps)
            case ast.BoolOp(operation, values):
                return self._first_of(isinstance(operation, ast.Or), values)
            case ast.IfExp(test, first, second):
                if (known := self.decided(test)) is not None:
                    return self.value(first if known else second)
                both = self.bound(first), self.bound(second)
                return self.take(self.state.merged(*both, *conditions(test)))
            case ast.JoinedStr(parts):
                return "".join(str(self.plain(each)) for each in parts)
            case ast.FormattedValue(value, conversion, spec):
                return formatted(self.plain(value), conversion, self.plain(spec) if spec else "")
            case ast.Slice(lower, upper, step):
                return slice(*(each and self.plain(each) for each in (lower, upper, step)))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.NamedExpr(target, value):
                bound = self.bound(value)
                self.assign(target, bound)
                return self.take(bound)
            case ast.Lambda(args, body):
                made = ast.FunctionDef(shown_source(node), args, [ast.Return(body)], [])
                for each in (made, made.body[0]):
                    ast.copy_location(each, node)
                return self.function(made)
            case _:
                return self.unread(node)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
        path = f"{self.source.module}.{node.name}"
        defaults = {name: self.bound(each) for name, each in defaults_of(node.args).items()}
        made = Function(node, self.source, (*self.scopes,), path, defaults)
        self.project.functions.append(made)
        return made

    def hidden(self, table: TableValue, node: ast.AST) -> Unread:
        """Note that unfollowed code may change a table; return its value."""
        if table.settings:
            return self.unfollowed(node)
        detail = f"`{shown_source(node)}` may change it, and is not followed"
        table.missing.append(Note(self.source.place(node), detail))
        return self.unread(node)

    def _named(self, name: str, node: ast.expr) -> Any:
        for scope in reversed(self.scopes):
            if name in scope:
                is_shared = scope is self.scopes[0]
                return self._read(name, scope[name]) if is_shared else self.take(scope[name])
        if named(name) == "beat_schedule" and is_setting(name) and name.isupper():
            return self.state.beat_schedule(self.source.place(node))
        is_builtin = hasattr(builtins, name)
        return self.ref(name if is_builtin else f"{self.source.module}.{name}", node)

    def _read(self, name: str, bound: Bound) -> Any:
        """Return the value of a name that all code may change."""
        if not isinstance(bound.value, Unread | Function):
            self.state.read[name] = isinstance(bound.value, TableValue | list | set)
        return self.take(bound)

    def ref(self, path: str, node: ast.AST, hint: str = "") -> Ref:
        return Ref(self.source.place(node), shown_source(node), hint, path)

    def attribute(self, value: Any, name: str, node: ast.AST) -> Any:
        match value:
            case TableValue() if hasattr(dict, name):  # a method that is called elsewhere
                return self.hidden(value, node)
            case TableValue():
                return self._entry(value, name, node)
            case Source():
                scope = self.project.names(value)
                return self._read(name, scope[name]) if name in scope else self.unread(node)
            case Class() if (bound := value.find(name)) is not None:
                return value.member(name) if value.is_enum else self._read(name, bound)
            case Function(path=path) | Class(name=path) if name == "__name__":
                return last(path)
            case Function(path=path) | Class(name=path):
                return self.ref(f"{path}.{name}", node)
            case _ if name == "add_periodic_task":  # a method that is called elsewhere
                return self.unfollowed(node)
            case _ if name == "conf":
                return self.state.conf
            case _ if name == "config":
                hidden = Note(self.source.place(node), str(self.unread(node)))
                return TableValue(self.state.config, [hidden], name)
            case Ref(path):
                return self._of_ref(f"{path}.{name}", name, node, value.hint)
            case timedelta() | Member() if name in ("days", "seconds", "name", "value"):
                return getattr(value, name)
            case Made("Celery"):
                return self.ref(f"{self.source.module}.{name}", node)
            case _:
                return self.unread(node)

    def _of_ref(self, path: str, name: str, node: ast.AST, hint: str) -> Any:
        if path.startswith("django.conf.settings.") and (bound := self.project.setting(name)):
            return self.take(bound)
        if named(name) == "beat_schedule":
            return self.state.beat_schedule(self.source.place(node))
        if (found := self.project.module_at(path)) is not None:
            return found
        if hint.endswith(".py"):
            hint = hint_of(path.rpartition(".")[0])
        return self.ref(path, node, hint)

    def _entry(self, table: TableValue, key: Any, node: ast.AST) -> Any:
        wanted = table.key(key)
        is_own = wanted in table.entries and table is not self.state.conf
        if table.settings and named(str(key)) == "beat_schedule" and not is_own:
            return self.state.beat_schedule(self.source.place(node))
        if wanted in table.entries:
            return self.take(table.entries[wanted])
        is_part = table.missing and not table.settings
        return self.unread(node, f": {table.missing[0].text}" if is_part else "")

    def _item(self, value: Any, key: ast.expr, node: ast.AST) -> Any:
        match value:
            case TableValue():
                return self._entry(value, self.plain(key), node)
            case Ref(path) if path == "sys.modules" or path.endswith(".tasks"):
                return self.ref(str(self.plain(key)), node)
            case Class() if value.is_enum:
                return value.member(self.plain(key))
            case list() | tuple() | str():
                return self.kept(cast("Any", value)[self.plain(key)])
            case _:
                return self.unread(node)

    def kept(self, value: Any) -> Any:
        """Return a computed value: a list may be changed, so it is a part of the state."""
        return self.state.listed(cast("list[Any]", value)) if isinstance(value, list) else value

    def _table(self, node: ast.Dict) -> TableValue:
        table = self.state.table()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                self.update(table, self.bound(value))
            else:
                self.put(table, key, self.bound(value))
        return table

    def _operand(self, operation: ast.cmpop, node: ast.expr) -> Any:
        """Return the other operand of a comparison or a search: for a table, its keys."""
        value = self.value(node)
        if isinstance(operation, ast.In | ast.NotIn) and not isinstance(value, str):
            return self.items(value, node)
        return plain(value, self.source.place(node), self.touched)

    def _first_of(self, wanted: bool, nodes: Sequence[ast.expr]) -> Any:
        """Return the value of `or`, or of `and`."""
        for node in nodes[:-1]:
            value = self.value(node)
            known = _truth(value)
            if known is None and (not wanted or isinstance(value, Made)):
                raise Unreadable(unread_of(value, self.source.place(node)))
            if known is None:
                self.guess(node)
            elif known == wanted:
                return value
        return self.value(nodes[-1])

    def _combined(self, node: ast.BinOp) -> Any:
        first, second = self.bound(node.left), self.bound(node.right)
        self.touched += [*first.notes, *second.notes]
        if isinstance(node.op, ast.BitOr) and TableValue in {type(first.value), type(second.value)}:
            return self.update(self.state.table(), first, second)
        if Made in {type(first.value), type(second.value)}:
            return self.unread(node)
        values = [plain(each.value, each.place, self.touched) for each in (first, second)]
        return self.kept(combined(node.op, *values))

    def _comprehension(self, node: Comprehension) -> Any:
        self.scopes.append(self.state.scope())
        try:
            if isinstance(node, ast.DictComp):
                table = self.state.table()
                self._gather(node, 0, lambda: self.put(table, node.key, self.bound(node.value)))
                return table
            made = self.state.listed()
            self._gather(node, 0, lambda: made.append(self.value(node.elt)))
            return set(made) if isinstance(node, ast.SetComp) else made
        finally:
            self.scopes.pop()

    def _gather(self, node: Comprehension, depth: int, add: Callable[[], None]) -> None:
        if depth == len(node.generators):
            add()
            return
        each = node.generators[depth]
        for item in self.items(self.value(each.iter), each.iter):
            self.assign(each.target, Bound(item, self.source.place(node)))
            tests = [self.decided(test) for test in each.ifs]
            if None in tests:
                raise Unreadable(self.unread(node))
            if all(tests):
                self._gather(node, depth + 1, add)

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
                        return self.unfollowed(node)
                    case TableValue():
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
            case _ if path in CHANGING:
                return self.unfollowed(node)
            case "getattr", [owner, attribute, *_] if path == name:
                return self.attribute(self.value(owner), str(self.plain(attribute)), node)
            case "copy" | "deepcopy", [copied]:
                return self._copied(self.value(copied), deep=name == "deepcopy")
            case "dict" | "OrderedDict" | "MappingProxyType", _:
                return self.update(self.state.table(), *self._tables(node))
            case "setattr", [owner, attribute, value] if path == name:
                try:
                    name = str(self.plain(attribute))
                    self.store(self.value(owner), name, self.bound(value), node)
                except Unreadable:
                    self.unfollowed(node)
                return None
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
                    hint = hint_of(path.partition(":")[0])
                    detail = f"the settings of {path} are not known{hint}"
                    self.state.notes.append(Note(place, detail))
            case TableValue():
                self.update(self.state.conf, bound)
            case Source(module=module):
                self.state.configured.append(module)
            case Made(of="") | Class():
                self.state.configured.append("")
            case _:
                self.unfollowed(node)

    def _named_by(self, given: Scope) -> None:
        """Note the prefix that names of settings have."""
        if (bound := given.get("namespace")) and isinstance(bound.value, str) and bound.value:
            self.state.namespaces.append(f"{bound.value.upper()}_")

    def _unknown(self, kind: str, node: ast.Call, of: Any, hint: str = "") -> Made:
        """Return the result of a call that is not followed, which may change its arguments."""
        made, place = self._made(kind, node, of, hint), self.source.place(node)
        given = {name: Bound(each, place) for name, each in made.kwargs.items()}
        for name in CONTAINERS:
            if name in given:
                self.update(self.state.conf, given[name])
        if kind != "Celery":
            self._tell(node, made.args, TableValue(given, []))
            return made
        if self.state.app not in (None, node):
            self.note(node, "another app: the settings of both are taken together")
        self.state.app = node
        self._named_by(given)
        for name, bound in given.items():
            if name in ("changes", "config_source"):
                self.configure(bound, node)
            elif name not in OF_APPS:
                self.store(self.state.conf, name, bound, node)
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

    def arguments(self, node: ast.Call) -> tuple[list[Any], TableValue]:
        args = [value for each in node.args for value in self.expanded(each)]
        table = self.state.table()
        for each in node.keywords:
            bound = self.bound(each.value)
            if each.arg is None:
                self.update(table, bound)
            else:
                table.entries[each.arg] = bound
        return args, table

    def _tables(self, node: ast.Call) -> list[Bound]:
        """Return the arguments of a call that updates a table."""
        args, kwargs = self.arguments(node)
        return [Bound(each, self.source.place(node)) for each in (*args, kwargs)]

    def _constants(self, node: ast.Call) -> tuple[list[Any], Mapping[str, Any]]:
        """Return the arguments of a builtin: items may be tables."""
        place, notes = self.source.place(node), self.touched
        args, table = self.arguments(node)
        first: list[Any] = []
        if args and isinstance(node.func, ast.Name) and node.func.id in OF_ITEMS:
            first = [self.items(args.pop(0), node)]
        return [*first, *(plain(each, place, notes) for each in args)], plain(table, place, notes)

    def _tell(self, node: ast.Call, args: Sequence[Any], kwargs: TableValue) -> None:
        """Note what a call that is not followed may change."""
        texts = [*filter(is_read, kwargs.entries)]
        given: list[Any] = [*args, *(each.value for each in kwargs.entries.values())]
        for each in given:  # grows during the iteration
            match each:
                case TableValue() as table:
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
        if not isinstance(value, TableValue):
            return self.kept(value)
        entries = {
            key: replace(each, value=self._copied(each.value, deep=True)) if deep else each
            for key, each in value.entries.items()
        }
        return self.state.table(entries, value.missing)

    def _of_items(self, owner: list[Any] | set[Any], name: str, node: ast.Call) -> Any:
        args, _ = self.arguments(node)
        try:
            return self.kept(method(owner, name, args, {}))
        except ERRORS:
            owner.clear()
            cast("Any", owner.append if isinstance(owner, list) else owner.add)(self.unread(node))
            return self.unread(node)

    def _of_table(self, table: TableValue, name: str, node: ast.Call) -> Any:
        """Call a method of a table; note possible changes."""
        match name, node.args:
            case "update" | "from_mapping", _:
                self.update(table, *self._tables(node))
            case (("setdefault" | "get" | "pop"), [key, *default]):
                try:
                    return self._of_key(table, name, key, default, node)
                except (Unreadable, *ERRORS):
                    detail = str(self.unread(node))
                    table.missing.append(Note(self.source.place(node), detail))
                    return self.unread(node)
            case "clear", []:
                table.entries.clear()
                table.missing.clear()
            case "copy", []:
                return self._copied(table, deep=False)
            case (("items" | "keys" | "values"), []) if table.is_whole:
                pairs = [(key, self.take(each)) for key, each in table.entries.items()]
                at = {"keys": 0, "values": 1}.get(name)
                return self.state.listed(pairs if at is None else (pair[at] for pair in pairs))
            case _:
                return self.unread(node) if table.settings == "config" else self.hidden(table, node)
        return None

    def _of_key(
        self, table: TableValue, name: str, key: ast.expr, default: list[ast.expr], node: ast.Call
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


def _are_pairs(items: Sequence[Any]) -> bool:
    return all(len(items_of(each) or ()) == 2 for each in items)


def _truth(value: Any) -> bool | None:
    match value:
        case Ref("typing.TYPE_CHECKING"):
            return False
        case Unread():
            return None
        case TableValue(entries):
            return bool(entries) or (False if value.is_whole else None)
        case _:
            return bool(value)


def conditions(test: ast.expr) -> tuple[str, str]:
    match test:
        case ast.UnaryOp(ast.Not(), other):
            pass
        case _:
            other = ast.UnaryOp(ast.Not(), test)
    return f"if {shown_source(test)}", f"if {shown_source(other)}"
