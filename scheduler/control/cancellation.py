"""Find and cancel a run.

The request goes to the run's processor over the stream of roll calls. Nothing is stored: if the
processor dies before the run is settled, it is run again, like any other.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from scheduler.control.reports import operator_here
from scheduler.errors import NotRunning, UsageError
from scheduler.protocol.tokens import Ending
from scheduler.queues.running import CancelState, Demand, Inquiry, Reply, Running, RunningRun

LOST = "lost"
WITHIN = timedelta(seconds=10)
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class CancelReport:
    """Report the result of cancelling a run.

    Attributes:
        run: as it was found.
        ending: how it has ended: "cancelled", or "escalated" if requested; like any other run, if
            it suppressed the cancellation; "lost": its processor has died, or lost its message, so
            that it is run again, unless it was settled before; "returned": its processor stops, and
            has requeued it; "gone": it had just ended. None: it is still running, and the wait
            timed out.
        as_asked: whether it has ended as requested.
    """

    run: RunningRun
    ending: str | None
    as_asked: bool


class Cancellation:
    """Cancel runs.

    Args:
        within: how long to wait for a run to end.
    """

    def __init__(self, inquiry: Inquiry, within: timedelta = WITHIN) -> None:
        self._inquiry = inquiry
        self._within = within

    async def running(self, *, stack_of: str | None = None) -> Running:
        """Return the current runs.

        Args:
            stack_of: the run whose stack is included, as for `cancel`.

        Raises:
            NotRunning, UsageError: there is no such run, or more than one.
            QueueNotFound: nothing was seeded.
        """
        running = await self._inquiry.ask()
        if stack_of is None:
            return running
        return await self._inquiry.ask(stack_of=_found(running, stack_of)[0].id)

    async def cancel(self, run: str, *, escalate: bool = False, by: str = "") -> CancelReport:
        """Cancel a run, and wait for its end, for some seconds.

        Args:
            run: the ID of a one-off call's message, or a unique prefix of it; `loop#seq`; or the
                name of a loop.
            escalate: whether it then counts as failed for the last time.
            by: who asks for it; default: the user of this machine.

        Raises:
            NotRunning, UsageError: there is no such run, or more than one.
            QueueNotFound: nothing was seeded.
        """
        # More than one processor holds it, if one has lost the broker without noticing yet.
        found = _found(await self._inquiry.ask(), run)
        demand = Demand(by or operator_here(), escalate)
        replies = await self._inquiry.cancel(
            found[-1].id, demand, {each.processor for each in found}, timeout=self._within
        )
        ending = _ending([replies.get(each.processor) for each in found])
        if ending is None and not await self._goes_on(found):
            ending = LOST
        asked = Ending.ESCALATED if escalate else Ending.CANCELLED
        return CancelReport(found[-1], ending, ending == asked)

    async def _goes_on(self, found: Collection[RunningRun]) -> bool:
        """Return whether a run's processor still has it."""
        now = await self._inquiry.ask()
        before = {(run.processor, run.id, run.attempt) for run in found}
        return any((run.processor, run.id, run.attempt) in before for run in now.runs)


def _ending(replies: Collection[Reply | None]) -> str | None:
    """Return how the last of a run's processors has ended it; None: one has not."""
    if any(reply is None or reply.what is CancelState.CANCELLING for reply in replies):
        return None
    endings = [reply.ending for reply in replies if reply is not None and reply.ending]
    return endings[-1] if endings else CancelState.GONE.value


def _found(running: Running, reference: str) -> list[RunningRun]:
    """Return the run of this name, oldest first if several processors have it.

    Matches an ID; else a loop; else a prefix of a call's ID.
    """
    runs = running.runs
    named = (
        [run for run in runs if run.id == reference]
        or [run for run in runs if run.loop == reference]
        or [run for run in runs if run.loop is None and reference and run.id.startswith(reference)]
    )
    if not named and running.silence:
        raise NotRunning(
            f"No run {reference!r} was found, but the answers are incomplete: {running.silence}. "
            f"Try again."
        )
    if not named:
        raise NotRunning(f"No run {reference!r} is running. `scheduler ps` lists the current runs.")
    ids = list(dict.fromkeys(run.id for run in named))
    if len(ids) > 1:
        few = ", ".join(ids[:MOST_NAMED]) + (", ..." if len(ids) > MOST_NAMED else "")
        raise UsageError(f"{reference!r} is ambiguous ({len(ids)} runs): use one of {few}.")
    return named
