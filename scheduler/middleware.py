"""Wrap runs, the life of a processor, and sends with functions of the app.

The function that was registered first is outermost::
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from scheduler.errors import NotSent, RegistrationError
from scheduler.tasks.context import Context
from scheduler.user_code import require_parameters

CallNext = Callable[[], Awaitable[Any]]
"""Continues a run; returns or raises what the task does."""

SendNext = Callable[[], Awaitable[None]]
"""Continues a send; when it returns, the message is confirmed or stored."""


@dataclass(slots=True)
class Sending:
    """Describe a message that is about to be sent.

    Attributes:
        task: the task to run.
        message_id: identifies it.
        arguments: as they travel.
        headers: travel with it, through every delay and retry: add your own.
        confirmed: whether the broker has confirmed it.
        stored: whether the fallback store has it, unconfirmed.
    """

    task: str
    message_id: str
    arguments: Mapping[str, Any]
    headers: dict[str, Any]
    confirmed: bool = False
    stored: bool = False


LifespanFunction = Callable[[Any], AbstractAsyncContextManager[Any]]
"""Called with the app; its context manager yields the state of all runs."""

Around = Callable[[Context[Any], CallNext], Coroutine[Any, Any, Any]]
AroundSending = Callable[[Sending, SendNext], Coroutine[Any, Any, Any]]
Subject = TypeVar("Subject")


def surrounded(
    around: Sequence[Callable[[Subject, CallNext], Awaitable[Any]]],
    subject: Subject,
    innermost: CallNext,
) -> CallNext:
    """Return a call wrapped in all middleware; without any, the call itself."""
    for function in reversed(around):
        innermost = functools.partial(function, subject, innermost)
    return innermost


async def send_through(
    around: Sequence[AroundSending], sending: Sending, innermost: SendNext
) -> None:
    """Send a message through all middleware.

    Raises:
        NotSent: a middleware neither sent it nor raised.
    """
    await surrounded(around, sending, innermost)()
    if not sending.confirmed and not sending.stored:
        raise NotSent(
            f"The message for {sending.task!r} was not sent: a function under @app.around_sending "
            "returned before it was confirmed. Await send_next() in it, or raise."
        )


def require_around(decorator: str, function: object, *takes: str) -> None:
    """Reject an invalid middleware.

    Args:
        takes: the names of its arguments.

    Raises:
        RegistrationError: it is not a coroutine function, or does not take these arguments.
    """
    named = name_of(function)
    if not callable(function) or not inspect.iscoroutinefunction(function):
        raise RegistrationError(
            f"{decorator} takes a coroutine function, `async def f({', '.join(takes)})`, "
            f"got {named}."
        )
    require_parameters(f"{decorator}: {named}", function, *takes)


def require_lifespan(function: object) -> None:
    """Reject a lifespan that is not made by `contextlib.asynccontextmanager`, or takes no app.

    Raises:
        RegistrationError: it is not.
    """
    if not callable(function) or not _makes_manager(function):
        raise RegistrationError(
            f"lifespan must be an `async def` with one `yield`, decorated with "
            f"contextlib.asynccontextmanager, got {name_of(function)}."
        )
    require_parameters(f"The lifespan {name_of(function)}", function, "app")


def name_of(function: object) -> str:
    """Return the name of a function for errors."""
    function = _unpacked(function)
    return str(getattr(function, "__qualname__", repr(function)))


def _makes_manager(function: object) -> bool:
    function = _unpacked(function)
    # Undecorated, it would only make a generator.
    return not inspect.isasyncgenfunction(function) and inspect.isasyncgenfunction(
        inspect.unwrap(cast("Callable[..., Any]", function))
    )


def _unpacked(function: object) -> object:
    while isinstance(function, functools.partial):
        function = cast("Callable[..., Any]", function.func)
    return function
