"""Read the entries of Celery's beat, of modules and of its database, with their schedules."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.calendars import Dialect
from scheduler.importing.values import (
    Bound,
    Function,
    Made,
    Ref,
    Scope,
    TableValue,
    Unread,
    Unreadable,
    last,
    plain,
    shown_value,
    unread_of,
)
from scheduler.importing.writing import (
    Action,
    CeleryCall,
    ImportedJob,
    Note,
    SourceLine,
    Unknown,
    noting,
)
from scheduler.timing.durations import shown
from scheduler.timing.schedules import Cron, Every, Recurring

CELERY = Dialect(wraps=True, long_names=True)
FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
SOLAR = "solar: nothing goes by the sun here; compute the moment"


@dataclass(frozen=True, slots=True)
class Beat:
    """Hold the zone of beat's crontabs, and how late they may start, if there is a limit."""

    tz: str = "UTC"
    deadline: timedelta | None = None

    def schedule(self, value: Any, expires: timedelta | None = None) -> Recurring:
        """Return the equivalent schedule.

        Args:
            value: seconds, a timedelta, or the result of a call of `crontab` or `schedule`.
            expires: how late a run may start.
        """
        match value:
            case int() | float() | timedelta() if not isinstance(value, bool):
                period = value if isinstance(value, timedelta) else _seconds(value)
                return Every(period, mode="fixed_rate", **_lateness(expires))
            case Made("schedule", args, kwargs):
                return self.schedule(_period(args, kwargs), expires)
            case Made("from_string", (str(text),)) if len(text.split()) == len(FIELDS):
                fields = dict[str, str](zip(FIELDS, text.split(), strict=True))
                return self.crontab(fields, expires)
            case Made("crontab", args, kwargs):
                return self.crontab(_fields(args, kwargs), expires)
            case Made("solar"):
                raise ScheduleError(SOLAR)
            case Made(kind):
                raise ScheduleError(f"{kind}(...) is an unknown schedule")
            case Unread():
                raise Unreadable(value)
            case _:
                raise ScheduleError(f"not a schedule: {shown(value)}")

    def crontab(self, fields: Mapping[str, str], expires: timedelta | None = None) -> Cron:
        """Return the same for the fields of a crontab, whose days both have to match."""
        texts = [fields.get(name, "*").replace(" ", "") for name in FIELDS]
        late = min(filter(None, (expires, self.deadline)), default=None)
        return Cron(CELERY.expression(texts, both=True), tz=self.tz, **_lateness(late))


def span_of(value: Any) -> timedelta | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        with suppress(ScheduleError):
            return _seconds(value)
    return value if isinstance(value, timedelta) else None


def _seconds(value: float) -> timedelta:
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):  # ValueError: it is not a number
        raise ScheduleError(f"not a number of seconds: {shown(value)}") from None


def _lateness(late: timedelta | None) -> dict[str, Any]:
    return {} if late is None else {"catch_up": "skip", "grace": late}


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
    value = plain(value, SourceLine("", 1))
    if isinstance(value, list | tuple | set | frozenset | range):
        return ",".join(str(each) for each in cast("Iterable[Any]", value))
    return str(value)


QUEUE = "each task has a queue of its own"


