"""Process one delivery in steps.

Each step may end it:

1. decode: a message that is neither a token nor a call of this task is parked
2. recognise: a token that is void, or settled, is acked; the first of an epoch is exchanged
3. resolve: arguments that do not fit the task are parked
4. wait: a message that is slightly early is held until its time, an earlier one returns to its
timers
5. decline: a message of a paused task is requeued
6. admit: a late tick, or an expired call, is skipped; a message delivered too often has failed
7. execute: the task runs, within its timeout
8. settle: the successor is published, confirmed

Then, at one place, the delivery is acked or requeued.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Delivery
from scheduler.errors import BrokerError, DeliveryLost, InvalidArguments, NoSpace, Undecodable
from scheduler.events import (
    HatchedEarly,
    RunEvent,
    RunFinished,
    RunLost,
    RunReturned,
    RunSettled,
    RunStarted,
    SuccessorConfirmed,
    TicksSkipped,
    TokenSuperseded,
)
from scheduler.processor.escalation import Escalation
from scheduler.processor.intake import Order
from scheduler.processor.recognition import JOINED, VOID, Recognition
from scheduler.processor.runs import NO_TIME, Executions, Held, Run
from scheduler.processor.settlement import (
    Broken,
    Cancelled,
    DeliveredTooOften,
    Disposition,
    Raised,
    Settlement,
    Skipped,
    duration,
)
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.verification import Interrupted
from scheduler.protocol.calls import Call, decode_call, is_call, retried, unclaimed
from scheduler.protocol.messages import (
    LONGEST_LEAD_MS,
    lead_of,
    one_line,
    taken_out_by,
)
from scheduler.protocol.tokens import MOVED, Replay, Token, decode, loop_named_by
from scheduler.queues.namespace import Namespace
from scheduler.queues.timers import send_again, waits_in_legs
from scheduler.tasks.loops import App
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.durations import MILLISECOND
from scheduler.timing.schedules import admit
from scheduler.user_code import UserCode, log_of

A_MOMENT_S = 0.1
AFTER_AN_ERROR_S = 5.0
HELD_AT_MOST = timedelta(milliseconds=LONGEST_LEAD_MS)
ROUND_S = 1.0
"""The least time between two returns of a message that its timers release at once."""
WARNED_FOR_S = 600.0
"""A policy may shorten all waits of each loop again and again: one warning a task is enough."""


@dataclass(eq=False)
class Punctuality:
    """Start runs on time: hold a message that is slightly early.

    A message leaves its timers early by the transit time to a processor. The remaining hold is so
    short that it matters to nothing: no run takes place in it, and an epoch that an operator begins
    makes the token void.

    An earlier message returns to its timers. The queue is not trusted with either: a policy of the
    broker's operators may shorten every wait.
    """

    space: Namespace
    recognition: Recognition
    shutdown: Shutdown

    def __post_init__(self) -> None:
        self._clock, self._loop = self.space.clock, asyncio.get_running_loop()
        self._alarms: dict[datetime, list[asyncio.Future[None]]] = {}
        self._went_back: dict[tuple[str, str | None], float] = {}
        self._warned: dict[tuple[str, str], float] = {}

    async def is_due(self, run: Run) -> bool:
        """Wait until a run may begin; return an early message to its timers."""
        lead = lead_of(run.delivery.message.headers)
        if lead and isinstance(run.subject, Token) and not run.delivery.redelivered:
            trip = run.received_at - (run.subject.due_at - lead)
            self.space.timers.lead.learn(trip, run.received_at)
        begins_at = run.may_begin_at
        while NO_TIME < (rest := begins_at - self._clock.now()) <= HELD_AT_MOST:
            await self._hold(begins_at, rest)
        if rest <= NO_TIME:
            return True
        await self._put_back(run, rest)
        return False

    async def _hold(self, begins_at: datetime, rest: timedelta) -> None:
        """Wait for a moment: one alarm rings for all messages that are due then."""
        if (waiting := self._alarms.get(begins_at)) is None:
            waiting = self._alarms[begins_at] = []
            # Event loops count in milliseconds, and may be early by a part of one.
            seconds = math.ceil(rest / MILLISECOND) / 1000
            self._loop.call_later(seconds, self._ring, begins_at)
        waiting.append(alarm := self._loop.create_future())
        await alarm

    def _ring(self, begins_at: datetime) -> None:
        for alarm in self._alarms.pop(begins_at):
            if not alarm.done():
                alarm.set_result(None)

    async def _put_back(self, run: Run, early: timedelta) -> None:
        if not (isinstance(run.subject, Token) and waits_in_legs(run.subject)):
            self._report(run, early)
        await self._until_next_round(run)
        if isinstance(subject := run.subject, Token):
            again = replace(subject, returns=(subject.returns or 0) + 1)
            await self.recognition.put(run.delivery, again, subject)
        else:
            publisher = self.recognition.publisher
            await publisher.insist(run.delivery, lambda: self._send_again(run, subject))

    def _report(self, run: Run, early: timedelta) -> None:
        reason, queue = taken_out_by(run.delivery.message)
        reason = "unrouted" if run.is_rerouted else reason or "early"
        now, cause = asyncio.get_running_loop().time(), (run.task.name, reason)
        is_repeated = now < self._warned.get(cause, -math.inf) + WARNED_FOR_S
        if not is_repeated:
            self._warned[cause] = now
        self.space.app.events.emit(HatchedEarly(*run.about, reason, queue, early, is_repeated))

    async def _send_again(self, run: Run, call: Call) -> None:
        rest, names = run.may_begin_at - self._clock.now(), self.space.app.names
        about = self.space.broker, names, call.task, call.message
        await send_again(*about, rest, AS_LONG_AS_IT_TAKES)

    async def _until_next_round(self, run: Run) -> None:
        """Wait before a message returns to its timers, if it did less than a round ago."""
        now, known = asyncio.get_running_loop().time, self._went_back
        while known and known[oldest := next(iter(known))] + ROUND_S <= now():
            del known[oldest]
        key = run.task.name, run.delivery.message.message_id
        if (before := known.pop(key, None)) is not None:
            await self.shutdown.pause(run.delivery, before + ROUND_S - now())
        known[key] = now()  # the last one comes last


class Verdict(NamedTuple):
    """Decide the end of a delivery, with the event of its run.

    Attributes:
        not_before: when a requeued message may be taken again; None: at once.
    """

    disposition: Disposition
    event: RunEvent | None = None
    not_before: datetime | None = None


ACKED, GIVEN_BACK = Verdict(Disposition.ACK), Verdict(Disposition.REQUEUE)


@dataclass(eq=False)
class Pipeline:
    """Process the deliveries of a processor in steps.

    Attributes:
        returned: the number of messages requeued since the processor was stopped.
    """

    space: Namespace
    recognition: Recognition
    order: Order
    punctuality: Punctuality
    escalation: Escalation
    executions: Executions
    shutdown: Shutdown
    returned: int = 0

    def __post_init__(self) -> None:
        self._app, self._now = self.space.app, self.space.clock.now
        self._names, self._delivery_limit = self._app.names, self._app.settings.delivery_limit
        self._turns, self._knowledge = self.recognition.turns, self.recognition.knowledge
        self._emit, self._is_heard = self._app.events.emit, self._app.events.listeners_of
        self._is_held = self.space.roster.listing.is_held

    async def handle(self, delivery: Delivery, task: TaskSpec) -> datetime | None:
        """Process and settle a delivery; return until when its requeued message must not run."""
        held: Held = []
        try:
            verdict = await self._verdict(delivery, task, held)
            await self._dispose(delivery, verdict)
        finally:
            for let_go in reversed(held):
                let_go()
        return verdict.not_before

    async def _verdict(self, delivery: Delivery, task: TaskSpec, held: Held) -> Verdict:
        try:
            try:
                return await self._process(delivery, task, held)
            except (BrokerError, NoSpace):  # the message is not at fault
                raise
            except Exception as error:
                await self.escalation.refuse(delivery, task, error)
                return ACKED
        except DeliveryLost:
            return Verdict(Disposition.NOTHING)  # another consumer has it already
        except Interrupted:
            await asyncio.wait([self.shutdown.unsubscribed])
            return GIVEN_BACK
        except BrokerError:
            await self.shutdown.pause(delivery, A_MOMENT_S)  # it comes straight back
            return GIVEN_BACK
        except (Exception, asyncio.CancelledError):  # user code can cancel any task
            log_of(__name__).exception("A message of %s is requeued", task.name)
            await self.shutdown.pause(delivery, AFTER_AN_ERROR_S)
            return GIVEN_BACK

    async def _process(self, delivery: Delivery, task: TaskSpec, held: Held) -> Verdict:
        pacer = self.executions.pacer_of(task)
        turn: Held = [] if pacer is None else [pacer.last_turn()]
        held.extend(turn)  # it is given back, unless a run begins
        token, subject = None, self._decode(delivery, task)
        if isinstance(subject, Token):
            token = subject
            held.append(await self._turns.take(token))
            if (why_not := await self.recognition.why_not(delivery, token)) is not None:
                return _superseded(delivery, token, why_not)
        elif not self._knowledge.current.is_set():
            await self.shutdown.unless_begun(self._knowledge.soon_current())
        run = self._resolve(delivery, task, subject)
        if delivery.redelivered:
            await self.order.resume(run)
        if not await self.punctuality.is_due(run):
            return ACKED
        await self.executions.take_room(task, held)
        if (declined := await self._decline(run)) is not None:
            return declined
        if delivery.redelivered:
            await self.order.begin(run)
            if self._is_held(task.name):  # a pause may have begun
                await self.order.uncount(run)
                return GIVEN_BACK
        # From here to the run, nothing is awaited: a later epoch may have begun until now.
        if token is not None:
            if self._turns.is_void(token):
                return _superseded(delivery, token, VOID)
            self._turns.begin(token)
        self._admit(run)
        if run.outcome is None:
            del held[: len(turn)]
            if self._is_heard(RunStarted):
                self._emit(_started(run))
            run.outcome = await self.executions.outcome_of(run)
        run.ended_at = self._now()
        return await self._settle(run)

    def _decode(self, delivery: Delivery, task: TaskSpec) -> Token | Call:
        names, exchange, key = self._names, delivery.exchange, delivery.routing_key
        is_token = exchange in names.token_exchanges
        if not is_token and not names.bring_retries(exchange, key):
            delivery.message = unclaimed(delivery.message)
        message = delivery.message
        lead_of(message.headers)  # rejects an invalid carry
        if is_token:
            token = decode(message, names.namespace)
            if MOVED in message.headers:
                delivery.redelivered = True
            if loop_named_by(key) != token.loop or not task.is_named(token.loop.task):
                came = f"by {key!r} to {task.name!r}"
                raise Undecodable(f"The token of {token.loop} arrived {came}.")
            return token
        if not task.called or (task.reads is None and not is_call(message)):
            raise Undecodable("It is not a call, and did not arrive as a token.")
        return decode_call(
            message,
            names.namespace,
            task.name,
            exchange=exchange,
            routing_key=key,
            expires=task.expires,
        )

    def _resolve(self, delivery: Delivery, task: TaskSpec, subject: Token | Call) -> Run:
        now, outcome = self._now(), None
        try:
            if isinstance(subject, Call):
                arguments, tick = _arguments_of(subject, task), subject.due_at or now
            else:
                arguments, tick = _arguments_of_loop(subject, task, self._app), subject.scheduled_at
        except (InvalidArguments, Undecodable):
            raise
        except BaseException as error:
            # A type of the arguments may look something up: the run fails, and is retried.
            arguments, outcome = dict[str, Any](), _failed_reading(error)
            tick = subject.scheduled_at if isinstance(subject, Token) else subject.due_at or now
        return Run(delivery, task, subject, arguments, tick, received_at=now, outcome=outcome)

    async def _decline(self, run: Run) -> Verdict | None:
        """Return the end of a message that must not run now; None: it may."""
        if run.delivery.lost.done():
            return Verdict(Disposition.NOTHING)
        if self.shutdown.begun.done():
            # A requeue while this processor consumes from the queue would bring it straight back.
            await asyncio.wait([self.shutdown.unsubscribed])
            return GIVEN_BACK
        if self._is_held(run.task.name):
            # Its intake is about to close; until then, it would come straight back.
            await self.shutdown.pause(run.delivery, A_MOMENT_S)
            return GIVEN_BACK
        if run.head.due_at is not None and self._now() < run.head.due_at:
            return Verdict(Disposition.REQUEUE, not_before=run.head.due_at)
        return None

    def _admit(self, run: Run) -> None:
        now = run.started_at = self._now()
        if run.head.begun >= self._delivery_limit:
            run.outcome = Raised(DeliveredTooOften())
        elif isinstance(run.subject, Call):
            if (expires_at := run.subject.expires_at) is not None and now > expires_at:
                late = (now - expires_at).total_seconds()
                run.outcome = Skipped(f"it expired {late:.1f} s ago")
        elif missed := _admit_token(run, run.subject, now):
            self._emit(TicksSkipped(*run.about, missed, "late"))

    async def _settle(self, run: Run) -> Verdict:
        settlement = self._announced(run, run.decide())
        not_before = await self._perform(run, settlement)
        run.settlement = settlement
        match settlement.disposition:
            case Disposition.ACK if not_before is None:
                return Verdict(
                    Disposition.ACK, RunSettled(*run.about) if self._is_heard(RunSettled) else None
                )
            case Disposition.ACK:  # to be tried again from its place
                return Verdict(Disposition.REQUEUE, not_before=not_before)
            case Disposition.NOTHING:
                left_behind = run.outcome is Broken.LEFT_BEHIND
                return Verdict(Disposition.NOTHING, RunLost(*run.about, left_behind))
            case Disposition.REQUEUE:
                return Verdict(Disposition.REQUEUE, RunReturned(*run.about))

    def _announced(self, run: Run, settlement: Settlement) -> Settlement:
        """Return the settlement, after the listeners got the event of its run."""
        if settlement.ending is None:
            return settlement
        finished = None
        if self._is_heard(RunFinished):
            void = isinstance(run.subject, Token) and self._turns.is_void(run.subject)
            self._emit(finished := _finished(run, settlement, void))
        if settlement.missed:
            self._emit(TicksSkipped(*run.about, settlement.missed, "overrun"))
        if finished is None or settlement.put is None or finished.trace == settlement.put.trace:
            return settlement
        put = replace(settlement.put, trace=_texts(finished.trace))
        return settlement._replace(put=put)

    async def _perform(self, run: Run, settlement: Settlement) -> datetime | None:
        """Publish all that the settlement requires; return until when the message waits here."""
        if (parking := settlement.park) is not None:
            await self.escalation.escalate(run, settlement, parking)
        if (successor := settlement.put) is not None:
            assert isinstance(run.subject, Token)
            await self.recognition.put(run.delivery, successor, run.subject)
            if self._is_heard(SuccessorConfirmed):
                self._emit(SuccessorConfirmed(*run.about))
        if settlement.ending is None and run.outcome is not Broken.LOST:
            await self.order.uncount(run)
        if (delay := settlement.retry_in) is not None:
            if run.task.ordered:
                return await self.order.wait(run, delay, self._now())
            await self._retry(run, delay)
        if (
            run.task.ordered
            and run.delivery.redelivered
            and settlement.disposition is Disposition.ACK
        ):
            await self.order.end(run)
        return None

    async def _retry(self, run: Run, delay: timedelta) -> None:
        """Send the call through the timers of calls."""
        assert isinstance(call := run.subject, Call)

        async def send() -> None:
            now = self._now()
            message = retried(call, due_at=now + delay, failed_at=now)
            about = self.space.broker, self._names, call.task, message
            await send_again(*about, delay, AS_LONG_AS_IT_TAKES)

        # Parked as broken, if the headers of its sender leave no room for those of a retry.
        await self.recognition.publisher.insist(run.delivery, send)
        self._emit(SuccessorConfirmed(*run.about))

    async def _dispose(self, delivery: Delivery, verdict: Verdict) -> None:
        """Settle the delivery: the one place that acks or requeues."""
        try:
            match verdict.disposition:
                case Disposition.ACK:
                    await delivery.ack()
                case Disposition.REQUEUE:
                    await delivery.requeue()
                    # An ordered retry is requeued as well.
                    self.returned += self.shutdown.begun.done()
                case Disposition.NOTHING:
                    pass
        except DeliveryLost:
            if verdict.disposition is Disposition.ACK:
                return  # it is redelivered to some processor
        if verdict.event is not None:
            self._emit(verdict.event)


def _texts(trace: Mapping[Any, Any]) -> dict[str, str]:
    """Return the listeners' headers that can travel."""
    texts = {name: text for name, text in trace.items() if type(name) is type(text) is str}
    if len(texts) < len(trace):
        log_of(__name__).warning(
            "A listener added a trace header that is not text: %s is ignored",
            ", ".join(sorted(one_line(repr(name)) for name in trace.keys() - texts.keys())),
        )
    return texts


