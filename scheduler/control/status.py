"""Where each loop's token is, and how its last run went."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.brokers.contract import Broker
from scheduler.control.concurrency import side_by_side
from scheduler.control.location import Locator
from scheduler.control.loops import Loops
from scheduler.errors import QueueNotFound
from scheduler.protocol.tokens import LastRun, LoopId, State, Token
from scheduler.queues.hatchery import LOOK_PAUSE, LOOKS, Hatchery
from scheduler.queues.journal import Journal, look_backs
from scheduler.queues.roll_call import Answers
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock

JOURNAL_TIMEOUT = timedelta(seconds=10)


class Where(StrEnum):
    """Where the token of a loop is."""

    WAITING = "waiting"
    PAUSED = "paused"
    READY = "ready"
    RUNNING = "running"
    LOST = "lost"
    UNSEEDED = "unseeded"


@dataclass(frozen=True, slots=True)
class Status:
    """Attributes: what the token tells, or, while a processor has it, the journal."""

    loop: Loop
    where: Where
    processors: int
    due_at: datetime | None = None
    seq: int | None = None
    attempt: int | None = None
    reason: str | None = None
    last: LastRun | None = None


class Survey:
    """Looks at loops, and changes nothing."""

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        hatchery: Hatchery,
        journal: Journal,
        loops: Loops,
        locator: Locator,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._hatchery = hatchery
        self._journal = journal
        self._loops = loops
        self._locator = locator

    async def status(self) -> list[Status]:
        """The status of each loop of the code, and of each keyed one."""
        try:
            loops = await self._loops.all()
        except QueueNotFound:
            loops = list(self._app.loops.values())
        found = await side_by_side(self._look, loops)
        elsewhere = [status.loop for status in found if status.where is Where.RUNNING]
        answers = Answers({}, complete=False)
        if elsewhere:
            answers = await self._locator.who_has([loop.id for loop in elsewhere])
        remembered = await self._remembered(
            [status.loop for status in found if status.last is None and status.seq is None]
        )
        return [
            _completed(_judged(status, answers), remembered.get(status.loop.id)) for status in found
        ]

    async def _look(self, loop: Loop) -> Status:
        """Where the token is; `RUNNING` where it is in no queue."""
        queue = await self._broker.depth(self._app.names.processor_queue(loop.id.task))
        if queue is None:
            return Status(loop, Where.UNSEEDED, 0)
        for _ in range(LOOKS):
            try:
                token = await self._hatchery.look(loop.id)
            except QueueNotFound:
                return Status(loop, Where.UNSEEDED, queue.consumers)
            if token is not None and token.state is not State.GUARD:
                return _waiting(loop, token, queue.consumers)
            queue = await self._broker.depth(self._app.names.processor_queue(loop.id.task)) or queue
            if queue.ready:
                return Status(loop, Where.READY, queue.consumers)
            await asyncio.sleep(LOOK_PAUSE)
        return Status(loop, Where.RUNNING, queue.consumers)

    async def _remembered(self, loops: Collection[Loop]) -> dict[LoopId, Token]:
        if not loops:
            return {}
        since, *_ = look_backs([loop.schedule for loop in loops], self._clock)
        try:
            return await self._journal.last_tokens(
                {loop.id for loop in loops}, since=since, within=JOURNAL_TIMEOUT
            )
        except QueueNotFound:
            return {}


def _waiting(loop: Loop, token: Token, processors: int) -> Status:
    paused = token.state is State.PAUSED
    return Status(
        loop,
        Where.PAUSED if paused else Where.WAITING,
        processors,
        due_at=None if paused else token.due_at,
        seq=token.seq,
        attempt=token.attempt,
        reason=token.reason,
        last=token.last,
    )


def _judged(status: Status, answers: Answers) -> Status:
    """Running or lost: what the processors say; if not all of them answer, what is likely."""
    if status.where is not Where.RUNNING or status.loop.id in answers.claims:
        return status
    nobody = answers.complete or not status.processors
    return replace(status, where=Where.LOST) if nobody else status


def _completed(status: Status, token: Token | None) -> Status:
    if token is None:
        return status
    return replace(
        status,
        due_at=token.due_at,
        seq=token.seq,
        attempt=token.attempt,
        reason=token.reason,
        last=token.last,
    )