class Options:
    """Read the options of a task, or an entry of beat, and note problems.

    Attributes:
        of: its name, in notes.
    """

    def __init__(
        self, of: str, given: Scope, place: SourceLine, notes: Iterable[Note] = ()
    ) -> None:
        self.of = of
        self.given = given
        self.notes: list[Note] = []
        self._place = place
        self.add(notes)

    def note(self, place: SourceLine, text: str) -> None:
        self.notes.append(Note(place, text))

    def add(self, notes: Iterable[Note], what: str = "") -> None:
        self.notes += [Note(each.place, f"{what}{self.of}: {each.text}") for each in notes]

    def value(self, name: str, default: Any = None) -> Any:
        """Return the value of an option; its default, with a note, if it is unknown."""
        if name not in self.given:
            return default
        bound = self.given[name]
        self.notes += [each for each in bound.notes if each not in self.notes]
        with noting(self.notes, bound.place, f"{name} of {self.of}"):
            return plain(bound.value, bound.place, self.notes)
        return default

    def span(self, name: str) -> timedelta | None:
        return span_of(self.value(name))

    def report(self, given: Scope, taken: Collection[str], why: Mapping[str, str]) -> None:
        for name, bound in given.items():
            if name not in taken:
                is_made = isinstance(bound.value, Made) or not isinstance(bound.value, Unread)
                detail = why.get(name, "" if is_made else str(bound.value))
                value = shown_value(bound.value)
                self.note(bound.place, f"{name}={value} of {self.of}{detail and f': {detail}'}")

    def is_off(self) -> bool:
        """Return whether `enabled` is not true, and note similar options."""
        if "relative" in self.given and self.given["relative"].value is not False:
            self.note(self.given["relative"].place, f"relative of {self.of}: {RELATIVE}")
        if is_off := not self.value("enabled", True):
            self.note(self.given["enabled"].place, f"enabled=False of {self.of}: pause its loop")
        return is_off

    def call(self, task: str, *given: tuple[Any, Any]) -> Action:
        """Return the call of a task; without it, if its arguments are unknown."""
        notes: list[Note] = []
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        try:
            for positional, named in given:
                args += _checked(plain(positional, self._place, notes) or (), list | tuple)
                kwargs |= _checked(plain(named, self._place, notes) or {}, Mapping)
        except Unreadable as error:
            unread = error.unread.text
            self.note(self._place, f"the arguments of {self.of}: {unread}")
            return Unknown(f"Call {task} here, with {unread}.")
        self.add(notes)
        return CeleryCall(task, tuple(args), kwargs)

    def options(self, bound: Bound | None) -> Mapping[str, timedelta]:
        if bound is not None and bound.value is not None:
            with noting(self.notes, self._place, f"options of {self.of}"):
                table = _table(bound)
                self.add(table.missing, "options of ")
                return self.spans(table.entries)
        return {}

    def spans(self, options: Scope) -> Mapping[str, timedelta]:
        """Return the options that are carried over; note the others."""
        self.add(note for each in options.values() for note in each.notes)
        spans = {name: span_of(options[name].value) for name in SPANS if name in options}
        read = {name: span for name, span in spans.items() if span is not None}
        self.report(options, read, WHY)
        return read


def _checked(value: Any, kind: Any) -> Any:
    """Return arguments as they are called with, or raise Unreadable."""
    if isinstance(value, kind):
        return value
    raise Unreadable(Unread(SourceLine("", 0), f"`{shown_value(value)}` is no arguments"))


ENTRY = ("task", "schedule", "args", "kwargs", "options", "relative", "enabled")
SIGNATURES = ("s", "si", "signature", "Signature", "subtask")
OF_ADDING = ("schedule", "sig", "args", "kwargs", "name")
SPANS = ("expires", "soft_time_limit", "time_limit")
RELATIVE = "periods are counted from 1970 in UTC here: offset= moves them"
WHY = {
    "queue": QUEUE,
    "exchange": QUEUE,
    "routing_key": QUEUE,
    "priority": "loops have none",
    "link": "send the next message at the end of the task",
    "link_error": "a function under @app.on_escalation is called",
    "headers": "give the task a parameter",
}


def loops_of(table: Bound, beat: Beat, notes: list[Note]) -> Iterator[ImportedJob]:
    """Return the loops of a table of beat; note the others."""
    place = table.value.place if isinstance(table.value, Unread) else table.place
    with noting(notes, place, "beat_schedule"):
        given = _table(table)
        notes += (Note(each.place, f"beat_schedule: {each.text}") for each in given.missing)
        for key, bound in given.entries.items():
            with noting(notes, bound.place, f"left out, {key!r}"):
                yield _loop_of(key, bound.under(*table.notes), beat)


def _loop_of(key: Any, bound: Bound, beat: Beat) -> ImportedJob:
    table = _table(bound)
    given = table.entries
    for name in ("task", "schedule"):
        if name not in given:
            lost = [each.text for each in table.missing]
            raise ScheduleError(lost[0] if lost else f"it has no {name!r}")
    notes = (*bound.notes, *(note for each in given.values() for note in each.notes))
    own = {name: Bound(each.value, each.place) for name, each in given.items()}
    reading = Options(repr(str(key)), own, bound.place, notes)
    reading.add(table.missing, "a part of ")
    for name, each in given.items():
        if name not in ENTRY:
            reading.note(each.place, f"{name} of {reading.of}")
    args, kwargs = (given[name].value if name in given else None for name in ("args", "kwargs"))
    task, spans = _task(given["task"].value, bound.place), reading.options(given.get("options"))
    return ImportedJob(
        bound.place,
        str(key),
        f"{str(key)!r} runs {task}",
        reading.call(task, (args, kwargs)),
        beat.schedule(given["schedule"].value, spans.get("expires")),
        timeout=_limit(spans),
        paused=reading.is_off(),
        notes=[*dict.fromkeys(reading.notes)],
    )


