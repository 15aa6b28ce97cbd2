"""Options of Celery's tasks and of entries of its beat: what is carried over, and what is told."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from scheduler.importing.celery_schedules import span_of
from scheduler.importing.findings import Note, Place
from scheduler.importing.values import Made, Scope, Unread, Unreadable, plain, shown_value

QUEUE = "each task has a queue of its own"


class Options:
    """Options by their names, and the notes of them.

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
        """Return what an option is; its default, where that is not known, which is noted."""
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

    def tell(self, taken: Collection[str], why: Mapping[str, str]) -> None:
        """Note the options that are not carried over."""
        for name, bound in self.given.items():
            if name not in taken:
                is_made = isinstance(bound.value, Made) or not isinstance(bound.value, Unread)
                told = why.get(name, "" if is_made else str(bound.value))
                value = shown_value(bound.value)
                self.note(bound.place, f"{name}={value} of {self.of}{told and f': {told}'}")
