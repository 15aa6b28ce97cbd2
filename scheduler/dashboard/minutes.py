"""How runs went, minute by minute: what charts are drawn from."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.protocol.tokens import Ending, LastRun
from scheduler.timing.moments import UNIX_EPOCH

MINUTE = timedelta(minutes=1)
FAILED = (Ending.RETRIED, Ending.ESCALATED)


@dataclass(slots=True)
class Minute:
    """The runs that started in a minute.

    Attributes:
        runs: how many were made, of all endings but "skipped".
        failed: how many of them raised.
        ticks: how many of them were first attempts.
        late: the sum of the delays of these.
        latest: the longest of them.
    """

    runs: int = 0
    failed: int = 0
    ticks: int = 0
    late: timedelta = timedelta(0)
    latest: timedelta = timedelta(0)

    @property
    def mean_late(self) -> timedelta:
        return self.late / self.ticks if self.ticks else timedelta(0)


class Minutes:
    """The last minutes, each counted as runs are heard of, in whatever order.

    Args:
        kept: how many of them are remembered.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._minutes: dict[int, Minute] = {}

    def count(self, run: LastRun, *, is_first: bool) -> None:
        """Count a run; one that is not the first attempt at its tick is late because it had to."""
        if run.ending is Ending.SKIPPED:
            return
        number = _number(run.started_at)
        minute = self._minutes.get(number)
        if minute is None:
            minute = self._minutes[number] = Minute()
            self._forget()
        minute.runs += 1
        minute.failed += run.ending in FAILED
        if is_first:
            late = max(run.late, timedelta(0))
            minute.ticks += 1
            minute.late += late
            minute.latest = max(minute.latest, late)

    def last(self, count: int, now: datetime) -> Iterator[tuple[datetime, Minute]]:
        """The last minutes that are over, each with its beginning, oldest first."""
        end = _number(now) - 1
        for number in range(end - count + 1, end + 1):
            yield UNIX_EPOCH + number * MINUTE, self._minutes.get(number) or Minute()

    def _forget(self) -> None:
        while len(self._minutes) > self._kept:
            del self._minutes[min(self._minutes)]


def _number(moment: datetime) -> int:
    return (moment - UNIX_EPOCH) // MINUTE
