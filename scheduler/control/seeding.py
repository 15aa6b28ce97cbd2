"""Starting loops: each gets its one token, whoever asks for it, and however often.

Tokens are created under one mutex of the namespace, so that any number of operators and pods can
try at once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType

from scheduler.control.beginnings import Beginnings
from scheduler.control.concurrency import both, side_by_side
from scheduler.control.declaring import Declaring
from scheduler.control.fit import Fit
from scheduler.control.location import Sighting
from scheduler.control.loops import as_listed, as_to_be_seeded, keyed_loops_of, orphans_of
from scheduler.control.migration import Migration
from scheduler.control.one_offs import is_over, is_taken, was_done
from scheduler.control.removal import Removal
from scheduler.control.repairs import Repairs
from scheduler.control.reports import Did, Report
from scheduler.control.together import Together
from scheduler.errors import OtherArguments, QueueNotFound, QueueUnresponsive
from scheduler.events import LoopRepaired, LoopSeeded
from scheduler.protocol.epochs import Entry, LoopState, Verb
from scheduler.protocol.tokens import LoopId
from scheduler.queues.hatchery import Hatchery
from scheduler.queues.roster import Listed, Listing, Roster
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock

STARTED_AT_ONCE = 200  # that takes a second or two
SEEDED_PAUSED = "seeded paused"


class Seeding:
    """Sees to it that loops have their tokens.

    Args:
        patience: how long to wait for others who create tokens.
    """

    def __init__(
        self,
        app: App,
        clock: Clock,
        hatchery: Hatchery,
        roster: Roster,
        beginnings: Beginnings,
        repairs: Repairs,
        removal: Removal,
        declaring: Declaring,
        fit: Fit,
        migration: Migration,
        patience: timedelta,
    ) -> None:
        self._app = app
        self._clock = clock
        self._hatchery = hatchery
        self._roster = roster
        self._beginnings = beginnings
        self._repairs = repairs
        self._removal = removal
        self._declaring = declaring
        self._fit = fit
        self._migration = migration
        self._patience = patience
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
        it is cleared. A paused loop stays paused. A token that is nowhere is put again.

        Args:
            prune: remove the loops that this code does not have.
            migrate: make queues anew that were declared for other code, with what is in them.
            take_over: though the namespace is that of another app.
            paused: have loops that are started wait until they are resumed.

        Raises:
            UsageError: it is that of another app; or a queue was declared for other code.
        """
        async with self._hatchery.mutex(self._patience):
            if not take_over:
                await self._fit.require_app()
            if migrate:
                await self._migration.migrate()
            try:
                new = await self._declaring.everything()
            except OtherArguments as error:
                raise await self._fit.refusal_of(error) from None
            await self._fit.note()
            listing = await self._roster.compacted()
            loops = [as_to_be_seeded(loop, listing) for loop in self._app.loops.values()]
            loops += keyed_loops_of(self._app, listing)
            new |= await self._declaring.keyed_slots(loops)
            await self._seed_all([self._app.supervision], listing, new)
            reports = await self._seed_all(loops, listing, new, tell=self._tell, paused=paused)
            if prune:
                orphans = orphans_of(self._app, listing)
                reports += [await self._removal.take_away(loop, listing) for loop in orphans]
            return reports

    async def adopt(
        self, known: Mapping[LoopId, Listed] = MappingProxyType({}), *, patience: timedelta
    ) -> list[Report]:
        """Start what was never seeded, and put again what lost its queue; of all else, nothing.

        Which loops there are, and with what, is for the roster to say, not for this code: it may be
        older than what was seeded last.

        Args:
            known: what the roster said, in case that it is gone too.
            patience: how long to wait for others who create tokens.

        Raises:
            AccessRefused: this user may not declare.
        """
        async with self._hatchery.mutex(patience):
            listing, new = await _restored(self._roster, self._declaring, known)
            new |= await self._declaring.what_is_gone(listing)
            if self._app.names.imprint in new:
                await self._fit.note()
            loops = [self._app.supervision, *self._app.loops.values()]
            loops = [as_listed(loop, listing) for loop in loops]
            loops += keyed_loops_of(self._app, listing)
            new |= await self._declaring.keyed_slots(loops)
            lacking = [loop for loop in loops if self._app.names.hatchery(loop.id) in new]
            reports = await self._seed_all(lacking, listing, new)
            for report in reports:
                detail = f"its hatchery queue was gone, and it was {report.did}"
                self._app.events.emit(LoopRepaired(report.loop.id, "adopted", detail))
            return reports

    async def start(self, loop: Loop) -> Report:
        """Start a keyed loop, or give it another schedule or other arguments."""
        return await self._starts.do(loop)

    async def _start(self, loops: Sequence[Loop]) -> Sequence[Report]:
        async with self._hatchery.mutex(self._patience):
            listing, lacking = await both(
                self._roster.compacted(), self._declaring.without_slot(loops)
            )
            lacking = [loop for loop in lacking if not was_done(loop, listing.get(loop.id))]
            new = await self._declaring.slots(lacking)
            return await self._seed_all(loops, listing, new)

    def _tell(self, report: Report) -> None:
        due_at = None if report.token is None or report.token.rests else report.token.due_at
        self._app.events.emit(LoopSeeded(report.loop.id, report.did.value, due_at))

    async def _seed_all(
        self,
        loops: Collection[Loop],
        listing: Listing,
        new: Collection[str],
        *,
        tell: Callable[[Report], None] = lambda report: None,
        paused: bool = False,
    ) -> list[Report]:
        """Seed these loops.

        Args:
            new: the queues that were just declared.
            tell: told of each, when it is done.
        """

        async def begin(loop: Loop) -> Report | None:
            if (report := await self._begin(loop, listing, new, paused=paused)) is not None:
                tell(report)
            return report

        reports = dict[LoopId, Report]()
        begun = await side_by_side(begin, loops)
        unchanged = [loop for loop, report in zip(loops, begun, strict=True) if report is None]
        sightings = await self._repairs.sightings(unchanged, listing)
        for loop in unchanged:
            reports[loop.id] = await self._checked(loop, sightings[loop.id], listing)
            tell(reports[loop.id])
        return [
            reports[loop.id] if report is None else report
            for loop, report in zip(loops, begun, strict=True)
        ]

    async def _begin(
        self, loop: Loop, listing: Listing, new: Collection[str], *, paused: bool
    ) -> Report | None:
        """Begin an epoch of a loop, if it is to be started or changed, or lost its queue."""
        names, listed = self._app.names, listing.get(loop.id)
        if was_done(loop, listed):
            return Report(loop, Did.UNCHANGED)
        if is_taken(loop, listed):
            loop = as_listed(loop, listing)
        slot_is_new = names.hatchery(loop.id) in new
        before, needed = listed, _needed(loop, listed, slot_is_new)
        if not (listed or slot_is_new) and (unlisted := await _unlisted(self._hatchery, loop)):
            before, needed = unlisted, (Verb.RESCHEDULE, Did.REPAIRED)
        if needed is None:
            return None
        verb, did = needed
        # The roster may be new, and the loop be older.
        no_older = names.roster not in new or names.processor_queue(loop.id.task) in new
        epoch = await self._beginnings.begin(
            verb,
            loop,
            before,
            reason=SEEDED_PAUSED if paused and verb is Verb.START else None,
            brand_new=listed is None and slot_is_new and no_older,
            paused=paused,
        )
        assert epoch is not None
        return Report(loop, did, epoch.token)

    async def _checked(self, loop: Loop, sighting: Sighting, listing: Listing) -> Report:
        """Leave a loop alone, unless its token is nowhere."""
        listed = listing.get(loop.id)
        if is_taken(loop, listed) and is_over(sighting.token, self._clock.now()):
            epoch = await self._beginnings.begin(Verb.RESCHEDULE, loop, listed)
            return Report(loop, Did.CREATED, epoch and epoch.token)
        if not sighting.is_lost:
            return Report(loop, Did.UNCHANGED, sighting.token)
        return Report(loop, Did.REPAIRED, await self._repairs.put_again(loop, listing))


