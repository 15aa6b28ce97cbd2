"""Call users' code, in one way: tasks, middleware, hooks, listeners of events, lifespans."""

import asyncio
import concurrent.futures
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from scheduler.errors import RegistrationError, UsageError
from scheduler.events import Emit, Event
from scheduler.protocol.messages import summary_of
from scheduler.timing.durations import shown

HALF = 5000  # of a message in a traceback


class UserCode:
    """Let only exceptions and requested cancellations out of a `with` block.

    Other errors would end the processor, and each that gets the same message after it.

    Args:
        what: names the code in the error that replaces such an exception.
    """

    __slots__ = ("_asked_before", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._asked_before = _cancellations()

    def __enter__(self) -> None:
        """Begin to call it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Pass on its exception.

        Raises:
            RuntimeError: in place of an exception that is not passed on.
        """
        match error:
            case None:
                return
            case asyncio.CancelledError():
                if _cancellations() == self._asked_before:
                    raise RuntimeError(f"{self._what} was cancelled from within") from error
            case StopIteration() | StopAsyncIteration() | concurrent.futures.CancelledError():
                # A future rejects StopIteration, and turns CancelledError into a cancellation.
                raise self._instead_of(error)
            case Exception():
                return
            case _:
                raise self._instead_of(error)

    def _instead_of(self, error: BaseException) -> RuntimeError:
        instead = RuntimeError(f"{self._what} raised {summary_of(error)}")
        instead.__cause__ = error
        return instead


class Log(logging.LoggerAdapter[logging.Logger]):
    """Log, though a handler or filter raises: that must not end what is logged."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            with UserCode("a handler or filter of the log"):
                super().log(level, msg, *args, stacklevel=2, **kwargs)
        except Exception as error:
            with suppress(Exception):  # there may be no stderr
                sys.stderr.write(f"The log has failed: {summary_of(error)}\n")


def log_of(module: str) -> Log:
    """Return the log of a module of this package."""
    return Log(logging.getLogger(module), {})


def traceback_of(error: BaseException) -> list[str]:
    """Format the traceback of an error, whose attributes may raise when they are shown."""
    try:
        with UserCode("the error"):
            shown = traceback.TracebackException.from_exception(error, compact=True)
            _shorten_messages(shown)
            return [*shown.format()]
    except Exception:
        return [*traceback.format_tb(error.__traceback__), f"{summary_of(error)}\n"]


def _shorten_messages(shown: traceback.TracebackException) -> None:
    """Shorten long messages: to format one of megabytes would block the event loop."""
    rest = [shown]
    while rest:
        each = rest.pop()
        text = vars(each).get("_str", "")  # the class has no public name for it
        if len(text) > 2 * HALF:
            vars(each)["_str"] = f"{text[:HALF]} … {text[-HALF:]}"
        rest += filter(None, (each.__cause__, each.__context__, *(each.exceptions or ())))


def run_despite(
    loop: asyncio.AbstractEventLoop, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Run an event loop, though user code in it raises SystemExit, or stops it.

    asyncio stops the loop for that, with all other runs, and so would the next processor that gets
    the same message.
    """
    while not is_over():
        error = None
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as raised:
            error = raised
        if not is_over():
            what = "stopped the event loop" if error is None else f"raised {summary_of(error)}"
            log_of(__name__).error(
                "an asyncio task or callback %s: the event loop continues", what, exc_info=error
            )


def _cancellations() -> int:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread without an event loop
        return 0
    return 0 if task is None else task.cancelling()


def require_text(what: str, value: object) -> None:
    """Reject a value that is not text.

    Raises:
        UsageError: it is not; the message names the value.
    """
    if not isinstance(value, str):
        raise UsageError(f"{what} must be text, got {shown(value)}.")


def require_parameters(what: str, function: Callable[..., Any], *takes: str) -> None:
    """Reject a function that cannot be called with these arguments."""
    if not callable(function):
        raise RegistrationError(f"{what} must be a function, got {shown(function)}.")
    arguments = f"one argument, the {takes[0]}" if len(takes) == 1 else f"({', '.join(takes)})"
    try:
        inspect.signature(function).bind(*takes)
    except TypeError as error:
        raise RegistrationError(f"{what} cannot be called with {arguments}: {error}.") from None
    except ValueError:
        return  # a builtin without a signature


class EventStream:
    """Hand each event to every listener, at once and in order.

    A listener runs inside the scheduler, so it should be quick. Its exceptions are logged, and not
    raised.
    """

    def __init__(self) -> None:
        self._listeners: list[tuple[Emit, tuple[type[Event], ...]]] = []
        self._of_kind: dict[type[Event], list[Emit]] = {}

    def listen(self, listener: Emit, *kinds: type[Event]) -> Emit:
        """Add a listener. Usable as a decorator.

        Args:
            kinds: the kinds of events to listen to; none: all.
        """
        require_parameters(f"The listener {shown(listener)}", listener, "event")
        if inspect.iscoroutinefunction(listener):
            raise RegistrationError(
                f"The listener {listener!r} is a coroutine function, which would never be "
                "awaited: write `def`, and start tasks in it."
            )
        self._listeners.append((listener, kinds or (Event,)))
        self._of_kind.clear()
        return listener

    def forget(self, listener: Emit) -> None:
        """Remove a listener."""
        del self._listeners[[each for each, _ in self._listeners].index(listener)]
        self._of_kind.clear()

    @contextmanager
    def listening(self, listener: Emit, *kinds: type[Event]) -> Generator[None]:
        """Add a listener during the block."""
        self.listen(listener, *kinds)
        try:
            yield
        finally:
            self.forget(listener)

    def emit(self, event: Event) -> None:
        """Hand an event to every listener of its kind."""
        for listener in self.listeners_of(type(event)):
            try:
                listener(event)
            except BaseException as error:
                _log_failure(listener, error)

    def listeners_of(self, kind: type[Event]) -> Sequence[Emit]:
        """Return the listeners of a kind of event: without any, the event need not be made."""
        if (found := self._of_kind.get(kind)) is None:
            found = [each for each, kinds in self._listeners if issubclass(kind, kinds)]
            self._of_kind[kind] = found
        return found


def _log_failure(listener: Emit, error: BaseException) -> None:
    try:
        with UserCode("the listener"):
            raise error
    except Exception:
        log_of(__name__).exception("The listener %r failed", listener)
