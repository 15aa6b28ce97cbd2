"""Report the runs of a processor, and cancel one on request."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from scheduler.control.verbs import LOST
from scheduler.events import Event, EventStream, RunFinished, RunReturned, RunSettled
from scheduler.processor.processes import Child
from scheduler.processor.runs import OURS, Execution, Executions
from scheduler.processor.stacks import of_coroutine, of_thread
from scheduler.queues.running import Demand, RunningRun
from scheduler.tasks.context import Progress

PATIENCE = timedelta(seconds=0.3)  # with a process: a question to all processors takes 0.5 s
RETURNED = "returned"


class Insight:
    """Report the runs of a processor, but for the scheduler's own."""

    def __init__(self, executions: Executions, events: EventStream) -> None:
        self._executions = executions
        self._events = events

    async def describe(self, processor: str, stack_of: str | None) -> Sequence[RunningRun]:
        """Return the runs of a processor of this name, and the stack of one of them."""
        return await asyncio.gather(
            *(_told(each, processor, each.id == stack_of) for each in self._going_on())
        )

    def cancel(self, run: str, demand: Demand, ended: Callable[[str], None]) -> bool:
        """Cancel a run; call back when it is settled. Return whether there is one."""
        found = [each for each in self._going_on() if each.id == run and each.cancel(demand)]
        for each in found:
            logging.getLogger(__name__).info("%s is being cancelled by %s", run, demand.by)
            self._follow(each, ended)
        return bool(found)

    def _going_on(self) -> list[Execution]:
        return [each for each in self._executions if not each.run.task.builtin]

    def _follow(self, execution: Execution, ended: Callable[[str], None]) -> None:
        finished = how = LOST  # also if its message could not be acked: it is redelivered

        def hear(event: Event) -> None:
            nonlocal finished, how
            match event:
                case RunFinished() if _is_of(execution, event):
                    finished = event.ending.value
                case RunSettled() if _is_of(execution, event):
                    how = finished
                case RunReturned() if _is_of(execution, event):
                    how = RETURNED
                case _:
                    pass

        def tell(_: object) -> None:
            self._events.forget(hear)
            ended(how)

        assert execution.handling is not None
        self._events.listen(hear, RunFinished, RunSettled, RunReturned)
        execution.handling.add_done_callback(tell)


def _is_of(execution: Execution, event: RunFinished | RunSettled | RunReturned) -> bool:
    about = event.loop, event.seq, event.attempt, event.message_id
    return about == execution.run.about


async def _told(execution: Execution, processor: str, with_stack: bool) -> RunningRun:
    run, progress, stack = execution.run, execution.progress, None
    if execution.child is not None:
        progress, stack = await _asked(execution.child, progress)
    elif with_stack:
        stack = _stack_of(execution)
    loop, seq, attempt, _ = run.about
    return RunningRun(
        id=execution.id,
        task=run.task.name,
        loop=None if seq is None else str(loop),
        key=loop.key,
        seq=seq,
        attempt=attempt,
        started_at=run.started_at,
        deadline=execution.deadline,
        executor=run.task.executor or "coroutine",
        processor=processor,
        cancelled_by=None if execution.demand is None else execution.demand.by,
        progress=None if progress is None else progress.fraction,
        text="" if progress is None else progress.text,
        stack=stack if with_stack else None,
    )


def _stack_of(execution: Execution) -> str:
    if execution.run.task.blocks:
        found = of_thread(execution.thread, OURS)
        return found or "  (its thread is about to begin, or has just ended)\n"
    return of_coroutine(execution.task, OURS) or "  (it is about to begin, or has just ended)\n"


async def _asked(child: Child, known: Progress | None) -> tuple[Progress | None, str]:
    asked = asyncio.wrap_future(child.ask())
    await asyncio.wait([asked], timeout=PATIENCE.total_seconds())
    if not asked.done():
        asked.cancel()
        return known, f"  (its process has not answered within {PATIENCE.total_seconds():g} s)\n"
    progress, stack = asked.result()
    return progress or known, stack or "  (it is about to begin, or has just ended)\n"
