"""One run of a task: what it has in hand, and its execution, within its timeout."""

import asyncio
import concurrent.futures.thread
import functools
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, NamedTuple, cast

from scheduler.brokers.contract import Delivery
from scheduler.middleware import Around, surrounded
from scheduler.processor import processes as processor_processes
from scheduler.processor import threads as processor_threads
from scheduler.processor.child import checked_progress, refuse_to_carry
from scheduler.processor.lifespan import Lifespan
from scheduler.processor.processes import Child
from scheduler.processor.settlement import (
    Broken,
    Cancelled,
    Outcome,
    Raised,
    Returned,
    RunCancelled,
)
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.threads import Threads
from scheduler.protocol.calls import Call
from scheduler.protocol.messages import flat, hatched_at, lead_of
from scheduler.protocol.tokens import LoopId, Token
from scheduler.protocol.topology import is_rerouted
from scheduler.queues.failed import replayed_at
from scheduler.queues.heads import Head
from scheduler.queues.running import Demand
from scheduler.tasks.context import Context, Progress, current_run
from scheduler.tasks.outcomes import NamedOutcome
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.clock import Clock
from scheduler.user_code import UserCode

NO_TIME = timedelta(0)
OURS = (
    __file__,
    processor_threads.__file__,
    processor_processes.__file__,
    concurrent.futures.thread.__file__,
)
NOT_YET = datetime.max.replace(tzinfo=UTC)


class Run(NamedTuple):
    """A delivery on its way through a processor: each step adds what it found.

    Attributes:
        tick: the nominal time that it stands for.
        head: what became of its message before.
        received_at: when this processor got it.
        started_at: when it was its turn.
    """

    delivery: Delivery
    task: TaskSpec
    subject: Token | Call
    arguments: Mapping[str, Any]
    tick: datetime
    received_at: datetime
    head: Head = Head()
    started_at: datetime = NOT_YET
    ended_at: datetime = NOT_YET
    outcome: Outcome | None = None

    @property
    def loop(self) -> LoopId:
        """The loop; for a call, its task."""
        return self.subject.loop if isinstance(self.subject, Token) else LoopId(self.task.name)

    @property
    def attempt(self) -> int:
        """Which attempt it is, counted from 1."""
        return self.subject.attempt + 1

    @property
    def about(self) -> tuple[LoopId, int | None, int, str]:
        """What events say of it: loop, seq (None for a call), attempt, message id."""
        seq = self.subject.seq if isinstance(self.subject, Token) else None
        return self.loop, seq, self.attempt, self.delivery.message.message_id or ""

    @property
    def id(self) -> str:
        """What somebody names it by who has it cancelled; empty: its message has no id."""
        loop, seq, _, message_id = self.about
        return flat(message_id) if seq is None else f"{loop}#{seq}"

    @property
    def name(self) -> tuple[str, int | str]:
        """Loop and seq, or task and message id: what log lines name it by."""
        loop, seq, _, message_id = self.about
        return str(loop), message_id if seq is None else seq

    @property
    def may_begin_at(self) -> datetime:
        """Return when its wait is over, by the clock of this processor.

        A call that came before it was sent has a sender whose clock is ahead: then the wait in the
        broker counts, but for the lead.
        """
        subject, received_at = self.subject, self.received_at
        if isinstance(subject, Token):
            return subject.due_at
        if subject.not_before is not None:
            return subject.not_before
        if subject.due_at is None:
            return received_at
        if subject.sent_at is not None and received_at < subject.sent_at and not self.is_rerouted:
            return min(subject.due_at, received_at + lead_of(self.delivery.message.headers))
        return subject.due_at

    @property
    def is_rerouted(self) -> bool:
        """Return whether its timers had no queue for it, and it has not waited."""
        return is_rerouted(self.delivery.exchange)

    @property
    def hatch_delay(self) -> timedelta | None:
        """How late the broker handed it on, at least; None where it does not tell."""
        hatched, due_at = hatched_at(self.delivery.message), self.subject.due_at
        return None if hatched is None or due_at is None else max(hatched - due_at, NO_TIME)

    @property
    def ready_delay(self) -> timedelta | None:
        """How long it was ready before this processor got it; None where nobody can tell."""
        message = self.delivery.message
        ready_at = (self.subject.due_at, hatched_at(message), replayed_at(message))
        known = [moment for moment in ready_at if moment is not None]
        if not known or self.delivery.redelivered:  # somebody else had it meanwhile
            return None
        return max(self.received_at - max(known), NO_TIME)

    @property
    def start_delay(self) -> timedelta:
        """How long this processor had it, when it was due, before its run began."""
        due_at = self.subject.due_at
        since = self.received_at if due_at is None else max(self.received_at, due_at)
        return max(self.started_at - since, NO_TIME)


