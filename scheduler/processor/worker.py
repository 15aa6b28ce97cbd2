"""The processor: takes a message, runs its task, settles it.

One delivery goes through these steps, each of which may end its way:

1. decode: what is neither a token nor a call of this task is parked
2. resolve: arguments that do not fit the task are parked
3. recognise: a token that came before, and whose successor exists, is acked
4. admit: a tick that is too late, or a call that has expired, is skipped
5. execute: the task runs, within its timeout
6. settle: publish what comes after, confirmed; then, at one place, dispose of the delivery
"""

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from scheduler.app import Scheduler
from scheduler.brokers.contract import SETTLEMENT_TIMEOUT, Broker, Consumer, Delivery
from scheduler.errors import (
    BrokerError,
    DeliveryLost,
    InvalidArguments,
    MessageError,
    QueueNotFound,
    Rejected,
    TooLarge,
    Undecodable,
)
from scheduler.events import (
    Connected,
    Escalated,
    Event,
    MessageParked,
    ProcessorStarted,
    ProcessorStopped,
    ProcessorStopping,
    RunFinished,
    RunLost,
    RunReturned,
    RunSettled,
    RunStarted,
    SettlementDelayed,
    SuccessorConfirmed,
    TicksSkipped,
    TokenMerged,
    TokenSuperseded,
)
from scheduler.processor.runs import Execution, Run
from scheduler.processor.settlement import (
    Disposition,
    Finished,
    Outcome,
    Parking,
    Raised,
    Settlement,
    Skipped,
    duration,
    settle,
    settle_call,
)
from scheduler.protocol.calls import Call, decode_call, is_call, placed, spent, task_key
from scheduler.protocol.messages import (
    Act,
    Ending,
    LoopId,
    Message,
    State,
    Token,
    Verb,
    decode,
    encode,
    is_token,
    one_line,
    summary_of,
)
from scheduler.queues.failed import FailedQueues, Reason
from scheduler.queues.hatchery import Hatchery, superseded
from scheduler.queues.roll_call import Claims, Progress, RollCall, Settled
from scheduler.tasks.context import current_run
from scheduler.tasks.tasks import SUPERVISION, TaskSpec
from scheduler.timing.clock import Clock
from scheduler.timing.durations import SECOND
from scheduler.timing.rates import Pacer
from scheduler.timing.schedules import admit

HOOK_TIMEOUT = timedelta(seconds=30)
LAST_WORDS = timedelta(seconds=5)
# A broker that was away may have handed a token on without noting it; then it does so once more,
# after its dead_letter_worker_publisher_confirm_timeout of 180 s.
DUPLICATES_EXPECTED_S = 200.0
TOO_EARLY = timedelta(days=1)  # no clocks disagree by so much
BLOCKED = timedelta(seconds=30)
SILENCE = "the broker does not confirm: it may be blocked by a memory or disk alarm."
FIRST_PAUSE = timedelta(milliseconds=50)
LAST_PAUSE = timedelta(seconds=5)


