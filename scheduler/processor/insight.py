"""Report the runs of a processor, and cancel one on request."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from scheduler.control.verbs import LOST
from scheduler.processor.processes import Child
from scheduler.processor.runs import OURS, Execution, Executions, Run
from scheduler.processor.settlement import Disposition
from scheduler.processor.stacks import of_coroutine, of_thread
from scheduler.queues.running import Demand, RunningRun
from scheduler.tasks.context import Progress
from scheduler.user_code import log_of

PATIENCE = timedelta(seconds=0.3)  # with a process: a question to all processors takes 0.5 s
RETURNED = "returned"


class Insight:
    """Report the runs of a processor, except those of built-in tasks."""

    def __init__(self, executions: Executions) -> None:
        self._executions = executions

    async def describe(self, processor: str, stack_of: str | None) -> Sequence[RunningRun]:
        """Return the runs of a processor of this name, and the stack of one of them."""
        return await asyncio.gather(
            *(_described(each, processor, each.id == stack_of) for each in self._going_on())
        )

    def cancel(self, run: str, demand: Demand, ended: Callable[[str], None]) -> bool:
        """Cancel a run; call back when it is settled. Return whether there is one."""
        found = [each for each in self._going_on() if each.id == run and each.cancel(demand)]
        for each in found:
            log_of(__name__).info("%s is being cancelled by %s", run, demand.by)
            assert each.handling is not None
            each.handling.add_done_callback(lambda _, run=each.run: ended(_ending_of(run)))
        return bool(found)

    def _going_on(self) -> list[Execution]:
        return [each for each in self._executions if not each.run.task.builtin]


def _ending_of(run: Run) -> str:
    """Return how a run was settled; lost: it was not, or it is redelivered."""
    settlement = run.settlement
    if settlement is None or run.delivery.lost.done():
        return LOST
    if settlement.disposition is Disposition.REQUEUE:
        return RETURNED
    return LOST if settlement.ending is None else settlement.ending.value


async def _described(execution: Execution, processor: str, with_stack: bool) -> RunningRun:
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
        return known, f"  (its process has not answered within {PATIENCE.total_seconds():g} s)\n"
    progress, stack = asked.result()
    return progress or known, stack or "  (it is about to begin, or has just ended)\n"
