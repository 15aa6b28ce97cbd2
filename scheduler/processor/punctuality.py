"""Runs start on the dot: a message that comes shortly before its time is held for the rest of it.

It leaves its timers early by what the way to a processor takes. That is the one wait in hand, and
so short that it makes no difference: no run takes place meanwhile, and an epoch that an operator
begins makes the token void.

A message that comes earlier goes back to its timers (`Successors.go_back`). Neither that nor its
time is trusted to the queue: a policy of the broker's operators may cut every wait short.
"""

import asyncio
import math
from datetime import timedelta

from scheduler.processor.runs import NO_TIME, Run
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.messages import LONGEST_LEAD_MS, lead_of
from scheduler.protocol.tokens import Token
from scheduler.timing.clock import Clock
from scheduler.timing.lead import Lead

MILLISECOND = timedelta(milliseconds=1)
HELD_AT_MOST = timedelta(milliseconds=LONGEST_LEAD_MS)
ROUND_S = 1.0
"""A message that leaves its timers at once goes back no sooner than that after the last time."""


class Punctuality:
    """Has runs wait for their time, and learns how early they have to come for that."""

    def __init__(self, lead: Lead, shutdown: Shutdown, clock: Clock) -> None:
        self._lead = lead
        self._shutdown = shutdown
        self._clock = clock
        self._went_back = dict[tuple[str, str | None], float]()

    async def until_due(self, run: Run) -> None:
        """Wait for the rest of the time of a message that came shortly before it."""
        lead = lead_of(run.delivery.message.headers)
        if lead and isinstance(run.subject, Token) and not run.delivery.redelivered:
            trip = run.received_at - (run.subject.due_at - lead)
            self._lead.learn(trip, run.received_at)
        while NO_TIME < (rest := run.may_begin_at - self._clock.now()) <= HELD_AT_MOST:
            await _pass(rest)

    async def until_next_round(self, run: Run) -> None:
        """Wait before a message goes back, if it went back less than a round ago."""
        loop = asyncio.get_running_loop()
        key = run.task.name, run.delivery.message.message_id
        while self._went_back and self._is_over(next(iter(self._went_back))):
            del self._went_back[next(iter(self._went_back))]
        if (before := self._went_back.pop(key, None)) is not None:
            await self._shutdown.pause(run.delivery, before + ROUND_S - loop.time())
        self._went_back[key] = loop.time()  # the last one comes last

    def _is_over(self, key: tuple[str, str | None]) -> bool:
        return self._went_back[key] + ROUND_S <= asyncio.get_running_loop().time()


async def _pass(time: timedelta) -> None:
    # Event loops count in milliseconds, and may be early by a part of one.
    await asyncio.sleep(math.ceil(time / MILLISECOND) / 1000)
