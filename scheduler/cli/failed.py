"""The parked messages: `scheduler failed list`, `show`, `replay` and `purge`."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, tzinfo
from typing import Any, cast

import typer

from scheduler.app import Scheduler
from scheduler.cli.arguments import app_and_one, app_and_rest
from scheduler.cli.connecting import connected
from scheduler.cli.loading import names_app, ready_app
from scheduler.cli.printing import (
    exact,
    print_error,
    print_json,
    print_json_list,
    print_line,
    relative,
)
from scheduler.cli.progress import Work, working
from scheduler.cli.rows import Row, row_of_parked
from scheduler.cli.short_ids import shortened
from scheduler.cli.spool import Spool, spooling
from scheduler.cli.tables import Columns, print_table
from scheduler.cli.zones import Zones, zones_of_loops
from scheduler.errors import InvalidArguments, NotAllSeen, QueueNotFound, UsageError
from scheduler.protocol.topology import LOOP_KEY
from scheduler.queues.failed import EVERYTHING, FailedQueues, Parked, Selection
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.clock import SystemClock
from scheduler.timing.rates import Rate, parse_rate

NO_LOOP = "-"  # of a message that is no tick


def browse(
    reference: str | None, *, task: str | None, reason: str | None, limit: int, as_json: bool
) -> None:
    app, which = ready_app(reference), Selection(reason=reason, task=task)
    with spooling() as shown:
        more, interrupted, zones = asyncio.run(_listed(app, task, which, limit, shown, as_json))
        if as_json:
            print_json_list(shown)
        else:
            _print(shown, zones)
    if more and not as_json:
        print_line(f"{more} more: raise --limit to see them")
    if interrupted is not None:
        print_error(interrupted, as_json=False)
        raise typer.Exit(1) from interrupted


def show(reference: str | None, message: str | None, *, as_json: bool) -> None:
    reference, name = app_and_one(reference, message, "the ID of a message")
    found, zone = asyncio.run(_found(ready_app(reference), name, as_json))
    if found is None:
        raise QueueNotFound(f"There is no parked message {name!r}: see `scheduler failed list`.")
    if as_json:
        print_json(row_of_parked(found))
    else:
        _print_whole(found, zone)


def replay(
    reference: str | None,
    messages: list[str] | None,
    *,
    everything: bool,
    task: str | None,
    reason: str | None,
    rate: str | None,
    args: str | None,
    as_json: bool,
) -> None:
    reference, which = _selection(reference, messages, everything, task, reason)
    app, pace = ready_app(reference), parse_rate(rate) if rate else None
    edited = _json_object(args) if args else None
    verb = _Verb("replayed", which, as_json)
    verb.through(_replay(app, task, which, pace, edited, verb))


def purge(
    reference: str | None,
    messages: list[str] | None,
    *,
    everything: bool,
    task: str | None,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    reference, which = _selection(reference, messages, everything, task, reason)
    app = ready_app(reference)
    if not yes:
        typer.confirm("Delete parked messages for good?", abort=True, err=True)
    verb = _Verb("purged", which, as_json)
    verb.through(_purge(app, task, which, verb))


def _selection(
    reference: str | None,
    messages: list[str] | None,
    everything: bool,
    task: str | None,
    reason: str | None,
) -> tuple[str | None, Selection]:
    """Which messages a command means; all of them only if that was said."""
    if everything or task or reason:
        if messages or (reference is not None and not names_app(reference)):
            raise UsageError("--all, --task and --reason go without IDs: leave out one of the two.")
        return reference, Selection(reason=reason, task=task)
    what = "the IDs of messages, --task, --reason or --all"
    reference, ids = app_and_rest(reference, messages or [], what)
    return reference, Selection(ids=frozenset(ids))


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--args is a JSON object, such as '{{\"n\": 1}}': {error}.") from None
    if not isinstance(value, dict):
        raise UsageError(f"--args is a JSON object, such as '{{\"n\": 1}}', got {text!r}.")
    return cast(dict[str, Any], value)


async def _listed(
    app: Scheduler, task: str | None, which: Selection, limit: int, shown: Spool, as_json: bool
) -> tuple[int, NotAllSeen | None, Zones]:
    """Lay out the first parked messages; returns how many more there are, as far as it got."""
    async with connected(app) as program:
        row = row_of_parked if as_json else _row
        seen = await _laid_out(program.failed, _tasks(app, task), which, limit, shown, row)
        has_ticks = not as_json and any(row["loop"] != NO_LOOP for row in shown)
        return *seen, await zones_of_loops(app, program) if has_ticks else {}


async def _laid_out(
    failed: FailedQueues,
    tasks: list[str],
    which: Selection,
    limit: int,
    shown: Spool,
    row: Callable[[Parked], Row],
) -> tuple[int, NotAllSeen | None]:
    there, more = await failed.count(tasks), 0
    try:
        async with aclosing(failed.look(tasks, which)) as looked_at:
            async for parked in looked_at:
                if len(shown) < limit:
                    shown.add(row(parked))
                elif which == EVERYTHING:
                    return there - limit, None  # without a look at each
                else:
                    more += 1
    except NotAllSeen as error:
        return more, error
    return more, None


async def _found(app: Scheduler, name: str, as_json: bool) -> tuple[Parked | None, tzinfo | None]:
    """A parked message, and the zone that its times are told in."""
    async with connected(app) as program:
        tasks = _tasks(app, None)
        which = await _whole(program.failed, tasks, Selection(ids=frozenset([name])))
        async with aclosing(program.failed.look(tasks, which)) as looked_at:
            found = await anext(looked_at, None)
        if as_json or found is None or _loop_of(found) == NO_LOOP:
            return found, None
        return found, (await zones_of_loops(app, program)).get(found.loop)


async def _whole(failed: FailedQueues, tasks: list[str], which: Selection) -> Selection:
    """The selection with whole ids, where some are given by how they begin."""
    if which.ids is None:
        return which
    named = await failed.named(tasks, which.ids)
    return replace(which, ids=frozenset(named.get(name, name) for name in which.ids))


async def _replay(
    app: Scheduler,
    task: str | None,
    which: Selection,
    rate: Rate | None,
    args: dict[str, Any] | None,
    verb: "_Verb",
) -> None:
    def check(name: str, args: Mapping[str, Any]) -> None:
        if (spec := app.tasks.get(name)) is not None:
            _check_arguments(spec, args)

    async with connected(app) as program:
        tasks = _tasks(app, task)
        which = await _whole(program.failed, tasks, which)
        verb.expect(await _expected(program.failed, tasks, which))
        await program.failed.replay(tasks, which, rate=rate, args=args, check=check, tell=verb.tell)


def _check_arguments(task: TaskSpec, args: Mapping[str, Any]) -> None:
    try:
        task.arguments.load(args)
    except InvalidArguments as error:
        raise UsageError(
            f"--args: {error} What was to be replayed with them stays parked."
        ) from None


async def _purge(app: Scheduler, task: str | None, which: Selection, verb: "_Verb") -> None:
    async with connected(app) as program:
        tasks = _tasks(app, task)
        which = await _whole(program.failed, tasks, which)
        verb.expect(await _expected(program.failed, tasks, which))
        await program.failed.purge(tasks, which, tell=verb.tell)


async def _expected(failed: FailedQueues, tasks: list[str], which: Selection) -> int | None:
    """How many messages are meant; None: that is not known without a look at each."""
    if which.ids is not None:
        return len(which.ids)
    return await failed.count(tasks) if which == EVERYTHING else None


def _tasks(app: Scheduler, task: str | None) -> list[str]:
    return [spec.name for spec in app.select(None if task is None else [task])]


def _loop_of(parked: Parked) -> str:
    return parked.loop if parked.routing_key.startswith(LOOP_KEY) else NO_LOOP


def _row(parked: Parked) -> Row:
    """What the list shows of one."""
    return {
        "id": parked.id,
        "task": parked.task,
        "loop": _loop_of(parked),
        "reason": parked.reason,
        "parked_at": parked.parked_at,
        "error": parked.error,
    }


def _print(rows: Iterable[Row], zones: Zones) -> None:
    now, short = SystemClock().now(), shortened(row["id"] for row in rows)
    print_table(
        rows,
        Columns(
            ("ID", "TASK", "LOOP", "REASON", "PARKED", "ERROR"),
            lambda row: _cells(row, zones.get(row["loop"])),
        ),
        Columns(
            ("ID", "TASK", "REASON", "PARKED", "ERROR"),
            lambda row: _brief_cells(row, short[row["id"]], now),
        ),
    )


def _cells(row: Row, zone: tzinfo | None) -> Sequence[str]:
    what = (row[name] for name in ("id", "task", "loop", "reason"))
    return *what, exact(_at(row), zone), row["error"]


def _brief_cells(row: Row, short: str, now: datetime) -> Sequence[str]:
    return short, row["task"], row["reason"], relative(_at(row), now), row["error"]


def _at(row: Row) -> datetime | None:
    at = row["parked_at"]
    return None if at is None else datetime.fromisoformat(at)


def _print_whole(parked: Parked, zone: tzinfo | None) -> None:
    row = row_of_parked(parked)
    for name in ("id", "loop", "queue", "routing_key", "reason", "error", "attempts"):
        print_line(f"{name:12} {row[name]}")
    if parked.first_failed_at is not None:
        print_line(f"{'first failed':12} {exact(parked.first_failed_at)}")
    print_line(f"{'parked at':12} {exact(parked.parked_at, zone)}")
    for name, value in parked.headers.items():
        print_line(f"{'header':12} {name} = {value!r}")
    print_line(f"{'body':12} {row.get('body', row.get('body_base64'))}")
    if parked.traceback:
        print_line(f"\n{parked.traceback.rstrip()}")


class _Verb:
    """What a verb has done: told as it goes on, to programs at its end."""

    def __init__(self, done: str, which: Selection, as_json: bool) -> None:
        self._done = done
        self._not_found = set(which.ids or ())
        self._count = 0
        self._ids: list[str] | None = [] if as_json else None
        self._work = Work()

    def expect(self, total: int | None) -> None:
        """It is for so many, if that is known."""
        if total is not None:
            self._work.expect(total)

    def tell(self, parked: Parked) -> None:
        self._count += 1
        self._work.advance()
        self._not_found -= {name for name in self._not_found if parked.id.startswith(name)}
        if self._ids is None:
            print_line(f"{self._done} {parked.id}")
        else:
            self._ids.append(parked.id)

    def through(self, verb: Coroutine[Any, Any, None]) -> None:
        """Do it, and tell what became of it, though it may not get to its end."""
        try:
            with working(self._done, counted=True, as_json=self._ids is not None) as self._work:
                asyncio.run(verb)
        except NotAllSeen as error:
            self._tell_end({"error": type(error).__name__, "message": str(error)})
            if self._ids is None:
                print_error(error, as_json=False)
            raise typer.Exit(1) from error
        self._tell_end({})
        if self._not_found:
            raise typer.Exit(1)

    def _tell_end(self, error: dict[str, str]) -> None:
        not_found = sorted(self._not_found)
        if self._ids is not None:
            return print_json({self._done: self._ids, "not_found": not_found, **error})
        for name in not_found:
            print_line(f"not found: {name}")
        print_line(f"{self._count} {self._done}")
