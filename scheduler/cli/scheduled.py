"""`scheduler scheduled`: named one-offs, listed, moved and taken back."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import typer

from scheduler.cli.arguments import app_and_one, moment_of, span_of
from scheduler.cli.connecting import connected
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import exact, print_json, print_line, relative
from scheduler.cli.tables import Columns, print_table
from scheduler.cli.verbs import NOT_CONFIRMED
from scheduler.control.reports import Report
from scheduler.errors import UnknownLoop, UsageError
from scheduler.program import Program
from scheduler.spelling import no_such
from scheduler.tasks.loops import Loop
from scheduler.timing.clock import SystemClock
from scheduler.timing.once import Once


def show_all(reference: str | None, *, task: str | None, as_json: bool) -> None:
    app = ready_app(reference)

    async def listed() -> list[Loop]:
        async with connected(app) as program:
            return await _one_offs(program)

    loops = [loop for loop in asyncio.run(listed()) if task in (None, loop.id.task)]
    if as_json:
        print_json([_row(loop) for loop in loops])
    elif loops:
        now = SystemClock().now()
        print_table(
            loops,
            Columns(
                ("NAME", "AT", "ARGS"), lambda loop: (str(loop), exact(_at(loop)), _args(loop))
            ),
            Columns(("NAME", "AT"), lambda loop: (str(loop), relative(_at(loop), now))),
        )
    else:
        print_line("No named one-off is scheduled.")


def move(
    reference: str | None, name: str | None, *, at: str | None, after: str | None, as_json: bool
) -> None:
    if (at is None) == (after is None):
        raise UsageError("A one-off is moved to a moment or by a delay: give --at or --after.")
    reference, name = app_and_one(reference, name, "the NAME of a one-off")
    now = SystemClock().now()
    moment = moment_of("--at", at) if at is not None else now + span_of("--after", after or "")

    def moved(program: Program, loop: Loop) -> Awaitable[Report]:
        # Kept for longer than its run, the name would be taken, for whoever moves it as well.
        return program.seeding.start(Loop(loop.id, loop.task, Once(moment), loop.args))

    _print(_done(reference, name, moved), as_json)


def cancel(reference: str | None, name: str | None, *, as_json: bool) -> None:
    reference, name = app_and_one(reference, name, "the NAME of a one-off")
    _print(_done(reference, name, lambda program, loop: program.removal.remove(loop)), as_json)


def _done(
    reference: str | None, name: str, do: Callable[[Program, Loop], Awaitable[Report]]
) -> Report:
    app = ready_app(reference)

    async def done() -> Report:
        async with connected(app) as program:
            known = {str(loop): loop for loop in await _one_offs(program)}
            if name not in known:
                raise UnknownLoop(no_such("named one-off", name, known))
            return await do(program, known[name])

    return asyncio.run(done())


async def _one_offs(program: Program) -> list[Loop]:
    found = [loop for loop in await program.loops.all() if isinstance(loop.schedule, Once)]
    return sorted(found, key=lambda loop: (_at(loop), str(loop)))


def _at(loop: Loop) -> datetime:
    assert isinstance(loop.schedule, Once)
    return loop.schedule.at


def _args(loop: Loop) -> str:
    return ", ".join(loop.args)


def _row(loop: Loop) -> dict[str, object]:
    return {"name": str(loop), "task": loop.id.task, "at": _at(loop), "args": dict(loop.args)}


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        row = _row(report.loop) | {"did": report.did.value}
        print_json(row | {"not_confirmed_by": list(report.silent)})
    else:
        print_line(f"{report.loop}: {report.did.value}")
        if report.silent:
            print_line(NOT_CONFIRMED.format(names=", ".join(report.silent)))
    if report.silent:
        raise typer.Exit(1)
