"""What the runs of a processor share, such as a pool of connections: checked where it is given."""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from scheduler.errors import RegistrationError

LifespanFunction = Callable[[Any], AbstractAsyncContextManager[Any]]
"""Called with the app; what its context manager yields is the state of all runs."""


def require_lifespan(function: object) -> None:
    """Refuse what is not made by `contextlib.asynccontextmanager`, or takes no app.

    Raises:
        RegistrationError: it is not.
    """
    if not callable(function) or not _makes_manager(function):
        raise RegistrationError(
            f"lifespan is an `async def` with one `yield`, decorated with "
            f"contextlib.asynccontextmanager, got {name_of(function)}."
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise RegistrationError(
            f"The lifespan {name_of(function)} cannot be called with one argument, the app: "
            f"{error}."
        ) from None


def name_of(function: object) -> str:
    """What a function is called in errors."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", repr(function)))


def _makes_manager(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    # Undecorated it would only make a generator.
    return not inspect.isasyncgenfunction(function) and inspect.isasyncgenfunction(
        inspect.unwrap(function)
    )
