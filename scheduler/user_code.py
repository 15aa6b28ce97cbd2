"""The one way in which code of users is called: tasks, middleware, hooks, listeners, lifespans."""

import asyncio
import concurrent.futures
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any

from scheduler.errors import RegistrationError
from scheduler.protocol.messages import summary_of


class UserCode:
    """Lets nothing out of a `with` block but exceptions, and a cancellation that was asked for.

    Anything else would end the processor, and each that gets the same message after it.

    Args:
        what: names the code in the error that takes the place of what it raised.
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
        """Pass on what it raised.

        Raises:
            RuntimeError: it raised what is not passed on.
        """
        match error:
            case None:
                return
            case asyncio.CancelledError():
                if _cancellations() == self._asked_before:
                    raise RuntimeError(f"{self._what} was cancelled from within") from error
            case StopIteration() | StopAsyncIteration() | concurrent.futures.CancelledError():
                # No future takes the one, and another one turns it into a cancellation.
                raise self._instead_of(error)
            case Exception():
                self._require_words(error)
            case _:
                raise self._instead_of(error)

    def _require_words(self, error: Exception) -> None:
        """Refuse an error that raises more than an exception when it is shown."""
        try:
            str(error)
        except Exception:
            return  # `summary_of` knows about it
        except BaseException as another:
            raise RuntimeError(
                f"{self._what} raised {type(error).__name__}, whose message cannot be shown: "
                f"{type(another).__name__}"
            ) from None

    def _instead_of(self, error: BaseException) -> RuntimeError:
        try:
            told = summary_of(error)
        except BaseException:  # the same again
            told = type(error).__name__
        instead = RuntimeError(f"{self._what} raised {told}")
        instead.__cause__ = error
        return instead


def _cancellations() -> int:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread without an event loop
        return 0
    return 0 if task is None else task.cancelling()


def require_parameters(what: str, function: Callable[..., Any], *takes: str) -> None:
    """Refuse a function that cannot be called with these arguments.

    Raises:
        RegistrationError: it cannot.
    """
    arguments = f"one argument, the {takes[0]}" if len(takes) == 1 else f"({', '.join(takes)})"
    try:
        inspect.signature(function).bind(*takes)
    except TypeError as error:
        raise RegistrationError(f"{what} cannot be called with {arguments}: {error}.") from None
    except ValueError:
        return  # something built in, which does not tell its parameters
