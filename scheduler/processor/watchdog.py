"""Report tasks that block the event loop: by waiting without `await`, or by long computations.

In the meantime no other run and no heartbeat can proceed, and nothing in the event loop could
report it. So a thread regularly asks the loop to respond; if it does not, the thread logs the line
that the loop's thread is in.
"""

import asyncio
import sys
import sysconfig
import threading
from datetime import timedelta
from time import monotonic
from types import FrameType
from typing import NamedTuple, Self

from scheduler.events import Emit, EventLoopBlocked
from scheduler.user_code import log_of

ASK_AGAIN_S = 0.5
BLOCKED_AFTER = timedelta(seconds=1)

# The place of an idle event loop: uvloop has no frame.
AT_REST = ("selectors", "asyncio.windows_events", "asyncio.base_events", "asyncio.runners")
OF_OTHERS = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))


class Block(NamedTuple):
    """Describe what blocks the event loop: the task, its line, and since when."""

    by: str
    place: str
    since: float

    def __str__(self) -> str:
        return f"{self.by}, at {self.place}"


class Watchdog:
    """Watch the running event loop, inside a `with` block.

    Args:
        emit: called in the event loop when it runs again.
        after: how long it may be blocked before that is logged.

    Attributes:
        block: what blocks it now, for longer than that; None: it runs.
    """

    def __init__(self, emit: Emit, *, after: timedelta = BLOCKED_AFTER) -> None:
        self.block: Block | None = None
        self._emit = emit
        self._after = after.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._answered.set()
        self._thread.join()

    def _watch(self) -> None:
        asked_at = monotonic() + ASK_AGAIN_S
        while not self._over.wait(ASK_AGAIN_S):
            self._answered.clear()
            if self._over.is_set():
                return
            # An idle loop is not woken up just to respond.
            if (found := self.look()) is not None:
                # A call that does not release the interpreter has blocked this thread as well: it
                # is late then, and the loop's thread is still in that line.
                is_late = monotonic() > asked_at + self._after
                self._loop.call_soon_threadsafe(self._answered.set)
                if not is_late:
                    found = None if self._answered.wait(self._after) else self.look()
            if found is not None:
                self._report(Block(*found, asked_at))
            asked_at = monotonic() + ASK_AGAIN_S

    def _report(self, block: Block) -> None:
        """Log it now, and emit it when the event loop runs again."""
        self.block = block
        log_of(__name__).warning(
            "the event loop is blocked by %s: nothing else runs. Await I/O, and move long "
            "computations to asyncio.to_thread",
            block,
        )
        self._answered.wait()
        self.block = None
        if not self._over.is_set():
            took = timedelta(seconds=monotonic() - block.since)
            event = EventLoopBlocked(block.by, block.place, took)
            self._loop.call_soon_threadsafe(self._emit, event)

    def look(self) -> tuple[str, str] | None:
        """Return the task that blocks the loop, and its line; None: this machine hung."""
        frame = sys._current_frames().get(self._watched)  # pyright: ignore[reportPrivateUsage]
        if frame is None or frame.f_globals.get("__name__") in AT_REST:
            return None
        task = asyncio.current_task(self._loop)
        return task.get_name() if task else "a callback", _place(frame)


def _place(frame: FrameType) -> str:
    """Return the line in the program's own code, and the function it called."""
    own: FrameType | None = frame
    while own is not None and own.f_code.co_filename.startswith((*OF_OTHERS, "<")):
        own = own.f_back
    if own is None or own is frame:
        return _line(frame)
    return f"{_line(own)}, in {_line(frame)}"


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
