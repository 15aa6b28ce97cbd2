"""Compare the times of schedules with the history, and find where coming ones pile up."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, islice, takewhile

from scheduler.control.loops import TOLERANCE, Where
from scheduler.dashboard import wording
from scheduler.dashboard.picture import LoopPicture, PastRun
from scheduler.dashboard.standings import Standing
from scheduler.protocol.epochs import Verb
from scheduler.protocol.tokens import Ending
from scheduler.timing.durations import MILLISECOND
from scheduler.timing.moments import (
    UNIX_EPOCH,
    milliseconds,
    milliseconds_since_epoch,
    moment_of,
)
from scheduler.timing.schedules import Cron, Every, Once, Schedule, period_from, ticks_after

LOOK_BACK = timedelta(days=8)
MOST_PAST = 10
CHANGING_PAUSE = Verb.PAUSE, Verb.RESUME, Verb.SEED
SPAN = timedelta(hours=24)
SLOT = timedelta(minutes=15)
OFTEN = timedelta(minutes=5)
MOST_TICKS = 24 * 12
MOST_BUSY = 8
MOST_UPCOMING = 50
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Busy:
    at: datetime
    loops: Sequence[str]


@dataclass(frozen=True, slots=True)
class Agenda:
    """Plan the next 24 hours.

    Attributes:
        columns: how many runs are planned in each quarter of an hour.
        busy: the minutes with most loops, the busiest first.
        often: how many loops run every five minutes or more often: they are left out.
        steady: how many runs those make in each quarter of an hour.
        paused: how many are left out, because they are paused.
    """

    columns: Sequence[tuple[datetime, float]]
    busy: Sequence[Busy]
    often: int
    steady: int
    paused: int
    upcoming: Sequence[tuple[datetime, str]]


def planned(standings: Sequence[Standing], now: datetime) -> Agenda:
    """Return the planned runs of these loops, from now on."""
    times, rare, minutes = _Times(now), list[Standing](), Counter[int]()
    often, steady, paused = 0, 0.0, 0
    for standing in standings:
        if standing.state is Where.PAUSED:
            paused += 1
        elif (period := times.period_of(standing.schedule)) < OFTEN:
            often += 1
            steady += SLOT / period
        else:
            rare.append(standing)
            minutes.update(tick // MINUTE_MS for tick in times.of(standing))
    in_order = Counter(dict(sorted(minutes.items())))
    busy = [minute for minute, count in in_order.most_common(MOST_BUSY) if count > 1]
    before = accumulate(in_order.values(), initial=0)
    soon = [each for each, count in zip(in_order, before, strict=False) if count < MOST_UPCOMING]
    shown: dict[int, list[tuple[int, str]]] = {minute: [] for minute in (*busy, *soon)}
    for standing in rare:
        for tick in times.of(standing):
            if (in_minute := shown.get(tick // MINUTE_MS)) is not None:
                in_minute.append((tick, standing.name))
    upcoming = sorted(tick for minute in soon for tick in shown[minute])[:MOST_UPCOMING]
    return Agenda(
        _columns(in_order, now),
        [
            Busy(moment_of(each * MINUTE_MS), [name for _, name in sorted(shown[each])])
            for each in busy
        ],
        often,
        round(steady),
        paused,
        [(moment_of(tick), name) for tick, name in upcoming],
    )


def _columns(minutes: Mapping[int, int], now: datetime) -> Sequence[tuple[datetime, float]]:
    begin = now - (now - UNIX_EPOCH) % SLOT
    slots = [0.0] * (SPAN // SLOT + 1)
    for minute, count in minutes.items():
        slots[min((moment_of(minute * MINUTE_MS) - begin) // SLOT, len(slots) - 1)] += count
    return [(begin + at * SLOT, count) for at, count in enumerate(slots)]


class _Times:
    """Calculate the times of loops in a span, once for all loops with the same cron expression."""

    def __init__(self, now: datetime) -> None:
        self._now, self._end = now, now + SPAN
        self._periods: dict[Schedule, timedelta] = {}
        self._of_crons: dict[Cron, Sequence[int]] = {}

    def period_of(self, schedule: Schedule) -> timedelta:
        if schedule not in self._periods:
            first = schedule.next_after(self._now)
            self._periods[schedule] = period_from(schedule, first) or timedelta.max
        return self._periods[schedule]

    def of(self, standing: Standing) -> Iterator[int]:
        """Yield the times of a loop, in milliseconds since the epoch."""
        schedule, due_at = standing.schedule, standing.status.due_at
        if isinstance(schedule, Once):
            due_at = due_at or schedule.at
        if due_at is not None and self._now < due_at <= self._end:
            yield milliseconds_since_epoch(due_at)
        after = max(due_at or self._now, self._now)
        if isinstance(schedule, Every):
            first = milliseconds_since_epoch(schedule.next_after(after))
            end = milliseconds_since_epoch(self._end) + 1
            yield from range(first, end, milliseconds(schedule.period))
        elif isinstance(schedule, Cron):
            ticks = self._of_cron(schedule)
            yield from islice(ticks, bisect_right(ticks, milliseconds_since_epoch(after)), None)

    def _of_cron(self, cron: Cron) -> Sequence[int]:
        if cron not in self._of_crons:
            ticks = takewhile(lambda tick: tick <= self._end, ticks_after(cron, self._now))
            self._of_crons[cron] = [*map(milliseconds_since_epoch, islice(ticks, MOST_TICKS))]
        return self._of_crons[cron]


@dataclass(frozen=True, slots=True)
class PastTick:
    """Describe a past time of a loop, and why it did not just run on time.

    Attributes:
        what: an `Ending`, or "paused", "missed", "due", "unknown".
    """

    at: datetime
    what: str
    why: str = ""


def past_ticks(
    standing: Standing, now: datetime, heard_back_to: datetime | None, *, pauses_itself: bool
) -> list[PastTick]:
    """Return the last ticks, the latest first; none for a schedule without fixed times.

    Args:
        heard_back_to: the journal was read from here on; None: not at all yet.
        pauses_itself: whether the loop is paused when its retries are exhausted.
    """
    schedule = standing.schedule
    if heard_back_to is None or isinstance(schedule, Once) or not schedule.has_grid:
        return []
    begins = [act.at for act in standing.loop.acts if act.what == Verb.SEED and act.at is not None]
    since = max(heard_back_to, now - LOOK_BACK, *begins)
    story, found = _Story(standing, pauses_itself), list[PastTick]()
    tick = schedule.latest_until(now)
    while tick > since and len(found) < MOST_PAST:
        found.append(story.of(tick))
        tick = schedule.latest_until(tick - MILLISECOND)
    return found


class _Story:
    """Explain the ticks of a loop from its history."""

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
        if token is not None and token.scheduled_at == tick and not self._standing.is_paused:
            return PastTick(tick, "due", self._standing.meaning)
        if (paused := self._paused_at(tick)) is not None:
            return PastTick(tick, "paused", paused)
        return self._missed(tick)

    def _why_so(self, run: PastRun) -> str:
        last = run.last
        error = f" {last.error}" if last.error else ""
        tolerance = TOLERANCE + self._standing.schedule.jitter
        if last.ending is Ending.SKIPPED or run.attempt > 1 or last.late <= tolerance:
            return error.strip()
        late = wording.span(last.late)
        return f"It began {late} late: no processor was running, or all were busy.{error}"

    def _paused_at(self, tick: datetime) -> str | None:
        acts = [each for each in self._loop.acts if each.at is not None and each.at <= tick]
        act = next((each for each in reversed(acts) if each.what in CHANGING_PAUSE), None)
        run = self._last_before(tick)
        is_later = run and act and act.at is not None and act.at > run.last.started_at
        if run is not None and self._has_paused_itself(run) and not is_later:
            return f"It had paused itself after its run before: {run.last.error or 'no reason'}"
        if act is None or act.what != Verb.PAUSE:
            return None
        by = f" by {act.by}" if act.by else ""
        return f"It was paused{by}{': ' if act.note else ''}{act.note}"

    def _has_paused_itself(self, run: PastRun) -> bool:
        ending = run.last.ending
        return ending is Ending.STOPPED or (ending is Ending.ESCALATED and self._pauses_itself)

    def _missed(self, tick: datetime) -> PastTick:
        before = self._last_before(tick)
        after = next((run for run in self._loop.runs if run.last.started_at >= tick), None)
        if before is not None and before.last.started_at + before.last.duration > tick:
            took = wording.span(before.last.duration)
            return PastTick(
                tick, "missed", f"The previous run was still in progress: it took {took}."
            )
        if after is None:
            reason = "No record found." if before is None else "It did not run."
            return PastTick(tick, "missed" if before else "unknown", reason)
        late = wording.span(after.last.started_at - tick)
        why = f"It did not run. The next run, {late} later, covered all missed ticks."
        return PastTick(tick, "missed", why)

    def _last_before(self, tick: datetime) -> PastRun | None:
        return next((run for run in reversed(self._loop.runs) if run.last.started_at < tick), None)
