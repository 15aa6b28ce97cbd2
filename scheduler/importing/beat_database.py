"""Read the database of django-celery-beat, as `manage.py dumpdata django_celery_beat` prints it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from scheduler.control.keyed import KEY, LONGEST_KEY
from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.celery_beat import WHY, Entry
from scheduler.importing.celery_schedules import FIELDS, SOLAR
from scheduler.importing.findings import Note, Place
from scheduler.importing.values import Made
from scheduler.timing.durations import shown

APP = "django_celery_beat."
UNITS = ("days", "hours", "minutes", "seconds", "microseconds")
OWN = "celery.backend_cleanup"
NOT_CARRIED = {
    **{name: WHY[name] for name in ("queue", "exchange", "routing_key", "priority", "headers")},
    "expires": "remove the loop then",
    "start_time": "seed it then",
}


@dataclass(frozen=True, slots=True)
class Row:
    place: Place
    model: str
    key: Any
    fields: Mapping[str, Any]

    def has(self, name: str) -> bool:
        return self.fields.get(name) not in (None, "", {}, "{}")


def is_dump(file: str, text: str) -> bool:
    """Return whether a text is a dump, not a module."""
    return file.endswith(".json") or text.lstrip()[:1] in ("[", "{")


def entries_in_dump(text: str, file: str) -> Iterator[Entry | Note]:
    """Return beat's entries in a dump.

    Raises:
        UsageError: it is not a dump.
    """
    rows = [row for row in _rows(text, file) if row.model.startswith(APP)]
    schedules = {(row.model.removeprefix(APP), repr(row.key)): row for row in rows}
    tasks = [row for row in rows if row.model == f"{APP}periodictask"]
    if not tasks:
        raise UsageError(f"{file} has no {APP}periodictask: dump it with manage.py dumpdata.")
    for row in tasks:
        try:
            yield _entry(row, schedules)
        except ScheduleError as error:
            yield Note(row.place, f"left out, {row.fields.get('name')!r}: {error}")


def _rows(text: str, file: str) -> Iterator[Row]:
    decoder, position = json.JSONDecoder(), _skipped(text, 0, "[")
    try:
        while text[position : position + 1] not in ("]", ""):
            row, end = decoder.raw_decode(text, position)
            place = Place(file, text.count("\n", 0, position) + 1)
            yield Row(place, str(row["model"]).lower(), row.get("pk"), dict(row["fields"]))
            position = _skipped(text, end, ",")
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}, line {error.lineno}, is not JSON: {error.msg}.") from None
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError):
        line = text.count("\n", 0, position) + 1
        raise UsageError(f"{file}, line {line}, is not a row of manage.py dumpdata.") from None


def _skipped(text: str, position: int, mark: str) -> int:
    """Return where the next value begins, behind a mark if there is one."""
    while position < len(text) and text[position].isspace():
        position += 1
    if mark and text[position : position + 1] == mark:
        return _skipped(text, position + 1, "")
    return position


def _entry(row: Row, schedules: Mapping[tuple[str, str], Row]) -> Entry:
    fields, place = row.fields, row.place
    task = str(fields.get("task"))
    name = str(fields.get("name") or task)
    if task == OWN:
        raise ScheduleError("it deletes results that Celery stores, and there are none here")
    kind, of = _schedule(row, schedules)
    notes = [
        Note(place, f"{option}={fields[option]} of {name!r}: {why}")
        for option, why in NOT_CARRIED.items()
        if row.has(option)
    ]
    if fields.get("one_off") and kind != "clocked":
        said = "it ran once, and is a loop here: raise StopLoop at its end, or send it once"
        notes.append(Note(place, f"one_off of {name!r}: {said}"))
    late = fields.get("expire_seconds")
    entry = Entry(
        place,
        name,
        task,
        None,
        _json(row, "args", list),
        _json(row, "kwargs", dict),
        spans={"expires": timedelta(seconds=late)} if isinstance(late, int) else {},
        paused=not fields.get("enabled", True),
        notes=notes,
        about=" ".join(str(fields.get("description") or "").split()),
    )
    match kind:
        case "clocked" if entry.paused:
            raise ScheduleError("it is a disabled one-off")
        case "clocked":
            return replace(entry, once={_key(name): _moment(of)})
        case "interval":
            return replace(entry, schedule=_period(of))
        case "crontab":
            columns = {name: str(of.fields.get(name, "*")) for name in FIELDS}
            crontab = Made(place, kind, kind=kind, kwargs=columns)
            return replace(entry, schedule=crontab, tz=str(of.fields.get("timezone") or "UTC"))
        case _:
            raise ScheduleError(SOLAR)


def _schedule(row: Row, schedules: Mapping[tuple[str, str], Row]) -> tuple[str, Row]:
    for kind in ("clocked", "interval", "crontab", "solar"):
        if (key := row.fields.get(kind)) is None:
            continue
        if (of := schedules.get((f"{kind}schedule", repr(key)))) is None:
            raise ScheduleError(f"the dump has no {kind}schedule {key}")
        return kind, of
    raise ScheduleError("it has no schedule")


def _json(row: Row, name: str, kind: type) -> Any:
    text = row.fields.get(name) or kind()
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise ScheduleError(f"its {name} cannot be read: {shown(text)}")
    return cast("Any", value)


def _moment(row: Row) -> datetime:
    text = str(row.fields.get("clocked_time"))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ScheduleError(f"its moment cannot be read: {shown(text)}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _period(row: Row) -> timedelta:
    every, unit = row.fields.get("every"), row.fields.get("period")
    if not isinstance(every, int) or unit not in UNITS:
        raise ScheduleError(f"not a period: {shown(every)} {shown(unit)}")
    return timedelta(**{str(unit): every})


def _key(name: str) -> str:
    """Return a valid name of a one-off, as similar as possible."""
    plain = "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in name).split())
    key = plain[:LONGEST_KEY].strip("-")
    return key if KEY.fullmatch(key) else "one-off"
