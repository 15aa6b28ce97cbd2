"""Enter in the roster how runs have ended their loops: paused them, or finished a one-off.

An end is entered before its message is acked, as a pause or gone that follows the loop's latest
entry, unless that has overtaken it (`epochs.ends`).
"""

from collections.abc import Iterable, Sequence

from scheduler.control.beginnings import Beginnings, Decision, Wanted
from scheduler.control.concurrency import side_by_side
from scheduler.control.loops import as_entered
from scheduler.control.one_offs import is_same
from scheduler.control.reports import Did, Report
from scheduler.control.together import Together
from scheduler.protocol.epochs import Entry, LoopState, Verb, ends, is_void
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.checkpoints import checkpoint_of
from scheduler.queues.listing import DONE, Listed, Listing
from scheduler.tasks.loops import Loop, absent
from scheduler.timing.moments import LATEST_MS, moment_of

ENTERED_AT_ONCE = 1_000


class Endings:
    """Enters ends; those that come at the same time, by one append and one reading."""

    def __init__(self, namespace: str, beginnings: Beginnings) -> None:
        self._namespace = namespace
        self._beginnings = beginnings
        self._ends = dict[LoopId, Token]()
        self._together = Together(self._enter, most=ENTERED_AT_ONCE)

    async def enter(self, end: Token) -> None:
        """Enter how a run has ended its loop, if that holds; it may be done again.

        Raises:
            BrokerError: it may not be entered.
        """
        self._ends[end.loop] = end
        try:
            await self._together.do(_loop_of(end))
        finally:
            if self._ends.get(end.loop) is end:
                del self._ends[end.loop]

    async def enter_all(self, found: Iterable[Token], listing: Listing) -> None:
        """Enter those of which the roster, as far as it is known, does not tell yet.

        Raises:
            BrokerError: some may not be entered.
        """
        missing = [end for end in found if self._wanted(end, listing) is not None]
        await side_by_side(self.enter, missing)

    async def _enter(self, loops: Sequence[Loop]) -> list[Report]:
        def decide(loop: Loop, listing: Listing) -> Report | Decision:
            wanted = self._wanted(self._ends[loop.id], listing)
            return Report(loop, Did.UNCHANGED) if wanted is None else Decision(Did.PAUSED, wanted)

        return await self._beginnings.act(loops, decide)

    def _wanted(self, end: Token, listing: Listing) -> Wanted | None:
        listed = listing.get(end.loop)
        if listed is None:
            if is_void(end.epoch, listing.known(end.loop)):
                return None
            entry = Entry(end.epoch, LoopState.ACTIVE, end.life)
            listed = Listed(end.loop, end.schedule, end.args, entry)
        was_only = end.state is State.DONE
        same = is_same(end, listed)
        if not ends(end.position, listed.entry, was_only=was_only, is_same=same):
            return None
        loop = as_entered(_loop_of(end), listed)
        if was_only:
            return Wanted(Verb.GONE, loop, listed, reason=DONE, is_told=False)
        return Wanted(
            Verb.PAUSE,
            loop,
            listed,
            reason=end.reason or "",
            is_told=False,
            checkpoint=checkpoint_of(end, self._namespace, moment_of(LATEST_MS)),
        )


def _loop_of(end: Token) -> Loop:
    return Loop(end.loop, absent(end.loop.task), end.schedule, end.args)
