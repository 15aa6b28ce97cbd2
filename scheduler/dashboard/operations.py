"""What can be done from the dashboard, by the same parts as the commands do it."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from scheduler.control.reports import Report
from scheduler.dashboard.doings import Doing, Work
from scheduler.dashboard.wording import schedule_in_words
from scheduler.errors import InvalidArguments, UsageError
from scheduler.program import Program
from scheduler.queues.failed import Parked, Selection
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.rates import Rate
from scheduler.timing.schedules import Recurring


@dataclass(frozen=True, slots=True)
class LoopVerb:
    """Something that is done to loops.

    Attributes:
        says: what it will do, for people who have not done it yet.
        ends: whether it cannot be taken back, so that it is asked for twice.
    """

    name: str
    says: str
    ends: bool = False


LOOP_VERBS = {
    verb.name: verb
    for verb in (
        LoopVerb(
            "pause",
            "No run of it begins any more until it is resumed. A run that is going on ends.",
        ),
        LoopVerb("resume", "If it is paused, it goes on at its next nominal time."),
        LoopVerb("now", "If it is paused, it goes on, and runs at once."),
        LoopVerb(
            "trigger",
            "If it waits, it runs now, besides its schedule. Paused or running, it is left alone.",
        ),
        LoopVerb(
            "remove",
            "It ends for good, with its place in the schedule and what it carries. A run that is "
            "going on is its last. Only loops that the code does not start can be removed.",
            ends=True,
        ),
    )
}
RIGHT_OF = {"now": "resume", "schedule-set": "schedule", "schedule-clear": "schedule"}
NO_ANSWER = "not confirmed by {}: until they answer, they may begin one more run"


class Operations:
    """The operations of an app, over one connection."""

    def __init__(self, app: App, program: Callable[[], Program]) -> None:
        self._app = app
        self._program = program

    def on_loops(self, verb: str, names: Sequence[str], reason: str) -> Work:
        """Do something to each of these loops, one after the other."""

        async def work(doing: Doing) -> None:
            program = self._program()
            for name in names:
                try:
                    report = await self._do(program, verb, await program.loops.find(name), reason)
                    doing.tell(_told(report))
                except UsageError as error:
                    if len(names) == 1:
                        raise
                    doing.tell(f"{name}: {error}")

        return work

    def _do(self, program: Program, verb: str, loop: Loop, reason: str) -> Awaitable[Report]:
        match verb:
            case "pause":
                return program.verbs.pause(loop, reason or "paused from the dashboard")
            case "resume":
                return program.verbs.resume(loop)
            case "now":
                return program.verbs.resume(loop, at_once=True)
            case "trigger":
                return program.verbs.trigger(loop)
            case _:
                return program.removal.remove(loop)

    def start(self, loop: Loop) -> Work:
        """Start a keyed loop, or give it another schedule or other arguments."""

        async def work(doing: Doing) -> None:
            report = await self._program().seeding.start(loop)
            doing.tell(_told_with_schedule(report))

        return work

    def set_schedule(self, name: str, schedule: Recurring) -> Work:
        """Have a loop go by another schedule than that of the code."""

        async def work(doing: Doing) -> None:
            program = self._program()
            loop = await program.loops.find(name)
            report = await program.verbs.set_schedule(loop, schedule, by=doing.by)
            doing.tell(_told_with_schedule(report))

        return work

    def clear_schedule(self, name: str) -> Work:
        """Have a loop go by the schedule of the code again."""

        async def work(doing: Doing) -> None:
            program = self._program()
            report = await program.verbs.clear_schedule(await program.loops.find(name))
            doing.tell(_told_with_schedule(report))

        return work

    def replay(
        self, which: Selection, rate: Rate | None, args: Mapping[str, Any] | None = None
    ) -> Work:
        """Send parked messages back to their tasks."""

        async def work(doing: Doing) -> None:
            await self._program().failed.replay(
                self._tasks(which),
                which,
                rate=rate,
                args=args,
                check=self._check,
                tell=lambda parked: doing.tell(f"replayed {parked.id}"),
            )

        return work

    def purge(self, which: Selection) -> Work:
        """Delete parked messages."""

        async def work(doing: Doing) -> None:
            await self._program().failed.purge(
                self._tasks(which), which, tell=lambda parked: doing.tell(f"deleted {parked.id}")
            )

        return work

    def _tasks(self, which: Selection) -> list[str]:
        return [*self._app.tasks] if which.task is None else [which.task]

    def _check(self, task: str, args: Mapping[str, Any]) -> None:
        if (spec := self._app.tasks.get(task)) is None:
            return
        try:
            spec.arguments.load(args)
        except InvalidArguments as error:
            raise UsageError(f"{error} The message stays parked, as it was.") from None


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments that somebody has written.

    Raises:
        UsageError: it is no JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"Arguments are a JSON object: {error}. Nothing was sent.") from None
    if not isinstance(value, dict):
        raise UsageError("Arguments are a JSON object, such as {}. Nothing was sent.")
    return cast(dict[str, Any], value)


def arguments_in(parked: Parked) -> dict[str, Any] | None:
    """The arguments that a parked message has; None: it has none that could be changed."""
    try:
        body = json.loads(parked.message.body)
    except (ValueError, RecursionError):
        return None
    args = cast(dict[str, Any], body).get("args") if isinstance(body, dict) else None
    return cast(dict[str, Any], args) if isinstance(args, dict) else None


def _told_with_schedule(report: Report) -> str:
    return f"{_told(report)}; it goes by: {schedule_in_words(report.loop.schedule)}"


def _told(report: Report) -> str:
    told = f"{report.loop}: {report.did.value}"
    if report.silent:
        told += f", {NO_ANSWER.format(', '.join(report.silent))}"
    return told
