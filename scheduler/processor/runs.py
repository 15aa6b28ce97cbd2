"""Execute one run of a task, within its timeout, and track its resources."""

import asyncio
import concurrent.futures.thread
import functools
import math
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, cast

from scheduler.brokers.contract import Delivery
from scheduler.middleware import Around, Lifespan, surrounded
from scheduler.processor import processes as processor_processes
from scheduler.processor import threads as processor_threads
from scheduler.processor.child import refuse_to_carry
from scheduler.processor.processes import Child
from scheduler.processor.settlement import (
    Broken,
    Cancelled,
    Finished,
    Outcome,
    Raised,
    Returned,
    RunCancelled,
    Settlement,
    settle,
    settle_call,
)
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.threads import Threads, unless_coroutine
from scheduler.protocol.calls import Call
from scheduler.protocol.messages import (
    REPLAYED_AT,
    compact_json,
    flat,
    hatched_at,
    lead_of,
    moment_in,
    parsed_json,
    summary_of,
    unshared,
)
from scheduler.protocol.tokens import LoopId, Token
from scheduler.protocol.topology import is_rerouted
from scheduler.queues.heads import Head
from scheduler.queues.running import Demand
from scheduler.tasks.context import Context, Progress, current_run
from scheduler.tasks.retries import NamedOutcome
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.moments import Clock
from scheduler.timing.pacing import Pacer, dice
from scheduler.user_code import UserCode, log_of

NO_TIME = timedelta(0)
ENDS_WITHIN_S = 5.0  # a cancelled coroutine; the cleanup of most is shorter
OURS = (
    __file__,
    processor_threads.__file__,
    processor_processes.__file__,
    concurrent.futures.thread.__file__,
)
Held = list[Callable[[], None]]
"""The resources of a delivery: the release of each, in the order of acquisition."""
NOT_YET = datetime.max.replace(tzinfo=UTC)


@dataclass(slots=True, eq=False)
class Run:
    """Describe a delivery on its way through a processor: each step adds its results.

    Attributes:
        tick: the nominal time that it stands for.
        head: the earlier progress of its message.
        received_at: when this processor got it.
        started_at: when its turn came.
        settlement: what is done to its message, once its successors are confirmed.
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
    settlement: Settlement | None = None

    @property
    def about(self) -> tuple[LoopId, int | None, int, str]:
        """Return its fields for events: loop, seq (None for a call), attempt from 1, message ID."""
        subject, message_id = self.subject, self.delivery.message.message_id or ""
        if isinstance(subject, Token):
            return subject.loop, subject.seq, subject.attempt + 1, message_id
        return LoopId(self.task.name), None, subject.attempt + 1, message_id

    @property
    def name(self) -> tuple[str, int | str]:
        """Return its name for log lines: loop and seq, or task and message ID."""
        if isinstance(subject := self.subject, Token):
            return str(subject.loop), subject.seq
        return self.task.name, self.delivery.message.message_id or ""

    @property
    def may_begin_at(self) -> datetime:
        """Return when its wait is over, by the clock of this processor.

        A call that came before it was sent has a sender whose clock is ahead: then the wait in the
        broker counts, less the lead.
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
        """Return how late the broker delivered it, at least; None if unknown."""
        hatched, due_at = hatched_at(self.delivery.message), self.subject.due_at
        return None if hatched is None or due_at is None else max(hatched - due_at, NO_TIME)

    @property
    def ready_delay(self) -> timedelta | None:
        """Return how long it was ready before this processor got it; None if unknown."""
        message = self.delivery.message
        replayed_at = moment_in(message.headers, REPLAYED_AT)
        ready_at = (self.subject.due_at, hatched_at(message), replayed_at)
        known = [moment for moment in ready_at if moment is not None]
        if not known or self.delivery.redelivered:  # another processor had it in between
            return None
        return max(self.received_at - max(known), NO_TIME)

    @property
    def start_delay(self) -> timedelta:
        """Return how long a due message waited in this processor before its run began."""
        due_at = self.subject.due_at
        since = self.received_at if due_at is None else max(self.received_at, due_at)
        return max(self.started_at - since, NO_TIME)

    def decide(self) -> Settlement:
        """Decide what is done to its message.

        Replace an error whose class prevents that: it may lack an attribute, or raise in a method
        that it overrides.
        """
        try:
            with UserCode("its class"):
                return self._decision()
        except Exception as problem:
            if not isinstance(self.outcome, Raised):
                raise
            self.outcome = Raised(_unusable(self.outcome.error, problem))
            return self._decision()

    def _decision(self) -> Settlement:
        assert self.outcome is not None
        if isinstance(self.outcome, Raised):
            error = self.outcome.error
            error.with_traceback(_below_ours(error.__traceback__))
        policy, subject = self.task.policy, self.subject
        if isinstance(subject, Call):
            return settle_call(subject.attempt, self.outcome, policy, chance=dice.random)
        finished = Finished(subject, self.tick, self.started_at, self.ended_at, self.outcome)
        return settle(finished, policy, chance=dice.random)


