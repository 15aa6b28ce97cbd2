"""Show where a run is: its stack, without arguments or any other values."""

import inspect
import sys
import traceback
from asyncio import Task
from collections.abc import Collection, Iterator
from itertools import dropwhile
from types import FrameType
from typing import Any

from scheduler.protocol.messages import printable, summary_of
from scheduler.user_code import UserCode

LIMIT = 16 * 1024
MOST_CALLS = 100
Frames = Iterator[tuple[FrameType, int]]


def of_coroutine(task: Task[Any], ours: Collection[str]) -> str:
    """Return the stack of a task of this event loop, without the package's own calls before it."""
    return _text([*_awaited(task.get_coro())], ours)


def of_thread(thread: int | None, ours: Collection[str]) -> str:
    """Return the stack of a thread of this process; empty, if it has no run."""
    frame = sys._current_frames().get(thread or 0)  # pyright: ignore[reportPrivateUsage]
    return "" if frame is None else _text([*traceback.walk_stack(frame)][::-1], ours)


def _awaited(awaitable: Any) -> Frames:
    while awaitable is not None:
        # Only Python's own types: the representations of others may be anything, and endless.
        if inspect.iscoroutine(awaitable):
            frame, following = awaitable.cr_frame, awaitable.cr_await
        elif inspect.isgenerator(awaitable):
            frame, following = awaitable.gi_frame, awaitable.gi_yieldfrom
        elif inspect.isasyncgen(awaitable):
            frame, following = awaitable.ag_frame, awaitable.ag_await
        else:
            return  # a future, for example
        if frame is None:
            return  # it has ended
        yield frame, frame.f_lineno
        awaitable = following


def _text(frames: list[tuple[FrameType, int]], ours: Collection[str]) -> str:
    def is_ours(frame: tuple[FrameType, int]) -> bool:
        return frame[0].f_code.co_filename in ours

    # Frames that start threads and processes come before the package's.
    begun = dropwhile(lambda frame: not is_ours(frame), frames)
    calls = [*dropwhile(is_ours, begun)]
    left_out = len(calls) - MOST_CALLS
    try:
        with UserCode("a loader of modules"):  # it is asked for the lines
            lines = traceback.StackSummary.extract(iter(calls[-MOST_CALLS:])).format()
    except Exception as error:
        return f"  (not available: {summary_of(error)})\n"
    if left_out > 0:
        lines.insert(0, f"  ({left_out} calls before these are left out)\n")
    text = printable("".join(lines))
    if len(text) <= LIMIT:
        return text
    kept = text[-LIMIT:].partition("\n")[2]
    return f"  (truncated: {len(text) - len(kept)} characters before this)\n{kept}"
