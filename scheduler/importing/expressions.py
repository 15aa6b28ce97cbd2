"""Expressions of modules that are followed: the value of each, where the source contains it."""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from scheduler.importing.celery_names import is_relevant
from scheduler.importing.findings import Note
from scheduler.importing.names import Names, default_of
from scheduler.importing.operations import combined, compared, formatted
from scheduler.importing.values import (
    Bound,
    Class,
    Conf,
    Made,
    Ref,
    Table,
    Unread,
    Unreadable,
    plain,
    shown_source,
)

Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class Evaluator(Names):
    """Evaluates the expressions of one module."""

    def decided(self, test: ast.expr) -> bool | None:
        """Return whether a condition holds; None if that is not certain."""
        bound = self.bound(test)
        if isinstance(bound.value, Ref) and bound.value.path == "typing.TYPE_CHECKING":
            return False
        known, value = None, bound.value
        if isinstance(value, Table):
            known = bool(value.entries) or (None if value.missing else False)
        elif not isinstance(value, Unread | Ref | Made | Conf):
            known = bool(value)
        return None if bound.notes else known

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self._named(name, node)
            case ast.Attribute(value, name):
                return self.attribute(self.value(value), name, node)
            case ast.Dict():
                return self._table(node)
            case ast.Subscript(value, key):
                return self._item(self.value(value), key, node)
            case ast.Call():
                return self.project.calls(self).value(node)
            case ast.IfExp(test, first, second):
                return self._either(test, first, second)
            case ast.BinOp():
                return self._combined(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.NamedExpr(ast.Name(name), value):
                self.scopes[-1][name] = self.bound(value)
                return self.take(self.scopes[-1][name])
            case _:
                return self._of_parts(node)

    def _of_parts(self, node: ast.expr) -> Any:
        match node:
            case ast.List(elements):
                return self.world.listed(self.elements(elements))
            case ast.Tuple(elements):
                return tuple(self.elements(elements))
            case ast.Set(elements):
                return set(self.elements(elements))
            case ast.UnaryOp(ast.Not(), operand):
                return not self.plain(operand)
            case ast.UnaryOp(ast.USub(), operand):
                return -self.plain(operand)
            case ast.Compare(left, [ast.In() | ast.NotIn() as operation], [right]):
                return compared(operation, self.plain(left), self.items(right))
            case ast.Compare(left, operations, others):
                values = [self.plain(each) for each in (left, *others)]
                pairs = zip(operations, values, values[1:], strict=False)
                return all(compared(*each) for each in pairs)
            case ast.BoolOp(operation, values):
                return self._first_of(isinstance(operation, ast.Or), values)
            case ast.JoinedStr(parts):
                return "".join(self._part(each) for each in parts)
            case ast.Lambda() if is_relevant(node):
                told = (
                    f"`{shown_source(node)}` may change settings of Celery's, and is not followed"
                )
                self.world.notes.append(Note(self.source.place(node), told))
                return self.unread(node)
            case _:
                return self.unread(node)

    def _part(self, node: ast.expr) -> str:
        match node:
            case ast.FormattedValue(value, conversion, spec):
                text = "" if spec is None else self.plain(spec)
                return formatted(self.plain(value), conversion, text)
            case _:
                return str(self.plain(node))

    def _first_of(self, wanted: bool, nodes: Sequence[ast.expr]) -> Any:
        """Return the value of `or`, or of `and`."""
        value: Any = None
        for node in nodes:
            value = self.value(node)
            if isinstance(value, Unread | Ref) and wanted and node is not nodes[-1]:
                self.touched.append(Note(self.source.place(node), default_of(node)))
                continue
            known = bool(value.entries) if isinstance(value, Table) else bool(self.plain(node))
            if known == wanted:
                break
        return value

    def elements(self, nodes: Iterable[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self.items(node.value)
            else:
                yield self.value(node)

    def items(self, node: ast.expr) -> list[Any]:
        """Return what a loop over a value would go through.

        Raises:
            Unreadable: that is not known.
        """
        value = self.value(node)
        match value:
            case Table(entries, missing) if not missing:
                return [*entries]
            case list() | tuple() | set() | range() | str():
                return [*cast("Iterable[Any]", value)]
            case Class() if value.is_enum:
                return [value.member(name) for name in value.attributes]
            case _:
                raise Unreadable(self.unread(node))

    def _table(self, node: ast.Dict) -> Table:
        table = self.world.table()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                self.update(table, self.bound(value))
            else:
                self.put(table, key, self.bound(value))
        return table

    def _combined(self, node: ast.BinOp) -> Any:
        operation = node.op
        first, second = self.bound(node.left), self.bound(node.right)
        self.touched += [*first.notes, *second.notes]
        if isinstance(operation, ast.BitOr) and Table in {type(first.value), type(second.value)}:
            return self.union(first, second)
        if Made in {type(first.value), type(second.value)}:
            return self.unread(node)
        values = [plain(each.value, each.place, self.touched) for each in (first, second)]
        value = combined(operation, *values)
        return self.world.listed(cast("list[Any]", value)) if isinstance(value, list) else value

    def _either(self, test: ast.expr, first: ast.expr, second: ast.expr) -> Any:
        if (known := self.decided(test)) is not None:
            return self.value(first if known else second)
        conditions = [f"if {shown_source(each)}" for each in (test, ast.UnaryOp(ast.Not(), test))]
        both = self.bound(first), self.bound(second)
        return self.take(self.world.merged(*both, conditions[0], conditions[1]))

    def _comprehension(self, node: Comprehension) -> Any:
        made: Table | list[Any] = self.world.listed()
        if isinstance(node, ast.DictComp):
            made = self.world.table()
        self.scopes.append(self.world.scope())
        try:
            self._gather(node, 0, self._gatherer(node, made))
        finally:
            self.scopes.pop()
        return set(cast("list[Any]", made)) if isinstance(node, ast.SetComp) else made

    def _gatherer(self, node: Comprehension, made: Table | list[Any]) -> Callable[[], None]:
        if isinstance(node, ast.DictComp):
            table = cast("Table", made)
            return lambda: self.put(table, node.key, self.bound(node.value))
        return lambda: cast("list[Any]", made).append(self.value(node.elt))

    def _gather(self, node: Comprehension, depth: int, add: Callable[[], None]) -> None:
        if depth == len(node.generators):
            add()
            return
        each = node.generators[depth]
        for item in self.items(each.iter):
            self.assign(each.target, Bound(item, self.source.place(node)))
            tests = [self.decided(test) for test in each.ifs]
            if None in tests:
                raise Unreadable(self.unread(node))
            if all(tests):
                self._gather(node, depth + 1, add)