class Execution:
    """The task of a run, going on: cancelled when the delivery is lost, or on demand.

    Made in the asyncio task that settles it afterwards.

    Args:
        state: what the runs of the processor share.

    Attributes:
        handling: ends when it is settled.
        demand: that it is to end, and who has asked for that; None: nobody has.
        progress: what it has told of it last.
        thread: where its function is going on, if that blocks: a `threading.get_ident()`.
    """

    def __init__(
        self, run: Run, clock: Clock, state: Any, around: Sequence[Around], threads: Threads
    ) -> None:
        self.run = run
        self.id = run.id or uuid.uuid4().hex
        self.handling = asyncio.current_task()
        self.deadline = run.started_at + run.task.timeout
        self.demand: Demand | None = None
        self.progress: Progress | None = None
        self.thread: int | None = None
        self.child: Child | None = None
        self._clock = clock
        self._state = state
        self._around = around
        self._threads = threads
        self._thread: asyncio.Future[Any] | None = None
        subject = run.subject
        self._handed_on = subject.carry if isinstance(subject, Token) else None
        self._name = run.name
        self.task = asyncio.create_task(self._call(), name="run {} #{}".format(*self._name))

    async def ended(self) -> None:
        """Wait until it has ended, in whatever way."""
        lost = self.run.delivery.lost

        def cancel(_: object) -> None:
            self.task.cancel()

        lost.add_done_callback(cancel)
        try:
            await self.task
        except BaseException:  # what it raised is its outcome
            if not self.task.done():
                raise
        finally:
            lost.remove_done_callback(cancel)

    def cancel(self, demand: Demand) -> bool:
        """Have it end, as somebody asks for it; says whether it was going on."""
        # Whoever catches it, in the task, is told by whom.
        going_on = self.task.cancel(_cancelled(demand).reason)
        if going_on:
            self.demand = demand
        return going_on

    def outcome(self, *, interrupted: bool) -> Outcome:
        """How it ended; it may have been interrupted as the processor stops."""
        error = None if self.task.cancelled() else cast("Exception | None", self.task.exception())
        if self._thread is not None and not self._thread.done():
            return Broken.LEFT_BEHIND
        if self.run.delivery.lost.done():
            return Broken.LOST
        if self.demand is not None and _gave_in(self.task.cancelled(), error):
            return Cancelled(_cancelled(self.demand), self.demand.escalate)
        if self.task.cancelled():
            cause = RuntimeError("the task was cancelled from within")
            return Broken.INTERRUPTED if interrupted else Raised(cause)
        if error is None:
            return Returned(self._handed_on)
        return Raised(error.with_traceback(_below_ours(error.__traceback__)))

    async def _call(self) -> None:
        task = self.run.task
        current_run.set(self._name)
        deadline = asyncio.timeout(task.timeout.total_seconds())
        context = self._context(deadline)
        try:
            async with deadline:
                with UserCode("the task"):
                    await surrounded(self._around, context, self._work(context))()
        except TimeoutError:
            if not deadline.expired():
                raise
            allowed = (context.deadline - self.run.started_at).total_seconds()
            raise TimeoutError(f"it ran longer than its timeout of {allowed:g} s") from None

    def _work(self, context: Context[Any]) -> Callable[[], Awaitable[Any]]:
        task = self.run.task
        if task.executor == "process":
            self.child = Child(task, context, carries=isinstance(self.run.subject, Token))
            return functools.partial(self._in_process, self.child)
        given = {task.arguments.context: context} if task.arguments.context else {}
        work = functools.partial(task.function, **given, **self.run.arguments)
        return functools.partial(self._in_thread, work) if task.blocks else work

    async def _in_process(self, child: Child) -> Any:
        starting = self._threads.begin(child.start, starts=True)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # It is not waited for: its function does not begin, whenever it has started.
            child.kill()
            starting.add_done_callback(lambda _: child.close())
            raise
        return await self._in_thread(child.run, stop=child.kill)

    async def _in_thread(
        self, work: Callable[[], Any], stop: Callable[[], None] | None = None
    ) -> Any:
        def noted() -> Any:
            self.thread = threading.get_ident()
            try:
                return work()
            finally:
                self.thread = None

        self._thread = self._threads.begin(noted)
        return await self._threads.result_of(self._thread, stop=stop)

    def _extend(self, deadline: asyncio.Timeout, span: timedelta) -> datetime:
        loop = self.task.get_loop()

        def extend() -> datetime:
            deadline.reschedule(loop.time() + span.total_seconds())
            self.deadline = self._clock.now() + span
            return self.deadline

        async def extend_from_thread() -> datetime:
            return extend()

        if not self.run.task.blocks:
            return extend()
        return asyncio.run_coroutine_threadsafe(extend_from_thread(), loop).result()

    def _context(self, deadline: asyncio.Timeout) -> Context[Any]:
        run, subject = self.run, self.run.subject
        token = subject if isinstance(subject, Token) else None
        return Context(
            task=run.task.name,
            arguments=run.arguments,
            loop=str(run.loop),
            key=run.loop.key,
            seq=token.seq if token else 0,
            scheduled_at=run.tick,
            previous_at=token.previous_at if token else None,
            started_at=run.started_at,
            attempt=run.attempt,
            redelivered=run.delivery.redelivered,
            deadline=self.deadline,
            carried=self._handed_on,
            message=run.delivery.message if isinstance(subject, Token) else subject.message,
            routing_key=run.delivery.routing_key if token else _original_key(subject),
            state=self._state,
            _extend=functools.partial(self._extend, deadline),
            _hand_on=self._hand_on if token else refuse_to_carry,
            _note_progress=self._note_progress,
        )

    def _hand_on(self, value: Any) -> None:
        self._handed_on = value

    def _note_progress(self, fraction: float, text: str) -> None:
        self.progress = checked_progress(fraction, text)


