"""Judge loops, calls, processors and the broker: a fact and a line of context for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler.brokers.contract import Depth
from scheduler.control.loops import Where
from scheduler.dashboard import wording
from scheduler.dashboard.answers import Roll
from scheduler.dashboard.picture import Picture
from scheduler.dashboard.standing import (
    LEVELS,
    HealthVerdict,
    Standing,
    is_acknowledged,
    worst_of,
)
from scheduler.queues.history import CallTotals
from scheduler.spelling import counted, listed
from scheduler.tasks.loops import App, queues_of, resting

SHOWN = 3


@dataclass(frozen=True, slots=True)
class Vital:
    """Judge one of the four.

    Attributes:
        level: "off": not known yet.
        says: the fact.
        more: its context.
        problem: a sentence for the verdict; empty: all is well.
    """

    what: str
    path: str
    level: str
    says: str
    more: str = ""
    problem: str = ""


class AnswersOfProcessors(Protocol):
    """Tell what the processors answered."""

    @property
    def roll(self) -> Roll | None: ...

    @property
    def silent(self) -> int: ...

    @property
    def alarm(self) -> str: ...


def vital_of_loops(standings: Sequence[Standing], verdict: HealthVerdict) -> Vital:
    total, troubles = len(standings), verdict.troubles
    on_time = verdict.counts.get(Where.WAITING, 0) + verdict.counts.get(Where.RUNNING, 0)
    other = [
        f"{count:,} {state}"
        for state, count in sorted(verdict.counts.items())
        if state not in (Where.WAITING, Where.RUNNING)
    ]
    if not total:
        return Vital("Loops", "/loops", "ok", "None")
    if not troubles:
        return Vital("Loops", "/loops", "ok", f"{total:,} on time", " · ".join(other))
    worst = max(reversed(troubles), key=lambda each: LEVELS.index(each.level))
    says = f"{len(worst.loops):,} of {total:,} {worst.what}"
    rest = [each for each in other if not each.endswith(f" {worst.what}")]
    if worst.acknowledged:
        rest.insert(0, f"{worst.acknowledged:,} acknowledged")
    rest.append(f"{on_time:,} on time")
    return Vital("Loops", f"/loops?{worst.query}", worst.level, says, " · ".join(rest))


def vital_of_calls(
    app: App, calls: Mapping[str, CallTotals], verdict: HealthVerdict, parked: int | None
) -> Vital:
    """Judge the calls of the last quarter of an hour, and what is parked."""
    waiting = "" if parked is None else f"{parked:,} parked"
    ended = sum(each.succeeded + each.lost for each in calls.values())
    lost = sum(each.lost for each in calls.values())
    failing = [task for task, each in calls.items() if each.is_failing]
    if not any(task.called for task in app.tasks.values()):
        return Vital("Calls", "/failed", "ok", "No task accepts calls", waiting)
    if lost:
        only = f"only {listed(failing)}" if failing else ""
        more = " · ".join(filter(None, [waiting, only]))
        levels = ("hold" if is_acknowledged(task, verdict.failures) else "bad" for task in failing)
        level = worst_of(levels) if failing else "warn"
        return Vital("Calls", "/failed", level, f"{lost:,} of {ended:,} failed in 15 min", more)
    says = f"{ended:,} in 15 min, none failed" if ended else "None in 15 min"
    of_calls = [each for each in verdict.failures if each.parked and not each.loops]
    level = worst_of("hold" if each.acknowledged else "bad" for each in of_calls)
    return Vital("Calls", "/failed", level, says, waiting)


def vital_of_processors(app: App, picture: Picture, answers: AnswersOfProcessors) -> Vital:
    what, path = "Processors", "/processors"
    presence = picture.depths.get(app.names.presence)
    if presence is None:
        unknown = "The number of processors is not known yet."
        return Vital(what, path, "off", "Reading…", problem=unknown)
    count, roll, silent = presence.consumers, answers.roll, answers.silent
    versions = f"version {listed(roll.versions)}" if roll is not None and roll.versions else ""
    if not count:
        return Vital(what, path, "bad", "None running", "", "No processor is running.")
    if idle := unattended(app, picture):
        few = listed([*idle[:SHOWN], *([f"{len(idle) - SHOWN} more"] if idle[SHOWN:] else [])])
        says = f"{counted(len(idle), 'task')} without processors"
        return Vital(what, path, "bad", says, few, f"No processor consumes {few}.")
    if silent:
        says = f"{max(count - silent, 0)} of {count} responding"
        verb = "does" if silent == 1 else "do"
        problem = f"{silent} of {counted(count, 'processor')} {verb} not respond."
        return Vital(what, path, "warn", says, versions, problem)
    return Vital(what, path, "ok", f"{count:,} running", versions)


def unattended(app: App, picture: Picture) -> list[str]:
    """Return the tasks with ready messages that no processor consumes, paused ones left out."""
    at_rest = resting(app)

    def waits(depth: Depth | None) -> bool:
        return depth is not None and depth.ready > 0 and not depth.consumers

    return [
        task
        for task in app.tasks
        if task not in at_rest
        and picture.listing.pause_of(task) is None
        and waits(picture.depth_of(queues_of(app, task)))
    ]


def vital_of_broker(app: App, picture: Picture, alarm: str) -> Vital:
    what, path = "Broker", "/doctor"
    if not picture.connected:
        since = f" since {wording.brief(wording.in_zone(picture.since))}" if picture.since else ""
        problem = f"The broker cannot be reached{since}: the page shows the last known state."
        return Vital(what, path, "bad", "Not reached", picture.trouble, problem)
    if alarm:
        problem = f"The broker blocks publishers: {alarm}."
        return Vital(what, path, "bad", "Blocks publishers", alarm, problem)
    ours = app.names.processor_queue("")
    ready = sum(
        depth.ready for name, depth in picture.depths.items() if depth and name.startswith(ours)
    )
    return Vital(what, path, "ok", "No alarms", f"{counted(ready, 'message')} ready")
