"""Where a run is now: the calls that it is in, without their arguments or any other values."""

import sys
import traceback
from asyncio import Task
from collections.abc import Collection, Iterator
from itertools import dropwhile
from types import FrameType
from typing import Any

LIMIT = 16 * 1024
MOST_CALLS = 100
NAMES = ("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")
Frames = Iterator[tuple[FrameType, int]]


def of_coroutine(task: Task[Any], ours: Collection[str]) -> str:
    """What a task of this event loop awaits.

    Args:
        ours: files whose calls come before those of the run, and are left out.
    """
    return _text([*_awaited(task.get_coro())], ours)


def of_thread(thread: int | None, ours: Collection[str]) -> str:
    """Where a thread of this process is; empty, if it is in no run.

    Args:
        thread: its `threading.get_ident()`.
    """
    frame = sys._current_frames().get(thread or 0)  # pyright: ignore[reportPrivateUsage]
    return "" if frame is None else _text([*traceback.walk_stack(frame)][::-1], ours)


def _awaited(awaitable: Any) -> Frames:
    while awaitable is not None:
        found = [names for names in NAMES if getattr(awaitable, names[0], None) is not None]
        if not found:
            return  # a future, say
        ((frame_name, next_name),) = found
        frame: FrameType = getattr(awaitable, frame_name)
        yield frame, frame.f_lineno
        awaitable = getattr(awaitable, next_name)


def _text(frames: list[tuple[FrameType, int]], ours: Collection[str]) -> str:
    def is_ours(frame: tuple[FrameType, int]) -> bool:
        return frame[0].f_code.co_filename in ours

    # What starts threads and processes stands before ours.
    begun = dropwhile(lambda frame: not is_ours(frame), frames)
    calls = [*dropwhile(is_ours, begun)]
    left_out = len(calls) - MOST_CALLS
    lines = traceback.StackSummary.extract(iter(calls[-MOST_CALLS:])).format()
    if left_out > 0:
        lines.insert(0, f"  ({left_out} calls before these are left out)\n")
    return _bounded("".join(lines))


def _bounded(text: str) -> str:
    """The innermost calls, if it is too long."""
    if len(text) <= LIMIT:
        return text
    kept = text[-LIMIT:].partition("\n")[2]
    return f"  (what comes before this is left out: {len(text) - len(kept)} characters)\n{kept}"