class Executions:
    """The runs of a processor that go on now, and the room that there is for more.

    Args:
        concurrency: how many may go on at once, over all tasks.
    """

    def __init__(
        self,
        clock: Clock,
        shutdown: Shutdown,
        lifespan: Lifespan,
        around: Sequence[Around],
        threads: Threads,
        concurrency: int,
    ) -> None:
        self._clock = clock
        self._shutdown = shutdown
        self._lifespan = lifespan
        self._around = around
        self._threads = threads
        self._free = asyncio.Semaphore(concurrency)
        self._free_threads = asyncio.Semaphore(threads.size)
        self._rooms: dict[str, Sequence[asyncio.Semaphore]] = {}
        self._going: set[Execution] = set()

    def __len__(self) -> int:
        return len(self._going)

    def __iter__(self) -> Iterator[Execution]:
        return iter(tuple(self._going))

    async def take_room(self, task: TaskSpec, held: ExitStack) -> None:
        """Wait until there is room for a run of a task, and hold it."""
        if task.builtin:  # supervision does not wait for the runs that it supervises
            return
        if (rooms := self._rooms.get(task.name)) is None:
            # Its messages may come from several queues, or from one that is opened again after a
            # pause, each as if it were the only one.
            of_task = asyncio.Semaphore(task.concurrency)
            rooms = (
                (of_task, self._free_threads, self._free) if task.blocks else (of_task, self._free)
            )
            self._rooms[task.name] = rooms
        for room in rooms:
            await room.acquire()
            held.callback(room.release)

    def let_through(self, waiting: int) -> None:
        """Have as many as may be waiting go on, to find that the processor stops."""
        for room in {room for rooms in self._rooms.values() for room in rooms}:
            for _ in range(waiting):
                room.release()

    async def outcome_of(self, run: Run) -> Outcome:
        """Run a task to its end."""
        around = () if run.task.builtin else self._around
        execution = Execution(run, self._clock, self._lifespan.state, around, self._threads)
        self._going.add(execution)
        try:
            await execution.ended()
        finally:
            self._going.discard(execution)
        return execution.outcome(interrupted=self._shutdown.aborting)

    def cancel(self) -> None:
        """Cancel all tasks that run now."""
        for execution in self._going:
            execution.task.cancel()


def _cancelled(demand: Demand) -> RunCancelled:
    return RunCancelled(f"cancelled by {demand.by}")


def _gave_in(cancelled: bool, error: BaseException | None) -> bool:
    """Whether a task that was cancelled has not ended in a way that it has chosen itself."""
    return cancelled or (error is not None and not isinstance(error, NamedOutcome))


def _below_ours(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback that begins in the task, or in what stands around it."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in OURS:
        traceback = traceback.tb_next
    return traceback


def _original_key(subject: Token | Call) -> str:
    return subject.routing_key if isinstance(subject, Call) else ""
