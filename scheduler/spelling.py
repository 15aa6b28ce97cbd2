"""Suggest similar names; count and list things in words."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from scheduler.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the most similar known name, or None if none is similar.

    Args:
        likeness: how similar it must be, from 0 to 1.
    """
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=likeness)
    return near[0] if near else None


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with the most similar known names."""
    names = sorted(set(known))
    near = nearest(name, names)
    hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(names) or 'none'}."
    return f"There is no {kind} {name!r}; {hint}"


def misnamed(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown option, with the most similar known option."""
    names = list(known)
    near = nearest(name, names, likeness=0.75)
    takes = ", ".join(f"{each}=" for each in names)
    return f"{what} takes no {name}=; {f'did you mean {near}=?' if near else f'it takes {takes}.'}"


def refusing_misnamed(
    what: str, refusal: type[UsageError]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Raise an error in the package's words if a call does not fit the signature.

    Args:
        what: the function as the user writes it.
    """

    def refusing(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError:
                signature = inspect.signature(function)
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as error:
                    message = _misfit(what, signature, kwargs, error)
                else:
                    raise  # the function itself raised it
            raise refusal(message)

        return called

    return refusing


def _misfit(what: str, signature: inspect.Signature, given: Iterable[str], error: TypeError) -> str:
    known = [each.name for each in signature.parameters.values() if each.kind in BY_NAME]
    known = [name for name in known if name != "self"]
    if unknown := [name for name in given if name not in known]:
        return misnamed(what, unknown[0], known)
    return f"{what} cannot be called like this: {error}."


def counted(count: int, noun: str) -> str:
    """Format a number of things: "1 loop", "3,000 loops"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Join names: "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def without_kind(problem: str) -> str:
    """Return a problem that pydantic found, without the kind of its exception."""
    return problem.removeprefix("Value error, ").removeprefix("Assertion failed, ")
