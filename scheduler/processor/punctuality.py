"""Runs start on the dot: a message that comes shortly before its time is held for the rest of it.

It leaves its timers early by what the way to a processor takes. That is the one wait in hand, and
so short that it makes no difference: no run takes place meanwhile, and an epoch that an operator
begins makes the token void.

A message that comes earlier goes back to its timers. Neither that nor its time is trusted to the
queue: a policy of the broker's operators may cut every wait short.
"""

import asyncio
import math
from dataclasses import dataclass
from datetime import timedelta

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES
from scheduler.events import HatchedEarly
from scheduler.processor.publishing import PatientPublisher
from scheduler.processor.recognition import Recognition
from scheduler.processor.runs import NO_TIME, Run
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.calls import Call
from scheduler.protocol.hatchery import LONGEST
from scheduler.protocol.messages import LONGEST_LEAD_MS, lead_of, taken_out_by
from scheduler.protocol.tokens import Token
from scheduler.queues.namespace import Namespace
from scheduler.queues.timers import send_again, waits_in_legs

MILLISECOND = timedelta(milliseconds=1)
HELD_AT_MOST = timedelta(milliseconds=LONGEST_LEAD_MS)
ROUND_S = 1.0
"""A message that leaves its timers at once goes back no sooner than that after the last time."""
WARNED_FOR_S = 600.0
"""A policy cuts all waits short, of each loop again and again: a warning for a task is enough."""


@dataclass(eq=False)
class Punctuality:
    """Has runs wait for their time, and learns how early they have to come for that."""

    space: Namespace
    recognition: Recognition
    publisher: PatientPublisher
    shutdown: Shutdown

    def __post_init__(self) -> None:
        self._clock = self.space.clock
        self._went_back: dict[tuple[str, str | None], float] = {}
        self._warned: dict[tuple[str, str], float] = {}

    async def is_due(self, run: Run) -> bool:
        """Wait until a run may begin; put a message that came too early back into its timers."""
        lead = lead_of(run.delivery.message.headers)
        if lead and isinstance(run.subject, Token) and not run.delivery.redelivered:
            trip = run.received_at - (run.subject.due_at - lead)
            self.space.lead.learn(trip, run.received_at)
        while NO_TIME < (rest := run.may_begin_at - self._clock.now()) <= HELD_AT_MOST:
            await _pass(rest)
        if rest <= NO_TIME:
            return True
        await self._put_back(run, rest)
        return False

    async def _put_back(self, run: Run, early: timedelta) -> None:
        if not (isinstance(run.subject, Token) and waits_in_legs(run.subject)):
            self._report(run, early)
        await self._until_next_round(run)
        if isinstance(subject := run.subject, Token):
            await self.recognition.put(run.delivery, subject, subject)
        else:
            await self.publisher.insist(run.delivery, lambda: self._send_again(run, subject))

    def _report(self, run: Run, early: timedelta) -> None:
        reason, queue = taken_out_by(run.delivery.message)
        reason = "unrouted" if run.is_rerouted else reason or "early"
        now, cause = asyncio.get_running_loop().time(), (run.task.name, reason)
        is_repeated = now < self._warned.get(cause, -math.inf) + WARNED_FOR_S
        if not is_repeated:
            self._warned[cause] = now
        self.space.app.events.emit(HatchedEarly(*run.about, reason, queue, early, is_repeated))

    async def _send_again(self, run: Run, call: Call) -> None:
        rest = min(max(run.may_begin_at - self._clock.now(), NO_TIME), LONGEST)
        await send_again(
            self.space.broker,
            self.space.app.names,
            call.task,
            call.message,
            rest,
            AS_LONG_AS_IT_TAKES,
        )

    async def _until_next_round(self, run: Run) -> None:
        """Wait before a message goes back, if it went back less than a round ago."""
        now, known = asyncio.get_running_loop().time, self._went_back
        while known and known[oldest := next(iter(known))] + ROUND_S <= now():
            del known[oldest]
        key = run.task.name, run.delivery.message.message_id
        if (before := known.pop(key, None)) is not None:
            await self.shutdown.pause(run.delivery, before + ROUND_S - now())
        known[key] = now()  # the last one comes last


async def _pass(time: timedelta) -> None:
    # Event loops count in milliseconds, and may be early by a part of one.
    await asyncio.sleep(math.ceil(time / MILLISECOND) / 1000)
