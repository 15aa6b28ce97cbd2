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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, cast

from scheduler.control.keyed import Connect, Keyed, Operations, Synced, wanted_loop
from scheduler.errors import BrokerError, UsageError
from scheduler.spelling import nearest, no_such
from scheduler.tasks.registration import ScheduleOptions, schedule_of
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.durations import shown
from scheduler.timing.schedules import Recurring

FilePath = str | PathLike[str]
Wanted = Mapping[str, Mapping[str, tuple[Recurring, Mapping[str, Any]]]]


NAMES = ("every", "cron", *ScheduleOptions.__annotations__, "args")


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
        is_json = file.suffix == ".json"
        read = json.loads(text, object_pairs_hook=_unique) if is_json else tomllib.loads(text)
    except OSError as error:
        raise _wrong(file, f"it cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # invalid TOML, JSON, or UTF-8; or too deep
        raise _wrong(file, f"it cannot be read: {error}.") from None
    if not isinstance(read, dict):
        raise _wrong(file, f"expected an object of tasks, got: {shown(read)}.")
    return cast("dict[str, Any]", read)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; refuse one that has a name twice, as TOML does."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice)} is there twice in one object")
    return members


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
        options = cast("dict[str, Any]", values)
        if unknown := [name for name in options if name not in NAMES]:
            raise _wrong(file, _no_option(task, key, unknown[0], options[unknown[0]]), task, key)
        given = options.pop("args", {})
        if not isinstance(given, dict):
            raise _wrong(file, f"args: expected a table, got: {shown(given)}.", task, key)
        args = cast("dict[str, Any]", given)
        parameters = tasks[task].arguments.parameters
        if unknown := [name for name in args if name not in parameters]:
            raise _wrong(file, no_such("parameter", unknown[0], parameters), task, key, "args")
        if (options.get("every") is None) == (options.get("cron") is None):
            raise _wrong(file, "expected either every or cron.", task, key)
        try:
            loop = schedule_of(**options), args
            wanted_loop(tasks[task], key, loop)
        except UsageError as error:
            raise _wrong(file, str(error), task, key) from None
        yield key, loop


def _no_option(task: str, key: str, name: str, value: object) -> str:
    near = nearest(name, NAMES)
    has = f"there are: {', '.join(NAMES)}."
    if isinstance(value, dict):
        has += f" Quote a key with a '.': {_table(task, f'{key}.{name}')}."
    return f"There is no {name!r} in a loop; {f'did you mean {near!r}?' if near else has}"


def _wrong(file: Path, what: str, *table: str) -> UsageError:
    at = f", {_table(*table)}" if table else ""
    end = "" if what.endswith((".", "?")) else "."
    return UsageError(f"{file}{at}: {what}{end} Nothing was changed.")


def _table(*parts: str) -> str:
    """Return the name of a table, as TOML has it."""
    bare = re.compile(r"[A-Za-z0-9_-]+")
    quoted = [part if bare.fullmatch(part) else json.dumps(part) for part in parts]
    return f"[{'.'.join(quoted)}]"
