"""Wrap runs, the life of a processor, and sends with functions of the app.

The function that was registered first is outermost.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

from scheduler.errors import LifespanError, NotSent, RegistrationError
from scheduler.protocol.messages import summary_of
from scheduler.tasks.context import Context
from scheduler.timing.durations import shown
from scheduler.user_code import UserCode, log_of, require_parameters

CLOSING_TIMEOUT = timedelta(seconds=5)

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
    with UserCode("a function under @app.around_sending" if around else "sending"):
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
    """Reject a lifespan that is not made by `contextlib.asynccontextmanager`, or takes no app."""
    if not callable(function) or not _makes_manager(function):
        raise RegistrationError(
            f"lifespan must be an `async def` with one `yield`, decorated with "
            f"contextlib.asynccontextmanager, got {name_of(function)}."
        )
    require_parameters(f"The lifespan {name_of(function)}", function, "app")


def name_of(function: object) -> str:
    """Return the name of a function for errors."""
    function = _unpacked(function)
    return str(getattr(function, "__qualname__", None) or shown(function))


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


class Lifespan:
    """Hold the state of a processor's runs: open it before the first, close it after the last.

    One task opens and closes it, as some libraries need.

    Args:
        function: yields the state; None: there is none.
        stopped: done when the processor is stopped.

    Attributes:
        state: the value that the app's function yielded; None without one.
        is_open: whether runs can use it: not if the processor was stopped before.
    """

    def __init__(
        self, app: Any, function: LifespanFunction | None, stopped: asyncio.Future[None]
    ) -> None:
        self.state: Any = None
        self.is_open = False
        self._app = app
        self._function = function
        self._stopped = stopped
        self._opening: asyncio.Timeout | None = None
        self._manager: AbstractAsyncContextManager[Any] | None = None

    async def __aenter__(self) -> "Lifespan":
        if self._function is None:
            self.is_open = True
        elif not self._stopped.done():
            await self._open(self._function)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._manager is None:
            return
        try:
            async with asyncio.timeout(CLOSING_TIMEOUT.total_seconds()):
                # However the processor ended, the code after `yield` closes the resources.
                with UserCode("it"):
                    await self._manager.__aexit__(None, None, None)
        except Exception as error:
            name = name_of(self._function)
            log_of(__name__).exception("The lifespan %s could not be closed", name)
            if kind is asyncio.CancelledError:  # a task group in it does so when a task has failed
                raise LifespanError(
                    f"The lifespan {name} has ended the processor: {summary_of(error)}"
                ) from error

    async def _open(self, function: LifespanFunction) -> None:
        self._stopped.add_done_callback(self._give_up)
        opening = asyncio.timeout(None)
        try:
            async with opening as self._opening:
                with UserCode("it"):
                    manager = function(self._app)
                    self.state = await manager.__aenter__()
            self._manager, self.is_open = manager, True
        except Exception as error:
            if not opening.expired():
                raise LifespanError(
                    f"The lifespan {name_of(function)} could not be opened, and no run was begun: "
                    f"{summary_of(error)}"
                ) from error
        finally:
            self._opening = None
            self._stopped.remove_done_callback(self._give_up)

    def _give_up(self, _: object) -> None:
        if self._opening is not None:
            self._opening.reschedule(0)
