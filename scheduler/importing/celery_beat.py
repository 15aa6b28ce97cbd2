"""Read beat's entries in modules: `beat_schedule`, and calls of `add_periodic_task`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from scheduler.errors import ScheduleError
from scheduler.importing.celery_schedules import QUEUE, Options, span_of
from scheduler.importing.findings import Note, Place
from scheduler.importing.values import (
    Bound,
    Function,
    Made,
    Ref,
    Scope,
    Table,
    Unread,
    Unreadable,
    plain,
    shown_value,
    unread_of,
)

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


@dataclass(frozen=True, slots=True)
class Entry:
    """Describe an entry of beat.

    Attributes:
        key: its name; empty: none.
        task: Celery's name of it, or the path of its function.
        schedule: its schedule.
        unread: which of its arguments are unknown.
        spans: its options of sending that are times.
        about: its description.
        once: the moments of its one-offs, by name.
        tz: the zone of its crontab, if it has one of its own.
    """

    place: Place
    key: str
    task: str
    schedule: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unread: str = ""
    spans: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    paused: bool = False
    notes: Sequence[Note] = ()
    about: str = ""
    once: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    tz: str | None = None


def entries_of(table: Bound) -> Iterator[Entry | Note]:
    try:
        given = _table(table)
    except (ScheduleError, Unreadable) as error:
        place = error.unread.place if isinstance(error, Unreadable) else table.place
        yield Note(place, f"beat_schedule: {error}")
        return
    yield from (Note(each.place, f"beat_schedule: {each.text}") for each in given.missing)
    for key, bound in given.entries.items():
        try:
            yield _entry(key, bound.under(*table.notes))
        except (ScheduleError, Unreadable) as error:
            yield Note(bound.place, f"left out, {key!r} of beat_schedule: {error}")


def _entry(key: Any, bound: Bound) -> Entry:
    table = _table(bound)
    given = table.entries
    for name in ("task", "schedule"):
        if name not in given:
            lost = [each.text for each in table.missing]
            raise ScheduleError(lost[0] if lost else f"it has no {name!r}")
    notes = (*bound.notes, *(note for each in given.values() for note in each.notes))
    own = {name: Bound(each.value, each.place) for name, each in given.items()}
    reading = _Reading(repr(str(key)), own, bound.place, notes)
    reading.add(table.missing, "a part of ")
    for name, each in given.items():
        if name not in ENTRY:
            reading.note(each.place, f"{name} of {reading.of}")
    args, kwargs = (given[name].value if name in given else None for name in ("args", "kwargs"))
    return Entry(
        bound.place,
        str(key),
        _task(given["task"].value, bound.place),
        given["schedule"].value,
        *reading.arguments((args, kwargs)),
        reading.options(given.get("options")),
        reading.is_off(),
        [*dict.fromkeys(reading.notes)],
    )


def entry_added(added: Bound) -> Entry | Note:
    try:
        return _added(added, added.value)
    except Unreadable as error:
        return Note(added.place, f"left out, a call of add_periodic_task: {error}")


def _added(added: Bound, made: Made) -> Entry:
    place = added.place
    given = dict(zip(OF_ADDING, made.args, strict=False)) | dict(made.kwargs)
    if "schedule" not in given or "sig" not in given:
        raise Unreadable(made)
    task, args, kwargs, options = _signature(given["sig"], place)
    name = "" if given.get("name") is None else str(plain(given["name"], place))
    reading = _Reading(repr(name or task), {}, place, added.notes)
    options |= {key: each for key, each in given.items() if key not in OF_ADDING}
    if (missing := options.pop("**", None)) is not None:
        reading.add([Note(place, missing)], "options of ")
    return Entry(
        place,
        name,
        task,
        given["schedule"],
        *reading.arguments((given.get("args"), given.get("kwargs")), (args, kwargs)),
        reading.spans({key: Bound(each, place) for key, each in options.items()}),
        False,
        [*dict.fromkeys(reading.notes)],
    )


def _table(bound: Bound) -> Table:
    match bound.value:
        case Table() as table:
            return table
        case Unread() as unread:
            raise Unreadable(unread)
        case other:
            raise ScheduleError(f"expected a table, got {shown_value(other)}")


def _task(value: Any, place: Place) -> str:
    if isinstance(value, Ref) and value.path.endswith(".name"):
        return value.path.removesuffix(".name")
    text = plain(value, place)
    if isinstance(text, str):
        return text
    raise Unreadable(unread_of(value, place))


def _signature(value: Any, place: Place) -> tuple[str, Any, Any, dict[str, Any]]:
    """Return the task of a signature, its arguments, and its options."""
    match value:
        case Made("set", _, kwargs, Made() as inner):
            task, args, passed, options = _signature(inner, place)
            return task, args, passed, {**options, **kwargs}
        case Made(kind, args, kwargs, str(path)) if kind in SIGNATURES:
            of = path.removesuffix(f".{kind}")
            if kind in SIGNATURES[:2]:
                given = {key: Bound(each, place) for key, each in kwargs.items()}
                return of, args, value if "**" in kwargs else Table(given, []), {}
            if args and isinstance(args[0], str):
                of, args = args[0], args[1:]
            named = {**dict(zip(("args", "kwargs"), args, strict=False)), **kwargs}
            inner = named.pop("options", None)
            more = inner.entries if isinstance(inner, Table) else {}
            options = {key: each.value for key, each in more.items()}
            return of, named.pop("args", None), named.pop("kwargs", None), {**named, **options}
        case Function(path=path) | Ref(path):
            return path, None, None, {}
        case _:
            raise Unreadable(unread_of(value, place))


class _Reading(Options):
    """Read one entry, and note problems."""

    def __init__(self, of: str, given: Scope, place: Place, notes: Iterable[Note]) -> None:
        super().__init__(of, given, [])
        self._place = place
        self.add(notes)

    def add(self, notes: Iterable[Note], what: str = "") -> None:
        told = (Note(each.place, f"{what}{self.of}: {each.text}") for each in notes)
        self.notes.extend(told)

    def is_off(self) -> bool:
        """Return whether `enabled` is not true, and note similar options."""
        if "relative" in self.given and self.given["relative"].value is not False:
            self.note(self.given["relative"].place, f"relative of {self.of}: {RELATIVE}")
        if is_off := not self.value("enabled", True):
            self.note(self.given["enabled"].place, f"enabled=False of {self.of}: pause its loop")
        return is_off

    def arguments(self, *given: tuple[Any, Any]) -> tuple[Sequence[Any], Mapping[str, Any], str]:
        """Return the arguments of a task, or which of them are unknown."""
        notes: list[Note] = []
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        try:
            for positional, named in given:
                args += plain(positional, self._place, notes) or ()
                kwargs |= plain(named, self._place, notes) or {}
        except Unreadable as error:
            return (), {}, error.unread.text
        self.add(notes)
        return tuple(args), kwargs, ""

    def options(self, bound: Bound | None) -> Mapping[str, timedelta]:
        try:
            table = Table({}, []) if bound is None or bound.value is None else _table(bound)
        except (ScheduleError, Unreadable) as error:
            self.note(self._place, f"options of {self.of}: {error}")
            return {}
        self.add(table.missing, "options of ")
        return self.spans(table.entries)

    def spans(self, options: Scope) -> Mapping[str, timedelta]:
        """Return the options that are carried over; note the others."""
        self.add(note for each in options.values() for note in each.notes)
        spans = {name: span_of(options[name].value) for name in SPANS if name in options}
        read = {name: span for name, span in spans.items() if span is not None}
        Options(self.of, options, self.notes).report(read, WHY)
        return read
