"""Hand events to those who listen to them."""

import inspect
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from scheduler.errors import RegistrationError
from scheduler.events import Emit, Event
from scheduler.user_code import UserCode, require_parameters


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
        require_parameters(f"The listener {listener!r}", listener, "event")
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
        logging.getLogger(__name__).exception("The listener %r failed", listener)
