"""Evaluate expressions of followed modules, as far as the source contains their values."""

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from scheduler.importing.findings import Note
from scheduler.importing.values import (
    ERRORS,
    OPTIONS,
    Bound,
    Class,
    Function,
    Made,
    Member,
    Module,
    Ref,
    Scope,
    Source,
    Table,
    Unread,
    Unreadable,
    combined,
    defaults_of,
    formatted,
    holds_entries,
    is_of_celery,
    is_read,
    is_relevant,
    is_setting,
    items_of,
    last,
    named,
    plain,
    shown_source,
    unread_of,
)

if TYPE_CHECKING:
    from scheduler.importing.project import Project

Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


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
        """Return the value of an expression as a Python object.

        Raises:
            Unreadable: a part of it is unknown.
        """
        return plain(self.value(node), self.source.place(node), self.touched)

    def unread(self, node: ast.AST, hint: str = "") -> Unread:
        return Unread(self.source.place(node), shown_source(node), hint)

    def note(self, node: ast.AST, told: str) -> None:
        self.state.notes.append(Note(self.source.place(node), told))

    def take(self, bound: Bound) -> Any:
        self.touched += bound.notes
        return bound.value

    def guess(self, node: ast.AST) -> None:
        told = f"the default is taken of `{shown_source(node)}`"
        self.touched.append(Note(self.source.place(node), told))

    def unfollowed(self, node: ast.AST) -> None:
        self.note(
            node, f"`{shown_source(node)}` may change settings of Celery's, and is not followed"
        )

    def put(self, table: Table, key: ast.expr, bound: Bound) -> None:
        try:
            wanted = self.depending(key, lambda: table.key(self.plain(key)))
            table.entries[wanted.value] = bound.under(*wanted.notes)
        except (Unreadable, TypeError) as error:
            said = error if isinstance(error, Unreadable) else self.unread(key)
            table.missing.append(Note(self.source.place(key), f"an entry is left out: {said}"))

    def update(self, table: Table, *given: Bound) -> Table:
        for each in given:
            match each.value:
                case Table(entries, missing):
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
                self.project.outer(self.scopes[-1]).get(name, self.scopes[-1])[name] = bound
            case ast.Tuple(targets) | ast.List(targets):
                parts = items_of(bound.value) or ()
                known = len(parts) == len(targets)
                for number, each in enumerate(targets):
                    part = parts[number] if known else self.unread(each)
                    self.assign(each, Bound(part, bound.place, bound.notes))
            case ast.Starred(inner):
                self.assign(inner, Bound(self.unread(inner), bound.place))
            case ast.Attribute(owner, name):
                match changed := self.value(owner):
                    case Made("crontab" | "from_string" | "schedule"):
                        self.unfollowed(target)
                    case Made("Celery") if name == "conf":
                        self.configure(bound, target)
                    case _:
                        self.set(changed, name, bound, target)
            case ast.Subscript(owner, key):
                match changed := self.value(owner):
                    case Table():
                        self.put(changed, key, bound)
                    case list():
                        changed[:] = [self.unread(target)]
                    case _ if (
                        is_relevant(key)
                        or is_relevant(owner)
                        or holds_entries(bound.value)
                        or is_of_celery(changed)
                        or is_of_celery(self.value(target))
                    ):
                        self.unfollowed(target)
                    case _:
                        pass
            case _:
                pass

    def set(self, owner: Any, name: str, bound: Bound, node: ast.AST) -> None:
        match owner:
            case Table(entries):
                entries[owner.key(name)] = bound
            case Class(attributes=scope):
                scope[name] = bound
            case Module(source):
                self.project.names(source)[name] = bound
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
        """Return the items that a loop over a value would visit.

        Raises:
            Unreadable: that is not known.
        """
        match value:
            case Table(entries) if value.is_whole:
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
                return self._either(test, first, second)
            case ast.JoinedStr(parts):
                return "".join(map(self._part, parts))
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

    def _call(self, node: ast.Call) -> Any:
        raise NotImplementedError

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
        path = f"{self.source.module}.{node.name}"
        defaults = {name: self.bound(each) for name, each in defaults_of(node.args).items()}
        made = Function(node, self.source, (*self.scopes,), path, defaults)
        self.project.functions.append(made)
        return made

    def hidden(self, table: Table, node: ast.AST) -> None:
        """Note that unfollowed code may change a table."""
        if table.settings:
            return self.unfollowed(node)
        told = f"`{shown_source(node)}` may change it, and is not followed"
        table.missing.append(Note(self.source.place(node), told))
        return None

    def configure(self, bound: Bound, node: ast.AST) -> None:
        raise NotImplementedError

    def _named(self, name: str, node: ast.expr) -> Any:
        for scope in reversed(self.scopes):
            if name in scope:
                is_shared = scope is self.scopes[0]
                return self._read(name, scope[name]) if is_shared else self.take(scope[name])
        if name == "__name__":
            return self.unread(node)
        if named(name) == "beat_schedule" and is_setting(name) and name.isupper():
            return self.state.beat_schedule(self.source.place(node))
        is_builtin = hasattr(builtins, name)
        return self.ref(name if is_builtin else f"{self.source.module}.{name}", node)

    def _read(self, name: str, bound: Bound) -> Any:
        """Return the value of a name that all code may change."""
        if not isinstance(bound.value, Unread | Function):
            self.state.read[name] = isinstance(bound.value, Table | list | set)
        return self.take(bound)

    def ref(self, path: str, node: ast.AST, hint: str = "") -> Ref:
        return Ref(self.source.place(node), shown_source(node), hint, path)

    def attribute(self, value: Any, name: str, node: ast.AST) -> Any:
        match value:
            case Table() if hasattr(dict, name):  # a method that is called elsewhere
                return self.hidden(value, node)
            case Table():
                return self._entry(value, name, node)
            case Module(source) if name == "__dict__":
                return self.state.names(self.project.names(source))
            case Module(source):
                scope = self.project.names(source)
                return self._read(name, scope[name]) if name in scope else self.unread(node)
            case Class() if (bound := value.find(name)) is not None:
                return value.member(name) if value.is_enum else self._read(name, bound)
            case Function(path=path) | Class(name=path) if name == "__name__":
                return last(path)
            case Function(path=path) | Class(name=path):
                return self.ref(f"{path}.{name}", node)
            case _ if name == "add_periodic_task":  # as above
                self.unfollowed(node)
                return self.unread(node)
            case _ if name == "conf":
                return self.state.conf
            case _ if name == "config":
                hidden = Note(self.source.place(node), str(self.unread(node)))
                return Table(self.state.config, [hidden], name)
            case Member(member, of) if name in ("name", "value"):
                return of if name == "value" else member
            case Ref(path):
                return self._of_ref(f"{path}.{name}", name, node, value.hint)
            case timedelta() if name in ("days", "seconds"):
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

    def _entry(self, table: Table, key: Any, node: ast.AST) -> Any:
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
            case Table():
                return self._entry(value, self.plain(key), node)
            case Ref("sys.modules") if isinstance(key, ast.Name) and key.id == "__name__":
                return Module(self.source)
            case Ref(path) if path == "sys.modules" or path.endswith(".tasks"):
                return self.ref(str(self.plain(key)), node)
            case Class() if value.is_enum:
                return value.member(self.plain(key))
            case list() | tuple() | str():
                index = self._slice(key) if isinstance(key, ast.Slice) else self.plain(key)
                return self.kept(cast("Any", value)[index])
            case _:
                return self.unread(node)

    def kept(self, value: Any) -> Any:
        """Return a computed value: a list may be changed, so it is a part of the state."""
        return self.state.listed(cast("list[Any]", value)) if isinstance(value, list) else value

    def _slice(self, node: ast.Slice) -> slice:
        bounds = (node.lower, node.upper, node.step)
        return slice(*(None if each is None else self.plain(each) for each in bounds))

    def _table(self, node: ast.Dict) -> Table:
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

    def _part(self, node: ast.expr) -> str:
        match node:
            case ast.FormattedValue(value, conversion, spec):
                text = "" if spec is None else self.plain(spec)
                return formatted(self.plain(value), conversion, text)
            case _:
                return str(self.plain(node))

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
        if isinstance(node.op, ast.BitOr) and Table in {type(first.value), type(second.value)}:
            return self.update(self.state.table(), first, second)
        if Made in {type(first.value), type(second.value)}:
            return self.unread(node)
        values = [plain(each.value, each.place, self.touched) for each in (first, second)]
        return self.kept(combined(node.op, *values))

    def _either(self, test: ast.expr, first: ast.expr, second: ast.expr) -> Any:
        if (known := self.decided(test)) is not None:
            return self.value(first if known else second)
        both = self.bound(first), self.bound(second)
        return self.take(self.state.merged(*both, *conditions(test)))

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


def _are_pairs(items: Sequence[Any]) -> bool:
    return all(len(items_of(each) or ()) == 2 for each in items)


def _truth(value: Any) -> bool | None:
    match value:
        case Ref("typing.TYPE_CHECKING"):
            return False
        case Unread():
            return None
        case Table(entries):
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


def hint_of(path: str) -> str:
    """Return the file to add, for a module, or a name of one."""
    parts = path.split(".")
    while len(parts) > 1 and not parts[-1].islower():
        parts.pop()
    return f": add {'/'.join(parts)}.py"
