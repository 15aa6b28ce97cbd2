"""What modules have beat run: `beat_schedule`, and calls of `add_periodic_task`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from scheduler.importing.findings import Note, Place
from scheduler.importing.values import (
    Bound,
    Function,
    Made,
    Ref,
    Table,
    Unread,
    Unreadable,
    plain,
    shown_value,
)
from scheduler.importing.world import Added

ENTRY = ("task", "schedule", "args", "kwargs", "options", "relative", "enabled")
SIGNATURES = ("s", "si", "signature", "Signature", "subtask")
OF_ADDING = ("schedule", "sig", "args", "kwargs", "name")
RELATIVE = "periods are counted from 1970 in UTC here: offset= moves them"
WHY = {
    "queue": "each task has a queue of its own",
    "exchange": "each task has a queue of its own",
    "routing_key": "each task has a queue of its own",
    "priority": "loops have none",
    "link": "send the next message at the end of the task",
    "link_error": "a function under @app.on_escalation is told",
    "headers": "give the task a parameter",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """What beat is to run.

    Attributes:
        key: what it is called; empty: nothing.
        task: Celery's name of it, or the path of its function.
        schedule: what it goes by.
        unread: which of its arguments are not known.
        options: how it is sent.
    """

    place: Place
    key: str
    task: str
    schedule: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unread: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    paused: bool = False
    notes: Sequence[Note] = ()


def entries_of(table: Bound) -> Iterator[Entry | Note]:
    """Those of a `beat_schedule`."""
    if not isinstance(table.value, Table):
        said = _unreadable(table.value, table.place)
        yield Note(
            said.place if isinstance(said, Unread) else table.place, f"beat_schedule: {said}"
        )
        return
    yield from (Note(each.place, f"beat_schedule: {each.text}") for each in table.value.missing)
    for key, bound in table.value.entries.items():
        yield _entry(key, bound.under(*table.notes))


def _entry(key: Any, bound: Bound) -> Entry | Note:
    left = f"left out, {key!r} of beat_schedule"
    if not isinstance(bound.value, Table):
        return Note(bound.place, f"{left}: {_unreadable(bound.value, bound.place)}")
    given, place = bound.value.entries, bound.place
    if missing := [name for name in ("task", "schedule") if name not in given]:
        lost = bound.value.missing[0].text if bound.value.missing else f"it has no {missing[0]!r}"
        return Note(place, f"{left}: {lost}")
    try:
        task = _task(given["task"].value, place)
    except Unreadable as error:
        return Note(place, f"{left}: {error}")
    notes = (*bound.notes, *(note for each in given.values() for note in each.notes))
    reading = _Reading(
        str(key), place, [Note(each.place, f"{key!r}: {each.text}") for each in notes]
    )
    for each in bound.value.missing:
        reading.note(each.place, f"a part of {key!r}: {each.text}")
    for name, each in given.items():
        if name not in ENTRY:
            reading.note(each.place, f"{name} of {key!r}")
    options = reading.options(given["options"].value if "options" in given else None)
    args, kwargs, unread = reading.arguments(_of(given, "args"), _of(given, "kwargs"))
    paused = reading.is_off("enabled", given)
    if "relative" in given and given["relative"].value is not False:
        reading.note(given["relative"].place, f"relative of {key!r}: {RELATIVE}")
    schedule, notes = given["schedule"].value, reading.told
    return Entry(place, str(key), task, schedule, args, kwargs, unread, options, paused, notes)


def _of(given: Mapping[Any, Bound], name: str) -> Any:
    return given[name].value if name in given else None


def entry_added(added: Added) -> Entry | Note:
    """That of a call of `add_periodic_task`."""
    given = dict(zip(OF_ADDING, added.args, strict=False)) | added.kwargs
    try:
        return _added(added, given)
    except Unreadable as error:
        return Note(added.place, f"left out, a call of add_periodic_task: {error}")


def _added(added: Added, given: Mapping[str, Any]) -> Entry:
    place = added.place
    if "schedule" not in given or "sig" not in given:
        raise Unreadable(given.get("**") or Unread(place, "add_periodic_task(...)"))
    name = str(plain(given["name"], place)) if given.get("name") is not None else ""
    reading = _Reading(name or "a task that is added", place, [*added.notes])
    options = reading.read({key: each for key, each in given.items() if key not in OF_ADDING})
    task, args, kwargs, unread, set_ = reading.signature(given["sig"])
    reading.key = name or task
    options |= reading.read(set_)
    more = reading.arguments(given.get("args"), given.get("kwargs"))
    args, kwargs, unread = (*more[0], *args), {**kwargs, **more[1]}, unread or more[2]
    schedule, notes = given["schedule"], reading.told
    return Entry(place, name, task, schedule, args, kwargs, unread, options, False, notes)


def _path(value: Any, place: Place) -> str:
    match value:
        case Function(path=path) | Ref(path=path):
            return path
        case _:
            raise Unreadable(_as_unread(value, place))


def _task(value: Any, place: Place) -> str:
    """The name of a task: written out, or that of a function."""
    if isinstance(value, Ref) and value.path.endswith(".name"):
        return value.path.removesuffix(".name")
    text = plain(value, place)
    if isinstance(text, str):
        return text
    raise Unreadable(_as_unread(value, place))


def _unreadable(value: Any, place: Place) -> Unread | str:
    unread = _as_unread(value, place)
    is_known = not isinstance(value, Unread | Ref | Made)
    return f"expected a table, got {unread.text}" if is_known else unread


def _as_unread(value: Any, place: Place) -> Unread:
    match value:
        case Unread():
            return value
        case Ref(unread=unread) | Made(unread=Unread() as unread):
            return unread
        case _:
            return Unread(place, shown_value(value))


class _Reading:
    """What is read of one entry, and noted."""

    def __init__(self, key: str, place: Place, notes: list[Note]) -> None:
        self.key = key
        self._place = place
        self.notes = notes

    @property
    def told(self) -> list[Note]:
        return list(dict.fromkeys(self.notes))

    def note(self, place: Place, text: str) -> None:
        self.notes.append(Note(place, text))

    def is_off(self, name: str, given: Mapping[Any, Bound]) -> bool:
        if name not in given:
            return False
        bound = given[name]
        try:
            enabled = bool(plain(bound.value, bound.place, self.notes))
        except Unreadable as error:
            self.note(bound.place, f"{name} of {self.key!r}: {error}")
            return False
        if not enabled:
            self.note(bound.place, f"{name}=False of {self.key!r}: pause its loop")
        return not enabled

    def signature(
        self, value: Any
    ) -> tuple[str, Sequence[Any], Mapping[str, Any], str, Mapping[str, Any]]:
        """The task of a signature, its arguments, and how it is sent."""
        match value:
            case Made("set", _, kwargs, Made() as inner):
                task, args, passed, unread, options = self.signature(inner)
                return task, args, passed, unread, {**options, **kwargs}
            case Made(kind, args, kwargs, str(path)) if kind in SIGNATURES:
                of = path.removesuffix(f".{kind}")
                if kind in SIGNATURES[:2]:
                    return of, *self.arguments(args, kwargs), {}
                if args and isinstance(args[0], str):
                    of, args = args[0], args[1:]
                named = {**dict(zip(("args", "kwargs"), args, strict=False)), **kwargs}
                passed = self.arguments(named.pop("args", None), named.pop("kwargs", None))
                options = named.pop("options", None)
                more = options.entries if isinstance(options, Table) else {}
                more = {key: each.value for key, each in more.items()}
                return of, *passed, {**named, **more}
            case Made():
                raise Unreadable(_as_unread(value, self._place))
            case _:
                return _path(value, self._place), (), {}, "", {}

    def arguments(self, args: Any, kwargs: Any) -> tuple[Sequence[Any], Mapping[str, Any], str]:
        try:
            notes: list[Note] = []
            positional = plain(args, self._place, notes)
            if isinstance(kwargs, Mapping):
                pairs = cast("Mapping[str, Any]", kwargs).items()
                named = {key: plain(each, self._place, notes) for key, each in pairs}
            else:
                named = plain(kwargs, self._place, notes)
            self.notes += [Note(each.place, f"{self.key!r}: {each.text}") for each in notes]
        except Unreadable as error:
            return (), {}, error.unread.text
        return tuple(cast("Sequence[Any]", positional or ())), dict(named or {}), ""

    def options(self, value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Table):
            self.note(self._place, f"options of {self.key!r}: {_unreadable(value, self._place)}")
            return {}
        for each in value.missing:
            self.note(each.place, f"options of {self.key!r}: {each.text}")
        self.notes += [note for each in value.entries.values() for note in each.notes]
        places = {key: each.place for key, each in value.entries.items()}
        return self.read({key: each.value for key, each in value.entries.items()}, places)

    def read(
        self, options: Mapping[str, Any], places: Mapping[str, Place] | None = None
    ) -> dict[str, Any]:
        """What of them is carried over; all else is noted."""
        read: dict[str, Any] = {}
        for name, value in options.items():
            why = f": {WHY[name]}" if name in WHY else ""
            if name == "**":
                self.note(self._place, f"options of {self.key!r}: {value.hint}")
                continue
            if isinstance(value, Unread | Ref):
                why = f": {_as_unread(value, self._place)}"
            if name in ("expires", "soft_time_limit", "time_limit") and _is_span(value):
                read[name] = value
            else:
                place = (places or {}).get(name, self._place)
                self.note(place, f"{name}={shown_value(value)} of {self.key!r}{why}")
        return read


def _is_span(value: Any) -> bool:
    return isinstance(value, timedelta | int | float) and not isinstance(value, bool)
