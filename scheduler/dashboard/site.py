"""Hold one dashboard: its connection, its picture, and its operations."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, cast

from scheduler.brokers.contract import Broker
from scheduler.control.loops import ids_of
from scheduler.dashboard import wording
from scheduler.dashboard.access import Access, Redact
from scheduler.dashboard.acknowledgements import Acknowledgement
from scheduler.dashboard.charts import Chart
from scheduler.dashboard.feed import Feed
from scheduler.dashboard.operations import RECORD_KEY, DashboardOperations
from scheduler.dashboard.picture import Picture
from scheduler.dashboard.standings import (
    AT_REST,
    Standing,
    Standings,
    Workload,
    count_unjudged,
    workloads,
)
from scheduler.dashboard.ticks import Agenda, planned
from scheduler.dashboard.verdict import (
    Failure,
    HealthVerdict,
    Vital,
    delays_in_words,
    failures_of,
    leftovers_in_words,
    pauses_in_words,
    verdict_of,
    vital_of_broker,
    vital_of_calls,
    vital_of_loops,
    vital_of_processors,
)
from scheduler.dashboard.watch import Watch, parked_in_each
from scheduler.errors import BrokerError, BrokerUnavailable
from scheduler.program import Program
from scheduler.protocol.hatchery import timers
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.queues.entries import RosterEntry
from scheduler.queues.failed import ParkedMessage
from scheduler.queues.history import CallTotals
from scheduler.tasks.loops import App, aliases_of, queues_of
from scheduler.timing.moments import Clock
from scheduler.timing.pacing import backoff

FRESH = timedelta(seconds=1)
PLANS_HOLD = timedelta(seconds=30)
MANY = 2_000  # loops, from which judging all of them is slow
FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=1), timedelta(seconds=30)
VIEWED = timedelta(seconds=30)
MOST_ASKED = 1_000  # loops
RECORD_WITHIN = timedelta(seconds=5)
REVIEWED_EVERY = timedelta(minutes=1)
RECORDED_EVERY = timedelta(minutes=10)
LONGEST_NAME = 255  # is in a routing key
TASKS = "/tasks"
DATA = ("args", "carry")


class Judgement:
    """Judge all loops at a moment; what follows from it is computed once."""

    def __init__(
        self, app: App, picture: Picture, watch: Watch, standings: Sequence[Standing], now: datetime
    ) -> None:
        self.version = picture.version
        self.at = now
        self.standings = standings
        self._app, self._picture, self._watch = app, picture, watch

    @cached_property
    def verdict(self) -> HealthVerdict:
        app, picture = self._app, self._picture
        failures = failures_of(self.standings, picture, app.names, self.at)
        delays = delays_in_words(app, picture, self._calls, self.at)
        judged = len(self.standings)
        unjudged = [f"Only {judged:,} of {self.total:,} loops are judged."]
        notes = [
            *(unjudged if judged < self.total else ()),
            *pauses_in_words(app, picture),
            *leftovers_in_words(picture),
        ]
        around = [(each.problem, each.level) for each in self._around if each.problem]
        return verdict_of(self.standings, self._calls, failures, delays, notes, around)

    @cached_property
    def vitals(self) -> list[Vital]:
        parked = parked_in(self._app, self._picture)
        return [
            vital_of_loops(self.standings, self.verdict),
            vital_of_calls(self._app, self._calls, self.verdict, parked),
            *self._around,
        ]

    @cached_property
    def _around(self) -> list[Vital]:
        app, picture, watch = self._app, self._picture, self._watch
        return [
            vital_of_processors(app, picture, watch.roll, watch.silent),
            vital_of_broker(app, picture, watch.alarm),
        ]

    @cached_property
    def _calls(self) -> Mapping[str, CallTotals]:
        return self._picture.calls(self.at)

    @cached_property
    def workloads(self) -> dict[str, Workload]:
        picture = self._picture
        return workloads(self.standings, picture.listing, self.at, picture.heard_back_to)

    @cached_property
    def total(self) -> int:
        """Count all loops, of which too many are not judged."""
        standings, picture = self.standings, self._picture
        return len(standings) + (
            count_unjudged(standings, picture.listing) if picture.is_full else 0
        )

    @cached_property
    def failing(self) -> int:
        """Count the failing loops, without those whose failures are acknowledged."""
        failing = [each for each in self.verdict.troubles if each.what == "failing"]
        return sum(len(each.loops) - each.acknowledged for each in failing)

    def failure(self, task: str, kind: str) -> Failure | None:
        return self._failures.get((task, kind))

    @cached_property
    def _failures(self) -> dict[tuple[str, str], Failure]:
        return {(each.task, each.kind): each for each in self.verdict.failures}

    @cached_property
    def by_name(self) -> dict[str, Standing]:
        return {standing.name: standing for standing in self.standings}

    @cached_property
    def tasks(self) -> Sequence[str]:
        """Return the tasks that have loops."""
        return sorted({each.loop.id.task for each in self.standings})

    def holds(self, version: int, now: datetime) -> bool:
        """Return whether it is fresh enough; of many loops, though there is news."""
        if now - self.at >= FRESH:
            return False
        return version == self.version or len(self.standings) >= MANY


class Site:
    """Share state between all pages and actions of one dashboard.

    Attributes:
        watch: the latest answers of the broker and the processors.
        charts: the last ones of each span, with the data that they show.
    """

    def __init__(
        self,
        app: App,
        connect: Callable[[], Broker],
        clock: Clock,
        access: Access,
        read_only: bool,
        redact: Redact | None = None,
    ) -> None:
        self.app = app
        self.clock = clock
        self.access = access
        self.read_only = read_only
        self.picture = Picture(app.namespace, aliases_of(app))
        self.operations = DashboardOperations(clock, self._record)
        self.watch = Watch(self.picture, clock, self.is_viewed, self._asked_about)
        self._redact = redact
        self._connect = connect
        self.charts: dict[str, tuple[object, Sequence[Chart]]] = {}
        self._judged: Judgement | None = None
        self._standings = Standings(app, self.picture)
        self._planned: tuple[datetime, Agenda] | None = None
        self._program: Program | None = None
        self._viewed_at: dict[str, datetime] = {}
        self._serving: asyncio.Task[None] | None = None

    @property
    def program(self) -> Program:
        """Return the program that acts on the broker, once it was reached."""
        if self._program is None:
            raise BrokerUnavailable("The broker was not reached yet. Nothing was done.")
        return self._program

    def redact(self, task: str, value: Any) -> Any:
        """Redact the arguments of a task, or other data in its messages."""
        return value if self._redact is None else self._redact(task, value)

    def redacted_body(self, parked: ParkedMessage) -> bytes:
        """Redact the body of a message."""
        body = parked.message.body
        if self._redact is None:
            return body
        content: Any = None
        with suppress(ValueError, RecursionError):
            content = json.loads(body)
        if not isinstance(content, dict) or "args" not in content:
            return str(self.redact(parked.task, body.decode(errors="replace"))).encode()
        shown = cast(dict[str, Any], content)
        shown |= {name: self.redact(parked.task, shown[name]) for name in DATA if name in shown}
        return wording.readable_json(shown).encode()

    def start(self) -> None:
        """Begin to follow, in this event loop, unless it has begun."""
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve(), name="dashboard")

    async def stop(self) -> None:
        """Stop everything that was started."""
        await self.operations.close()
        if self._serving is not None:
            self._serving.cancel()
            with suppress(asyncio.CancelledError):
                await self._serving
            self._serving = None

    async def _serve(self) -> None:
        for pause in backoff(FIRST_PAUSE, LAST_PAUSE):
            try:
                await self._follow()
            except BrokerError as error:  # it denies access, or is unusable
                logging.getLogger(__name__).warning("%s Trying again.", error)
                self.picture.fail(str(error), self.clock.now())
            await asyncio.sleep(pause)

    async def _follow(self) -> None:
        async with self._connect() as broker:
            self._program = Program(self.app, broker, self.clock)
            feed = Feed(self._program, self.picture, self.shown, self.operations.hear)
            async with asyncio.TaskGroup() as group:
                group.create_task(feed.run(), name="feed of the dashboard")
                group.create_task(self.watch.run(self._program), name="watch of the dashboard")
                group.create_task(self._review_acknowledgements(), name="acknowledgements")

    async def _record(self, record: Message) -> None:
        await self.program.broker.publish(
            record,
            exchange=self.app.names.scheduler,
            routing_key=RECORD_KEY,
            timeout=RECORD_WITHIN,
        )

    async def acknowledge(self, told: Acknowledgement) -> None:
        """Record an acknowledgement, or its withdrawal, for all processes."""
        record = told.record
        await self._record(record)
        self.picture.hear(record)

    async def _review_acknowledgements(self) -> None:
        """Record again those that hold, and withdraw those that a success has ended."""
        picture = self.picture
        while True:
            await asyncio.sleep(REVIEWED_EVERY.total_seconds())
            known = [each for each in picture.acknowledged.values() if not each.is_withdrawn]
            if not known or not picture.is_listed or picture.is_reading_back:
                continue
            now, judged = self.clock.now(), self.judged
            succeeded = picture.succeeded_at
            with suppress(BrokerError):  # in a minute again
                for each in known:
                    failure = judged.failure(*each.failure)
                    if failure is not None and failure.acknowledged is not None:
                        if now - each.recorded_at >= RECORDED_EVERY:
                            await self.acknowledge(replace(each, recorded_at=now))
                    elif succeeded.get(each.task, each.at) > each.at:
                        await self.acknowledge(each.withdrawn(now))

    def _asked_about(self) -> dict[LoopId, int]:
        """Return the loops that a processor may hold: not those that wait."""
        known = self.picture.listing.known
        loops = [each.loop.id for each in self.judged.standings if each.state not in AT_REST]
        return {loop: known(loop) for loop in loops[:MOST_ASKED]}

    def view(self, path: str = "") -> None:
        """Note that a visitor looks, and at which page."""
        self._viewed_at[""] = self._viewed_at[path] = self.clock.now()

    def is_viewed(self, path: str) -> bool:
        """Return whether a visitor looks at this page; "": at any."""
        at = self._viewed_at.get(path)
        return at is not None and self.clock.now() - at <= VIEWED

    def shown(self) -> list[str]:
        """Return the queues whose depths are on display; none without visitors."""
        if not self.is_viewed(""):
            return []
        names, tasks = self.app.names, self.app.tasks
        of_tasks = [queue for task in tasks for queue in queues_of(self.app, task)]
        parked = [*map(names.failed_queue, tasks), names.failed]
        is_called = any(task.called for task in tasks.values())
        of_calls = timers() if is_called and self.is_viewed(TASKS) else []
        return [*of_tasks, *parked, names.presence, *map(names.later_timer, of_calls)]

    @property
    def judged(self) -> Judgement:
        """Return the state of all loops, as of a moment ago."""
        now, known = self.clock.now(), self._judged
        if known is None or not known.holds(self.picture.version, now):
            standings = self._standings.at(now)
            known = Judgement(self.app, self.picture, self.watch, standings, now)
            self._judged = known
        return known

    def entries_of(self, name: str) -> Iterator[RosterEntry]:
        """Yield the entries that a name may mean, of loops that are not gone."""
        ids = ids_of(name) if len(name) <= LONGEST_NAME else []
        found = filter(None, map(self.picture.listing.get, ids))
        return (each for each in found if not (each.is_gone or each.is_of_task))

    def standing(self, name: str) -> Standing | None:
        """Return the standing of a loop; from now on, also of one that is beyond the limit."""
        found, picture = self.judged.by_name.get(name), self.picture
        for listed in () if found else self.entries_of(name):
            if listed.loop not in picture.loops:
                picture.adopt(listed)
                self._judged = None
        return found or self.judged.by_name.get(name)

    @property
    def badges(self) -> Mapping[str, tuple[str, str]]:
        """Return the count next to each page in the menu, and its level."""
        judged, running, parked = self.judged, self.watch.running, self.parked
        processors = judged.vitals[2]
        failing = judged.failing
        loops = (f"{failing:,}", "bad") if failing else (f"{judged.total:,}", "")
        problem = "" if processors.level in ("ok", "off") else processors.level
        return {
            "/loops": loops,
            "/running": (f"{len(running[1].runs):,}" if running else "", ""),
            "/failed": (f"{parked:,}" if parked else "", "bad"),
            "/processors": ("" if self.processors is None else f"{self.processors:,}", problem),
        }

    def agenda(self) -> Agenda:
        """Return the planned runs, as of some moments ago."""
        now = self.clock.now()
        if self._planned is None or now - self._planned[0] > PLANS_HOLD:
            self._planned = now, planned(self.judged.standings, now)
        return self._planned[1]

    @property
    def parked(self) -> int | None:
        """Return the number of parked messages; None: unknown yet."""
        return parked_in(self.app, self.picture)

    @property
    def processors(self) -> int | None:
        """Return the number of processors; None: unknown yet."""
        depth = self.picture.depths.get(self.app.names.presence)
        return None if depth is None else depth.consumers


def parked_in(app: App, picture: Picture) -> int | None:
    """Count the parked messages of an app; None: unknown yet."""
    known = parked_in_each(app, picture)
    return sum(known) if known else None
