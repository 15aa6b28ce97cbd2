"""Operations of Python on constants: those that are quick, and whose results are short."""

import ast
import builtins
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

ERRORS = (ArithmeticError, TypeError, ValueError, LookupError, AttributeError, RecursionError)
LARGEST = 10**12
LONGEST = 10_000
_LISTING = ("enumerate", "zip", "reversed")
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "timedelta": timedelta,
    **{
        name: getattr(builtins, name)
        for name in (
            *("int", "float", "str", "bool", "list", "tuple", "set", "frozenset", "len", "sorted"),
            *("min", "max", "sum", "abs", "round", "any", "all", "range", *_LISTING),
        )
    },
}
_METHODS: Mapping[type[Any], set[str]] = {
    str: {
        *("format", "lower", "upper", "title", "capitalize", "strip", "lstrip", "rstrip", "split"),
        *("join", "replace", "startswith", "endswith", "removeprefix", "removesuffix", "find"),
        *("partition", "rpartition", "rsplit", "splitlines", "isdigit", "count", "zfill"),
    },
    list: {"append", "extend", "index", "count", "copy"},
    timedelta: {"total_seconds"},
}
_OPERATORS: Mapping[str, str] = {
    **{name: name.lower() for name in ("Add", "Sub", "FloorDiv", "Mod", "Eq", "Lt", "Gt")},
    **{"Mult": "mul", "Div": "truediv", "BitOr": "or_", "BitAnd": "and_"},
    **{"NotEq": "ne", "LtE": "le", "GtE": "ge", "Is": "is_", "IsNot": "is_not"},
}


def combined(operation: ast.operator | ast.cmpop, left: Any, right: Any) -> Any:
    """Combine two constants.

    Raises:
        LookupError: that may be slow to compute.
        ValueError: the result may be long.
    """
    if isinstance(operation, ast.Mult) and not all(
        isinstance(each, int | float | timedelta) for each in (left, right)
    ):
        raise ValueError
    if isinstance(operation, ast.Mod) and isinstance(left, str | bytes):
        _check_format(str(left))
    if isinstance(operation, ast.In | ast.NotIn):
        return (left in right) == isinstance(operation, ast.In)
    return checked(getattr(operator, _OPERATORS[type(operation).__name__])(left, right))


def formatted(value: Any, conversion: int, spec: str) -> str:
    _check_format(spec)
    shown = {ord("r"): repr, ord("s"): str, ord("a"): ascii}.get(conversion)
    return checked(format(shown(value) if shown else value, spec))


def called(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of Python's on constants.

    Raises:
        ValueError: the result may be long.
    """
    if name == "range" and len(range(*args)) > LONGEST:
        raise ValueError
    value = FUNCTIONS[name](*args, **kwargs)
    return checked(list(value) if name in _LISTING else value)


def method(owner: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a method of a constant, or of a list.

    Raises:
        ValueError: it is not known, or the result may be long.
    """
    if name not in _METHODS[type(owner)] or (name == "zfill" and args[0] > LONGEST):
        raise ValueError
    if name == "format":
        _check_format(owner)
    return checked(getattr(owner, name)(*args, **kwargs))


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
