"""Find timers that do not hatch: the message at their head is overdue, and stays there.

A timer of tokens may have lost its leader. Its loops are repaired past it, and it is recreated. A
timer of calls dead-letters at least once, so it also stops for all its messages when one of their
target queues rejects 32 of them: no message is lost, and the target is named.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from scheduler.errors import DeliveryLost, QueueNotFound
from scheduler.protocol.calls import DUE_AT
from scheduler.protocol.hatchery import timers
from scheduler.protocol.messages import hatched_at, moment_in
from scheduler.protocol.tokens import claims_of, is_token
from scheduler.queues.concurrency import side_by_side
from scheduler.queues.namespace import Namespace

LATE_AFTER = timedelta(seconds=2)
AGAIN_AFTER_S = 1.0
SILENT_AFTER_S = 5.0


class Lateness(NamedTuple):
    """Report timers that hold messages past their time.

    Attributes:
        stuck: timers that do not hatch, each with the cause, in a sentence.
        is_draining: whether others deliver overdue messages as fast as the broker can.
    """

    stuck: Mapping[str, str]
    is_draining: bool


IN_TIME = Lateness({}, is_draining=False)


class TimerWatch:
    """Check the heads of the timers of an app."""

    def __init__(self, namespace: Namespace) -> None:
        self._app, self._broker, self._clock = namespace.app, namespace.broker, namespace.clock

    async def of_tokens(self) -> Lateness:
        """Check the timers of tokens."""
        return await self._lateness({self._app.names.timer(each): each.wait for each in timers()})

    async def of_calls(self) -> Lateness:
        """Check the timers of calls, if the app has them."""
        if not any(task.called for task in self._app.tasks.values()):
            return IN_TIME
        names = self._app.names
        return await self._lateness({names.later_timer(each): each.wait for each in timers()})

    async def _lateness(self, waits: Mapping[str, timedelta]) -> Lateness:
        """Compare the heads twice: a timer that hatches has another one by then.

        Args:
            waits: the timers, and how long each holds a message.
        """
        depths = await side_by_side(self._broker.depth, waits)
        of_filled = zip(waits.items(), depths, strict=True)
        filled = {name: wait for (name, wait), each in of_filled if each and each.ready}
        before = await self._late_heads(filled)
        if not before:
            return IN_TIME
        await asyncio.sleep(AGAIN_AFTER_S)
        after = await self._late_heads({name: waits[name] for name in before})
        stuck = {name: cause for name, cause in after.items() if cause == before[name]}
        return Lateness(
            {name: cause.finding for name, cause in stuck.items()},
            is_draining=len(stuck) < len(before),
        )

    async def _late_heads(self, waits: Mapping[str, timedelta]) -> dict[str, "TimerHead"]:
        heads = await side_by_side(self._head, waits.items())
        now = self._clock.now()
        return {
            name: head
            for name, head in zip(waits, heads, strict=True)
            if head is not None and (head.leaves_at is None or now - head.leaves_at > LATE_AFTER)
        }

    async def _head(self, timer: tuple[str, timedelta]) -> "TimerHead | None":
        """Return the message at the head of a timer, and requeue it; None: it is empty."""
        queue, wait = timer
        try:
            async with asyncio.timeout(SILENT_AFTER_S):
                delivery = await self._broker.get(queue)
        except TimeoutError:
            return TimerHead(None, None, "It has no leader: it does not respond.")
        except QueueNotFound:
            return None
        if delivery is None:
            return None
        with suppress(DeliveryLost):
            await delivery.requeue()
        message = delivery.message
        if is_token(message):
            claims = claims_of(message)
            due_at, target = moment_in(claims, "due_at_ms"), f"the loop {claims.get('task')!s}"
        else:
            task = delivery.routing_key.partition(".")[2]
            due_at, target = moment_in(message.headers, DUE_AT), f"the task {task!r}"
        if due_at is None:
            return None
        finding = f"Its first message, for {target}, was due at {due_at:%H:%M:%S} UTC."
        # Late from the timer before, it waits as long in this one. A sender may write any moment.
        came_at = hatched_at(message)
        leaves_at = max(due_at, min(came_at, self._clock.now()) + wait) if came_at else due_at
        return TimerHead(message.message_id, leaves_at, finding)


@dataclass(frozen=True, slots=True)
class TimerHead:
    """Describe the message at the head of a timer.

    Attributes:
        id: None: the timer does not respond.
        leaves_at: the latest moment at which it has to leave the timer.
        finding: its state, in a sentence.
    """

    id: str | None
    leaves_at: datetime | None
    finding: str
