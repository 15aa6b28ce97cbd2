"""Start and stop keyed loops: many loops of one task, at run time.

They are like the loops of the code, but the program names them: they wait in the same timers, are
supervised, paused and triggered like any other, and outlive every deploy.
"""

import asyncio
import hashlib
import re
from collections import Counter, deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, cast

from scheduler.brokers.contract import cancelled
from scheduler.control.reports import Effect
from scheduler.errors import BrokerError, NotSent, ScheduleError, SchedulerError, UsageError
from scheduler.protocol.tokens import LoopId
from scheduler.queues.outbox import DEADLINE
from scheduler.tasks.loops import Loop, loop_of
from scheduler.tasks.registration import ScheduleOptions, named_schedule
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.durations import (
    MILLISECOND,
    SECOND,
    ZERO,
    Duration,
    parse_duration,
    shown,
)
from scheduler.timing.moments import Clock
from scheduler.timing.schedules import Cron, Every, Once, Recurring
from scheduler.user_code import require_parameters

if TYPE_CHECKING:  # every program has tasks, and few of them start loops
    from scheduler.control.loops import Loops
    from scheduler.control.seeding import Seeding
    from scheduler.control.verbs import Removal
    from scheduler.queues.roster import Roster

M = TypeVar("M")
Pairs = Mapping[str, M] | Iterable[tuple[str, M]] | AsyncIterable[tuple[str, M]]
AT_ONCE = 2_000
"""Loops that are started in one batch: a few messages of the roster, and one reading of it."""

BATCHES = 2  # while one waits for the broker, another is made
FIRST_READING = timedelta(minutes=2)
KEY = re.compile(r"[A-Za-z0-9_-]+([.@+][A-Za-z0-9_-]+)*")
LONGEST_KEY = 100
SPREAD_BY = timedelta(milliseconds=100)
"""Offsets are multiples of this: runs that start together cost less than runs that start apart."""


