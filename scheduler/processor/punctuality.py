"""Runs start on the dot: what came before its time waits here for the rest of it.

It leaves its timer queue early by what the way to a processor takes. That is the one thing that
waits in hand, and so short that it makes no difference to anybody: it is none of the runs that go
on, and what was begun meanwhile by an operator makes it void.
"""

import asyncio
import math
from datetime import timedelta

from scheduler.processor.runs import NO_TIME, Run
from scheduler.protocol.messages import lead_of
from scheduler.protocol.tokens import Token
from scheduler.timing.clock import Clock
from scheduler.timing.lead import Lead

MILLISECOND = timedelta(milliseconds=1)


class Punctuality:
    """Has runs wait for their time, and learns how early they have to come for that."""

    def __init__(self, lead: Lead, clock: Clock) -> None:
        self._lead = lead
        self._clock = clock

    async def until_due(self, run: Run) -> None:
        """Wait for the rest of the time of a message that came early."""
        due_at, lead = run.subject.due_at, lead_of(run.delivery.message.headers)
        if due_at is None or not lead:
            return
        if isinstance(run.subject, Token) and not run.delivery.redelivered:
            self._lead.learn(run.received_at - (due_at - lead), run.received_at)
        # By a clock that is behind that of its publisher, it would wait for long.
        until = min(due_at, run.received_at + lead)
        while (rest := until - self._clock.now()) > NO_TIME:
            await _pass(rest)


async def _pass(time: timedelta) -> None:
    # Event loops count in milliseconds, and may be early by a part of one.
    await asyncio.sleep(math.ceil(time / MILLISECOND) / 1000)
