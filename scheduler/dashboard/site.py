"""Hold one dashboard: its connection, its picture, and its operations."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, cast

from scheduler.brokers.contract import Broker
from scheduler.control.doctor import Finding
from scheduler.dashboard import wording
from scheduler.dashboard.access import Access, Redact
from scheduler.dashboard.answers import Look, Roll
from scheduler.dashboard.feed import Feed
from scheduler.dashboard.operations import DashboardOperations
from scheduler.dashboard.picture import Picture
from scheduler.dashboard.standing import (
    HealthVerdict,
    Standing,
    Workload,
    delays_in_words,
    failures_of,
    leftovers_in_words,
    pauses_in_words,
    standings_of,
    verdict_of,
    workloads,
)
from scheduler.dashboard.ticks import Agenda, planned
from scheduler.errors import BrokerError, BrokerUnavailable
from scheduler.program import Program
from scheduler.protocol.hatchery import timers
from scheduler.queues.failed import ParkedMessage
from scheduler.queues.running import Running
from scheduler.tasks.loops import App, aliases_of
from scheduler.timing.moments import Clock
from scheduler.timing.pacing import backoff

FRESH = timedelta(seconds=1)
PLANS_HOLD = timedelta(seconds=30)
MANY = 2_000  # loops, from which judging all of them is slow
FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=1), timedelta(seconds=30)
VIEWED = timedelta(seconds=30)
LOOK_EVERY = timedelta(seconds=10)
TASKS = "/tasks"
DATA = ("args", "carry")


class Judgement:
    """Judge all loops at a moment; what follows from it is computed once."""

    def __init__(self, app: App, picture: Picture, now: datetime) -> None:
        self.version = picture.version
        self.at = now
        self.standings = standings_of(app, picture, now)
        self._app, self._picture = app, picture

    @cached_property
    def verdict(self) -> HealthVerdict:
        app, picture, calls = self._app, self._picture, self._picture.calls(self.at)
        failures = failures_of(self.standings, picture, app.names, self.at)
        delays = delays_in_words(app, picture, calls, self.at)
        notes = [*pauses_in_words(app, picture), *leftovers_in_words(picture)]
        return verdict_of(self.standings, calls, failures, delays, notes)

    @cached_property
    def workloads(self) -> dict[str, Workload]:
        return workloads(self.standings, self.at, self._picture.heard_back_to)

    @cached_property
    def by_name(self) -> dict[str, Standing]:
        return {standing.name: standing for standing in self.standings}

    def holds(self, version: int, now: datetime) -> bool:
        """Return whether it is fresh enough; with many loops, for longer."""
        count = len(self.standings)
        if now - self.at >= FRESH * (1 + count // MANY):
            return False
        return version == self.version or count >= MANY


class Site:
    """Share state between all pages and actions of one dashboard.

    Attributes:
        looks: the parked messages last read, by task; under "", of all tasks.
        findings: the last findings of the doctor, and when.
        roll: the processors, as of the last roll call.
        running: the last known runs, and when processors were asked.
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
        self.operations = DashboardOperations(clock)
        self.looks: dict[str, Look] = {}
        self.findings: tuple[datetime, Sequence[Finding]] | None = None
        self.roll: Roll | None = None
        self.running: tuple[datetime, Running] | None = None
        self._redact = redact
        self._connect = connect
        self._judged: Judgement | None = None
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
            feed = Feed(self._program, self.picture, self.shown)
            async with asyncio.TaskGroup() as group:
                group.create_task(feed.run(), name="feed of the dashboard")
                group.create_task(self._look_for_leftovers(self._program), name="leftovers")

    async def _look_for_leftovers(self, program: Program) -> None:
        while True:
            if self.is_viewed():
                with suppress(BrokerError):  # the picture tells that it is away
                    self.picture.leave(await program.leftovers.found())
            await asyncio.sleep(LOOK_EVERY.total_seconds())

    def view(self, path: str = "") -> None:
        """Note that a visitor looks, and at which page."""
        self._viewed_at[""] = self._viewed_at[path] = self.clock.now()

    def is_viewed(self, path: str = "") -> bool:
        """Return whether a visitor looks, at this page if one is named."""
        at = self._viewed_at.get(path)
        return at is not None and self.clock.now() - at <= VIEWED

    def shown(self) -> list[str]:
        """Return the queues whose depths are on display; none without visitors."""
        if not self.is_viewed():
            return []
        names, tasks = self.app.names, self.app.tasks
        of_tasks = [names.processor_queue(task) for task in tasks]
        parked = [*map(names.failed_queue, tasks), names.failed]
        is_called = any(task.called for task in tasks.values())
        of_calls = timers() if is_called and self.is_viewed(TASKS) else []
        return [*of_tasks, *parked, names.presence, *map(names.later_timer, of_calls)]

    @property
    def judged(self) -> Judgement:
        """Return the state of all loops, as of a moment ago."""
        now, known = self.clock.now(), self._judged
        if known is None or not known.holds(self.picture.version, now):
            known = self._judged = Judgement(self.app, self.picture, now)
        return known

    def standing(self, name: str) -> Standing | None:
        return self.judged.by_name.get(name)

    def agenda(self) -> Agenda:
        """Return the planned runs, as of some moments ago."""
        now = self.clock.now()
        if self._planned is None or now - self._planned[0] > PLANS_HOLD:
            self._planned = now, planned(self.judged.standings, now)
        return self._planned[1]

    @property
    def parked(self) -> int | None:
        """Return the number of parked messages; None: unknown yet."""
        names = self.app.names
        queues = [*map(names.failed_queue, self.app.tasks), names.failed]
        depths = [self.picture.depths.get(queue) for queue in queues]
        known = [depth.ready for depth in depths if depth is not None]
        return sum(known) if known else None

    @property
    def processors(self) -> int | None:
        """Return the number of processors; None: unknown yet."""
        depth = self.picture.depths.get(self.app.names.presence)
        return None if depth is None else depth.consumers
