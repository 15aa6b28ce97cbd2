"""The database of django-celery-beat, as `manage.py dumpdata django_celery_beat` prints it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from scheduler.control.keyed import KEY, LONGEST_KEY
from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.celery_schedules import FIELDS, Beat
from scheduler.importing.findings import CeleryCall, Job, Note, Place
from scheduler.timing.durations import shown
from scheduler.timing.schedules import Recurring

APP = "django_celery_beat."
UNITS = ("days", "hours", "minutes", "seconds", "microseconds")
OWN = "celery.backend_cleanup"
NOT_CARRIED = {
    "queue": "each task has a queue of its own",
    "exchange": "each task has a queue of its own",
    "routing_key": "each task has a queue of its own",
    "priority": "loops have none",
    "headers": "give the task a parameter",
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
    """Whether it is a dump, and no module."""
    return file.endswith(".json") or text.lstrip()[:1] in ("[", "{")


def jobs_in_dump(text: str, file: str, notes: list[Note]) -> Iterator[Job]:
    """The jobs of a dump.

    Args:
        notes: where it is added what is left out.

    Raises:
        UsageError: it is no dump.
    """
    rows = [row for row in _rows(text, file) if row.model.startswith(APP)]
    schedules = {(row.model.removeprefix(APP), repr(row.key)): row for row in rows}
    tasks = [row for row in rows if row.model == f"{APP}periodictask"]
    if not tasks:
        raise UsageError(f"{file} has no {APP}periodictask: dump it with manage.py dumpdata.")
    for row in tasks:
        name = row.fields.get("name")
        try:
            yield _Periodic(row, schedules).job()
        except ScheduleError as error:
            notes.append(Note(row.place, f"left out, {name!r}: {error}"))


def _rows(text: str, file: str) -> Iterator[Row]:
    decoder, position = json.JSONDecoder(), _skipped(text, 0, "[")
    try:
        while text[position : position + 1] not in ("]", ""):
            row, end = decoder.raw_decode(text, position)
            place = Place(file, text.count("\n", 0, position) + 1)
            yield Row(place, str(row["model"]).lower(), row.get("pk"), dict(row["fields"]))
            position = _skipped(text, end, ",")
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}, line {error.lineno}, is no JSON: {error.msg}.") from None
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError):
        line = text.count("\n", 0, position) + 1
        raise UsageError(f"{file}, line {line}, is no row of manage.py dumpdata.") from None


def _skipped(text: str, position: int, mark: str) -> int:
    """Where the next value begins, behind a mark if there is one."""
    while position < len(text) and text[position].isspace():
        position += 1
    if mark and text[position : position + 1] == mark:
        return _skipped(text, position + 1, "")
    return position


class _Periodic:
    """One PeriodicTask."""

    def __init__(self, row: Row, schedules: Mapping[tuple[str, str], Row]) -> None:
        self._row = row
        self._schedules = schedules
        self._name = str(row.fields.get("name") or row.fields.get("task"))

    def job(self) -> Job:
        """What becomes of it.

        Raises:
            ScheduleError: nothing can.
        """
        row = self._row
        if (task := str(row.fields.get("task"))) == OWN:
            raise ScheduleError("it clears results of Celery's, of which there are none")
        call = CeleryCall(task, self._json("args", list), self._json("kwargs", dict))
        said = f"{self._name!r} runs {task}"
        if about := " ".join(str(row.fields.get("description") or "").split()):
            said += f": {about}"
        paused, notes = not row.fields.get("enabled", True), self._notes()
        if self._schedule_row("clocked") is not None:
            if paused:
                raise ScheduleError("it is disabled, and was to run once")
            once = {_key(self._name): self._moment()}
            return Job(row.place, self._name, said, call, once=once, notes=notes)
        schedule, weekdays = self._schedule()
        return Job(
            row.place, self._name, said, call, schedule, weekdays, paused=paused, notes=notes
        )

    def _notes(self) -> list[Note]:
        notes = [
            Note(self._row.place, f"{name}={self._row.fields[name]} of {self._name!r}: {why}")
            for name, why in NOT_CARRIED.items()
            if self._row.has(name)
        ]
        if self._row.fields.get("one_off") and self._schedule_row("clocked") is None:
            said = "it ran once, and is a loop here: raise StopLoop at its end, or send it once"
            notes.append(Note(self._row.place, f"one_off of {self._name!r}: {said}"))
        return notes

    def _json(self, name: str, kind: type) -> Any:
        text = self._row.fields.get(name) or kind()
        try:
            value = json.loads(text) if isinstance(text, str) else text
        except ValueError:
            value = None
        if not isinstance(value, kind):
            raise ScheduleError(f"its {name} cannot be read: {shown(text)}")
        return cast("Any", value)

    def _schedule_row(self, kind: str) -> Row | None:
        key = self._row.fields.get(kind)
        if key is None:
            return None
        row = self._schedules.get((f"{kind}schedule", repr(key)))
        if row is None:
            raise ScheduleError(f"the dump has no {kind}schedule {key}")
        return row

    def _schedule(self) -> tuple[Recurring, frozenset[int] | None]:
        late = self._row.fields.get("expire_seconds")
        expires = timedelta(seconds=late) if isinstance(late, int) else None
        if (row := self._schedule_row("interval")) is not None:
            return Beat().schedule(_period(row), expires)
        if (row := self._schedule_row("crontab")) is not None:
            fields = {name: str(row.fields.get(name, "*")) for name in FIELDS}
            zone = str(row.fields.get("timezone") or "UTC")
            return Beat().crontab(fields, late=expires, tz=zone)
        if self._schedule_row("solar") is not None:
            raise ScheduleError("solar: nothing goes by the sun here; compute the moment")
        raise ScheduleError("it has no schedule")

    def _moment(self) -> datetime:
        row = self._schedule_row("clocked")
        text = str(row.fields.get("clocked_time")) if row else ""
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
    """A name of a one-off, as like it as can be."""
    plain = "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in name).split())
    key = plain[:LONGEST_KEY].strip("-")
    return key if KEY.fullmatch(key) else "one-off"
