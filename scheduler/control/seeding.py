"""Starting loops: each gets its one token, however many programs try at once, however often.

All loops of a call begin their epochs in bulk. Entries are compare-and-append, so any number of
operators and pods can seed at the same time: of each loop, one of them is first, and the others
find it unchanged.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from scheduler.control.beginnings import Beginnings, Decision, Told, Wanted
from scheduler.control.declaring import Declaring
from scheduler.control.fit import Fit
from scheduler.control.leftovers import Leftovers
from scheduler.control.loops import as_listed, as_to_be_seeded, keyed_loops_of, orphans_of
from scheduler.control.migration import Migration
from scheduler.control.one_offs import is_same, is_taken, was_done
from scheduler.control.removal import Removal
from scheduler.control.repairs import Repairs
from scheduler.control.reports import Did, Report
from scheduler.control.status import Status, Survey
from scheduler.control.together import Together
from scheduler.control.where import Where
from scheduler.errors import OtherArguments, QueueNotFound
from scheduler.events import LoopRepaired, LoopSeeded
from scheduler.protocol.epochs import Entry, LoopState, Verb
from scheduler.protocol.tokens import LoopId
from scheduler.queues.listing import Listed, Listing
from scheduler.queues.roster import Roster
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock

STARTED_AT_ONCE = 1_000
SEEDED_PAUSED = "seeded paused"
UNLISTED = Entry(0, LoopState.ACTIVE, 0)
"""The entry of a loop of which the roster knows nothing any more, but the journal may."""


class Seeding:
    """Sees to it that loops have their tokens."""

    def __init__(
        self,
        app: App,
        clock: Clock,
        roster: Roster,
        beginnings: Beginnings,
        survey: Survey,
        repairs: Repairs,
        removal: Removal,
        leftovers: Leftovers,
        declaring: Declaring,
        fit: Fit,
        migration: Migration,
    ) -> None:
        self._app = app
        self._clock = clock
        self._roster = roster
        self._beginnings = beginnings
        self._survey = survey
        self._repairs = repairs
        self._removal = removal
        self._leftovers = leftovers
        self._declaring = declaring
        self._fit = fit
        self._migration = migration
        self._starts = Together(self._start, most=STARTED_AT_ONCE)

    async def seed(
        self,
        *,
        prune: bool = False,
        migrate: bool = False,
        take_over: bool = False,
        paused: bool = False,
    ) -> list[Report]:
        """Declare everything, and see to it that each loop has its token.

        A loop that waits is left alone, unless its schedule or arguments were changed: then it goes
        on with the new ones from where it was; but a schedule that an operator has set holds until
        it is cleared. A paused loop stays paused. A lost token is put again.

        Args:
            prune: remove the loops, and the queues of tasks, that this code does not have; what
                waits in these is parked.
            migrate: recreate queues that were declared for other code, with what is in them.
            take_over: though the namespace is that of another app.
            paused: loops that are started wait until they are resumed.

        Raises:
            UsageError: it is that of another app; or a queue was declared for other code.
        """
        await self._fit.require_app(take_over=take_over)
        if migrate:
            await self._migration.migrate()
        try:
            new = await self._declaring.everything()
        except OtherArguments as error:
            raise await self._fit.refusal_of(error) from None
        await self._fit.note()
        listing = await self._roster.compacted()
        await self._begin_all([self._app.supervision], new)
        begun = await self._begin_all(self._wanted(listing), new, tell=self._tell, paused=paused)
        reports = await self._checked(begun)
        if prune:
            orphans = orphans_of(self._app, await self._roster.read())
            reports += await self._removal.take_away(orphans)
            await self._leftovers.remove([each.task for each in await self._leftovers.found()])
        return reports

    async def plan(self, *, prune: bool = False, paused: bool = False) -> list[Report]:
        """Return what `seed` would do, and do nothing.

        Args:
            prune, paused: as of `seed`.

        Raises:
            UsageError: the namespace is that of another app.
        """
        await self._fit.require_app()
        listing = await self._survey.listing()
        loops = [as_to_be_seeded(loop, listing) for loop in self._app.loops.values()]
        new = set(await self._declaring.absent((self._app.names.roster, self._app.names.journal)))
        decisions = [self._decide(loop, listing, new, paused=paused) for loop in loops]
        statuses = await self._survey.status(*loops) if loops else []
        planned = [
            _planned(decision, status) for decision, status in zip(decisions, statuses, strict=True)
        ]
        orphans = orphans_of(self._app, listing) if prune else []
        return [*planned, *(Report(loop, Did.REMOVED) for loop in orphans)]

    async def adopt(self, known: Mapping[LoopId, Listed] = MappingProxyType({})) -> list[Report]:
        """Declare what is gone, and start the loops of the code that were never seeded.

        Which other loops exist, and with what, is for the roster to say, not for this code: it may
        be older than what was seeded last.

        Args:
            known: what the roster said, in case that it is gone too.

        Raises:
            AccessRefused: this user may not declare.
        """
        new = await self._restore(known)
        new |= await self._declaring.what_is_gone()
        if self._app.names.imprint in new:
            await self._fit.note()
        listing = await self._roster.read()
        loops = [self._app.supervision, *self._app.loops.values()]
        unseeded = [loop for loop in loops if loop.id not in listing]
        reports = await self._begin_all(unseeded, new)
        for report in reports:
            detail = f"it was not in the roster, and was {report.did}"
            self._app.events.emit(LoopRepaired(report.loop.id, "adopted", detail))
        return reports

    async def start(self, loop: Loop) -> Report:
        """Start a keyed loop, or give it another schedule or other arguments."""
        return await self._starts.do(loop)

    async def start_all(
        self, loops: Sequence[Loop], *, tell: Told = lambda _: None
    ) -> list[Report]:
        """Start many keyed loops, no two of which are the same.

        Args:
            tell: called with each report as it comes.
        """
        reports = list[Report]()
        for begin in range(0, len(loops), STARTED_AT_ONCE):
            reports += await self._begin_all(loops[begin : begin + STARTED_AT_ONCE], (), tell=tell)
        return reports

    async def _start(self, loops: Sequence[Loop]) -> Sequence[Report]:
        return await self._begin_all(loops, ())

    def _wanted(self, listing: Listing) -> list[Loop]:
        loops = [as_to_be_seeded(loop, listing) for loop in self._app.loops.values()]
        return [*loops, *keyed_loops_of(self._app, listing)]

    def _tell(self, report: Report) -> None:
        self._app.events.emit(LoopSeeded(report.loop.id, report.did.value, report.due_at))

    async def _begin_all(
        self,
        loops: Sequence[Loop],
        new: set[str] | tuple[()],
        *,
        tell: Told = lambda report: None,
        paused: bool = False,
    ) -> list[Report]:
        """Begin epochs of those loops that are to be started or changed.

        Args:
            new: the queues that were just declared.
            tell: called with each report as it comes.
        """
        return await self._beginnings.act(
            loops,
            lambda loop, listing: self._decide(loop, listing, new, paused=paused),
            tell=tell,
        )

    def _decide(
        self, loop: Loop, listing: Listing, new: set[str] | tuple[()], *, paused: bool
    ) -> Report | Decision:
        listed = listing.get(loop.id)
        if was_done(loop, listed):
            return Report(loop, Did.UNCHANGED)
        if is_taken(loop, listed, self._clock.now()):
            return Report(as_listed(loop, listing), Did.UNCHANGED)
        names = self._app.names
        if listed is None and names.roster in new and names.journal not in new:
            # The roster was lost. The loop may be an old one: the journal tells how far it came.
            unlisted = Listed(loop.id, loop.schedule, loop.args, UNLISTED)
            return Decision(Did.REPAIRED, Wanted(Verb.RESCHEDULE, loop, unlisted))
        if listed is None or listed.is_gone:
            reason = SEEDED_PAUSED if paused else None
            brand_new = listed is None
            wanted = Wanted(
                Verb.START, loop, listed, reason=reason, brand_new=brand_new, paused=paused
            )
            return Decision(Did.CREATED, wanted)
        if not is_same(loop, listed):
            return Decision(Did.RESCHEDULED, Wanted(Verb.RESCHEDULE, loop, listed))
        return Report(loop, Did.UNCHANGED)

    async def _checked(self, reports: Sequence[Report]) -> list[Report]:
        """Return the reports, with when unchanged loops are due; repair those that are lost."""
        unchanged = [report.loop for report in reports if report.did is Did.UNCHANGED]
        statuses = {
            status.loop.id: status
            for status in (await self._survey.status(*unchanged) if unchanged else ())
        }
        lost = [each.loop for each in statuses.values() if each.where is Where.LOST]
        repaired = {loop.id for loop in await self._repairs.repair(lost, "lost")}
        return [
            _with_status(report, statuses.get(report.loop.id), report.loop.id in repaired)
            for report in reports
        ]

    async def _restore(self, known: Mapping[LoopId, Listed]) -> set[str]:
        """Declare the roster if it is gone, and append what is known of it."""
        try:
            await self._roster.read()
        except QueueNotFound:
            new = await self._declaring.roster()
            await self._roster.append(list(known.values()))
            return new
        return set()


def _planned(decision: Report | Decision, status: Status) -> Report:
    if isinstance(decision, Report):
        lost = status.where is Where.LOST
        return _with_status(decision, status, lost)
    loop, did = decision.wanted.loop, decision.did
    if did is Did.CREATED:
        due_at = None if decision.wanted.paused else status.due_at
        return Report(loop, did, due_at, is_paused=decision.wanted.paused)
    return Report(loop, did, status.due_at, is_paused=status.where is Where.PAUSED)


def _with_status(report: Report, status: Status | None, repaired: bool) -> Report:
    if status is None:
        return report
    did = Did.REPAIRED if repaired else report.did
    is_paused = status.where is Where.PAUSED
    return Report(report.loop, did, status.due_at, is_paused=is_paused, silent=report.silent)