class Execution:
    """Execute the task of a run, until its deadline, a lost delivery, or a request to cancel.

    Made in the asyncio task that settles it afterwards.

    Args:
        state: the shared state of the processor's runs.

    Attributes:
        handling: ends when it is settled.
        deadline: when it is cancelled for its timeout.
        overdue_at: the deadline by the event loop's time; infinite once cancelled for that.
        demand: the request to cancel it; None: none.
        progress: its last reported progress.
        thread: the thread of a blocking function: a `threading.get_ident()`.
    """

    def __init__(self, run: Run, runs: "Executions") -> None:
        self.run = run
        self.handling = asyncio.current_task(runs.loop)
        self.demand: Demand | None = None
        self.progress: Progress | None = None
        self.thread: int | None = None
        self.child: Child | None = None
        self._runs = runs
        self._thread: asyncio.Future[Any] | None = None
        self._name = name, mark = run.name
        self._handed_on = run.subject.carry if isinstance(run.subject, Token) else None
        self.deadline = run.started_at + run.task.timeout
        self.overdue_at = runs.loop.time() + run.task.timeout.total_seconds()
        self.task = runs.loop.create_task(self._call(), name=f"run {name} #{mark}")

    @functools.cached_property
    def id(self) -> str:
        """Return the ID used to cancel the run."""
        name, mark = self._name
        return f"{name}#{mark}" if isinstance(mark, int) else flat(mark) or uuid.uuid4().hex

    def stop(self, _: object = None) -> None:
        """Cancel its task."""
        self.task.cancel()

    def expire(self) -> None:
        """Cancel its task, once, as its time is over."""
        self.overdue_at = math.inf
        self.task.cancel()
        self._report_unless_ended()

    def cancel(self, demand: Demand) -> bool:
        """Cancel it on request; return whether it was running."""
        # A task that catches it can read who cancelled it.
        going_on = self.task.cancel(_cancelled(demand).reason)
        if going_on:
            self.demand = demand
            self._report_unless_ended()
        return going_on

    def _report_unless_ended(self) -> None:
        """Report later that it still runs, if it does; threads report that at once."""
        if not self.run.task.blocks:
            self._runs.loop.call_later(ENDS_WITHIN_S, self._report_going_on)

    def _report_going_on(self) -> None:
        if not self.task.done():
            log_of(__name__).warning(
                "%s timed out or was cancelled %g s ago, but ignores its cancellation; its message "
                "will be settled when it ends",
                self.task.get_name(),
                ENDS_WITHIN_S,
            )

    def outcome(self, *, interrupted: bool) -> Outcome:
        """Return how it ended; it may have been interrupted as the processor stops."""
        error = None if self.task.cancelled() else cast("Exception | None", self.task.exception())
        if self._thread is not None and not self._thread.done():
            return Broken.LEFT_BEHIND
        if self.run.delivery.lost.done():
            return Broken.LOST
        if self.demand is not None and _gave_in(self.task.cancelled(), error):
            return Cancelled(_cancelled(self.demand), self.demand.escalate)
        if interrupted and _gave_in(self.task.cancelled(), error):
            return Broken.INTERRUPTED
        if self.task.cancelled():
            return Raised(RuntimeError("the task was cancelled from within"))
        if error is None:
            return Returned(self._handed_on)
        return Raised(error)

    async def _call(self) -> None:
        current_run.set(self._name)
        context = self._context()
        work = self._work(context)
        if self._runs.around and not self.run.task.builtin:
            work = surrounded(self._runs.around, context, work)
        try:
            with UserCode("the task"):
                unless_coroutine(await work(), "it returned a coroutine, which never ran: await it")
        except asyncio.CancelledError:
            if self.overdue_at < math.inf:
                raise
            allowed = (self.deadline - self.run.started_at).total_seconds()
            raise TimeoutError(f"it ran longer than its timeout of {allowed:g} s") from None
        finally:
            if self._thread is not None:  # a function around the run may not have waited for it
                await self._runs.threads.outlast(self._thread)

    def _work(self, context: Context[Any]) -> Callable[[], Awaitable[Any]]:
        task = self.run.task
        if task.executor == "process":
            self.child = Child(task, context, carries=isinstance(self.run.subject, Token))
            return functools.partial(self._in_process, self.child)
        given = {task.arguments.context: context} if task.arguments.context else {}
        work = functools.partial(task.function, **given, **self.run.arguments)
        return functools.partial(self._in_thread, work) if task.blocks else work

    async def _in_process(self, child: Child) -> Any:
        starting = self._runs.threads.begin(child.start, starts=True)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Not waited for: its function does not begin, whenever it has started.
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

        self._thread = self._runs.threads.begin(noted)
        return await self._runs.threads.result_of(self._thread, stop=stop)

    def _extend(self, span: timedelta) -> datetime:
        def extend() -> datetime:
            if self.overdue_at == math.inf:
                raise RuntimeError("the run has timed out")
            self.deadline = self._runs.clock.now() + span
            self.overdue_at = self._runs.loop.time() + span.total_seconds()
            self._runs.watch(self.overdue_at)
            return self.deadline

        async def extend_from_thread() -> datetime:
            return extend()

        # Middleware of a `def` task calls it in the event loop; a coroutine may use threads.
        if _is_running_here(self._runs.loop):
            return extend()
        return asyncio.run_coroutine_threadsafe(extend_from_thread(), self._runs.loop).result()

    def _context(self) -> Context[Any]:
        run, subject = self.run, self.run.subject
        token, original = (subject, run.delivery) if isinstance(subject, Token) else (None, subject)
        message = original.message
        return Context(
            task=run.task.name,
            arguments=run.arguments,
            loop=self._name[0],
            key=token.loop.key if token else "",
            seq=token.seq if token else 0,
            scheduled_at=run.tick,
            previous_at=token.previous_at if token else None,
            started_at=run.started_at,
            attempt=subject.attempt + 1,
            redelivered=run.delivery.redelivered,
            deadline=self.deadline,
            # Copies, which the run may change.
            carried=parsed_json(compact_json(self._handed_on)),
            message=replace(message, headers=unshared(dict(message.headers))),
            routing_key=original.routing_key,
            state=self._runs.lifespan.state,
            _extend=self._extend,
            _hand_on=self._hand_on if token else refuse_to_carry,
            _note_progress=self._note_progress,
        )

    def _hand_on(self, value: Any) -> None:
        self._handed_on = value

    def _note_progress(self, progress: Progress) -> None:
        self.progress = progress


