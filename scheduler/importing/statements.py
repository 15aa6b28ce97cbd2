"""Statements of modules that are followed: in their order, and both branches of a condition."""

import ast
from collections.abc import Callable, Sequence
from functools import cache

from scheduler.importing.assignments import Assigner
from scheduler.importing.names import ERRORS
from scheduler.importing.operations import LONGEST
from scheduler.importing.values import (
    Bound,
    Class,
    Function,
    Unreadable,
    shown_source,
)
from scheduler.importing.world import Left

Block = Sequence[ast.stmt]
LEAVING = (ast.Return, ast.Break, ast.Continue, ast.Raise)
TRANSPARENT = ("lru_cache", "cache", "staticmethod", "classmethod")


class Follower(Assigner):
    """Follows the statements of a module, of a class or of a function."""

    def block(self, statements: Block) -> Left | None:
        """Follow statements until they are left."""
        for number, statement in enumerate(statements):
            self.world.step()
            self.world.executed.add(id(statement))
            later = statements[number + 1 :] if _may_leave(statement) else ()
            match statement:
                case ast.If(test, body, orelse):
                    left = self._if(test, body, orelse, later)
                case ast.Match(subject, cases):
                    left = self._match(subject, cases, later)
                case ast.Try() | ast.TryStar():
                    left = self._try(statement)
                case _:
                    later, left = (), self._statement(statement)
            if left is not None or later:
                return left
        return None

    def _statement(self, statement: ast.stmt) -> Left | None:
        match statement:
            case ast.For(target, those, body, orelse) | ast.AsyncFor(target, those, body, orelse):
                return self._for(statement, target, those, [*body], orelse)
            case ast.While(test, body):
                return self._perhaps(f"while {shown_source(test)}", body)
            case ast.With(items, body) | ast.AsyncWith(items, body):
                for each in items:
                    bound = self.bound(each.context_expr)
                    if each.optional_vars is not None:
                        self.assign(each.optional_vars, bound)
                return self.block(body)
            case ast.Return(value):
                none = Bound(None, self.source.place(statement))
                return Left("return", none if value is None else self.bound(value))
            case ast.Break() | ast.Continue() | ast.Raise():
                return Left(type(statement).__name__.lower())
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define(statement)
            case ast.ClassDef():
                self._class(statement)
            case _:
                self._simple(statement)
        return None

    def _simple(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets, value):
                bound = self.bound(value)
                for target in targets:
                    self.assign(target, bound)
            case ast.AnnAssign(target, _, ast.expr() as value):
                self.assign(target, self.bound(value))
            case ast.AugAssign(target, operation, value):
                self._change(target, operation, value)
            case ast.Delete(targets):
                for target in targets:
                    self._delete(target)
            case ast.Expr(value):
                self.bound(value)
            case ast.Global(names):
                for name in names:
                    self.scopes[-1].pop(name, None)
                self.globals.update(names)
            case ast.Import() | ast.ImportFrom():
                self.project.bring(self, statement)
            case _:
                pass

    def _if(self, test: ast.expr, body: Block, orelse: Block, later: Block) -> Left | None:
        known, text = self.decided(test), shown_source(test)
        if known is not None:
            taken, other = (body, orelse) if known else (orelse, body)
            self.project.skip(self.source, other, f"{'else of ' if known else ''}if {text}")
            return self.block([*taken, *later])
        return self.world.either(
            (f"if {text}", lambda: self.block([*body, *later])),
            (
                f"if {shown_source(ast.UnaryOp(ast.Not(), test))}",
                lambda: self.block([*orelse, *later]),
            ),
        )

    def _perhaps(self, condition: str, body: Block) -> Left | None:
        left = self.world.either((condition, lambda: self.block(body)), (f"not {condition}", _skip))
        return left if left and left.how == "return" else None

    def _match(
        self, subject: ast.expr, cases: Sequence[ast.match_case], later: Block
    ) -> Left | None:
        if not cases:
            return self.block(later)
        first, *others = cases
        known = self._matches(subject, first)
        if known is False:
            self.project.skip(self.source, first.body, f"case {_pattern(first)}")
            return self._match(subject, others, later)
        if known:
            for each in others:
                self.project.skip(self.source, each.body, f"case {_pattern(each)}")
            return self.block([*first.body, *later])
        if not others and isinstance(first.pattern, ast.MatchAs) and first.guard is None:
            return self.block([*first.body, *later])
        of = f"case {_pattern(first)} of match {shown_source(subject)}"
        return self.world.either(
            (of, lambda: self.block([*first.body, *later])),
            (f"not {of}", lambda: self._match(subject, others, later)),
        )

    def _matches(self, subject: ast.expr, case: ast.match_case) -> bool | None:
        match case.pattern:
            case ast.MatchValue(value) if case.guard is None:
                return self.decided(
                    ast.copy_location(ast.Compare(subject, [ast.Eq()], [value]), subject)
                )
            case _:
                return None

    def _try(self, statement: ast.Try | ast.TryStar) -> Left | None:
        def whole() -> Left | None:
            return self.block([*statement.body, *statement.orelse])

        run: Callable[[], Left | None] = whole
        for handler in statement.handlers:
            kind = f"except {shown_source(handler.type)}" if handler.type else "except"
            run = self._or_except(run, kind, handler.body)
        left = run()
        return self.block(statement.finalbody) or left

    def _or_except(
        self, run: Callable[[], Left | None], kind: str, body: Block
    ) -> Callable[[], Left | None]:
        return lambda: self.world.either(("", run), (kind, lambda: self.block(body)))

    def _for(
        self, node: ast.AST, target: ast.expr, those: ast.expr, body: Block, orelse: Block
    ) -> Left | None:
        try:
            items = self.items(those)
        except (Unreadable, *ERRORS):
            self.assign(target, Bound(self.unread(target), self.source.place(node)))
            return self._perhaps(f"for {shown_source(target)} in {shown_source(those)}", body)
        for item in items[:LONGEST]:
            self.assign(target, Bound(item, self.source.place(node)))
            left = self.block(body)
            if left is not None and left.how == "break":
                return None
            if left is not None and left.how != "continue":
                return left
        return self.block(orelse)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        path = f"{self.source.module}.{node.name}"
        function = Function(node, self.source, tuple(self.scopes), path)
        known = all(_last(each) in TRANSPARENT for each in node.decorator_list)
        self.scopes[-1][node.name] = Bound(function, self.source.place(node))
        self.project.defined(function, can_be_called=known)

    def _class(self, node: ast.ClassDef) -> None:
        made = Class(node.name, self.world.scope(), [self.value(each) for each in node.bases])
        self.scopes[-1][node.name] = Bound(made, self.source.place(node))
        inner = type(self)(self.project, self.source, [*self.scopes, made.attributes])
        inner.block(node.body)
        self.project.classes.append((self.source, made))


def _skip() -> None:
    return None


@cache
def _may_leave(statement: ast.stmt) -> bool:
    """Return whether a condition may end the block that it stands in."""
    return isinstance(statement, ast.If | ast.Match) and any(
        isinstance(each, LEAVING) for each in ast.walk(statement)
    )


def _pattern(case: ast.match_case) -> str:
    return shown_source(case.pattern)


def _last(node: ast.expr) -> str:
    call = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(call).rpartition(".")[2]
