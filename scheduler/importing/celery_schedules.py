"""Read Celery's schedules: periods, `crontab` and others."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from scheduler.errors import ScheduleError
from scheduler.importing.calendars import Dialect
from scheduler.importing.findings import Note, Place
from scheduler.importing.values import Made, Scope, Unread, Unreadable, plain, shown_value
from scheduler.timing.durations import shown
from scheduler.timing.schedules import Cron, Every, Recurring

CELERY = Dialect(wraps=True, long_names=True)
FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
SOLAR = "solar: nothing goes by the sun here; compute the moment"


@dataclass(frozen=True, slots=True)
class Beat:
    """Hold the settings of beat.

    Attributes:
        tz: the zone of its crontabs.
        deadline: how late a crontab may start; None: at any time.
    """

    tz: str = "UTC"
    deadline: timedelta | None = None

    def schedule(
        self, value: Any, expires: timedelta | None = None
    ) -> tuple[Recurring, frozenset[int] | None]:
        """Return the equivalent schedule, and the only weekdays on which it counts.

        Args:
            value: seconds, a timedelta, or the result of a call of `crontab` or `schedule`.
            expires: how late a run may start.

        Raises:
            ScheduleError: there is none like it.
            Unreadable: the source does not contain it.
        """
        match value:
            case int() | float() | timedelta() if not isinstance(value, bool):
                period = value if isinstance(value, timedelta) else timedelta(seconds=value)
                return Every(period, mode="fixed_rate", **_lateness(expires)), None
            case Made("schedule", args, kwargs):
                return self.schedule(_period(args, kwargs), expires)
            case Made("from_string", (str(text),)) if len(text.split()) == len(FIELDS):
                fields = dict[str, str](zip(FIELDS, text.split(), strict=True))
                return self.crontab(fields, late=_least(expires, self.deadline))
            case Made("crontab", args, kwargs):
                return self.crontab(_fields(args, kwargs), late=_least(expires, self.deadline))
            case Made("solar"):
                raise ScheduleError(SOLAR)
            case Made(kind):
                raise ScheduleError(f"{kind}(...) is an unknown schedule")
            case Unread():
                raise Unreadable(value)
            case _:
                raise ScheduleError(f"not a schedule: {shown(value)}")

    def crontab(
        self, fields: Mapping[str, str], *, late: timedelta | None, tz: str | None = None
    ) -> tuple[Cron, frozenset[int] | None]:
        """Return the same for the fields of a crontab: the day of the month and the weekday both
        have to match.
        """
        texts = [fields.get(name, "*").replace(" ", "") for name in FIELDS]
        expression, weekdays = CELERY.expression(texts, both=True)
        return Cron(expression, tz=tz or self.tz, **_lateness(late)), weekdays


def span_of(value: Any) -> timedelta | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return timedelta(seconds=value)
    return value if isinstance(value, timedelta) else None


def _lateness(late: timedelta | None) -> dict[str, Any]:
    return {} if late is None else {"catch_up": "skip", "grace": late}


def _least(*spans: timedelta | None) -> timedelta | None:
    return min((each for each in spans if each is not None), default=None)


def _period(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    given = dict(zip(("run_every", "relative"), args, strict=False)) | dict(kwargs)
    others = [name for name, each in given.items() if name != "run_every" and each]
    if others or "run_every" not in given:
        raise ScheduleError(
            f"schedule({', '.join(others)}) has no equivalent: expected a period alone"
        )
    return given["run_every"]


def _fields(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, str]:
    if len(args) > 2:
        raise ScheduleError(
            "crontab: the third argument differs between releases of Celery: pass it by name"
        )
    given = dict(zip(FIELDS, args, strict=False)) | dict(kwargs)
    if "**" in given:
        raise ScheduleError(str(given["**"]))
    if "nowfun" in given:
        raise ScheduleError("crontab: nowfun= may set a zone of its own: write cron= and tz=")
    if unknown := [name for name in given if name not in FIELDS and name != "app"]:
        raise ScheduleError(f"crontab takes no {unknown[0]}")
    return {name: _field(value) for name, value in given.items() if name in FIELDS}


def _field(value: Any) -> str:
    value = plain(value, Place("", 1))
    if isinstance(value, list | tuple | set | frozenset | range):
        return ",".join(str(each) for each in cast("Iterable[Any]", value))
    return str(value)


QUEUE = "each task has a queue of its own"


class Options:
    """Hold options by their names, and their notes.

    Attributes:
        of: what they are of, as notes have it.
    """

    def __init__(self, of: str, given: Scope, notes: list[Note]) -> None:
        self.of = of
        self.given = given
        self.notes = notes

    def note(self, place: Place, text: str) -> None:
        self.notes.append(Note(place, text))

    def value(self, name: str, default: Any = None) -> Any:
        """Return the value of an option; its default, with a note, if it is unknown."""
        if name not in self.given:
            return default
        bound = self.given[name]
        self.notes += [each for each in bound.notes if each not in self.notes]
        try:
            return plain(bound.value, bound.place, self.notes)
        except Unreadable as error:
            self.note(bound.place, f"{name} of {self.of}: {error}")
            return default

    def span(self, name: str) -> timedelta | None:
        return span_of(self.value(name))

    def report(self, taken: Collection[str], why: Mapping[str, str]) -> None:
        for name, bound in self.given.items():
            if name not in taken:
                is_made = isinstance(bound.value, Made) or not isinstance(bound.value, Unread)
                told = why.get(name, "" if is_made else str(bound.value))
                value = shown_value(bound.value)
                self.note(bound.place, f"{name}={value} of {self.of}{told and f': {told}'}")