@dataclass(eq=False)
class Executions:
    """Track the current runs of a processor, and its free slots.

    Attributes:
        around: the middleware of each run, but those of the scheduler itself.
        concurrency: the maximum number of concurrent runs, over all tasks.
    """

    clock: Clock
    shutdown: Shutdown
    lifespan: Lifespan
    around: Sequence[Around]
    threads: Threads
    concurrency: int

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(self.concurrency)
        self._free_threads = asyncio.Semaphore(self.threads.size)
        self._rooms: dict[str, Sequence[asyncio.Semaphore]] = {}
        self._pacers: dict[str, Pacer] = {}
        self._going: set[Execution] = set()
        self._next_look: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._going)

    def __iter__(self) -> Iterator[Execution]:
        return iter(tuple(self._going))

    def pacer_of(self, task: TaskSpec) -> Pacer | None:
        """Return what gives the runs of a task their turns, by its rate; None: it has none."""
        if task.rate is None:
            return None
        if (pacer := self._pacers.get(task.name)) is None:
            pacer = self._pacers[task.name] = Pacer(task.rate)
        return pacer

    async def take_room(self, task: TaskSpec, held: Held) -> None:
        """Wait for a free slot for a run of a task, and hold it."""
        if task.builtin:  # supervision does not wait for the runs that it supervises
            return
        rooms = self._rooms_of(task)
        waits = any(room.locked() for room in rooms)
        for room in rooms:
            await room.acquire()
            held.append(room.release)
        if waits and (pacer := self.pacer_of(task)) is not None:
            pacer.begin()

    async def await_room(self, task: TaskSpec) -> bool:
        """Wait until there is a free slot, without holding it; return True."""
        for room in self._rooms_of(task):
            async with room:
                pass
        return True

    def _rooms_of(self, task: TaskSpec) -> Sequence[asyncio.Semaphore]:
        if (rooms := self._rooms.get(task.name)) is None:
            # Its messages may come from several queues, or from one that is opened again after a
            # pause, each as if it were the only one.
            of_task = asyncio.Semaphore(task.concurrency)
            rooms = (
                (of_task, self._free_threads, self._free) if task.blocks else (of_task, self._free)
            )
            self._rooms[task.name] = rooms
        return rooms

    def let_through(self, waiting: int) -> None:
        """Wake all waiting deliveries, so that they see that the processor stops."""
        for room in {room for rooms in self._rooms.values() for room in rooms}:
            for _ in range(waiting):
                room.release()

    def begin(self, run: Run) -> Execution:
        """Begin a run of a task."""
        execution = Execution(run, self)
        self._going.add(execution)
        self.watch(execution.overdue_at)
        return execution

    async def outcome_of(self, run: Run) -> Outcome:
        """Run a task to its end."""
        execution, lost = self.begin(run), run.delivery.lost
        lost.add_done_callback(execution.stop)
        try:
            await execution.task
        except BaseException:  # its exception is its outcome
            if not execution.task.done():
                raise
        finally:
            lost.remove_done_callback(execution.stop)
            self._going.discard(execution)
        return execution.outcome(interrupted=self.shutdown.aborted.done())

    def cancel(self) -> None:
        """Cancel all running tasks."""
        for execution in self._going:
            execution.stop()

    def watch(self, overdue_at: float) -> None:
        """Cancel overdue runs at a time of the event loop, or before.

        One timer serves all runs: nearly all end long before their deadlines.
        """
        if self._next_look is None or overdue_at < self._next_look.when():
            if self._next_look is not None:
                self._next_look.cancel()
            self._next_look = self.loop.call_at(overdue_at, self._end_overdue)

    def _end_overdue(self) -> None:
        self._next_look = None
        for execution in self._going:
            if execution.overdue_at <= self.loop.time():
                execution.expire()
            elif execution.overdue_at < math.inf:
                self.watch(execution.overdue_at)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:  # none does
        return False


def _cancelled(demand: Demand) -> RunCancelled:
    return RunCancelled(f"cancelled by {demand.by}")


def _gave_in(cancelled: bool, error: BaseException | None) -> bool:
    """Return whether a cancelled task ended by the cancellation, not in its own way."""
    return cancelled or (error is not None and not isinstance(error, NamedOutcome))


def _unusable(error: Exception, problem: Exception) -> Exception:
    """Return what replaces an error whose class prevents a decision."""
    name = type(error).__name__
    instead = RuntimeError(
        f"the task raised {name}, which cannot be handled: {summary_of(problem)}"
    )
    instead.__cause__ = error
    return instead.with_traceback(problem.__traceback__)


def _below_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback that begins in the task, or in its middleware."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in OURS:
        traceback = traceback.tb_next
    return traceback
