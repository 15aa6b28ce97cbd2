"""Calculate when the next run is due. No I/O: moments are arguments, the clock is never read.

Every moment is an aware datetime; results are in UTC. A *tick* is a nominal time of a schedule. The
ticks of a *grid* (`Cron`, and `Every` at a fixed rate) are fixed in advance, so missed ticks can be
counted; at a fixed delay the next tick exists only once a run has ended.
"""

import difflib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast, get_args
from zoneinfo import ZoneInfo, available_timezones

from scheduler.errors import ScheduleError
from scheduler.spelling import refusing_misnamed
from scheduler.timing.crontab import Pattern, pattern_of
from scheduler.timing.durations import (
    MILLISECOND,
    SECOND,
    ZERO,
    Duration,
    format_duration,
    parse_duration,
    shown,
)
from scheduler.timing.moments import (
    LATEST_MS,
    UNIX_EPOCH,
    milliseconds,
    milliseconds_since_epoch,
    moment_of,
    utc_of,
)


@dataclass(frozen=True, slots=True)
class Once:
    """Run once, at a moment; immediately if that has passed.

    Args:
        at: the earliest moment, rounded up to a whole millisecond.
        kept: how long the name stays taken afterwards, even if the run has ended; rounded, too.

    Raises:
        ScheduleError: the moment is naive, or not of the years 1970 to 9000; or the name is kept
            for over 100 years.
    """

    at: datetime
    kept: timedelta = ZERO

    has_grid: ClassVar[bool] = False
    jitter: ClassVar[timedelta] = ZERO

    def __post_init__(self) -> None:
        since = milliseconds(utc_of(self.at) - UNIX_EPOCH)
        kept = parse_duration(self.kept, "kept")
        _store(self, at=moment_of(since), kept=milliseconds(kept) * MILLISECOND)

    @property
    def kept_until(self) -> datetime:
        """Return until when the name is taken."""
        return self.at + self.kept

    def next_after(self, moment: datetime) -> datetime:
        """Return the moment, even if it has passed: the run is late then, and still due."""
        return self.at


Mode: TypeAlias = Literal["fixed_delay", "fixed_rate"]
CatchUp: TypeAlias = Literal["latest", "skip", "all"]

_MODES, _CATCH_UPS = get_args(Mode), get_args(CatchUp)
SHORTEST_PERIOD = timedelta(milliseconds=100)
DEFAULT_GRACE = timedelta(minutes=1)
MISSED_COUNT_LIMIT = 1000
"""The limit up to which missed ticks of a `Cron` are counted, one by one."""

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, init=False)
class Every:
    """Run once each period.

    Args:
        period: at least 100 ms.
        mode: "fixed_delay": a period after the previous run *ended*. "fixed_rate": at the multiples
            of the period since the Unix epoch, plus `offset`, so that phases never drift.
        offset: fixed rate only: moves the grid; less than the period.
        jitter: each run starts up to this much late; see `jittered`.
        catch_up: what to do about missed ticks. "latest": run once for all of them. "skip": run
            only if the latest is not later than `grace`. "all": run each, in order (fixed rate
            only).
        grace: how late a run may start, for catch_up="skip".

    Durations are text such as "30s" or timedeltas, in whole milliseconds; they are stored as
    timedeltas.

    Raises:
        ScheduleError: a value is out of range, or options contradict each other.
    """

    period: timedelta
    mode: Mode
    offset: timedelta
    jitter: timedelta
    catch_up: CatchUp
    grace: timedelta

    @refusing_misnamed("Every", ScheduleError)
    def __init__(
        self,
        period: Duration,
        *,
        mode: Mode = "fixed_delay",
        offset: Duration = ZERO,
        jitter: Duration = ZERO,
        catch_up: CatchUp = "latest",
        grace: Duration = DEFAULT_GRACE,
    ) -> None:
        _store(
            self,
            period=period_of("period", period),
            mode=_choice("mode", mode, _MODES),
            offset=_duration("offset", offset),
            **_misfire_policy(jitter, catch_up, grace),
        )
        if self.offset >= self.period:
            raise ScheduleError(
                f"offset: expected less than the period ({format_duration(self.period)}), "
                f"got: {format_duration(self.offset)}"
            )
        if self.mode == "fixed_delay" and self.offset:
            raise ScheduleError('offset= needs mode="fixed_rate"')
        if self.mode == "fixed_delay" and self.catch_up == "all":
            raise ScheduleError(
                'catch_up="all" needs a grid to catch up on: use mode="fixed_rate", '
                'or catch_up="latest"'
            )

    @property
    def has_grid(self) -> bool:
        """Return whether the ticks are fixed in advance."""
        return self.mode == "fixed_rate"

    def next_after(self, moment: datetime) -> datetime:
        """Return the first tick after the moment; at a fixed delay, after a run that ended then.

        Raises:
            ScheduleError: the moment is naive, or not of the years 1970 to 9000.
        """
        moment = utc_of(moment)
        if not self.has_grid:
            return moment + self.period
        return self._tick(self._index(moment) + 1)

    def latest_until(self, moment: datetime) -> datetime:
        """Return the last tick that is not after the moment.

        Raises:
            ScheduleError: as `next_after`; or this is a fixed delay, which has no grid.
        """
        if not self.has_grid:
            raise ScheduleError('a fixed delay has no grid of ticks: use mode="fixed_rate"')
        return self._tick(self._index(utc_of(moment)))

    def count_between(self, after: datetime, until: datetime) -> int:
        """Count the ticks of the grid in (after, until]."""
        return max(0, self._index(utc_of(until)) - self._index(utc_of(after)))

    def _index(self, moment: datetime) -> int:
        return (moment - UNIX_EPOCH - self.offset) // self.period

    def _tick(self, index: int) -> datetime:
        return UNIX_EPOCH + self.offset + index * self.period


