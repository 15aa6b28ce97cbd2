"""Hold one dashboard: its connection, its picture, and its operations."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
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
)
from scheduler.dashboard.ticks import Agenda, planned
from scheduler.dashboard.verdict import Judgement
from scheduler.dashboard.watch import Watch, failed_queues_in, parked_in
from scheduler.errors import BrokerError, BrokerUnavailable
from scheduler.program import Program
from scheduler.protocol.hatchery import timers
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.queues.entries import RosterEntry
from scheduler.queues.failed import ParkedMessage
from scheduler.tasks.loops import App, aliases_of, queues_of
from scheduler.timing.moments import Clock
from scheduler.timing.pacing import backoff

PLANS_HOLD = timedelta(seconds=30)
FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=1), timedelta(seconds=30)
VIEWED = timedelta(seconds=30)
MOST_ASKED = 1_000  # loops
RECORD_WITHIN = timedelta(seconds=5)
LONGEST_NAME = 255  # is in a routing key
TASKS = "/tasks"
DATA = ("args", "carry")


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
            except Exception:
                logging.getLogger(__name__).exception("The dashboard failed. Trying again.")
                self.picture.fail("The dashboard failed: see its log.", self.clock.now())
            await asyncio.sleep(pause)

    async def _follow(self) -> None:
        async with self._connect() as broker:
            self._program = Program(self.app, broker, self.clock)
            feed = Feed(self._program, self.picture, self.shown, self.operations.hear)
            async with asyncio.TaskGroup() as group:
                group.create_task(feed.run(), name="feed of the dashboard")
                group.create_task(self.watch.run(self._program), name="watch of the dashboard")

    async def _record(self, record: Message) -> None:
        await self.program.broker.publish(
            record,
            exchange=self.app.names.scheduler,
            routing_key=RECORD_KEY,
            timeout=RECORD_WITHIN,
        )

    async def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Record an acknowledgement, or its withdrawal, for all processes."""
        record = acknowledgement.record
        await self._record(record)
        self.picture.hear(record)

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
        parked = failed_queues_in(self.app, self.picture)
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
        processors = judged.verdict.vitals[2]
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

    async def with_failed_queues(self, task: str | None) -> list[str]:
        """Return the tasks whose failed queues may have the messages of a task."""
        if task is not None and task in self.app.tasks:
            return [task]
        return await self.program.installation.tasks_with_failed_queues()

    @property
    def parked(self) -> int | None:
        """Return the number of parked messages; None: unknown yet."""
        return parked_in(self.app, self.picture)

    @property
    def processors(self) -> int | None:
        """Return the number of processors; None: unknown yet."""
        depth = self.picture.depths.get(self.app.names.presence)
        return None if depth is None else depth.consumers
