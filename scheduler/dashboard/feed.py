"""Feed the picture: one follower of journal and roster for all visitors.

Earlier history is read from the journal, the newest first, so that the page shows the present at
once and last night soon after. Nothing is written for it, so a read-only user of the broker can
look at the dashboard.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any

from scheduler.control.status import RECENT
from scheduler.dashboard.operations import RECORD_TYPE
from scheduler.dashboard.picture import MOST_LOOPS, Picture
from scheduler.errors import BrokerError, NoSpace, QueueNotFound
from scheduler.protocol.messages import Message
from scheduler.queues.concurrency import side_by_side
from scheduler.queues.namespace import Namespace
from scheduler.queues.roster import Following, Roster
from scheduler.timing.pacing import backoff

LOOK_BACK = timedelta(hours=24)
NEAR = (timedelta(minutes=2), timedelta(hours=1))
CHUNK = 20_000  # messages
MOST_READ_BACK = 200_000
BREATHE_EVERY = 200  # messages
BEAT = timedelta(seconds=1)
MEASURE_EVERY = timedelta(seconds=5)
MOST_MEASURED = 500  # queues
FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=0.5), timedelta(seconds=10)


class Feed:
    """Keep a picture up to date, also after reconnects.

    Args:
        shown: returns the queues whose depths are on display.
        hear_of_operation: called with each record of an operation.
    """

    def __init__(
        self,
        namespace: Namespace,
        picture: Picture,
        shown: Callable[[], Collection[str]],
        hear_of_operation: Callable[[Message], None],
    ) -> None:
        self._app, self._broker, self._clock = namespace.app, namespace.broker, namespace.clock
        self._names, self._picture, self._shown = namespace.app.names, picture, shown
        self._hear_of_operation = hear_of_operation
        self._roster = Roster(self._broker, self._names, self._clock, picture.listing)
        self._following: Following | None = None
        self._first_live: int | None = None
        self._read_before: list[range] = []
        self._measured = 0

    async def run(self) -> None:
        """Follow, until cancelled. The broker must be open."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat(), name="heartbeat of the dashboard")
            for step in (
                self._follow_journal,
                self._read_roster,
                self._follow_roster,
                self._follow_calls,
                self._read_back,
            ):
                await self._patiently(step)

    async def _patiently(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Retry a step of the start until it succeeds."""
        for pause in backoff(FIRST_PAUSE, LAST_PAUSE):
            try:
                await step()
                self._picture.seeded = True
                return
            except QueueNotFound:  # nothing was seeded yet
                self._picture.seeded = False
                self._picture.version += 1
            except BrokerError:
                pass  # the picture shows that it is down
            except NoSpace as error:
                _log_unread(error)
            await asyncio.sleep(pause)

    async def _follow_journal(self) -> None:
        self._picture.parked.clear()  # it is counted again
        await self._broker.follow(self._names.journal, self._hear_now)

    async def _follow_roster(self) -> None:
        hear = self._picture.hear_of_entry
        self._roster.skip_notes()  # the journal says the same
        self._following = await self._roster.follow(lambda loop, epoch, lag: hear(loop))

    async def _follow_calls(self) -> None:
        if not any(task.called for task in self._app.tasks.values()):
            return
        hear, history = self._picture.hear_of_calls, self._names.history
        await self._broker.follow(history, hear)
        reading = self._broker.read(history, since=self._clock.now() - RECENT)
        async with aclosing(reading) as messages:
            async for message in messages:
                hear(message)

    async def _read_roster(self) -> None:
        listing = await self._roster.look()
        self._picture.list(listing.some(MOST_LOOPS))

    def _hear_now(self, message: Message) -> None:
        if self._first_live is None:
            self._first_live = message.offset
        self._hear(message)

    def _hear(self, message: Message) -> datetime | None:
        """Note a message of the journal; return the time of its subject."""
        if message.type == RECORD_TYPE:
            self._hear_of_operation(message)
            return None
        return self._picture.hear(message)

    async def _read_back(self) -> None:
        """Read the earlier history, from near to far, within limits."""
        picture, now = self._picture, self._clock.now()
        picture.is_reading_back = True
        try:
            left, until, begin = MOST_READ_BACK, now - LOOK_BACK, None
            for since in (*(now - span for span in NEAR), until):
                if (begin := await self._read(since, self._first_live)) is not None:
                    break
            while begin and left > 0 and (picture.heard_back_to or now) > until:
                before, begin = begin, max(begin - CHUNK, 0)
                await self._read(begin, before)
                left -= before - begin
            if not begin:
                picture.heard_back_to = until  # there is no more
        finally:
            picture.is_reading_back = False
            picture.version += 1

    async def _read(self, since: datetime | int, before: int | None) -> int | None:
        """Read up to an offset; return where it began, None: it was empty.

        If the broker fails, it is read again, and nothing is counted twice.
        """
        begin: int | None = None
        end = 0
        earliest: datetime | None = None
        reading = self._broker.read(self._names.journal, since=since)
        read_before = self._read_before
        try:
            async with aclosing(reading) as messages:
                async for message in messages:
                    offset = message.offset
                    assert offset is not None
                    if before is not None and offset >= before:
                        break
                    begin, end = offset if begin is None else begin, offset + 1
                    if not any(offset in each for each in read_before):
                        at = self._hear(message)
                        earliest = earliest or at
                    if offset % BREATHE_EVERY == 0:
                        await asyncio.sleep(0)
        finally:
            if begin is not None:
                self._read_before = [*read_before, range(begin, end)]
            if earliest is not None:
                heard = self._picture.heard_back_to
                self._picture.heard_back_to = min(earliest, heard) if heard else earliest
        return begin

    async def _beat(self) -> None:
        measured = datetime.min.replace(tzinfo=self._clock.now().tzinfo)
        while True:
            now = self._clock.now()
            self._picture.be(self._broker.connected, now)
            queues = self._shown() if self._broker.connected else ()
            await self._follow_on()
            if queues and now - measured >= MEASURE_EVERY:
                measured = now
                await self._measure(sorted(queues))
            await asyncio.sleep(BEAT.total_seconds())

    async def _follow_on(self) -> None:
        """Read the roster again if it was recreated, or an entry found no space."""
        if self._following is None or self._following.is_on or not self._broker.connected:
            return
        try:
            await self._following.cancel()
            await self._read_roster()
            await self._follow_roster()
        except BrokerError:
            pass  # the next beat tries again
        except NoSpace as error:
            _log_unread(error)

    async def _measure(self, queues: Sequence[str]) -> None:
        """Ask for the depths of queues, a limited number each time, in turn."""
        begin = self._measured % len(queues)
        queues = (*queues[begin:], *queues[:begin])[:MOST_MEASURED]
        self._measured += len(queues)
        try:
            depths = await side_by_side(self._broker.depth, queues)
        except BrokerError:
            return  # the next beat shows whether it is down
        picture = self._picture
        picture.measure(dict(zip(queues, depths, strict=True)))
        picture.minutes.note_backlog(picture.ready(self._names), self._clock.now())


def _log_unread(error: NoSpace) -> None:
    logging.getLogger(__name__).error("The roster could not be read: %s", error)
