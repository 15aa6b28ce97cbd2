"""Operations of Python on constants: those that are quick, and whose results are short."""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

LARGEST = 10**12
LONGEST = 10_000
CONVERSIONS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each
    for each in cast(
        "list[Callable[..., Any]]",
        [
            *(int, float, str, bool, list, tuple, set, frozenset, timedelta, len, sorted, min, max),
            *(sum, abs, round, enumerate, zip, reversed, any, all, range),
        ],
    )
}
LISTING = ("enumerate", "zip", "reversed")
OF_TEXT = {
    *("format", "lower", "upper", "title", "capitalize", "strip", "lstrip", "rstrip", "split"),
    *("join", "replace", "startswith", "endswith", "removeprefix", "removesuffix", "partition"),
    *("rpartition", "rsplit", "splitlines", "isdigit", "count", "find", "zfill"),
}
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: one / other,
    ast.FloorDiv: lambda one, other: one // other,
    ast.Mod: operator.mod,
    ast.BitOr: lambda one, other: one | other,
    ast.BitAnd: lambda one, other: one & other,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}


def combined(operation: ast.operator, left: Any, right: Any) -> Any:
    """Combine two constants.

    Raises:
        ValueError: the result may be long, or is slow to compute.
    """
    if isinstance(operation, ast.Mult) and not all(map(_is_number, (left, right))):
        raise ValueError
    if isinstance(operation, ast.Mod) and isinstance(left, str | bytes):
        _check_format(str(left))
    if (compute := _OPERATORS.get(type(operation))) is None:
        raise ValueError
    return checked(compute(left, right))


def compared(operation: ast.cmpop, left: Any, right: Any) -> bool:
    return bool(_COMPARISONS[type(operation)](left, right))


def formatted(value: Any, conversion: int, spec: str) -> str:
    _check_format(spec)
    shown = {ord("r"): repr, ord("s"): str, ord("a"): ascii}.get(conversion)
    return checked(format(shown(value) if shown else value, spec))


def called(name: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of Python's on constants.

    Raises:
        ValueError: the result may be long.
    """
    if name == "range" and len(range(*args)) > LONGEST:
        raise ValueError
    value = CONVERSIONS[name](*args, **kwargs)
    return checked(list(value) if name in LISTING else value)


def method(text: str, name: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    if name not in OF_TEXT or (name == "zfill" and args[0] > LONGEST):
        raise ValueError
    if name == "format":
        _check_format(text)
    return checked(getattr(text, name)(*args, **kwargs))


def checked(value: Any) -> Any:
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise ValueError
    sized = (str, bytes, list, tuple)
    if isinstance(value, sized) and len(cast("Sequence[Any]", value)) > LONGEST:
        raise ValueError
    return cast("Any", value)


def _check_format(text: str) -> None:
    if re.search(r"\d{4}|\*|__", text):
        raise ValueError


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | timedelta)
