"""What is planned for the next 24 hours: where runs pile up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.control.where import Where
from scheduler.dashboard.standing import Standing
from scheduler.timing.moments import UNIX_EPOCH
from scheduler.timing.once import Once
from scheduler.timing.schedules import Every

SPAN = timedelta(hours=24)
SLOT = timedelta(minutes=15)
OFTEN = timedelta(minutes=5)
MOST_TICKS = 24 * 12
MOST_BUSY = 8


@dataclass(frozen=True, slots=True)
class Busy:
    """A moment at which many loops are due."""

    at: datetime
    loops: Sequence[str]


@dataclass(frozen=True, slots=True)
class Agenda:
    """The next 24 hours.

    Attributes:
        columns: how many runs are planned in each quarter of an hour.
        busy: the minutes with most loops, the busiest first.
        often: how many loops run every five minutes or more often: they are left out.
        steady: how many runs those make in each quarter of an hour.
        paused: how many are left out, because they are paused.
        upcoming: what comes next, of loops that run less often.
    """

    columns: Sequence[tuple[datetime, float]]
    busy: Sequence[Busy]
    often: int
    steady: int
    paused: int
    upcoming: Sequence[tuple[datetime, str]]


def planned(standings: Sequence[Standing], now: datetime) -> Agenda:
    """What the schedules of these loops have planned, from now on."""
    begin = now - (now - UNIX_EPOCH) % SLOT
    slots = [0.0] * (SPAN // SLOT + 1)
    ticks: list[tuple[datetime, str]] = []
    often, steady, paused = 0, 0.0, 0
    for standing in standings:
        if standing.state is Where.PAUSED:
            paused += 1
            continue
        if _is_often(standing, now):
            often += 1
            steady += SLOT / _period(standing, now)
            continue
        for tick in _ticks(standing, now):
            slots[min((tick - begin) // SLOT, len(slots) - 1)] += 1
            ticks.append((tick, standing.name))
    ticks.sort()
    columns = [(begin + at * SLOT, count) for at, count in enumerate(slots)]
    return Agenda(columns, _busy(ticks), often, round(steady), paused, ticks[:50])


def _busy(ticks: Sequence[tuple[datetime, str]]) -> list[Busy]:
    by_minute: dict[datetime, list[str]] = {}
    for tick, name in ticks:
        by_minute.setdefault(tick.replace(second=0, microsecond=0), []).append(name)
    counted = Counter({at: len(names) for at, names in by_minute.items() if len(names) > 1})
    return [Busy(at, by_minute[at]) for at, _ in counted.most_common(MOST_BUSY)]


def _is_often(standing: Standing, now: datetime) -> bool:
    return _period(standing, now) < OFTEN


def _period(standing: Standing, now: datetime) -> timedelta:
    match standing.schedule:
        case Every(period=period):
            return period
        case Once():
            return timedelta.max
        case schedule:
            first = schedule.next_after(now)
            return schedule.next_after(first) - first


def _ticks(standing: Standing, now: datetime) -> list[datetime]:
    schedule, due_at = standing.schedule, standing.loop.due_at
    is_once = isinstance(schedule, Once)
    tick = due_at or (schedule.next_after(now) if is_once else now)
    ticks = [tick] if now < tick <= now + SPAN else []
    if is_once:
        return ticks
    tick = max(tick, now)
    while len(ticks) < MOST_TICKS and (tick := schedule.next_after(tick)) <= now + SPAN:
        ticks.append(tick)
    return ticks
