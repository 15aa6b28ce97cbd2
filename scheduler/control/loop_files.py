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
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from scheduler.control.keyed import Connect, Keyed, Operations, Synced, wanted_loop
from scheduler.errors import BrokerError, ScheduleError, UsageError
from scheduler.protocol.messages import problems_of
from scheduler.spelling import nearest, no_such
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.durations import shown
from scheduler.timing.schedules import Recurring, schedule_of

FilePath = str | PathLike[str]
Wanted = Mapping[str, Mapping[str, tuple[Recurring, Mapping[str, Any]]]]


class FileRow(BaseModel):
    """Describe a loop in a file: its schedule as decorators take it, and its arguments."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    every: str | None = None
    cron: str | None = None
    mode: str | None = None
    offset: str | None = None
    tz: str | None = None
    jitter: str | None = None
    catch_up: str | None = None
    grace: str | None = None
    args: Mapping[str, Any] = {}

    @property
    def schedule(self) -> Recurring:
        """Return the schedule.

        Raises:
            ScheduleError: it is invalid.
        """
        if (self.every is None) == (self.cron is None):
            raise ScheduleError("expected either every or cron")
        return schedule_of(**self.model_dump(exclude={"args"}))


async def sync_file(
    path: FilePath,
    tasks: Mapping[str, TaskSpec],
    connect: Connect,
    *,
    dry_run: bool = False,
) -> dict[str, Synced]:
    """Make the keyed loops of the tasks in a file match the file; leave other tasks alone.

    Args:
        tasks: the tasks of the code.
        dry_run: only report the changes.

    Raises:
        UsageError: the file, or something in it, is invalid; nothing was changed.
        BrokerError: the broker failed; notes say how much was done.
    """
    wanted = loops_in(path, tasks)
    async with connect() as operations:
        return await sync_all(wanted, tasks, operations, dry_run=dry_run)


async def sync_all(
    wanted: Wanted, tasks: Mapping[str, TaskSpec], operations: Operations, *, dry_run: bool
) -> dict[str, Synced]:
    """Do what `sync_file` does, over a connection, with the loops of a file."""
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
    file = Path(path)
    wanted = {task: dict(_loops(file, task, tasks, table)) for task, table in _read(file).items()}
    if not wanted:
        raise _wrong(file, "it names no task, so there is nothing to do.")
    return wanted


def _read(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        read = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise _wrong(file, f"it cannot be read: {error.strerror}.") from None
    except ValueError as error:  # invalid TOML, JSON, or UTF-8
        raise _wrong(file, f"it cannot be read: {error}.") from None
    if not isinstance(read, dict):
        raise _wrong(file, f"expected an object of tasks, got: {shown(read)}.")
    return cast("dict[str, Any]", read)


def _loops(
    file: Path, task: str, tasks: Mapping[str, TaskSpec], table: object
) -> Iterator[tuple[str, tuple[Recurring, Mapping[str, Any]]]]:
    if task not in tasks:
        raise _wrong(file, no_such("task", task, tasks), task)
    if not isinstance(table, dict):
        raise _wrong(file, f"expected tables of keyed loops, got: {shown(table)}.", task)
    for key, values in cast("dict[str, object]", table).items():
        if not isinstance(values, dict):
            example = _table(task, "user-42")
            detail = f"expected tables of keyed loops, such as {example}; {key!r} is not one."
            raise _wrong(file, detail, task)
        row = _row(file, task, key, cast("dict[str, object]", values))
        parameters = tasks[task].arguments.parameters
        if unknown := [name for name in row.args if name not in parameters]:
            detail = no_such("parameter", unknown[0], parameters)
            raise _wrong(file, detail, task, key, "args")
        try:
            loop = row.schedule, row.args
            wanted_loop(tasks[task], key, loop)
        except UsageError as error:
            raise _wrong(file, str(error), task, key) from None
        yield key, loop


def _row(file: Path, task: str, key: str, values: Mapping[str, object]) -> FileRow:
    if unknown := [name for name in values if name not in FileRow.model_fields]:
        near = nearest(unknown[0], FileRow.model_fields)
        has = f"there are: {', '.join(FileRow.model_fields)}."
        if isinstance(values[unknown[0]], dict):
            has += f" Quote a key with a '.': {_table(task, f'{key}.{unknown[0]}')}."
        hint = f"did you mean {near!r}?" if near else has
        raise _wrong(file, f"There is no {unknown[0]!r} in a loop; {hint}", task, key)
    try:
        return FileRow.model_validate(values)
    except ValidationError as error:
        raise _wrong(file, f"{problems_of(error)}.", task, key) from None


def _wrong(file: Path, what: str, *table: str) -> UsageError:
    at = f", {_table(*table)}" if table else ""
    end = "" if what.endswith((".", "?")) else "."
    return UsageError(f"{file}{at}: {what}{end} Nothing was changed.")


def _table(*parts: str) -> str:
    """Return the name of a table, as TOML has it."""
    bare = re.compile(r"[A-Za-z0-9_-]+")
    quoted = [part if bare.fullmatch(part) else json.dumps(part) for part in parts]
    return f"[{'.'.join(quoted)}]"
