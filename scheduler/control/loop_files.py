"""Read files of keyed loops: by task and by key, a schedule and arguments.

::

    [digest."user-42"]
    every = "1h"
    args = { user = 42 }

    [digest."user-43"]
    cron = "0 9 * * MON-FRI"
    tz = "Europe/Berlin"

In JSON it is an object of tasks, each an object of keys.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, cast

from scheduler.control.keyed import Keyed, Operations, Synced, wanted_loop
from scheduler.errors import BrokerError, UsageError
from scheduler.spelling import no_such
from scheduler.tasks.registration import ScheduleOptions, schedule_of
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.durations import shown
from scheduler.timing.schedules import Recurring

FilePath = str | PathLike[str]
Wanted = Mapping[str, Mapping[str, tuple[Recurring, Mapping[str, Any]]]]

OPTIONS = ("every", "cron", *ScheduleOptions.__annotations__)
EXPECTED = (
    "an object of tasks",
    "tables of keyed loops",
    """a table of a loop, such as [digest."user-42"]""",
    "a table of arguments by name",
)
"""The tables of a file, by the length of their place in it."""


async def sync_all(
    wanted: Wanted, tasks: Mapping[str, TaskSpec], operations: Operations, *, dry_run: bool
) -> dict[str, Synced]:
    """Make the keyed loops of the tasks in a file match the file; leave other tasks alone.

    Args:
        wanted: the loops of the file.
        tasks: the tasks of the code.
        dry_run: only report the changes.

    Raises:
        BrokerError: the broker failed; notes say how much was done.
    """
    done = dict[str, Synced]()
    for task, loops in wanted.items():
        keyed = Keyed(tasks[task], lambda: nullcontext(operations))
        try:
            done[task] = await keyed.sync(loops, dry_run=dry_run)
        except BrokerError as error:
            before = f"; completed before it: {', '.join(done)}" if done else ""
            error.add_note(f"That was at the task {task!r}{before}.")
            raise
    return done


def loops_in(path: FilePath, tasks: Mapping[str, TaskSpec]) -> Wanted:
    """Return the loops of a file, all of them valid.

    Raises:
        UsageError: the file cannot be read, or something in it is invalid; the message names its
            table.
    """
    if not isinstance(path, str | PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"The path of a file must be text or a Path, got {shown(path)}.")
    file = Path(path)
    wanted = {task: dict(_loops(file, task, tasks, table)) for task, table in _read(file).items()}
    if not wanted:
        raise _wrong(file, "it names no task, so there is nothing to do.")
    return wanted


def _read(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        is_json = file.suffix == ".json"
        read = json.loads(text, object_pairs_hook=_object) if is_json else tomllib.loads(text)
    except OSError as error:
        raise _wrong(file, f"it cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # invalid TOML, JSON, or UTF-8; or too deep
        raise _wrong(file, f"it cannot be read: {error}.") from None
    return _table(file, read)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, or raise a ValueError if a key is in it twice."""
    found = dict[str, Any]()
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {json.dumps(key)} occurs twice in an object")
        found[key] = value
    return found


def _table(file: Path, value: object, *place: str) -> dict[str, Any]:
    """Return a table of a file, by its place, such as `digest`, `user-42` and `args`."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    expected = EXPECTED[len(place)]
    raise _wrong(file, f"expected {expected}, got: {shown(value)}.", *place)


def _loops(
    file: Path, task: str, tasks: Mapping[str, TaskSpec], table: object
) -> Iterator[tuple[str, tuple[Recurring, Mapping[str, Any]]]]:
    if task not in tasks:
        raise _wrong(file, no_such("task", task, tasks), task)
    for key, values in _table(file, table, task).items():
        options = _table(file, values, task, key)
        args = _table(file, options.pop("args", {}), task, key, "args")
        try:
            if unknown := [name for name in options if name not in OPTIONS]:
                raise UsageError(no_such("option", unknown[0], OPTIONS))
            loop = schedule_of(**options), args
            wanted_loop(tasks[task], key, loop)
        except UsageError as error:
            raise _wrong(file, str(error), task, key) from None
        yield key, loop


def _wrong(file: Path, what: str, *place: str) -> UsageError:
    """Return an error that names the table of a file, as TOML has it."""
    quoted = [part if part.isidentifier() else json.dumps(part) for part in place]
    at = f", [{'.'.join(quoted)}]" if place else ""
    end = "" if what.endswith((".", "?")) else "."
    return UsageError(f"{file}{at}: {what}{end} Nothing was changed.")