def loop_added(added: Bound, beat: Beat) -> ImportedJob:
    """Return the loop that a call of add_periodic_task makes, or raise a ScheduleError."""
    made, place = cast("Made", added.value), added.place
    given = dict(zip(OF_ADDING, made.args, strict=False)) | dict(made.kwargs)
    if "schedule" not in given or "sig" not in given:
        raise Unreadable(made)
    task, args, kwargs, options = _signature(given["sig"], place)
    name = "" if given.get("name") is None else str(plain(given["name"], place))
    reading = Options(repr(name or task), {}, place, added.notes)
    options |= {key: each for key, each in given.items() if key not in OF_ADDING}
    if (missing := options.pop("**", None)) is not None:
        reading.add([Note(place, missing)], "options of ")
    spans = reading.spans({key: Bound(each, place) for key, each in options.items()})
    return ImportedJob(
        place,
        name or last(task),
        f"{name!r} runs {task}" if name else f"beat runs {task}",
        reading.call(task, (given.get("args"), given.get("kwargs")), (args, kwargs)),
        beat.schedule(given["schedule"], spans.get("expires")),
        timeout=_limit(spans),
        notes=[*dict.fromkeys(reading.notes)],
    )


def _limit(spans: Mapping[str, timedelta]) -> timedelta | None:
    return spans.get("soft_time_limit") or spans.get("time_limit")


def _table(bound: Bound) -> TableValue:
    match bound.value:
        case TableValue() as table:
            return table
        case Unread() as unread:
            raise Unreadable(unread)
        case other:
            raise ScheduleError(f"expected a table, got {shown_value(other)}")


def _task(value: Any, place: SourceLine) -> str:
    if isinstance(value, Ref) and value.path.endswith(".name"):
        return value.path.removesuffix(".name")
    text = plain(value, place)
    if isinstance(text, str):
        return text
    raise Unreadable(unread_of(value, place))


def _signature(value: Any, place: SourceLine) -> tuple[str, Any, Any, dict[str, Any]]:
    """Return the task of a signature, its arguments, and its options."""
    match value:
        case Made("set", _, kwargs, Made() as inner):
            task, args, passed, options = _signature(inner, place)
            return task, args, passed, {**options, **kwargs}
        case Made(kind, args, kwargs, str(path)) if kind in SIGNATURES:
            of = path.removesuffix(f".{kind}")
            if kind in SIGNATURES[:2]:
                given = {key: Bound(each, place) for key, each in kwargs.items()}
                return of, args, value if "**" in kwargs else TableValue(given, []), {}
            if args and isinstance(args[0], str):
                of, args = args[0], args[1:]
            named = {**dict(zip(("args", "kwargs"), args, strict=False)), **kwargs}
            inner = named.pop("options", None)
            more = inner.entries if isinstance(inner, TableValue) else {}
            options = {key: each.value for key, each in more.items()}
            return of, named.pop("args", None), named.pop("kwargs", None), {**named, **options}
        case Function(path=path) | Ref(path):
            return path, None, None, {}
        case _:
            raise Unreadable(unread_of(value, place))


APP = "django_celery_beat."
UNITS = ("days", "hours", "minutes", "seconds", "microseconds")
OWN = "celery.backend_cleanup"
NOT_CARRIED = {
    **{name: WHY[name] for name in ("queue", "exchange", "routing_key", "priority", "headers")},
    "expires": "remove the loop then",
    "start_time": "seed it then",
}


@dataclass(frozen=True, slots=True)
class BeatRow:
    place: SourceLine
    model: str
    key: Any
    fields: Mapping[str, Any]

    def has(self, name: str) -> bool:
        return self.fields.get(name) not in (None, "", {}, "{}")


def is_dump(file: str, text: str) -> bool:
    return file.endswith(".json") or text.lstrip()[:1] in ("[", "{")