def _superseded(delivery: Delivery, token: Token, why: str) -> Verdict:
    if why == JOINED:
        return ACKED
    about = token.loop, token.seq, token.attempt + 1, delivery.message.message_id or ""
    return Verdict(Disposition.ACK, TokenSuperseded(*about, reason=why))


def _failed_reading(error: BaseException) -> Raised:
    try:
        with UserCode("a type of the arguments"):
            raise error
    except Exception as failure:
        return Raised(failure)


def _arguments_of_loop(token: Token, task: TaskSpec, app: App) -> Mapping[str, Any]:
    try:
        return task.arguments.load(token.args)
    except InvalidArguments:
        if token.loop not in app.loops:
            raise
        # The token was seeded by another version of the code: each version has its own.
        return task.arguments.load(app.loops[token.loop].args)


def _arguments_of(call: Call, task: TaskSpec) -> Mapping[str, Any]:
    if call.args is not None:
        return task.arguments.load(call.args)
    assert task.reads is not None
    return task.reads.read(call.message)


def _admit_token(run: Run, token: Token, now: datetime) -> int:
    """Return the tick of a run, or why it is skipped, and how many were missed."""
    if token.attempt or isinstance(token, Replay):
        return 0
    if token.triggered:
        run.tick = token.due_at
        return 0
    admission = admit(token.schedule, token.loop, token.scheduled_at, now)
    run.tick = admission.tick
    if not admission.run:
        run.outcome = Skipped(f"late by {(now - admission.tick).total_seconds():.3f} s")
    return admission.missed


def _started(run: Run) -> RunStarted:
    due_at = run.subject.due_at if isinstance(run.subject, Token) else run.tick
    return RunStarted(
        *run.about,
        scheduled_at=run.tick,
        due_at=due_at,
        started_at=run.started_at,
        redelivered=run.delivery.redelivered,
        hatch_delay=run.hatch_delay,
        ready_delay=run.ready_delay,
        start_delay=run.start_delay,
        headers=run.delivery.message.headers,
    )


def _finished(run: Run, settlement: Settlement, void: bool) -> RunFinished:
    assert settlement.ending is not None
    error = run.outcome.error if isinstance(run.outcome, Raised | Cancelled) else None
    skipped = run.outcome.reason if isinstance(run.outcome, Skipped) else None
    if isinstance(error, DeliveredTooOften):
        skipped = "it was delivered too often"
    return RunFinished(
        *run.about,
        scheduled_at=run.tick,
        started_at=run.started_at,
        duration=duration(run.started_at, run.ended_at),
        ending=settlement.ending,
        error=error,
        successor=settlement.put,
        retry_in=settlement.retry_in,
        skipped=skipped,
        void=void,
        call=run.subject if isinstance(run.subject, Call) else None,
    )