@dataclass(frozen=True, slots=True)
class KeyedLoop:
    """Describe a loop that was started at run time."""

    key: str
    schedule: Recurring
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Synced:
    """Report the effects of `sync`: the keys, in the order of the mapping, or of the loops' start.

    Attributes:
        started: new loops, and those whose token was lost.
        rescheduled: loops with a new schedule or new arguments.
        stopped: loops that are not in the mapping.
        unchanged: the others.
    """

    started: Sequence[str] = ()
    rescheduled: Sequence[str] = ()
    stopped: Sequence[str] = ()
    unchanged: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """Count the loops that `start_many` or `once_many` has started, changed or left alone."""

    created: int = 0
    rescheduled: int = 0
    unchanged: int = 0


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Describe a named one-off that waits for its time, or runs.

    Attributes:
        at: when it is due.
        args: the arguments for the function's parameters.
    """

    name: str
    at: datetime
    args: Mapping[str, Any]


class Operations(Protocol):
    """Start and stop loops, over one connection."""

    clock: Clock
    roster: "Roster"
    loops: "Loops"
    seeding: "Seeding"
    removal: "Removal"


Connect = Callable[[], AbstractAsyncContextManager[Operations]]


class Keyed:
    """Manage the keyed loops and the named one-offs of one task.

    The timers of calls take any number of messages without names. A message to find again, move or
    cancel is a one-off: a loop of one run.
    """

    def __init__(self, spec: TaskSpec, connect: Connect) -> None:
        self._keyed_spec = spec
        self._connect = connect

    async def start(
        self,
        key: str,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        schedule: Recurring | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Effect:
        """Start a loop of this task, or change the schedule or arguments of the one with this key.

        An unchanged loop is left alone.

        Args:
            key: which of the task's loops it is: up to 100 letters, digits, '_', '-', and between
                them '.', '@', '+'.
            every, cron, schedule, options: as `Scheduler.periodic` takes them.
            args: arguments for the function's parameters, besides its `Context`.

        Returns:
            created, rescheduled or unchanged; renamed, if it had an old name of the task.

        Raises:
            UsageError: the key, the schedule or the arguments are invalid.
            QueueNotFound: nothing was seeded.
            NotSent: it was not confirmed within 30 s.
            BrokerUnavailable: the broker has not responded for 30 s.
        """
        spec, key = self._keyed_spec, checked_key(self._keyed_spec, key)
        given = {"every": every, "cron": cron, "schedule": schedule, **options}
        loop = loop_of(spec, named_schedule(f"{spec.name}.{key}", **given), args, key)
        async with self._starting(loop.id) as operations:
            return (await operations.seeding.start(loop)).did

    async def start_many(
        self,
        loops: Pairs[Recurring | tuple[Recurring, Mapping[str, Any]]],
        *,
        spread: bool = False,
        progress: Callable[[int], object] = lambda count: None,
    ) -> Started:
        """Start many loops of this task, in batches; other loops are left alone.

        It takes any number: they are read as they are started. If it is interrupted, the started
        loops run, and the next call leaves them alone.

        Args:
            loops: pairs, in a mapping or an iterable of any kind: the key, and the schedule, or a
                pair of it and the arguments for the function's parameters.
            spread: give each loop an offset, made from its key, in steps of 0.1 s, so that those of
                one period are not all due at once. They need `mode="fixed_rate"`.
            progress: called after each batch, with how many loops were started so far.

        Raises:
            UsageError: a key, a schedule or arguments are invalid; those before it may have been
            started.
            QueueNotFound: nothing was seeded.
            NotSent: a batch was not confirmed within 30 s.
        """

        def wanted(_: datetime, key: str, value: object) -> Loop:
            loop = wanted_loop(self._keyed_spec, key, value)
            return _spread(loop) if spread else loop

        return await self._start_each(_each(loops), wanted, progress)

    async def once_many(
        self,
        one_offs: Pairs[datetime | Duration | tuple[datetime | Duration, Mapping[str, Any]]],
        *,
        unique: Duration | None = None,
        progress: Callable[[int], object] = lambda count: None,
    ) -> Started:
        """Run this task once for each of many names, in batches, as `once` does for one.

        Args:
            one_offs: pairs, in a mapping or an iterable of any kind: the name, and the moment or
                the delay, or a pair of that and the arguments for the function's parameters.
            unique: as `once` takes it, for each.
            progress: called after each batch, with how many were started so far.

        Raises:
            UsageError: a name, a moment or arguments are invalid; those before it may have been
            started.
            QueueNotFound: nothing was seeded.
            NotSent: a batch was not confirmed within 30 s.
        """
        kept = _kept(unique)

        def wanted(now: datetime, key: str, value: object) -> Loop:
            return _one_off(self._keyed_spec, key, value, now, kept)

        return await self._start_each(_each(one_offs), wanted, progress)

    @asynccontextmanager
    async def _starting(self, loop: LoopId) -> AsyncGenerator[Operations]:
        """Connect, and read the roster once; then raise if the block takes too long."""
        async with self._connect() as operations:
            await _read_once(operations.roster, [loop])
            async with within_deadline(str(loop)):
                yield operations

    async def _start_each(
        self,
        pairs: AsyncIterator[tuple[str, Any]],
        wanted: Callable[[datetime, str, Any], Loop],
        progress: Callable[[int], object],
    ) -> Started:
        require_parameters("progress=", progress, "count")
        did, count = Counter[Effect](), 0
        going = deque[tuple[asyncio.Task[None], Collection[LoopId]]]()

        async def start(loops: Sequence[Loop]) -> None:
            nonlocal count
            about = f"A batch of {len(loops)} loops of {self._keyed_spec.name}"
            async with within_deadline(about):
                reports = await operations.seeding.start_all(loops)
            did.update(report.did for report in reports)
            count += len(reports)
            progress(count)

        async def begin(batch: Mapping[LoopId, Loop]) -> None:
            # Of two requests for a loop, the later one holds, so it waits for the other.
            while len(going) == BATCHES or not all(batch.keys().isdisjoint(of) for _, of in going):
                await going.popleft()[0]
            going.append((asyncio.create_task(start(list(batch.values()))), batch.keys()))

        try:
            async with self._connect() as operations:
                await _read_once(operations.roster)
                try:
                    batch = dict[LoopId, Loop]()
                    async for key, value in pairs:
                        loop = wanted(operations.clock.now(), key, value)
                        if loop.id in batch or len(batch) == AT_ONCE:
                            await begin(batch)
                            batch = {}
                        batch[loop.id] = loop
                    if batch:
                        await begin(batch)
                    while going:
                        await going.popleft()[0]
                except Exception:  # those that have begun end within their deadline
                    await asyncio.gather(*(each for each, _ in going), return_exceptions=True)
                    raise
                finally:
                    for starting, _ in going:
                        await cancelled(starting)
                await operations.roster.compact()
        except SchedulerError as error:
            error.add_note(f"{count} loops were started; call it again to continue.")
            raise
        rescheduled = did[Effect.RESCHEDULED] + did[Effect.RENAMED]
        return Started(did[Effect.CREATED], rescheduled, did[Effect.UNCHANGED])

    async def stop(self, key: str) -> bool:
        """End a loop, or a named one-off; return whether there was one.

        A run in progress is its last.
        """
        key = checked_key(self._keyed_spec, key)
        async with self._connect() as operations:
            return key in await self._end(operations.removal, [key])

    async def _end(
        self, removal: "Removal", keys: Collection[str], *, one_offs: bool = True
    ) -> Collection[str]:
        """End loops, and named one-offs if requested; return the keys of those that were there."""
        spec = self._keyed_spec
        loops = [Loop(LoopId(spec.name, key), spec, Every(SECOND), {}) for key in keys]
        reports = await removal.remove_all(loops, one_offs=one_offs)
        return {each.loop.id.key for each in reports if each.did is Effect.REMOVED}

    async def once(
        self,
        name: str,
        *,
        at: datetime | None = None,
        after: Duration | None = None,
        args: Mapping[str, Any] | None = None,
        unique: Duration | None = None,
    ) -> Effect:
        """Run this task once, at a moment or after a delay, under a name.

        However often, and from wherever you call it, there is one run of the name. With the same
        moment and arguments, another call changes nothing, also for a day after the run has ended.
        With others, a waiting one-off gets these, and a running one is run again. `stop(name)`
        cancels it, `scheduled()` lists the waiting ones.

        It is a loop that runs once: never early, with retries, and its run knows its name as
        `ctx.key`. `send_later` is cheaper, for messages that need not be found again.

        Args:
            name: what a key of `start` may be; a task's keyed loops and one-offs share their names.
            at: the moment, which must be aware; one that has passed means now.
            after: the delay, instead, such as "10m". With neither, it runs now.
            args: arguments for the function's parameters, besides its `Context`.
            unique: while the name is taken, change nothing; and keep it taken for so long after
                the moment, at least.

        Returns:
            created, rescheduled or unchanged; renamed, if it had an old name of the task.

        Raises:
            UsageError: the name, the moment or the arguments are invalid.
            QueueNotFound: nothing was seeded.
            NotSent: it was not confirmed within 30 s.
            BrokerUnavailable: the broker has not responded for 30 s.
        """
        spec, key = self._keyed_spec, checked_key(self._keyed_spec, name)
        if at is not None and after is not None:
            raise UsageError(
                f"{spec.name}.once takes a moment or a delay, got both at= and after=."
            )
        if at is not None and not isinstance(at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleError(
                f"The moment of {spec.name}.{key}: expected an aware datetime, got: {shown(at)}. "
                "For a delay, use after=."
            )
        kept = _kept(unique)
        when = (ZERO if after is None else parse_duration(after)) if at is None else at
        wanted = when, dict[str, Any]() if args is None else args
        async with self._starting(LoopId(spec.name, key)) as operations:
            loop = _one_off(spec, key, wanted, operations.clock.now(), kept)
            return (await operations.seeding.start(loop)).did

    async def scheduled(self) -> list[Scheduled]:
        """Return the named one-offs of this task whose run has not ended, soonest first."""
        async with self._connect() as operations:
            loops = await operations.loops.keyed(self._keyed_spec)
        found = [
            Scheduled(key, loop.schedule.at, loop.args)
            for key, loop in loops.items()
            if isinstance(loop.schedule, Once)
        ]
        return sorted(found, key=lambda each: (each.at, each.name))

    async def list(self) -> list[KeyedLoop]:
        """Return the loops of this task that were started and not stopped."""
        async with self._connect() as operations:
            loops = await operations.loops.keyed(self._keyed_spec)
        return [
            KeyedLoop(key, loop.schedule, loop.args)
            for key, loop in loops.items()
            if not isinstance(loop.schedule, Once)
        ]

    async def sync(
        self,
        loops: Mapping[str, Recurring | tuple[Recurring, Mapping[str, Any]]],
        *,
        dry_run: bool = False,
    ) -> Synced:
        """Make the keyed loops of this task match a mapping: start, reschedule, stop.

        Loops that match are left alone, and so are named one-offs. All are checked before anything
        is done; the next call repeats what failed. An empty mapping stops all of them.

        Args:
            loops: by key, the schedule, or a pair of it and the arguments for the function's
                parameters.
            dry_run: only report the changes.

        Raises:
            UsageError: a key, a schedule or arguments are invalid; nothing was changed.
            BrokerError: the broker failed; the message says how much was done.
        """
        if not isinstance(loops, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"sync takes a mapping of keys to schedules, got {shown(loops)}.")
        wanted = {key: wanted_loop(self._keyed_spec, key, each) for key, each in loops.items()}
        async with self._connect() as operations:
            there = await operations.loops.keyed(self._keyed_spec)
            known = {key: (loop.schedule, loop.args) for key, loop in there.items()}
            changed = [
                loop for key, loop in wanted.items() if known.get(key) != (loop.schedule, loop.args)
            ]
            ending = [
                key
                for key, loop in there.items()
                if key not in wanted and not isinstance(loop.schedule, Once)
            ]
            if dry_run:
                did = [
                    Effect.RESCHEDULED if loop.id.key in there else Effect.CREATED
                    for loop in changed
                ]
            else:
                try:
                    did = [each.did for each in await operations.seeding.start_all(changed)]
                    ended = await self._end(operations.removal, ending, one_offs=False)
                    ending = [key for key in ending if key in ended]
                except BrokerError as error:
                    error.add_note("Some loops may have been updated; call it again.")
                    raise
        began = {loop.id.key: what for loop, what in zip(changed, did, strict=True)}
        return Synced(
            [key for key, what in began.items() if what in (Effect.CREATED, Effect.REPAIRED)],
            [key for key, what in began.items() if what in (Effect.RESCHEDULED, Effect.RENAMED)],
            ending,
            [key for key in wanted if began.get(key, Effect.UNCHANGED) is Effect.UNCHANGED],
        )


@asynccontextmanager
async def within_deadline(loop: str) -> AsyncGenerator[None]:
    """Raise if starting a loop in the block takes longer than the deadline of sending.

    Raises:
        NotSent: it may have been started.
    """
    try:
        async with asyncio.timeout(DEADLINE.total_seconds()):
            yield
    except TimeoutError:
        raise NotSent(
            f"{loop} was not confirmed within {DEADLINE.total_seconds():g} s: the broker does not "
            "respond, or accepts no messages because of a memory or disk alarm. It may have been "
            "started; start it again."
        ) from None


async def _read_once(roster: "Roster", only: Collection[LoopId] | None = None) -> None:
    """Read the roster, unless this program has: of a million loops, that takes longer than a start.

    The start reports a failure.
    """
    if not roster.was_read_for(only):
        with suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(FIRST_READING.total_seconds()):
                await roster.look(only)


def wanted_loop(spec: TaskSpec, key: str, value: object) -> Loop:
    """Return the requested keyed loop of a task.

    Args:
        value: its schedule, or a pair of that and its arguments.

    Raises:
        UsageError: it is invalid.
    """
    key = checked_key(spec, key)
    schedule, args = cast("tuple[Any, Any]", value if _is_pair(value) else (value, {}))
    if not isinstance(schedule, Every | Cron) or not isinstance(args, Mapping):
        raise UsageError(
            f"The loop {spec.name}.{key} is an Every or a Cron, or a pair of that and its "
            f"arguments, got: {shown(value)}. Nothing was changed."
        )
    named = cast("Mapping[str, Any]", args)
    return loop_of(spec, schedule, named, key)


async def _each(pairs: Pairs[M]) -> AsyncGenerator[tuple[str, M]]:
    if not isinstance(pairs, Iterable | AsyncIterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"Give loops as a mapping, or as an iterable of pairs, got {shown(pairs)}."
        )
    async for pair in pairs if isinstance(pairs, AsyncIterable) else _in_turn(pairs):
        if not _is_pair(pair):
            said = "Each loop must be a pair of a key and a schedule"
            raise UsageError(f"{said}, got: {shown(pair)}.")
        yield pair


async def _in_turn(
    pairs: Mapping[str, M] | Iterable[tuple[str, M]],
) -> AsyncGenerator[tuple[str, M]]:
    for pair in cast("Iterable[Any]", pairs.items() if isinstance(pairs, Mapping) else pairs):
        yield pair


def _spread(loop: Loop) -> Loop:
    """Return the loop with its own offset, by a hash of its name."""
    schedule = loop.schedule
    if not isinstance(schedule, Every) or not schedule.has_grid or schedule.offset:
        raise ScheduleError(
            f'{loop}: spread= needs Every(..., mode="fixed_rate") without an offset, got: '
            f"{shown(schedule)}. Another schedule takes jitter=."
        )
    hashed = int.from_bytes(hashlib.sha256(str(loop).encode()).digest()[:8], "big")
    offset = hashed % max(schedule.period // SPREAD_BY, 1) * SPREAD_BY
    return replace(loop, schedule=replace(schedule, offset=offset))


def _kept(unique: Duration | None) -> timedelta:
    """Return how long a name stays taken after its moment; zero: it is not unique."""
    return ZERO if unique is None else max(parse_duration(unique), MILLISECOND)


def _one_off(spec: TaskSpec, key: str, value: object, now: datetime, kept: timedelta) -> Loop:
    when, args = cast("tuple[Any, Any]", value if _is_pair(value) else (value, {}))
    name = f"{spec.name}.{checked_key(spec, key)}"
    if not isinstance(args, Mapping):
        raise UsageError(f"The arguments of {name} must be a mapping by name, got: {shown(args)}.")
    try:
        at = when if isinstance(when, datetime) else now + parse_duration(when)
        schedule = Once(at, kept)
    except ScheduleError as error:
        raise ScheduleError(f"The moment of {name}: {error}") from None
    return loop_of(spec, schedule, cast("Mapping[str, Any]", args), key)


def checked_key(spec: TaskSpec, key: str) -> str:
    """Return the key, if it is valid for a loop of this task.

    Raises:
        UsageError: it is invalid.
    """
    if not isinstance(key, str) or len(key) > LONGEST_KEY or not KEY.fullmatch(key):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"A key has 1 to {LONGEST_KEY} letters, digits, '_' or '-', and between them '.', "
            f"'@' or '+', got {shown(key)}. For any other text, use text.encode().hex()."
        )
    return key


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(cast("tuple[object, ...]", value)) == 2