async def _restored(
    roster: Roster, declaring: Declaring, known: Mapping[LoopId, Listed]
) -> tuple[Listing, set[str]]:
    """What the roster says; where it is gone, it is declared, and what is known said again."""
    try:
        return await roster.compacted(), set()
    except QueueNotFound:
        new = await declaring.roster()
        for listed in known.values():
            await roster.append(listed)
        return await roster.compacted(), new  # its snapshots may have survived it


async def _unlisted(hatchery: Hatchery, loop: Loop) -> Listed | None:
    """The entry of a loop that the roster has lost, as its token tells it."""
    try:
        token = await hatchery.look(loop.id)
    except (QueueNotFound, QueueUnresponsive):
        return None
    if token is None:
        return None
    latest = Entry(token.epoch, LoopState.ACTIVE, token.life)
    return Listed(loop.id, loop.schedule, loop.args, latest)


def _needed(loop: Loop, listed: Listed | None, slot_is_new: bool) -> tuple[Verb, Did] | None:
    if listed is None or listed.is_gone:
        return Verb.START, Did.CREATED
    if (listed.schedule, dict(listed.args)) != (loop.schedule, dict(loop.args)):
        return Verb.RESCHEDULE, Did.RESCHEDULED
    return (Verb.REPAIR, Did.REPAIRED) if slot_is_new else None
