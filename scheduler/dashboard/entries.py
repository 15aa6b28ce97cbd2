"""Keep entries of the journal: routine, failures and operators' actions apart.

So a thousand runs a minute push out no pause of yesterday, and a loop that fails each second no
failure of another loop.
"""

from bisect import insort
from collections.abc import Sequence
from datetime import datetime

from scheduler.protocol.epochs import Verb
from scheduler.protocol.tokens import Ending
from scheduler.queues.journal import JournalEntry

ROUTINE = (Ending.SUCCEEDED, Ending.RETRIED, Ending.SKIPPED, Verb.SEED)
ROUTINE_KEPT = 1_000
ACTIONS_KEPT = 2_000
FAILURES_KEPT = 10  # of one kind, of one loop
MOST_FAILING = 1_000


class Entries:
    """Hold the last entries of each sort, oldest first."""

    def __init__(self) -> None:
        self._routine: list[JournalEntry] = []
        self._actions: list[JournalEntry] = []
        self._failures: dict[tuple[str, str], list[JournalEntry]] = {}
        self._notable: list[JournalEntry] | None = []

    @property
    def all(self) -> Sequence[JournalEntry]:
        return sorted([*self.notable, *self._routine], key=_moment)

    @property
    def notable(self) -> Sequence[JournalEntry]:
        """Return failures and operations, without routine."""
        if self._notable is None:
            failures = (each for entries in self._failures.values() for each in entries)
            self._notable = sorted([*self._actions, *failures], key=_moment)
        return self._notable

    @property
    def actions(self) -> Sequence[JournalEntry]:
        """Return the operations of operators alone."""
        return self._actions

    def add(self, entry: JournalEntry) -> None:
        if entry.at is None:
            return
        if entry.what in ROUTINE:
            _add(self._routine, entry, ROUTINE_KEPT)
            return
        self._notable = None
        if entry.by:
            _add(self._actions, entry, ACTIONS_KEPT)
        else:
            key = entry.loop, entry.what
            _add(self._failures.setdefault(key, []), entry, FAILURES_KEPT)
            if len(self._failures) > MOST_FAILING:
                oldest = min(self._failures, key=lambda key: _moment(self._failures[key][-1]))
                del self._failures[oldest]


def _add(entries: list[JournalEntry], entry: JournalEntry, most: int) -> None:
    insort(entries, entry, key=_moment)
    del entries[:-most]


def _moment(entry: JournalEntry) -> datetime:
    assert entry.at is not None
    return entry.at
