"""Start loops: each gets its one token, however many programs try at once, however often.

All loops of a call begin their epochs in bulk. Entries are compare-and-append, so any number of
operators and pods can seed at the same time: for each loop, one of them is first, and the others
find it unchanged.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from scheduler.control.beginnings import BEGUN_AT_ONCE, Beginnings, Intent
from scheduler.control.installation import Installation
from scheduler.control.loops import (
    Where,
    as_entered,
    as_listed,
    as_to_be_seeded,
    entry_before,
    is_same,
    is_taken,
    keyed_loops_of,
    orphans_of,
    renamed_loops_of,
    was_done,
    whole_of,
)
from scheduler.control.reports import Effect, Report
from scheduler.control.status import Status, Survey
from scheduler.control.verbs import Removal
from scheduler.errors import AccessRefused, BrokerError, BrokerUnavailable, QueueNotFound
from scheduler.events import Event, LoopRepaired, LoopSeeded
from scheduler.protocol.epochs import Entry, LoopState, Verb
from scheduler.protocol.hatchery import timers
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.entries import Checkpoint, RosterEntry, checkpoint_of
from scheduler.queues.journal import LONGEST_READING
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.tasks.loops import Loop, aliases_of, queues_of
from scheduler.tasks.tasks import TaskSpec
from scheduler.user_code import log_of

SEEDED_PAUSED = "seeded paused"
UNLISTED = Entry(0, LoopState.ACTIVE, 0)
"""The entry of a loop that is not in the roster any more, but may be in the journal."""


@dataclass(frozen=True, slots=True)
class LostPause:
    """Describe the pause of a loop or a task that was lost with the roster.

    Attributes:
        checkpoint: the progress of the loop, if known.
    """

    reason: str
    checkpoint: Checkpoint | None


Pauses = Mapping[LoopId, LostPause]


@dataclass(eq=False)
class Seeding:
    """Declare everything that an app needs, and start its loops."""

    space: Namespace
    beginnings: Beginnings
    survey: Survey
    removal: Removal
    installation: Installation

    def __post_init__(self) -> None:
        self._app, self._clock, self._roster = self.space.app, self.space.clock, self.space.roster

    async def seed(
        self,
        *,
        prune: bool = False,
        migrate: bool = False,
        take_over: bool = False,
        paused: bool = False,
    ) -> list[Report]:
        """Declare everything, and give each loop its token.

        A waiting loop is left alone, unless its schedule or arguments were changed: then it
        continues with the new ones from where it was; but an operator's override holds until it is
        cleared. A paused loop stays paused. A lost token is replaced. A loop of a task's old name
        continues under the new one (`aliases=`).

        Args:
            prune: remove the loops, and the queues of tasks, that this code does not have; their
                messages are parked.
            migrate: recreate queues that were declared for other code, with their messages.
            take_over: take the namespace from another app.
            paused: start new loops paused.

        Raises:
            UsageError: the namespace is that of another app; or a queue was declared for other
            code.
        """
        before = await self.installation.imprint()
        if not take_over:
            await self.installation.require()
        await self.installation.spread(before)
        if migrate:
            await self.installation.migrate()
        new = await self.installation.declare_all()
        await self.installation.leave_imprint(before)
        listing = await self._roster.read()
        await self._roster.compact()
        lost = await self._lost_pauses(new)
        await self.start_all([self._app.supervision], lost)
        await self._keep_pauses_of_tasks(lost or {})
        wanted = self._wanted(listing)
        begun = await self.start_all(wanted, lost, paused=paused, renew=self._renewed)
        for report in begun:
            self._app.events.emit(LoopSeeded(report.loop.id, report.did.value, report.due_at))
        reports = await self._checked(begun)
        if doubled := self._doubled_by_renames(await self._roster.read()):
            reports += await self.removal.remove_all(doubled)
        if prune:
            orphans = orphans_of(self._app, await self._roster.read())
            reports += await self.removal.remove_all(orphans)
            left = await self.installation.leftovers()
            await self.installation.remove_tasks(each.task for each in left)
        return reports

    async def plan(
        self, *, prune: bool = False, take_over: bool = False, paused: bool = False
    ) -> list[Report]:
        """Return what `seed` would do, without doing it.

        Args:
            prune, take_over, paused: as for `seed`.

        Raises:
            UsageError: the namespace is that of another app.
        """
        if not take_over:
            await self.installation.require()
        listing = await self.survey.listing()
        loops, names = self._wanted(listing), self._app.names
        new = await self.installation.absent((names.roster, names.journal))
        lost = await self._lost_pauses(new, is_exact=False)
        decisions = [self._decide(loop, listing, lost, paused=paused) for loop in loops]
        statuses = await self.survey.status(*loops) if loops else []
        planned = [
            _planned(decision, status) for decision, status in zip(decisions, statuses, strict=True)
        ]
        removed = orphans_of(self._app, listing) if prune else self._doubled_by_renames(listing)
        return [*planned, *(Report(loop, Effect.REMOVED) for loop in removed)]

    async def adopt(self) -> list[Report]:
        """Declare missing objects, and start the loops of the code that were never seeded.

        The roster, not this code, which may be old, decides about other loops. If the roster is
        gone too, the entries that were read of it are appended again.

        Raises:
            AccessRefused: this user may not declare.
        """
        new = await self._declare_roster()
        await self.restore()
        new |= await self.installation.declare_missing()
        if self._app.names.imprint in new:
            await self.installation.leave_imprint()
        listing = await self._roster.read()
        loops = [self._app.supervision, *self._app.loops.values()]
        unseeded = [loop for loop in loops if loop.id not in listing]
        is_lost = self._app.names.roster in new and self._app.names.imprint not in new
        lost = await self._lost_pauses(new)
        await self._keep_pauses_of_tasks(lost or {})
        reports = await self.start_all(
            unseeded, lost, renew=lambda loop, there: None if loop.id in there else loop
        )
        for report in reports:
            if report.did is Effect.CREATED and not is_lost:
                event: Event = LoopSeeded(report.loop.id, report.did.value, report.due_at)
            else:
                detail = f"it was not in the roster, and was {report.did}"
                event = LoopRepaired(report.loop.id, "adopted", detail)
            self._app.events.emit(event)
        return reports

    async def prepare(self, tasks: Iterable[TaskSpec]) -> None:
        """Check, and if allowed create, everything that a processor of these tasks needs.

        Raises:
            QueueNotFound: something is missing, and this user may not declare it.
            AccessRefused: this user may not even check (RabbitMQ 4.3 refuses that).
            UsageError: the namespace is that of another app, or a queue is for other code.
        """
        names, wanted = self._app.names, [name for task in tasks for name in task.names]
        needed = [names.roll_call, names.roster, names.journal, names.presence]
        needed += [queue for name in wanted for queue in queues_of(self._app, name)]
        needed += map(names.timer, timers())
        declared = list[str]()
        while True:
            with suppress(BrokerUnavailable):  # a lost connection is restored
                gone = await self.installation.absent(needed)
                if not gone:
                    return await self.installation.require(wanted)
                await self.installation.require(wanted)
                if gone == declared:
                    raise QueueNotFound(
                        f"{gone[0]!r} is not in {self.space.broker.address}, and only a seed "
                        "declares it while its task has queues of former shards. Nothing was "
                        "started; run `scheduler seed`, then this again."
                    )
                try:
                    await self.adopt()
                    declared = gone
                except AccessRefused:
                    raise QueueNotFound(
                        f"{gone[0]!r} is not in {self.space.broker.address} yet, and this user may "
                        "not declare it. Nothing was started; run `scheduler seed` once, then this "
                        "again."
                    ) from None

    async def start(self, loop: Loop) -> Report:
        """Start a keyed loop, or change its schedule or arguments."""
        (report,) = await self.start_all([loop])
        return report

    async def start_all(
        self,
        loops: Sequence[Loop],
        lost: Pauses | None = None,
        *,
        paused: bool = False,
        renew: Callable[[Loop, Listing], Loop | None] = lambda loop, _: loop,
    ) -> list[Report]:
        """Start, change or rename loops, without duplicates.

        Args:
            lost: the pauses that were lost with the roster; None: it was not lost.
            renew: returns the loop that is wanted now; None: none, and it is not reported.
        """

        def decide(loop: Loop, listing: Listing) -> Report | Intent:
            if (wanted := renew(loop, listing)) is None:
                return Report(loop, Effect.NOT_THERE)
            return self._decide(wanted, listing, lost, paused=paused)

        reports = await self.beginnings.act(loops, decide)
        return [report for report in reports if report.did is not Effect.NOT_THERE]

    def _doubled_by_renames(self, listing: Listing) -> list[Loop]:
        """Return the loops of old names that old code has started again, besides the new ones."""
        if not (aliases := aliases_of(self._app)):
            return []
        there = {listed.loop for listed in listing.there}
        return [
            loop
            for loop in orphans_of(self._app, listing)
            if (task := aliases.get(loop.id.task)) and LoopId(task, loop.id.key) in there
        ]

    async def _keep_pauses_of_tasks(self, lost: Pauses) -> None:
        """Pause the tasks that are paused by an old name, or were when the roster was lost."""

        def decide(whole: Loop, listing: Listing) -> Report | Intent:
            listed = listing.get(whole.id)
            old = filter(None, map(listing.pause_of, whole.task.aliases))
            pause = lost.get(whole.id) or next(old, None)
            if pause is None or not (listed is None or listed.is_gone):
                return Report(whole, Effect.UNCHANGED)
            return Intent(
                Verb.SEED, whole, listed, reason=pause.reason, paused=True, recorded=False
            )

        wholes = map(whole_of, self._app.tasks.values())
        if of_pauses := [each for each in wholes if each.task.aliases or each.id in lost]:
            await self.beginnings.act(of_pauses, decide)

    async def _lost_pauses(self, new: Collection[str], *, is_exact: bool = True) -> Pauses | None:
        """Return the pauses of the code's loops and tasks, by the journal, if the roster was lost.

        None: it was not.

        Args:
            new: the queues that were missing.
            is_exact: as for `Journal.last_put`.
        """
        names, journal = self._app.names, self.space.journal
        if names.roster not in new or names.journal in new:
            return None
        wholes = [whole_of(task).id for task in self._app.tasks.values()]
        try:
            found = await journal.last_and_furthest(
                {*wholes, *self._app.loops},
                since=None,
                within=LONGEST_READING,
                is_exact=is_exact,
            )
        except BrokerError as error:
            log_of(__name__).warning(
                "The roster was lost, and the journal cannot tell which loops were paused: %s",
                error,
            )
            return {}
        return {
            loop: LostPause(
                last.reason or "",
                checkpoint_of(furthest, self._app.namespace, self._clock.now()),
            )
            for loop, (last, furthest) in found.items()
            if _is_paused(last)
        }

    def _wanted(self, listing: Listing) -> list[Loop]:
        loops = [as_to_be_seeded(loop, listing) for loop in self._app.loops.values()]
        loops += renamed_loops_of(self._app, listing)
        loops += keyed_loops_of(self._app, listing)
        return list({loop.id: loop for loop in loops}.values())

    def _renewed(self, loop: Loop, listing: Listing) -> Loop | None:
        """Return the wanted loop, since another program may have changed it; None: it has ended."""
        if (of_code := self._app.loops.get(loop.id)) is not None:
            return as_to_be_seeded(of_code, listing)
        listed = listing.get(loop.id)
        if listed is None or listed.is_gone:
            listed = entry_before(self._app, loop.id, listing)
        return None if listed is None or listed.is_gone else as_entered(loop, listed)

    def _decide(
        self, loop: Loop, listing: Listing, lost: Pauses | None, *, paused: bool
    ) -> Report | Intent:
        listed, before = listing.get(loop.id), entry_before(self._app, loop.id, listing)
        if was_done(loop, listed or before):
            return Report(loop, Effect.UNCHANGED)
        if is_taken(loop, listed or before, self._clock.now()):
            return Report(as_listed(loop, listing), Effect.UNCHANGED)
        if before is not None and not before.is_gone and (listed is None or listed.is_gone):
            if before.override is not None:
                loop = replace(loop, schedule=before.schedule, override=before.override)
            return Intent(Verb.RENAME, loop, before, did=Effect.RENAMED)
        if listed is None and lost is not None:
            # The loop may be an old one: the journal has its progress.
            unlisted = RosterEntry(loop.id, loop.schedule, loop.args, UNLISTED)
            if (pause := lost.get(loop.id)) is None:
                return Intent(Verb.RESCHEDULE, loop, unlisted, did=Effect.REPAIRED)
            return Intent(
                Verb.PAUSE,
                loop,
                unlisted,
                reason=pause.reason,
                checkpoint=pause.checkpoint,
                did=Effect.REPAIRED,
            )
        if listed is None or listed.is_gone:
            return Intent(
                Verb.SEED,
                loop,
                listed,
                reason=SEEDED_PAUSED if paused else None,
                # The loops of an empty roster may be running: it may have been lost.
                brand_new=listed is None and len(listing) > 0,
                paused=paused,
                did=Effect.CREATED,
            )
        if not is_same(loop, listed):
            return Intent(Verb.RESCHEDULE, loop, listed, did=Effect.RESCHEDULED)
        return Report(loop, Effect.UNCHANGED)

    async def _checked(self, reports: Sequence[Report]) -> list[Report]:
        """Return the reports, with the due times of unchanged loops; repair lost ones."""
        unchanged = [report.loop for report in reports if report.did is Effect.UNCHANGED]
        statuses = {
            status.loop.id: status
            for status in (await self.survey.status(*unchanged) if unchanged else ())
        }
        lost = [each.loop for each in statuses.values() if each.where is Where.LOST]
        repaired = await self.beginnings.repair(lost, "lost")
        return [
            _with_status(report, statuses.get(report.loop.id), report.loop.id in repaired)
            for report in reports
        ]

    async def restore(self) -> None:
        """Append the entries that only an earlier roster had: a seed may have declared this one."""
        listing = await self._roster.read()
        loops = listing.table.inherited() if self._roster.lacks_some else []
        streams = listing.streams
        for begin in range(0, len(loops), BEGUN_AT_ONCE):
            some = map(listing.get, loops[begin : begin + BEGUN_AT_ONCE])
            await self._roster.append(list(filter(None, some)))
        self._roster.lacks_some = listing.streams != streams  # it was recreated once more

    async def _declare_roster(self) -> set[str]:
        """Declare the roster if it is gone, and keep what was read of it."""
        try:
            await self._roster.read()
        except QueueNotFound:
            self._roster.inherits = True
            return await self.installation.declare_missing(self._app.names.roster)
        return set()


def _planned(decision: Report | Intent, status: Status) -> Report:
    if isinstance(decision, Report):
        return _with_status(decision, status, status.where is Where.LOST)
    assert (did := decision.did) is not None
    if did is Effect.CREATED:
        due_at = None if decision.paused else status.due_at
        return Report(decision.loop, did, due_at, is_paused=decision.paused)
    is_paused = decision.verb is Verb.PAUSE or status.where is Where.PAUSED
    return Report(decision.loop, did, None if is_paused else status.due_at, is_paused=is_paused)


def _is_paused(last: Token) -> bool:
    """Return whether a loop or a task is paused, by its last token in the journal."""
    is_over = last.act is not None and last.act.verb in (Verb.REMOVE, Verb.RESUME)
    return last.state is State.PAUSED and not is_over


def _with_status(report: Report, status: Status | None, repaired: bool) -> Report:
    if status is None:
        return report
    did = Effect.REPAIRED if repaired else report.did
    is_paused = status.where is Where.PAUSED
    return Report(report.loop, did, status.due_at, is_paused=is_paused, silent=report.silent)