@dataclass(frozen=True, slots=True, init=False)
class Cron:
    """Run at each wall-clock time that a cron expression matches.

    Args:
        expression: five fields (minute, hour, day of month, month, day of week), or six with the
            second as the *sixth*; or an alias such as "@daily". Each field takes `*`, values,
            ranges, lists and steps; months and weekdays also names; the day of month L (the last
            day); the day of week `FRI#2` (the second Friday) and `L5` (the last Friday).
            As in cron, where day of month and day of week are both given (neither begins with `*`),
            either suffices.
        tz: the IANA name of the zone whose wall clock counts, such as "Europe/Berlin"; it may be
            given as a `ZoneInfo`.
        jitter: each run starts up to this much late; see `jittered`.
        catch_up: as for `Every`.
        grace: as for `Every`.

    When clocks change:

    - A time that does not exist runs at the first instant after the gap. Several such times, or one
      that falls on a regular tick, are one run.
    - A time that exists twice runs once, at the first.
    - An expression whose hour field matches every hour keeps running each real interval: on both
      passes through a repeated hour; and in a gap nothing is invented.

    Raises:
        ScheduleError: the expression or the zone cannot be understood, the expression never
            matches, or an option is out of range.
    """

    expression: str
    tz: str
    jitter: timedelta
    catch_up: CatchUp
    grace: timedelta
    _pattern: Pattern = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    @refusing_misnamed("Cron", ScheduleError)
    def __init__(
        self,
        expression: str,
        *,
        tz: str | ZoneInfo = "UTC",
        jitter: Duration = ZERO,
        catch_up: CatchUp = "latest",
        grace: Duration = DEFAULT_GRACE,
    ) -> None:
        tz = tz.key if isinstance(tz, ZoneInfo) else tz
        _store(
            self,
            expression=expression,
            tz=tz,
            **_misfire_policy(jitter, catch_up, grace),
            _pattern=pattern_of(expression),
            _zone=_zone(tz),
        )

    @property
    def has_grid(self) -> bool:
        """Return True: the ticks of a calendar are fixed in advance."""
        return True

    def next_after(self, moment: datetime) -> datetime:
        """Return the first tick after the moment, in UTC.

        Raises:
            ScheduleError: the moment is naive, or not of the years 1970 to 9000.
        """
        return self._next(utc_of(moment))

    def latest_until(self, moment: datetime) -> datetime:
        """Return the last tick that is not after the moment, in UTC."""
        end, step = utc_of(moment), timedelta(minutes=1)
        while (tick := self._next(end - step)) > end:
            step *= 2
        while end - tick >= SECOND:  # ticks are whole seconds
            middle = tick + (end - tick) / 2
            if (later := self._next(middle)) <= end:
                tick = later
            else:
                end = middle
        return tick

    def count_between(self, after: datetime, until: datetime) -> int:
        """Count the ticks in (after, until], up to MISSED_COUNT_LIMIT."""
        tick, until, count = utc_of(after), utc_of(until), 0
        while count < MISSED_COUNT_LIMIT and (tick := self._next(tick)) <= until:
            count += 1
        return count

    def _next(self, moment: datetime) -> datetime:
        if self._pattern.every_hour:
            return self._next_interval(moment.replace(microsecond=0) + SECOND)
        return self._next_wall_time(moment)

    def _next_wall_time(self, moment: datetime) -> datetime:
        """Return the earliest instant after the moment with a matching wall-clock time."""
        tick, wall = moment, self._wall(moment).replace(microsecond=0)
        # More than once only on the second pass through a repeated hour: its times ran already.
        while tick <= moment:
            wall = self._pattern.first_from(wall + SECOND)
            tick = self._instant(wall)
        return tick

    def _next_interval(self, start: datetime) -> datetime:
        """Return the first instant, from the start on, whose wall-clock time matches."""
        while True:
            wall = self._wall(start)
            tick = start + (self._pattern.first_from(wall) - wall)
            # A day is short enough to hold at most one change of the clocks.
            horizon = min(tick, start + _DAY)
            if self._offset(horizon) != self._offset(start):
                start = self._change_between(start, horizon)
            elif horizon == tick:
                return tick
            else:
                # No match is skipped: no change of the clocks goes back by two days.
                start = max(horizon, tick - 2 * _DAY)

    def _instant(self, wall: datetime) -> datetime:
        instant = wall.replace(tzinfo=self._zone).astimezone(UTC)  # the first, if it exists twice
        if self._wall(instant) == wall:
            return instant
        before_gap = wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        return self._change_between(before_gap, instant)

    def _change_between(self, before: datetime, after: datetime) -> datetime:
        """Return the instant in (before, after] at which the clocks change."""
        old = self._offset(before)
        while (seconds := (after - before) // SECOND) > 1:
            middle = before + seconds // 2 * SECOND
            if self._offset(middle) == old:
                before = middle
            else:
                after = middle
        return after

    def _wall(self, moment: datetime) -> datetime:
        return moment.astimezone(self._zone).replace(tzinfo=None)

    def _offset(self, moment: datetime) -> timedelta | None:
        return moment.astimezone(self._zone).utcoffset()


Recurring: TypeAlias = Every | Cron
Schedule: TypeAlias = Recurring | Once
"""The schedule in a token: a user's, or the moment of a named one-off."""


def jittered(schedule: Schedule, loop: object, tick: datetime) -> datetime:
    """Return when the run for a tick starts: the tick, plus up to `schedule.jitter`.

    The same loop and tick give the same moment, on every machine. It is in whole milliseconds
    after the tick and, on a grid, before the next tick.

    Args:
        loop: its name counts.
    """
    tick, limit = utc_of(tick), schedule.jitter
    if limit and schedule.has_grid:
        limit = min(limit, schedule.next_after(tick) - tick - MILLISECOND)
    if limit < MILLISECOND:
        return tick
    nominal = (tick - UNIX_EPOCH) // MILLISECOND
    digest = blake2b(f"{loop}\n{nominal}".encode(errors="replace"), digest_size=8).digest()
    return tick + (int.from_bytes(digest) * (limit // MILLISECOND + 1) >> 64) * MILLISECOND


class Admission(NamedTuple):
    """Decide how to treat a received token.

    Attributes:
        tick: the nominal time that the run stands for.
        run: whether to run at all.
        missed: how many ticks were passed over.
    """

    tick: datetime
    run: bool
    missed: int


class Plan(NamedTuple):
    """Plan the next tick after a run.

    Attributes:
        tick: the next nominal time; if in the past, it is due at once.
        missed: how many ticks passed during the run and are skipped.
    """

    tick: datetime
    missed: int


def admit(schedule: Schedule, loop: object, tick: datetime, now: datetime) -> Admission:
    """Decide what to do with a loop's token for `tick` that reached a worker `now`.

    `missed` is exact; for a `Cron`, up to MISSED_COUNT_LIMIT. A tick in the future (clocks
    disagree) is run. Jitter makes no tick late.
    """
    tick, now = utc_of(tick), utc_of(now)
    if isinstance(schedule, Once):
        return Admission(tick, True, 0)
    in_grace = now - jittered(schedule, loop, tick) <= schedule.grace
    if tick >= now or schedule.catch_up == "all" or (schedule.catch_up == "skip" and in_grace):
        return Admission(tick, True, 0)
    latest = _latest(schedule, loop, tick, now)
    missed = schedule.count_between(tick, latest) if latest > tick else 0
    if schedule.catch_up == "skip" and now - jittered(schedule, loop, latest) > schedule.grace:
        return Admission(latest, False, _limited(schedule, missed + 1))
    return Admission(latest, True, missed)


def plan_next(schedule: Schedule, loop: object, tick: datetime, now: datetime) -> Plan:
    """Return the tick after a loop's run that stood for `tick` and ended `now`.

    At a fixed delay it is a period from now. A named one-off has no next tick: it stays the same.
    Otherwise it is the first tick that starts after now, and those that started during the run are
    missed; with catch_up="all" it is the one after `tick`.
    """
    tick, now = utc_of(tick), utc_of(now)
    if isinstance(schedule, Once):
        return Plan(tick, 0)
    if not schedule.has_grid:
        return Plan(schedule.next_after(now), 0)
    latest = tick if schedule.catch_up == "all" else _latest(schedule, loop, tick, now)
    return Plan(schedule.next_after(latest), schedule.count_between(tick, latest))


def _latest(schedule: Recurring, loop: object, tick: datetime, now: datetime) -> datetime:
    """Return the last tick, from this one on, that has started, with its jitter."""
    if not schedule.has_grid or now - tick < SHORTEST_PERIOD:
        return tick
    if jittered(schedule, loop, schedule.next_after(tick)) > now:
        return tick
    latest = schedule.latest_until(now)
    has_started = jittered(schedule, loop, latest) <= now
    return latest if has_started else schedule.latest_until(latest - MILLISECOND)


def _limited(schedule: Recurring, missed: int) -> int:
    return min(missed, MISSED_COUNT_LIMIT) if isinstance(schedule, Cron) else missed


def ticks_after(schedule: Schedule, moment: datetime) -> Iterator[datetime]:
    """Yield the ticks after a moment, without end."""
    while True:
        yield (moment := schedule.next_after(moment))


def period_from(schedule: Schedule, tick: datetime) -> timedelta | None:
    """Return the time from a tick to the next one; None: there is no next one."""
    if isinstance(schedule, Once):
        return None
    return schedule.period if isinstance(schedule, Every) else schedule.next_after(tick) - tick


def describe(schedule: Schedule) -> str:
    """Describe the schedule in a phrase, such as "0 9 * * MON-FRI in Europe/Berlin"."""
    if isinstance(schedule, Once):
        return f"once at {schedule.at.isoformat(' ', timespec='seconds')}"
    if isinstance(schedule, Cron):
        return f"{schedule.expression} in {schedule.tz}"
    rate = " at fixed rate" if schedule.has_grid else ""
    offset = f", offset {format_duration(schedule.offset)}" if schedule.offset else ""
    return f"every {format_duration(schedule.period)}{rate}{offset}"


def zone_of(schedule: Schedule) -> ZoneInfo | None:
    """Return the zone of a schedule's wall clock; None: it has none."""
    return ZoneInfo(schedule.tz) if isinstance(schedule, Cron) else None


_NAMES: Mapping[str, str] = {
    **{"every_ms": "period", "cron": "expression", "once_ms": "at"},
    **{f"{name}_ms": name for name in ("offset", "jitter", "grace", "kept")},
    **{name: name for name in ("mode", "tz", "catch_up")},
}
"""The fields of schedules, by their names on the wire."""
_KEYS = {name: key for key, name in _NAMES.items()}
_KINDS: Mapping[str, type[Schedule]] = {"every_ms": Every, "cron": Cron, "once_ms": Once}
_DEFAULTS: Mapping[str, Any] = {
    name: parameter.default
    for kind in _KINDS.values()
    for name, parameter in inspect.signature(kind).parameters.items()
}


def options_of(schedule: Schedule) -> dict[str, str]:
    """Return the decorator arguments that make this schedule, as text, without defaults."""
    return {
        key.removesuffix("_ms"): format_duration(value) if isinstance(value, timedelta) else value
        for key, value in _given(schedule)
    }


@lru_cache(maxsize=4096)
def to_wire(schedule: Schedule) -> Mapping[str, Any]:
    """Return the schedule as JSON values: durations in whole milliseconds, without defaults."""
    return {key: _to_wire(value) for key, value in _given(schedule)}


def _given(schedule: Schedule) -> Iterator[tuple[str, Any]]:
    for each in fields(schedule):
        if each.init and (value := getattr(schedule, each.name)) != _DEFAULTS[each.name]:
            yield _KEYS[each.name], value


def _to_wire(value: object) -> object:
    if isinstance(value, datetime):
        return milliseconds_since_epoch(value)
    return milliseconds(value) if isinstance(value, timedelta) else value


def from_wire(wire: object) -> Schedule:
    """Read what `to_wire` wrote.

    Raises:
        ScheduleError: it is anything else. No other error is raised, whatever the value is.
    """
    try:
        return _read(**cast("dict[str, object]", wire))
    except TypeError:  # also of values that cannot be hashed
        raise ScheduleError(
            "expected an object with one of every_ms, cron and once_ms, and its options, "
            f"got: {shown(wire)}"
        ) from None


# Each token of a loop brings its schedule: parsed once.
@lru_cache(maxsize=4096, typed=True)
def _read(**wire: object) -> Schedule:
    kinds = [kind for key, kind in _KINDS.items() if key in wire]
    if len(kinds) != 1 or not wire.keys() <= _NAMES.keys():
        raise TypeError
    options: dict[str, Any] = {_NAMES[key]: _from_wire(key, each) for key, each in wire.items()}
    return kinds[0](**options)


def _from_wire(key: str, value: object) -> object:
    if not key.endswith("_ms"):
        return value
    if type(value) is not int or not 0 <= value <= LATEST_MS:
        raise ScheduleError(
            f"{key}: expected a whole number of milliseconds up to {LATEST_MS}, got: {shown(value)}"
        )
    return moment_of(value) if key == "once_ms" else value * MILLISECOND


def _store(instance: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _misfire_policy(jitter: Duration, catch_up: object, grace: Duration) -> dict[str, object]:
    policy = {
        "jitter": _duration("jitter", jitter),
        "catch_up": _choice("catch_up", catch_up, _CATCH_UPS),
        "grace": _duration("grace", grace),
    }
    if policy["grace"] != DEFAULT_GRACE and catch_up != "skip":
        raise ScheduleError(f'grace= needs catch_up="skip", got: catch_up={shown(catch_up)}')
    return policy


def _duration(name: str, value: Duration) -> timedelta:
    span = parse_duration(value, name)
    if span % MILLISECOND:
        raise ScheduleError(f"{name}: expected whole milliseconds, got: {format_duration(span)}")
    return span


def period_of(name: str, value: Duration) -> timedelta:
    """Return a period, or raise `ScheduleError`, which names the argument."""
    period = _duration(name, value)
    if period < SHORTEST_PERIOD:
        raise ScheduleError(f"{name}: expected at least 100ms, got: {format_duration(period)}")
    return period


def _choice(name: str, value: object, choices: tuple[str, ...]) -> object:
    if isinstance(value, str) and value in choices:
        return value
    raise ScheduleError(
        f"{name}: expected one of {', '.join(map(repr, choices))}, got: {shown(value)}"
    )


def _zone(name: object) -> ZoneInfo:
    try:
        return ZoneInfo(cast("str", name))
    # Besides its own error, zoneinfo raises errors of the file system for odd names.
    except (LookupError, ValueError, TypeError, OSError):
        near = difflib.get_close_matches(shown(name), available_timezones(), cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ScheduleError(
            f'tz: expected an IANA time zone, such as "Europe/Berlin", got: {shown(name)}{hint}'
        ) from None
