"""Loops and their schedules, as somebody writes them into a form."""

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.control.keyed import checked_key
from scheduler.dashboard.operations import arguments_of
from scheduler.errors import ScheduleError, UsageError
from scheduler.spelling import no_such
from scheduler.tasks.loops import Loop, loop_of
from scheduler.tasks.registry import App
from scheduler.timing.durations import format_duration
from scheduler.timing.phrases import in_words, seconds_first
from scheduler.timing.schedules import Cron, Every, Recurring, Schedule, schedule_of, to_wire

Text = Callable[[str], str]
FIXED_RATE = "fixed_rate"
FIELDS = ("key", "args", "mode", "every", "cron", "tz", "offset", "jitter", "catch_up", "grace")
OPTIONS = ("every", "cron", "tz", "offset", "jitter", "catch_up", "grace")
SPANS = {"every_ms": "period", "offset_ms": "offset", "jitter_ms": "jitter", "grace_ms": "grace"}


def schedule_in(text: Text) -> Recurring:
    """The schedule that a form has.

    Args:
        text: a field of the form; empty if it has none.

    Raises:
        ScheduleError: it is none; what is said is of the fields of the form.
    """
    options: dict[str, Any] = {name: text(name) or None for name in OPTIONS}
    if (options["every"] is None) == (options["cron"] is None):
        raise ScheduleError("A schedule is a period or a cron expression: write one of them.")
    if options["every"] is not None and text("mode"):
        options["mode"] = FIXED_RATE
    if options["every"] is not None:
        options["tz"] = None  # the field may stand there filled in
    try:
        return schedule_of(**options)
    except ScheduleError as error:
        raise ScheduleError(_in_words_of_form(str(error))) from None


def loop_in(app: App, text: Text) -> Loop:
    """The keyed loop that a form has.

    Raises:
        UsageError: the task, the key or the arguments cannot be used.
        ScheduleError: the schedule cannot.
    """
    if (spec := app.tasks.get(text("task"))) is None:
        raise UsageError(no_such("task", text("task"), app.tasks))
    args = arguments_of(text("args") or "{}")
    return loop_of(spec, schedule_in(text), args, checked_key(spec, text("key")))


def written(schedule: Schedule) -> Mapping[str, str]:
    """How the fields of a form have this schedule."""
    wire = dict(to_wire(schedule))
    fields = {
        name.removesuffix("_ms"): format_duration(getattr(schedule, attribute))
        for name, attribute in SPANS.items()
        if name in wire
    }
    others = ("cron", "tz", "mode", "catch_up")
    return fields | {name: str(wire[name]) for name in others if name in wire}


def doubt_of(schedule: Schedule) -> str:
    """What may not have been meant; empty: nothing speaks for that."""
    if not isinstance(schedule, Cron) or (meant := seconds_first(schedule.expression)) is None:
        return ""
    return (
        f"Of six fields the last is the second. If the first was meant to be, write {meant}: "
        f"{in_words(meant)}."
    )


def is_recurring(schedule: Schedule) -> bool:
    """Whether it can be given another one."""
    return isinstance(schedule, Every | Cron)


def _in_words_of_form(text: str) -> str:
    """What is said of arguments in Python, of the fields that they are here."""
    text = text.replace('mode="fixed_rate"', "“at its multiples”")
    return text.replace('catch_up="all"', "“run each”").replace('catch_up="latest"', "“run once”")
