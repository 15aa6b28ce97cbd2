"""What became of the last times of a schedule: why a loop did not run last night."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from scheduler.control.where import TOLERANCE
from scheduler.dashboard import wording
from scheduler.dashboard.picture import LoopPicture, Run
from scheduler.dashboard.standing import MEANINGS, Standing
from scheduler.protocol.epochs import Verb
from scheduler.protocol.tokens import Ending
from scheduler.queues.journal import JournalEntry

MOST = 10
SPANS = tuple(
    timedelta(seconds=seconds)
    for seconds in (20, 4 * 60, 40 * 60, 6 * 3600, 24 * 3600, 8 * 24 * 3600)
)
PAUSING, ENDING_PAUSE = (Verb.PAUSE,), (Verb.RESUME, Verb.START)


@dataclass(frozen=True, slots=True)
class PastTick:
    """A time at which a loop was to run.

    Attributes:
        what: in a word: an `Ending`, or "paused", "missed", "due", "unknown".
        why: in a sentence, where it did not just run on time.
    """

    at: datetime
    what: str
    why: str = ""


def past_ticks(
    standing: Standing, now: datetime, heard_back_to: datetime | None, *, pauses_itself: bool
) -> list[PastTick]:
    """The last of them, the latest first; of a schedule without fixed times, none.

    Args:
        heard_back_to: the journal was read from here on; None: not at all yet.
        pauses_itself: whether the loop is paused when its retries are exhausted.
    """
    if heard_back_to is None or not standing.schedule.has_grid:
        return []
    begins = [act.at for act in standing.loop.acts if act.what == Verb.START and act.at is not None]
    ticks = _ticks(standing, max(heard_back_to, now - SPANS[-1], *begins), now)
    story = _Story(standing, pauses_itself)
    return [story.of(tick) for tick in reversed(ticks)]


def _ticks(standing: Standing, since: datetime, now: datetime) -> Sequence[datetime]:
    found: Sequence[datetime] = ()
    for span in SPANS:
        found = [*_between(standing, max(since, now - span), now)]
        if len(found) >= MOST or now - span <= since:
            break
    return found[-MOST:]


def _between(standing: Standing, begin: datetime, end: datetime) -> Iterator[datetime]:
    def following() -> Iterator[datetime]:
        tick = begin
        while True:
            yield (tick := standing.schedule.next_after(tick))

    return takewhile(lambda tick: tick <= end, following())


class _Story:
    """What is known of a loop, as far as it tells of its ticks."""

    def __init__(self, standing: Standing, pauses_itself: bool) -> None:
        self._standing = standing
        self._loop: LoopPicture = standing.loop
        self._pauses_itself = pauses_itself
        # The last attempt is the one that counts.
        self._runs = {run.last.scheduled_at: run for run in self._loop.runs}

    def of(self, tick: datetime) -> PastTick:
        if (run := self._runs.get(tick)) is not None:
            return PastTick(tick, run.last.ending.value, self._why_so(run))
        token = self._loop.token
        if token is not None and token.scheduled_at == tick and not self._loop.is_paused:
            return PastTick(tick, "due", MEANINGS[self._standing.state])
        if (paused := self._paused_at(tick)) is not None:
            return PastTick(tick, "paused", paused)
        return self._missed(tick)

    def _why_so(self, run: Run) -> str:
        last = run.last
        error = f" {last.error}" if last.error else ""
        tolerance = TOLERANCE + self._standing.schedule.jitter
        if last.ending is Ending.SKIPPED or run.attempt or last.late <= tolerance:
            return error.strip()
        return (
            f"It began {wording.span(last.late)} late: until then it was due, and no processor "
            f"was there, or all were busy.{error}"
        )

    def _paused_at(self, tick: datetime) -> str | None:
        acts = [each for each in self._loop.acts if each.at is not None and each.at <= tick]
        states = (*PAUSING, *ENDING_PAUSE)
        act = next((each for each in reversed(acts) if each.what in states), None)
        run = self._last_before(tick)
        if run is not None and self._has_paused_itself(run) and not _is_after(act, run):
            return f"It had paused itself after its run before: {run.last.error or 'no reason'}"
        if act is None or act.what not in PAUSING:
            return None
        by = f" by {act.by}" if act.by else ""
        return f"It was paused{by}{': ' if act.note else ''}{act.note}"

    def _has_paused_itself(self, run: Run) -> bool:
        ending = run.last.ending
        return ending is Ending.STOPPED or (ending is Ending.ESCALATED and self._pauses_itself)

    def _missed(self, tick: datetime) -> PastTick:
        before, after = self._last_before(tick), self._first_after(tick)
        if before is not None and before.last.started_at + before.last.duration > tick:
            took = wording.span(before.last.duration)
            return PastTick(tick, "missed", f"Its run before was still going on: it took {took}.")
        if after is None:
            told = "Nothing was heard of it." if before is None else "Nobody ran it."
            return PastTick(tick, "missed" if before else "unknown", told)
        late = wording.span(after.last.started_at - tick)
        why = f"Nobody ran it. The next run began {late} later, for all that were missed."
        return PastTick(tick, "missed", why)

    def _last_before(self, tick: datetime) -> Run | None:
        return next((run for run in reversed(self._loop.runs) if run.last.started_at < tick), None)

    def _first_after(self, tick: datetime) -> Run | None:
        return next((run for run in self._loop.runs if run.last.started_at >= tick), None)


def _is_after(act: JournalEntry | None, run: Run) -> bool:
    return act is not None and act.at is not None and act.at > run.last.started_at
