"""The last put of every loop, kept up to date by reading on in the journal.

A node of the broker that fails may hand a token out twice (S2 of `scheduler.protocol.epochs`). Two
lines of one loop may be far apart, so the last put of every loop is remembered: of those heard last
in memory, of the others in the table of the roster's listing.
"""

import json
from datetime import datetime, timedelta
from itertools import islice

from scheduler.protocol.epochs import Verb, is_doubled
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.queues.journal import Journal, Put
from scheduler.queues.listing import LONG, Listing
from scheduler.timing.clock import Clock
from scheduler.timing.moments import milliseconds_since_epoch, moment_of

LOOK_BACK = timedelta(minutes=5)
"""A token that waits longer than `LONG` is in the roster, so no more is read at first."""
LONG_MS = LONG // timedelta(milliseconds=1)
MOST_PUTS = 20_000
"""Loops whose last puts are in memory."""


class Census:
    """The last puts of all loops of a namespace.

    Attributes:
        doubled: loops of whose current epoch two lines were heard, each with that epoch.
        long: what was put since it was noted last, of loops that wait for long or nowhere.
    """

    def __init__(self, journal: Journal, clock: Clock, listing: Listing) -> None:
        self._journal = journal
        self._clock = clock
        self._listing = listing
        self._reached: int | None = None
        self._served = dict[str, int]()
        self._puts = dict[LoopId, Put]()
        self.doubled = dict[LoopId, int]()
        self.long = dict[LoopId, Message]()

    async def read_on(self) -> None:
        """Read what was put since the last reading.

        Raises:
            QueueNotFound: there is no journal.
            BrokerUnavailable: it could not be read to its end. The next reading goes on from where
                this one came to.
        """
        since = self._clock.now() - LOOK_BACK if self._reached is None else self._reached
        self._reached = await self._journal.read_on(self._hear_once, since=since)

    def served_until(self, task: str) -> datetime | None:
        """Return the latest time of the task's loops whose runs have begun; None: unknown."""
        served_ms = self._served.get(task)
        return None if served_ms is None else moment_of(served_ms)

    def put_of(self, loop: LoopId) -> Put | None:
        """Return the last put of a loop in its latest epoch; None: none was heard."""
        if (put := self._puts.get(loop)) is not None:
            return put
        kept = self._listing.table.put(loop)
        return None if kept is None else Put(*json.loads(kept))

    def _hear_once(self, loop: LoopId, put: Put, message: Message) -> None:
        assert message.offset is not None
        # Also when the reading is cut off: heard again, it would look like a second line.
        self._reached = message.offset + 1
        self.hear(loop, put, message)

    def hear(self, loop: LoopId, put: Put, message: Message) -> None:
        """Take note of a put."""
        if put.verb == Verb.GONE:
            return self.forget(loop)
        before, known = self.put_of(loop), self._listing.known(loop)
        if put.by_run:
            self._note_served(loop, put)
            if put.epoch < known:  # if its loop is paused, this is how far it came
                self.long[loop] = message
            if before is not None and before.by_run and _is_of_another_line(put, before, known):
                self.doubled[loop] = put.epoch
        if before is None or put.position >= before.position:
            self._remember(loop, put)
            now_ms = milliseconds_since_epoch(self._clock.now())
            if not put.first and (put.rests or put.due_at_ms - now_ms >= LONG_MS):
                self.long[loop] = message

    def recall(self, loop: LoopId, put: Put) -> None:
        """Take note of what the roster tells of a loop that was not heard of."""
        if self.put_of(loop) is None:
            self._remember(loop, put)

    def forget(self, loop: LoopId) -> None:
        """Forget a loop that is gone."""
        self._puts.pop(loop, None)
        self._listing.table.keep(loop, None)
        self.doubled.pop(loop, None)
        self.long.pop(loop, None)

    def _remember(self, loop: LoopId, put: Put) -> None:
        self._puts[loop] = put
        if len(self._puts) > MOST_PUTS:
            for oldest in list(islice(self._puts, MOST_PUTS // 2)):
                self._keep(oldest, self._puts.pop(oldest))

    def _keep(self, loop: LoopId, put: Put) -> None:
        table = self._listing.table
        table.keep(loop, json.dumps(put))
        if put.epoch >= self._listing.known(loop):
            table.expect(loop, None if put.rests else put.due_at_ms)

    def _note_served(self, loop: LoopId, put: Put) -> None:
        # A retry ran at another time than that of its tick.
        if put.attempt == 0 and put.scheduled_at_ms > self._served.get(loop.task, 0):
            self._served[loop.task] = put.scheduled_at_ms


def _is_of_another_line(put: Put, before: Put, known: int) -> bool:
    if put == before:
        return False  # it was published again
    greatest = before.position if before.epoch == put.epoch else None
    return is_doubled(put.position, greatest, known)
