"""End loops: those that were started at run time, and those that the code no longer has."""

from collections.abc import Sequence

from scheduler.control.beginnings import Beginnings, Decision, Wanted
from scheduler.control.leftovers import Leftovers
from scheduler.control.loops import as_listed
from scheduler.control.reports import Did, Report
from scheduler.control.together import Together
from scheduler.errors import UsageError
from scheduler.protocol.epochs import Verb
from scheduler.queues.listing import Listing
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App

REMOVED_AT_ONCE = 1_000


class Removal:
    """Removes loops from the broker."""

    def __init__(
        self,
        app: App,
        leftovers: Leftovers,
        beginnings: Beginnings,
    ) -> None:
        self._app = app
        self._leftovers = leftovers
        self._beginnings = beginnings
        self._removals = Together(self.take_away, most=REMOVED_AT_ONCE)

    async def remove(self, loop: Loop) -> Report:
        """End a loop: a run in progress is its last.

        Raises:
            UsageError: the code has it, and would start it again.
        """
        if loop.id in self._app.loops:
            raise UsageError(
                f"The loop {loop} is in the code, which would start it again. Nothing was changed; "
                "pause it, or take it out of the code and run `scheduler seed --prune`."
            )
        return await self._removals.do(loop)

    async def take_away(self, loops: Sequence[Loop]) -> list[Report]:
        """End loops, in bulk."""
        reports = await self._beginnings.act(loops, _decide)
        gone = {each.loop.id.task for each in reports if each.did is Did.REMOVED}
        await self._leftovers.remove(gone - set(self._app.tasks))
        return reports


def _decide(loop: Loop, listing: Listing) -> Report | Decision:
    listed, loop = listing.get(loop.id), as_listed(loop, listing)
    if listed is None:
        return Report(loop, Did.NOT_THERE)
    # Gone already, it is removed again: the one before may have died before it called the roll.
    did = Did.NOT_THERE if listed.is_gone else Did.REMOVED
    return Decision(did, Wanted(Verb.GONE, loop, listed))
