"""End loops: those that were started at run time, orphans, and those that have ended.

A run may end its loop: pause it, or finish a one-off. Such an end is entered in the roster before
its message is acked, as a pause or gone that follows the loop's latest entry, unless that has
overtaken it (`epochs.ends`).
"""

from collections.abc import Iterable, Sequence

from scheduler.control.beginnings import Beginnings, Intent
from scheduler.control.leftovers import Leftovers
from scheduler.control.loops import as_entered, as_listed, is_same
from scheduler.control.reports import Effect, Report
from scheduler.errors import UsageError
from scheduler.protocol.epochs import Entry, LoopState, Verb, ends, is_void
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.listing import DONE, Listing, RosterEntry, checkpoint_of
from scheduler.queues.namespace import Namespace
from scheduler.tasks.loops import Loop, absent
from scheduler.tasks.registry import served
from scheduler.timing.moments import LATEST_MS, moment_of


class Removal:
    """Remove loops from the broker."""

    def __init__(self, namespace: Namespace, leftovers: Leftovers, beginnings: Beginnings) -> None:
        self._app = namespace.app
        self._leftovers = leftovers
        self._beginnings = beginnings

    async def remove(self, loop: Loop) -> Report:
        """End a loop: a run in progress is its last.

        Raises:
            UsageError: the code has it, and would start it again.
        """
        if loop.id in self._app.loops:
            raise UsageError(
                f"The loop {loop} is in the code, so a seed would start it again. Nothing was "
                "changed; pause it, or remove it from the code and run `scheduler seed --prune`."
            )
        (report,) = await self.remove_all([loop])
        return report

    async def remove_all(self, loops: Sequence[Loop]) -> list[Report]:
        """End loops, in bulk."""
        reports = await self._beginnings.act(loops, _decide)
        gone = {each.loop.id.task for each in reports if each.did is Effect.REMOVED}
        await self._leftovers.remove(gone - set(served(self._app)))
        return reports


def _decide(loop: Loop, listing: Listing) -> Report | Intent:
    listed, loop = listing.get(loop.id), as_listed(loop, listing)
    if listed is None:
        return Report(loop, Effect.NOT_THERE)
    # A gone one is removed again: a previous removal may have died before it called the roll.
    return Intent(Verb.REMOVE, loop, listed, did=Effect.NOT_THERE if listed.is_gone else None)


class Endings:
    """Enter how runs have ended their loops."""

    def __init__(self, namespace: Namespace, beginnings: Beginnings) -> None:
        self._namespace = namespace.app.namespace
        self._beginnings = beginnings

    async def enter(self, *found: Token) -> None:
        """Enter valid ends of different loops; repeatable.

        Raises:
            BrokerError: some may not be entered.
        """
        by_loop, elsewhere = {end.loop: end for end in found}, dict[LoopId, Token]()

        def decide(loop: Loop, listing: Listing) -> Report | Intent:
            end = by_loop[loop.id]
            if (renamed := listing.under_its_name(end)) is not end:
                elsewhere[renamed.loop] = renamed
            return self._wanted(end, listing) or Report(loop, Effect.UNCHANGED)

        if found:
            await self._beginnings.act(list(map(_loop_of, found)), decide)
            await self.enter(*elsewhere.values())

    async def enter_missing(self, found: Iterable[Token], listing: Listing) -> None:
        """Enter ends that are missing in the roster, as far as it is known.

        Raises:
            BrokerError: some may not be entered.
        """
        await self.enter(*(end for end in found if self._wanted(end, listing) is not None))

    def _wanted(self, end: Token, listing: Listing) -> Intent | None:
        listed = listing.get(end.loop)
        if listed is None:
            if is_void(end.epoch, listing.known(end.loop)):
                return None
            entry = Entry(end.epoch, LoopState.ACTIVE, end.life)
            listed = RosterEntry(end.loop, end.schedule, end.args, entry)
        was_only, same = end.state is State.DONE, is_same(end, listed)
        if not ends(end.position, listed.entry, was_only=was_only, is_same=same):
            return None
        loop = as_entered(_loop_of(end), listed)
        if was_only:
            return Intent(Verb.REMOVE, loop, listed, reason=DONE, is_told=False)
        return Intent(
            Verb.PAUSE,
            loop,
            listed,
            reason=end.reason or "",
            is_told=False,
            checkpoint=checkpoint_of(end, self._namespace, moment_of(LATEST_MS)),
        )


def _loop_of(end: Token) -> Loop:
    return Loop(end.loop, absent(end.loop.task), end.schedule, end.args)