def loops_in_dump(text: str, file: str, beat: Beat, notes: list[Note]) -> Iterator[ImportedJob]:
    """Return beat's loops in a dump, or raise a UsageError that says why it is none."""
    rows = [row for row in _rows(text, file) if row.model.startswith(APP)]
    schedules = {(row.model.removeprefix(APP), repr(row.key)): row for row in rows}
    tasks = [row for row in rows if row.model == f"{APP}periodictask"]
    if not tasks:
        raise UsageError(f"{file} has no {APP}periodictask: dump it with manage.py dumpdata.")
    for row in tasks:
        with noting(notes, row.place, f"left out, {row.fields.get('name')!r}"):
            yield _loop_in(row, schedules, beat)


def _rows(text: str, file: str) -> Iterator[BeatRow]:
    decoder, position = json.JSONDecoder(), _next(text, 0)
    try:
        while text[position : position + 1] not in ("]", ""):
            row, end = decoder.raw_decode(text, position)
            place = SourceLine(file, text.count("\n", 0, position) + 1)
            yield BeatRow(place, str(row["model"]).lower(), row.get("pk"), dict(row["fields"]))
            position = _next(text, end)
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}, line {error.lineno}, is not JSON: {error.msg}.") from None
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError):
        line = text.count("\n", 0, position) + 1
        raise UsageError(f"{file}, line {line}, is not a row of manage.py dumpdata.") from None


def _next(text: str, position: int) -> int:
    """Return where the next row begins."""
    while text[position : position + 1] in ("[", ",") or text[position : position + 1].isspace():
        position += 1
    return position


def _loop_in(row: BeatRow, schedules: Mapping[tuple[str, str], BeatRow], beat: Beat) -> ImportedJob:
    fields, place = row.fields, row.place
    task = str(fields.get("task"))
    name = str(fields.get("name") or task)
    if task == OWN:
        raise ScheduleError("it deletes results that Celery stores, and there are none here")
    kind, of = _schedule_of(row, schedules)
    notes = [
        Note(place, f"{option}={fields[option]} of {name!r}: {why}")
        for option, why in NOT_CARRIED.items()
        if row.has(option)
    ]
    if fields.get("one_off"):
        said = "it ran once, and is a loop here: raise StopLoop at its end, or send it once"
        notes.append(Note(place, f"one_off of {name!r}: {said}"))
    late = fields.get("expire_seconds")
    expires = None if late is None else _span("seconds", late)
    match kind:
        case "clocked":
            raise ScheduleError(f"it runs once, at {of.fields.get('clocked_time')}: send a call")
        case "interval":
            period = _span(of.fields.get("period"), of.fields.get("every"))
            schedule = beat.schedule(period, expires)
        case "crontab":
            columns = {name: str(of.fields.get(name, "*")) for name in FIELDS}
            beat = replace(beat, tz=str(of.fields.get("timezone") or "UTC"))
            schedule = beat.crontab(columns, expires)
        case _:
            raise ScheduleError(SOLAR)
    about = " ".join(str(fields.get("description") or "").split())
    return ImportedJob(
        place,
        name,
        f"{name!r} runs {task}{about and f': {about}'}",
        CeleryCall(task, _json(row, "args", list), _json(row, "kwargs", dict)),
        schedule,
        paused=not fields.get("enabled", True),
        notes=notes,
    )


def _schedule_of(row: BeatRow, schedules: Mapping[tuple[str, str], BeatRow]) -> tuple[str, BeatRow]:
    for kind in ("clocked", "interval", "crontab", "solar"):
        if (key := row.fields.get(kind)) is None:
            continue
        if (of := schedules.get((f"{kind}schedule", repr(key)))) is None:
            raise ScheduleError(f"the dump has no {kind}schedule {key}")
        return kind, of
    raise ScheduleError("it has no schedule")


def _json(row: BeatRow, name: str, kind: type) -> Any:
    text = row.fields.get(name) or kind()
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise ScheduleError(f"its {name} cannot be read: {shown(text)}")
    return cast("Any", value)


def _span(unit: object, count: object) -> timedelta:
    with suppress(OverflowError):
        if isinstance(count, int) and unit in UNITS:
            return timedelta(**{str(unit): count})
    raise ScheduleError(f"not a period: {shown(count)} {shown(unit)}")