@dataclass(slots=True)
class Lane:
    """The tokens of one loop that this processor has in hand.

    Attributes:
        running: the one that it runs.
        occupied: whether something else was seen in the slot.
        refused: whether the slot has not taken what was to be put last.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tokens: list[Token] = field(default_factory=list[Token])
    running: Token | None = None
    occupied: bool = False
    refused: bool = False


class Worker:
    """A processor of an app: consumes from the queues of its tasks until it is stopped.

    Args:
        tasks: the tasks to work on.
        concurrency: how many runs may go on at once, over all tasks.
        grace: how long `stop` lets runs finish before they are cancelled and requeued.
        roll_call: asked about tokens that somebody had before.
    """

    def __init__(
        self,
        app: Scheduler,
        broker: Broker,
        clock: Clock,
        *,
        tasks: Sequence[TaskSpec],
        concurrency: int,
        grace: timedelta,
        roll_call: RollCall | None = None,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._tasks = tasks
        self._concurrency = concurrency
        self._grace = grace
        self._emit: Callable[[Event], None] = app.events.emit
        self._failed = FailedQueues(broker, app.names, clock, timeout=SETTLEMENT_TIMEOUT)
        self._hatchery = Hatchery(
            broker, app.names, clock, self._failed, timeout=SETTLEMENT_TIMEOUT
        )
        self._free = asyncio.Semaphore(concurrency)
        self._consumers: list[Consumer] = []
        self._handling: set[asyncio.Task[None]] = set()
        self._executing: set[Execution] = set()
        self._roll_call = roll_call
        self._settled: dict[LoopId, tuple[str, Progress]] = {}
        self._lanes: dict[LoopId, Lane] = {}
        self._pacers = {task.name: Pacer(task.rate) for task in tasks if task.rate}
        self._held_back: dict[tuple[str, str], int] = {}
        self._duplicates_until = -math.inf
        self._stopping = asyncio.Event()
        self._deaf = asyncio.Event()
        self._aborting = asyncio.Event()
        self._returned = 0

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, and takes no more messages."""
        return self._stopping.is_set()

    @property
    def queues(self) -> list[str]:
        """Where it takes messages from."""
        return [self._app.names.processor_queue(task.name) for task in self._tasks]

    @property
    def silent(self) -> list[str]:
        """Those of its queues that nothing is delivered from, as far as this end knows.

        May be asked by another thread.
        """
        active = [consumer.active for consumer in tuple(self._consumers)]
        pairs = zip_longest(self.queues, active, fillvalue=False)
        return [str(queue) for queue, delivers in pairs if not delivers]

    async def run(self) -> None:
        """Process messages until `stop` is called.

        Raises:
            QueueNotFound: a task has no queue yet; the message says how to make it.
        """
        self._app.outbox.use(self._broker, self._clock)
        self._app.events.listen(self._hear)
        self._aborted = asyncio.create_task(self._aborting.wait())
        try:
            for task in self._tasks:
                self._consumers.append(await self._consume(task))
            self._emit(self._started())
            await self._stopping.wait()
        finally:
            await self._shut_down()
            self._aborted.cancel()
            self._app.events.forget(self._hear)
            self._app.outbox.release(self._broker)

    def stop(self) -> None:
        """Take no more messages, and end when those in hand are settled. May be called again."""
        self._stopping.set()

    def abort(self) -> None:
        """Stop, and do not wait for runs: cancel them and give their messages back."""
        self._aborting.set()
        self._stopping.set()

    def _hear(self, event: Event) -> None:
        if isinstance(event, Connected):  # anew: the first time is not told
            self._duplicates_until = asyncio.get_running_loop().time() + DUPLICATES_EXPECTED_S

    def in_hand(self) -> Claims:
        """The tokens that this processor has, and how far each has come."""
        return {
            loop: max(token.progress for token in lane.tokens) for loop, lane in self._lanes.items()
        }

    def running(self) -> Claims:
        """Those of them whose run has begun, and is not settled."""
        lanes = self._lanes.items()
        return {loop: lane.running.progress for loop, lane in lanes if lane.running is not None}

    def refused(self) -> Collection[LoopId]:
        """The loops whose slot takes no token from us, though none waits there."""
        return [loop for loop, lane in self._lanes.items() if lane.refused]

    def settled(self) -> Settled:
        """The last token that it has put for each loop: its generation, and how far it had come."""
        return self._settled

    async def _consume(self, task: TaskSpec) -> Consumer:
        queue = self._app.names.processor_queue(task.name)

        def handle(delivery: Delivery) -> None:
            handler = asyncio.create_task(self._handle(delivery, task), name=f"handle {queue}")
            self._handling.add(handler)
            handler.add_done_callback(self._handling.discard)

        prefetch = min(task.concurrency, self._concurrency)
        try:
            return await self._broker.consume(queue, handle, prefetch=prefetch)
        except QueueNotFound:
            raise QueueNotFound(
                f"The task {task.name!r} has no queue in {self._broker.address} yet. "
                "Nothing was started; run `scheduler seed` once, then this again."
            ) from None

    async def _shut_down(self) -> None:
        """Stop consuming; let runs finish; cancel the others; wait until all are given back."""
        # A broker that is blocked by an alarm does not answer; closing the connection does it too.
        cancelling = [asyncio.ensure_future(each.cancel()) for each in self._consumers]
        if cancelling:
            await asyncio.wait(cancelling, timeout=LAST_WORDS.total_seconds())
        self._deaf.set()
        if self._handling:
            self._emit(ProcessorStopping(len(self._executing), self._grace))
            for _ in self._handling:
                self._free.release()  # what waits for its turn is given back at once
            await self._drain()
        self._emit(ProcessorStopped(self._returned))

    async def _drain(self) -> None:
        aborting = asyncio.create_task(self._aborting.wait())
        drained = asyncio.create_task(self._all_handled())
        await asyncio.wait(
            [aborting, drained],
            timeout=self._grace.total_seconds(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        self._aborting.set()
        for execution in self._executing:
            execution.task.cancel()
        # A task that swallows its cancellation may never end: the broker gives its message to
        # somebody else when the connection is closed.
        await asyncio.wait([aborting, drained], timeout=LAST_WORDS.total_seconds())
        drained.cancel()

    async def _all_handled(self) -> None:
        while self._handling:
            await asyncio.wait(self._handling)

    async def _handle(self, delivery: Delivery, task: TaskSpec) -> None:
        try:
            await self._process(delivery, task)
        except DeliveryLost:
            pass  # somebody else has it already
        except BrokerError:
            # Unacked, the message goes back to its queue.
            await self._give_back(delivery)
        except Exception:
            logging.getLogger(__name__).exception("A message of %s is given back", task.name)
            await self._pause(delivery, LAST_PAUSE.total_seconds())
            await self._give_back(delivery)

    async def _process(self, delivery: Delivery, task: TaskSpec) -> None:
        try:
            await self._take(self._resolve(delivery, task))
        except BrokerError:
            raise
        except Undecodable as error:
            await self._park(delivery, task, Reason.UNDECODABLE, error)
        except InvalidArguments as error:
            await self._suspend(delivery, error)
            await self._park(delivery, task, Reason.INVALID_ARGUMENTS, error)
        except Exception as error:
            await self._park(delivery, task, Reason.BROKEN, error)

    async def _take(self, run: Run) -> None:
        if isinstance(run.subject, Call):
            async with self._turn(run):
                if not await self._declined(run.delivery):
                    await self._run_call(run, run.subject)
        else:
            async with self._lane(run.subject) as waited:
                if not await self._came_before(run, run.subject, doubtful=waited):
                    await self._take_turn(run, run.subject)

    async def _take_turn(self, run: Run, token: Token) -> None:
        async with self._turn(run):
            if await self._declined(run.delivery):
                return
            if token.due_at - self._clock.now() > TOO_EARLY and not token.triggered:
                # Its wait was longer than the broker takes: on to the rest of it.
                await self._insist(run.delivery, lambda: self._put(run, token))
                await run.delivery.ack()
            else:
                await self._run_token(run, token)

    @asynccontextmanager
    async def _turn(self, run: Run) -> AsyncGenerator[None]:
        """Wait until the task's rate and the processor's concurrency let the run start."""
        if (pacer := self._pacers.get(run.task.name)) is not None:
            await self._pause(run.delivery, pacer.turn())
        # Supervision does not wait for the runs that it supervises.
        async with nullcontext() if run.task.builtin else self._free:
            yield

    async def _declined(self, delivery: Delivery) -> bool:
        """Whether a message is not ours to run any more; if we are stopping, it is given back."""
        if self._stopping.is_set() and not delivery.lost.done():
            # Given back while we still consume from its queue, it would come straight back to us.
            await self._deaf.wait()
            await self._give_back(delivery)
            return True
        return delivery.lost.done()

    @asynccontextmanager
    async def _lane(self, token: Token) -> AsyncGenerator[bool]:
        """One token of a loop at a time; says whether there was another before this one.

        There should be no other, but after a reconnect a token can come back while its cancelled
        run is still cleaning up, and duplicates come together here.
        """
        lane = self._lanes.setdefault(token.loop, Lane())
        lane.tokens.append(token)
        waited = lane.lock.locked()
        try:
            async with lane.lock:
                yield waited
        finally:
            lane.tokens.remove(token)
            if not lane.tokens:
                del self._lanes[token.loop]

    async def _came_before(self, run: Run, token: Token, *, doubtful: bool) -> bool:
        """Whether the token's successor exists; then it is acked."""
        if not await self._was_settled(run, token, doubtful=doubtful or run.delivery.redelivered):
            return False
        self._emit(TokenSuperseded(*run.about))
        await run.delivery.ack()
        return True

    def _resolve(self, delivery: Delivery, task: TaskSpec) -> Run:
        message, now = delivery.message, self._clock.now()
        if is_call(message) or (task.reads is not None and not is_token(message)):
            call = decode_call(
                message,
                self._app.namespace,
                task.name,
                exchange=delivery.exchange,
                routing_key=delivery.routing_key,
            )
            held_back = self._held_back.get((task.name, call.id), 0)
            call = replace(call, attempt=max(call.attempt, held_back))
            arguments = self._arguments_of(call, task)
            return Run(delivery, task, call, arguments, call.due_at or now, received_at=now)
        token = decode(message, self._app.namespace)
        if token.loop.task != task.name:
            raise Undecodable(f"The token is one of {token.loop}, and came to {task.name!r}.")
        arguments = self._arguments_of_loop(token, task)
        return Run(delivery, task, token, arguments, token.scheduled_at, received_at=now)

    def _arguments_of_loop(self, token: Token, task: TaskSpec) -> Mapping[str, Any]:
        try:
            return task.arguments.load(token.args)
        except InvalidArguments:
            if token.loop not in self._app.loops:
                raise
            # The token was seeded by another version of the code: each version has its own.
            return task.arguments.load(self._app.loops[token.loop].args)

    def _arguments_of(self, call: Call, task: TaskSpec) -> Mapping[str, Any]:
        if call.args is not None:
            return task.arguments.load(call.args)
        assert task.reads is not None
        return task.reads.read(call.message)

    async def _was_settled(self, run: Run, token: Token, *, doubtful: bool) -> bool:
        if token.state is State.REPLAY:
            return False
        if doubtful:
            return await self._is_superseded(run, token)
        recently_away = asyncio.get_running_loop().time() < self._duplicates_until
        return recently_away and await self._has_successor(token)

    async def _is_superseded(self, run: Run, token: Token) -> bool:
        """Whether its successor exists: put by us, in the slot, in the queue, or by others."""
        if await self._has_successor(token):
            return True
        with suppress(QueueNotFound):
            if superseded(token, await self._next_ready(run)):
                return True
        if any(superseded(token, other) for other in self._lanes[token.loop].tokens):
            return True
        return await self._is_settled_elsewhere(run, token)

    async def _has_successor(self, token: Token) -> bool:
        """Whether its successor was put by us, or waits in the slot."""
        generation, progress = self._settled.get(token.loop, ("", token.progress))
        if generation == token.generation and progress > token.progress:
            return True
        try:
            occupant = await self._hatchery.look(token.loop)
        except QueueNotFound:
            return False
        self._lanes[token.loop].occupied = occupant is not None
        return superseded(token, occupant)

    async def _is_settled_elsewhere(self, run: Run, token: Token) -> bool:
        """Whether another processor has put its successor, as far as they answer in time.

        One that has the loop in hand before us is waited for: a node of a cluster that stood still
        takes a token back from a processor whose connection goes on, and does not tell it. And a
        token may come back together with a successor that was never confirmed.
        """
        if self._roll_call is None or token.loop == SUPERVISION:
            return False
        me, time = self._roll_call.processor, asyncio.get_running_loop().time
        longest = run.task.timeout.total_seconds()
        patience, pause, seen = time() + longest, FIRST_PAUSE, False
        while time() < patience and not run.delivery.lost.done() and not self.stopping:
            answers = await self._roll_call.ask_all([token.loop])
            holders = answers.holders.get(token.loop, ())
            others = [holder for holder in holders if holder.processor != me]
            settled = answers.settled.get((token.loop, token.generation), token.progress)
            if max([settled, *(other.progress for other in others)]) > token.progress:
                return True
            after = any(
                other.running or (other.progress, other.processor) < (token.progress, me)
                for other in others
            )
            if not after and (answers.complete or not seen):
                break
            seen = seen or after
            if any(other.running for other in others):
                patience = time() + longest  # a run may be given more time
            await self._pause(run.delivery, pause.total_seconds())
            pause = min(pause * 2, SECOND)
        # Whoever ran it may have settled it, and be gone.
        return seen and await self._has_successor(token)

    async def _next_ready(self, run: Run) -> Token | None:
        """The token behind this one in its queue, if it is of the same loop."""
        delivery = await self._broker.get(run.delivery.queue)
        if delivery is None:
            return None
        try:
            token = decode(delivery.message, self._app.namespace)
        except MessageError:
            return None  # whoever takes it will park it
        finally:
            await delivery.requeue()
        return token if token.loop == run.loop else None

    async def _run_token(self, run: Run, token: Token) -> None:
        lane = self._lanes[token.loop]
        lane.running = token
        try:
            await self._run_and_settle(run, token)
        finally:
            lane.running, lane.refused = None, False

    async def _run_and_settle(self, run: Run, token: Token) -> None:
        started_at = self._clock.now()
        run, outcome = self._admit(run, token, started_at)
        if outcome is None:
            outcome = await self._execute(run, token.due_at, started_at)
        finished = Finished(token, run.tick, started_at, self._clock.now(), outcome)
        settlement = settle(finished, run.task.policy, chance=random.random)
        await self._perform(run, self._told(run, started_at, outcome, settlement))

    async def _run_call(self, run: Run, call: Call) -> None:
        started_at = self._clock.now()
        if call.expires_at is not None and started_at > call.expires_at:
            age = (started_at - call.expires_at).total_seconds()
            outcome: Outcome = Skipped(f"it expired {age:.1f} s ago")
        else:
            outcome = await self._execute(run, run.tick, started_at)
        settlement = settle_call(call.attempt, outcome, run.task.policy, chance=random.random)
        await self._perform(run, self._told(run, started_at, outcome, settlement))

    def _admit(self, run: Run, token: Token, now: datetime) -> tuple[Run, Skipped | None]:
        if token.attempt or token.state is State.REPLAY:
            return run, None
        if token.triggered:
            return replace(run, tick=token.due_at), None
        admission = admit(token.schedule, token.scheduled_at, now)
        if admission.missed:
            self._emit(TicksSkipped(*run.about, admission.missed, "late"))
        run = replace(run, tick=admission.tick)
        late = now - admission.tick
        return run, None if admission.run else Skipped(f"late by {late.total_seconds():.3f} s")

    async def _execute(self, run: Run, due_at: datetime, started_at: datetime) -> Outcome:
        self._emit(
            RunStarted(
                *run.about,
                scheduled_at=run.tick,
                due_at=due_at,
                started_at=started_at,
                redelivered=run.delivery.redelivered,
                hatch_delay=run.hatch_delay,
                ready_delay=run.ready_delay,
                start_delay=started_at - run.received_at,
                headers=run.delivery.message.headers,
            )
        )
        execution = Execution(run, self._clock, started_at)
        self._executing.add(execution)
        try:
            await execution.ended()
        finally:
            self._executing.discard(execution)
        return execution.outcome(interrupted=self._aborting.is_set())

    def _told(
        self, run: Run, started_at: datetime, outcome: Outcome, settlement: Settlement
    ) -> Settlement:
        """The settlement of a run, after the listeners have heard how it ended."""
        if settlement.ending is None:
            return settlement
        finished = RunFinished(
            *run.about,
            scheduled_at=run.tick,
            started_at=started_at,
            duration=duration(started_at, self._clock.now()),
            ending=settlement.ending,
            error=outcome.error if isinstance(outcome, Raised) else None,
            successor=settlement.put,
            retry_in=settlement.retry_in,
            skipped=outcome.reason if isinstance(outcome, Skipped) else None,
        )
        self._emit(finished)
        if settlement.missed:
            self._emit(TicksSkipped(*run.about, settlement.missed, "overrun"))
        if settlement.put is None:
            return settlement
        return replace(settlement, put=replace(settlement.put, trace=finished.trace))

    async def _perform(self, run: Run, settlement: Settlement) -> None:
        """Publish what the settlement asks for, confirmed; then dispose of the delivery."""
        disposition = settlement.disposition
        if (parking := settlement.park) is not None:
            await self._insist(run.delivery, lambda: self._escalate(run, parking))
            await self._tell_of_escalation(run, settlement, parking)
        if (successor := settlement.put) is not None:
            await self._insist(run.delivery, lambda: self._put(run, successor))
            self._emit(SuccessorConfirmed(*run.about))
        if (delay := settlement.retry_in) is not None:
            disposition = await self._try_again(run, settlement, delay)
        match disposition:
            case Disposition.ACK:
                await run.delivery.ack()
                self._held_back.pop((run.task.name, run.about[-1]), None)
                self._emit(RunSettled(*run.about))
            case Disposition.REQUEUE:
                if settlement.disposition is Disposition.REQUEUE:
                    self._emit(RunReturned(*run.about))
                await self._give_back(run.delivery)
            case Disposition.NOTHING:
                self._emit(RunLost(*run.about))

    async def _try_again(self, run: Run, settlement: Settlement, delay: timedelta) -> Disposition:
        """Send the call through the delay ladder; one of an ordered task waits in its place.

        A message of somebody else may have so many headers that those of a retry find no room. To
        run the task on less than was sent is not for us to decide, so it is parked at once.
        """
        call = run.subject
        assert isinstance(call, Call)
        if run.task.ordered:
            self._held_back[run.task.name, call.id] = call.attempt + 1
            await self._pause(run.delivery, delay.total_seconds())
            return Disposition.REQUEUE
        outbox = self._app.outbox
        try:
            await self._insist(run.delivery, lambda: outbox.send_again(self._broker, call, delay))
        except TooLarge:
            assert (parking := settlement.otherwise) is not None
            await self._insist(run.delivery, lambda: self._escalate(run, parking))
            given_up = replace(settlement, ending=Ending.ESCALATED)
            await self._tell_of_escalation(run, given_up, parking)
            return Disposition.ACK
        self._emit(SuccessorConfirmed(*run.about))
        return Disposition.ACK

    async def _tell_of_escalation(self, run: Run, settlement: Settlement, parking: Parking) -> None:
        if settlement.ending is not Ending.ESCALATED:
            return
        paused = settlement.put is not None and settlement.put.state is State.PAUSED
        event = Escalated(*run.about, error=parking.error, paused=paused)
        self._emit(event)
        current_run.set(run.name)  # for what the hooks log
        for hook in self._app.escalation_hooks:
            try:
                async with asyncio.timeout(HOOK_TIMEOUT.total_seconds()):
                    if (awaitable := hook(event)) is not None:
                        await awaitable
            except (Exception, asyncio.CancelledError):
                # Nobody cancels a settlement: it was the hook itself.
                logging.getLogger(__name__).exception("The escalation hook %r failed", hook)

    async def _put(self, run: Run, successor: Token) -> None:
        lane = self._lanes[successor.loop]
        try:
            winner = await self._hatchery.put(successor, occupied=lane.occupied)
        except Rejected:
            lane.refused = True
            raise
        lane.refused = lane.occupied = False
        # Its ack may get lost with the broker, and the successor be where nobody can look then.
        self._settled[successor.loop] = successor.generation, successor.progress
        if winner is not successor:
            self._emit(TokenMerged(*run.about, winner=winner))

    async def _escalate(self, run: Run, parking: Parking) -> None:
        if parking.token is not None:
            message = encode(parking.token, self._app.namespace, expiration=None)
        else:
            assert isinstance(call := run.subject, Call)
            message = spent(call, failed_at=self._clock.now())
            if parking.reason == "expired":  # this was no attempt
                message = placed(call.message, call.exchange, call.routing_key)
        reason, key = Reason(parking.reason), self._parking_key(run.delivery, run.task)
        await self._failed.park(message, key, reason, parking.error)
        self._emit_parked(message, key, reason, parking.error)

    def _parking_key(self, delivery: Delivery, task: TaskSpec) -> str:
        # The failed exchange knows our keys, not those of somebody else's exchange.
        ours = delivery.routing_key.startswith("loop.") and task.reads is None
        return delivery.routing_key if ours else task_key(task.name)

    async def _suspend(self, delivery: Delivery, error: InvalidArguments) -> None:
        """Pause the loop whose token does not fit its task: the next one would not either."""
        if not is_token(delivery.message):
            return
        token = decode(delivery.message, self._app.namespace)
        if token.state is not State.REPLAY:
            act = Act(Verb.PAUSED, self._clock.now())
            paused = replace(token, state=State.PAUSED, reason=one_line(str(error)), act=act)

            async def put() -> None:
                await self._hatchery.put(paused)

            await self._insist(delivery, put)

    async def _park(
        self, delivery: Delivery, task: TaskSpec, reason: Reason, error: Exception
    ) -> None:
        key, message = self._parking_key(delivery, task), delivery.message
        if task.reads is not None:
            message = placed(message, delivery.exchange, delivery.routing_key)
        await self._insist(delivery, lambda: self._failed.park(message, key, reason, error))
        self._emit_parked(message, key, reason, error)
        await delivery.ack()

    def _emit_parked(
        self, message: Message, routing_key: str, reason: Reason, error: Exception
    ) -> None:
        self._emit(MessageParked(routing_key, message.message_id, reason.value, summary_of(error)))

    async def _insist(self, delivery: Delivery, publish: Callable[[], Awaitable[None]]) -> None:
        """Publish until it is confirmed, for as long as the delivery is ours.

        Raises:
            DeliveryLost: the broker has given the message to somebody else.
            BrokerError: not confirmed yet, and told to stop waiting.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._confirmed(delivery, asyncio.ensure_future(publish()))
            except DeliveryLost:
                raise
            except BrokerError as error:
                if delivery.lost.done():
                    raise DeliveryLost from None
                if self._aborting.is_set():
                    raise
                self._emit(SettlementDelayed(delivery.routing_key, str(error), pause))
            await asyncio.wait([delivery.lost], timeout=pause.total_seconds())
            pause = min(pause * 2, LAST_PAUSE)

    async def _confirmed(self, delivery: Delivery, sending: asyncio.Future[None]) -> None:
        """Wait as long as it takes: what is published twice may be taken twice."""
        watched = [sending, delivery.lost, self._aborted]
        while not sending.done():
            await asyncio.wait(
                watched, timeout=BLOCKED.total_seconds(), return_when=asyncio.FIRST_COMPLETED
            )
            if not sending.done():
                if delivery.lost.done() or self._aborting.is_set():
                    sending.cancel()
                    await asyncio.wait([sending])
                    raise DeliveryLost
                self._emit(SettlementDelayed(delivery.routing_key, SILENCE, BLOCKED))
        return sending.result()

    async def _pause(self, delivery: Delivery, seconds: float) -> None:
        """Wait so long, or until the delivery is lost or the processor stops."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait(
            [delivery.lost, stopping], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        stopping.cancel()

    async def _give_back(self, delivery: Delivery) -> None:
        with suppress(DeliveryLost):
            await delivery.requeue()
            self._returned += self._stopping.is_set()  # an ordered retry goes back as well

    def _started(self) -> ProcessorStarted:
        return ProcessorStarted(
            self._app.namespace,
            self._broker.address,
            tuple(task.name for task in self._tasks if not task.builtin),
            self._concurrency,
        )
