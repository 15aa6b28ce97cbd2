"""Repair loops whose token is lost or doubled: their epoch ends, and another one begins.

A repair may be wrong: then the token that was overlooked is void. The loop goes on as the roster
says, from what the journal heard last, once no older run goes on.
"""

from collections.abc import Collection

from scheduler.control.beginnings import Beginnings, Wanted
from scheduler.control.loops import as_listed
from scheduler.events import LoopRepaired
from scheduler.protocol.epochs import Verb
from scheduler.protocol.tokens import LoopId
from scheduler.queues.roster import Roster
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App

REPAIRED_AT_ONCE = 10_000
DONE = {
    "lost": "its token was put again",
    "doubled": "a node of the broker handed its token out twice: it goes on with one",
}


class Repairs:
    """The repairs of an app's loops, in bulk."""

    def __init__(self, app: App, roster: Roster, beginnings: Beginnings) -> None:
        self._app = app
        self._roster = roster
        self._beginnings = beginnings

    async def repair(
        self,
        loops: Collection[Loop],
        kind: str,
        *,
        epochs: dict[LoopId, int] | None = None,
    ) -> list[Loop]:
        """Begin an epoch of loops that are lost or doubled; return those that were repaired.

        Args:
            epochs: in which each was seen: one that has begun another epoch since is left alone.
        """
        if not loops:
            return []
        listing = await self._roster.compacted()
        still = [
            loop for loop in loops if epochs is None or epochs[loop.id] == listing.known(loop.id)
        ]
        repaired = list[Loop]()
        for begin in range(0, len(still), REPAIRED_AT_ONCE):
            some = still[begin : begin + REPAIRED_AT_ONCE]
            wanted = [
                Wanted(Verb.REPAIR, as_listed(loop, listing), listing.get(loop.id)) for loop in some
            ]
            begun = await self._beginnings.begin_all(wanted)
            repaired += [loop for loop, epoch in zip(some, begun, strict=True) if epoch]
        for loop in repaired:
            self._app.events.emit(LoopRepaired(loop.id, kind, DONE[kind]))
        return repaired
