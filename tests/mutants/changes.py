"""Small changes to a module: one that no test notices shows what is not tested."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
CONDITIONS = ("test", "ifs", "guard")
# Types, and how a class is made: nothing that runs.
PASSED_OVER = ("annotation", "returns", "decorator_list")
LONGEST = 60


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change: another node in the place of one.

    Attributes:
        lines: whoever executes none of these does not meet the change.
        line: where it is.
        what: the text before and after.
    """

    lines: frozenset[int]
    line: int
    what: str
    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST

    def apply(self) -> None:
        """Change the tree that it was made of."""
        if self.index is None:
            setattr(self.parent, self.field, self.node)
        else:
            getattr(self.parent, self.field)[self.index] = self.node


def mutants_of(tree: ast.Module) -> list[Mutant]:
    """Every change that can be made to a module."""
    return list(_mutants(tree, frozenset()))


def _mutants(parent: ast.AST, statement: frozenset[int]) -> Iterator[Mutant]:
    for field, index, child in _children(parent):
        around = frozenset([child.lineno]) if isinstance(child, ast.stmt) else statement
        if isinstance(child, ast.expr | ast.stmt):
            own = frozenset(range(child.lineno, (child.end_lineno or child.lineno) + 1))
            for node in _changed(child, field):
                ast.fix_missing_locations(ast.copy_location(node, child))
                what = f"{_text(child)}  ->  {_text(node)}"
                yield Mutant(around | own, child.lineno, what, parent, field, index, node)
        yield from _mutants(child, around)


def _children(parent: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    passed_over = (*PASSED_OVER, "keywords") if isinstance(parent, ast.ClassDef) else PASSED_OVER
    for field, value in ast.iter_fields(parent):
        listed = isinstance(value, list)
        nodes = cast(list[object], value) if listed else [value]
        for index, node in enumerate(nodes):
            if isinstance(node, ast.AST) and field not in passed_over and _runs(node):
                yield field, index if listed else None, node


def _runs(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return False  # docstrings, and what is imported for types
        case _:
            return True


def _changed(node: ast.expr | ast.stmt, field: str) -> Iterator[ast.AST]:
    match node:
        case ast.stmt():
            yield from _changed_statement(node)
        case ast.Compare(left=left, ops=[operator], comparators=right):
            yield ast.Compare(left, [COMPARISONS[type(operator)]()], right)
        case ast.BoolOp(op=ast.And(), values=values):
            yield ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(op=ast.Or(), values=values):
            yield ast.BoolOp(ast.And(), values)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case _ if field in CONDITIONS:
            yield ast.UnaryOp(ast.Not(), node)
        case _:
            pass


def _changed_statement(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        # Who is told False would take None for it; that it turns into True is another change.
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "False"):
            yield ast.Return(ast.Constant(None))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case (
            ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete()
        ):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case _:
            pass


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
