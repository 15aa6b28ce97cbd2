"""Operate on loops and runs: pause, resume, trigger, set a schedule, remove, cancel.

A verb decides by the roster, and begins an epoch. If another creator was first, it reads and
decides again. The journal records it.

A whole task is paused and resumed like a loop. Its roster entry is separate from those of its
loops, which stay as they are. In between, processors take none of its messages: calls and tokens
wait in its queue.

A run may end its loop: pause it, or finish a one-off. Such an end is entered in the roster before
its message is acked, as a pause or gone that follows the loop's latest entry, unless that has
overtaken it (`epochs.ends`).

A request to cancel a run goes to its processor over the stream of roll calls. Nothing is stored: if
the processor dies before the run is settled, it is run again, like any other.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from scheduler.control.beginnings import Beginnings, Change, Intent
from scheduler.control.first_tokens import resumed, triggered
from scheduler.control.installation import Installation
from scheduler.control.loops import Where, as_entered, as_listed, is_same
from scheduler.control.reports import Effect, Report, operator_here
from scheduler.control.status import Survey
from scheduler.errors import NotRunning, QueueNotFound, UnknownLoop, UsageError
from scheduler.protocol.epochs import Entry, LoopState, Verb, ends, is_void
from scheduler.protocol.tokens import Ending, LoopId, Replay, State, Token
from scheduler.queues.entries import DONE, RosterEntry, checkpoint_of
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.queues.roster import Roster
from scheduler.queues.running import GONE, Demand, Inquiry, Running, RunningRun
from scheduler.tasks.loops import App, Loop, Override, absent, served
from scheduler.timing.moments import LATEST_MS, moment_of
from scheduler.timing.schedules import Once, Recurring
from scheduler.user_code import require_text

PAUSED_BY_OPERATOR = "paused by an operator"
NOT_PAUSED = Entry(0, LoopState.GONE, 0)
"""The entry of a whole task that was never paused."""

DUE = Where.READY, Where.RUNNING, Where.UNATTENDED, Where.LATE

_Decide = Callable[[Loop, RosterEntry], Report | Intent]


@dataclass(eq=False)
class Verbs:
    """Operate on an app's loops; on many, in bulk."""

    space: Namespace
    beginnings: Beginnings
    survey: Survey

    def __post_init__(self) -> None:
        self._app, self._clock = self.space.app, self.space.clock

    async def pause(self, loop: Loop, reason: str = PAUSED_BY_OPERATOR) -> Report:
        """Pause a loop; see `pause_all`."""
        return (await self.pause_all([loop], reason))[0]

    async def pause_all(
        self, loops: Sequence[Loop], reason: str = PAUSED_BY_OPERATOR
    ) -> list[Report]:
        """Pause loops and whole tasks until they are resumed.

        Runs in progress end first. Once this has returned, no run begins, except on processors that
        the report lists as unconfirmed.

        Raises:
            QueueNotFound: the loop is not seeded. Of many, such a loop is reported as not there.
            Overtaken: other creators were faster again and again.
        """
        require_text("The reason of a pause", reason)
        reason = reason.strip() or PAUSED_BY_OPERATOR
        heard_at = self._clock.now()
        tokens = await self.survey.last_tokens([each for each in loops if not each.id.is_whole])

        def decide(loop: Loop, listed: RosterEntry) -> Intent:
            paused = listed.entry.state is LoopState.PAUSED
            if loop.id.is_whole and not paused:
                change = _as_operation(Verb.PAUSE)
                return Intent(
                    Verb.SEED, loop, listed, change, reason=reason, paused=True, did=Effect.PAUSED
                )
            because = listed.reason if paused else reason
            token = tokens.get(loop.id)
            return Intent(
                Verb.PAUSE,
                as_entered(loop, listed),
                listed,
                reason=because,
                # The journal may have dropped it when the loop is resumed. Later ones that were not
                # heard were put when it was due.
                checkpoint=None
                if paused or token is None or token.epoch < listed.entry.life
                else checkpoint_of(token, self._app.namespace, min(heard_at, token.due_at)),
                did=Effect.UNCHANGED if paused else None,
            )

        return await self._act_by_all_names(loops, decide)

    async def resume(
        self, loop: Loop, *, at_once: bool = False, after: datetime | None = None
    ) -> Report:
        """Resume a loop; see `resume_all`."""
        return (await self.resume_all([loop], at_once=at_once, after=after))[0]

    async def resume_all(
        self, loops: Sequence[Loop], *, at_once: bool = False, after: datetime | None = None
    ) -> list[Report]:
        """Resume paused loops, at their next nominal time or at once, and whole tasks.

        Args:
            after: continue as after a run at this moment: the next nominal time is the first one
                after it. `catch_up` decides about ticks that have been due since.

        Raises:
            UsageError: `at_once` and `after` do not apply to a whole task.
            QueueNotFound, Overtaken: as for `pause_all`.
        """
        now = self._clock.now()
        if (at_once or after) and (whole := next((x for x in loops if x.id.is_whole), None)):
            raise UsageError(
                f"{whole} is a task: only a loop is resumed at once, or as after a run."
            )

        def decide(loop: Loop, listed: RosterEntry) -> Report | Intent:
            loop = as_entered(loop, listed)
            if listed.entry.state is not LoopState.PAUSED:
                return Report(loop, Effect.NOT_PAUSED)
            if loop.id.is_whole:
                change = _as_operation(Verb.RESUME)
                return Intent(Verb.REMOVE, loop, listed, change, did=Effect.RESUMED)
            return Intent(
                Verb.RESUME,
                loop,
                listed,
                lambda token: resumed(token, now, at_once=at_once, after=after),
            )

        return await self._act_by_all_names(loops, decide)

    async def trigger(self, loop: Loop) -> Report:
        """Run a waiting loop now. A loop that is due, running or paused is left alone."""
        (status,) = await self.survey.status(loop)
        if status.where in DUE:
            return Report(status.loop, Effect.RUNNING)
        if status.task_pause is not None:
            return Report(status.loop, Effect.IS_PAUSED)
        now = self._clock.now()

        def decide(loop: Loop, listed: RosterEntry) -> Report | Intent:
            loop = as_entered(loop, listed)
            if listed.entry.state is LoopState.PAUSED:
                return Report(loop, Effect.IS_PAUSED)
            return Intent(Verb.TRIGGER, loop, listed, lambda token: triggered(token, now))

        return await self._act_on(loop, decide)

    async def run_beside(self, loop: Loop, args: Mapping[str, Any]) -> Report:
        """Run a loop's function once, now, with other arguments. The loop itself is unchanged.

        A failed run is parked without retries, like a replayed tick.

        Args:
            args: replace those of the loop that have these names.

        Raises:
            InvalidArguments: they do not fit the task.
            QueueNotFound: the loop is not seeded.
        """
        listing = await self.survey.listing([loop.id])
        tokens = await self.survey.last_tokens([loop])
        listed, now = self._listed(loop, listing), self._clock.now()
        loop = as_entered(loop, listed)
        wanted, last = {**listed.args, **args}, tokens.get(loop.id)
        loop.task.arguments.load(wanted)
        replay = Replay(
            loop.id,
            loop.schedule,
            scheduled_at=now,
            due_at=now,
            epoch=listed.epoch,
            life=listed.entry.life,
            seq=0 if last is None else last.seq,
            args=wanted,
        )
        await self.space.timers.put_now(replay)
        return Report(loop, Effect.TRIGGERED, now)

    async def set_schedule(self, loop: Loop, schedule: Recurring, *, by: str) -> Report:
        """Override the schedule of a loop from now on.

        It overrides that of the code, whatever is seeded, until it is cleared. A loop that was
        started at run time has no other schedule.

        Args:
            by: who sets it.

        Raises:
            UsageError: no task of this code runs the loop, or it is a named one-off.
        """
        if loop.id.task not in served(self._app):
            raise UsageError(
                f"The loop {loop} is in the broker, but not in this code, so it would not run. "
                "Nothing was changed."
            )

        def decide(loop: Loop, listed: RosterEntry) -> Report | Intent:
            if isinstance(listed.schedule, Once):
                raise UsageError(
                    f"{loop} is a named one-off, which has a time and no schedule. Nothing was "
                    "changed; `scheduler scheduled move` moves it to another time."
                )
            before = as_entered(loop, listed)
            override = Override(by, self._clock.now()) if loop.id in self._app.loops else None
            if (before.schedule, before.override is None) == (schedule, override is None):
                return Report(before, Effect.UNCHANGED)
            changed = replace(before, schedule=schedule, override=override)
            return Intent(Verb.RESCHEDULE, changed, listed)

        return await self._act_on(loop, decide)

    async def clear_schedule(self, loop: Loop) -> Report:
        """Return a loop to the schedule of this code.

        Raises:
            UsageError: the code has none for it.
        """
        if (of_code := self._app.loops.get(loop.id)) is None:
            raise UsageError(
                f"The loop {loop} is not in the code, so there is no schedule to return to. "
                "Nothing was changed; `scheduler schedule set` gives it another."
            )

        def decide(_: Loop, listed: RosterEntry) -> Report | Intent:
            if listed.override is None:
                return Report(as_entered(of_code, listed), Effect.NOT_SET)
            return Intent(Verb.RESCHEDULE, replace(of_code, args=listed.args), listed)

        return await self._act_on(loop, decide)

    async def _act_on(self, loop: Loop, decide: _Decide) -> Report:
        return (await self._act([loop], decide))[0]

    async def _act_by_all_names(self, loops: Sequence[Loop], decide: _Decide) -> list[Report]:
        """Act on loops; on a whole task by its aliases as well, whose queues it consumes too."""
        others = [
            replace(loop, id=loop.id._replace(task=alias))
            for loop in loops
            if loop.id.is_whole
            for alias in loop.task.aliases
        ]
        reports = await self._act([*loops, *others], decide)
        by_name = defaultdict[str, list[Report]](list)
        for each in reports:
            if each.loop.id.is_whole:
                by_name[each.loop.task.name].append(each)
        return [
            replace(_as_one(by_name[each.loop.task.name], Effect.RESUMED), loop=each.loop)
            if each.loop.id.is_whole
            else each
            for each in reports[: len(loops)]
        ]

    async def _act(self, loops: Sequence[Loop], decide: _Decide) -> list[Report]:
        def decide_if_there(loop: Loop, listing: Listing) -> Report | Intent:
            try:
                return decide(loop, self._listed(loop, listing))
            except (QueueNotFound, UnknownLoop):
                if len(loops) == 1:
                    raise
                return Report(loop, Effect.NOT_THERE)  # of many, some may have ended since

        try:
            return await self.beginnings.act(loops, decide_if_there)
        except QueueNotFound:
            raise self._not_seeded(loops[0]) from None

    def _listed(self, loop: Loop, listing: Listing) -> RosterEntry:
        listed = listing.get(loop.id)
        if loop.id.is_whole:
            return listed or RosterEntry(loop.id, loop.schedule, {}, NOT_PAUSED)
        if listed is not None and listed.is_done:
            raise UnknownLoop(f"{loop} has already run and cannot be changed.")
        if listed is None or listed.is_gone:
            raise self._not_seeded(loop)
        return listed

    def _not_seeded(self, loop: Loop) -> QueueNotFound:
        what = "task" if loop.id.is_whole else "loop"
        return QueueNotFound(
            f"The {what} {loop} is not in {self.space.broker.address} yet. Nothing was changed; "
            "run `scheduler seed` first."
        )


def _as_one(by_name: Sequence[Report], wanted: Effect) -> Report:
    """Return the report on a loop or a task of several names: the effect on any of them counts."""
    # A task that was paused by an old name alone is resumed as well.
    report = next((each for each in by_name if each.did is wanted), by_name[0])
    silent = dict.fromkeys(name for each in by_name for name in each.silent)
    return replace(report, silent=(*silent,))


def _as_operation(verb: Verb) -> Change:
    """Return the record of a pause or resume of a whole task, for the journal."""
    return lambda token: replace(token, act=token.act and replace(token.act, verb=verb))


@dataclass(eq=False)
class Removal:
    """Remove loops from the broker."""

    app: App
    roster: Roster
    installation: Installation
    beginnings: Beginnings

    async def remove(self, loop: Loop) -> Report:
        """End a loop: a run in progress is its last.

        Raises:
            UsageError: the code has it, and would start it again.
        """
        if loop.id in self.app.loops:
            raise UsageError(
                f"The loop {loop} is in the code, so a seed would start it again. Nothing was "
                "changed; pause it, or remove it from the code and run `scheduler seed --prune`."
            )
        (report,) = await self.remove_all([loop])
        return report

    async def remove_all(self, loops: Sequence[Loop], *, one_offs: bool = True) -> list[Report]:
        """End loops, in bulk, by all names of their tasks: a seed may be renaming them.

        Args:
            one_offs: whether a named one-off that has taken the name of one is ended as well.
        """
        asked_by = {name: loop.id for loop in loops for name in _names_of(loop)}
        renamed = dict[LoopId, Loop]()

        def decide(loop: Loop, listing: Listing) -> Report | Intent:
            current = listing.current_name(loop.id)
            if current != loop.id and self._may_end(current, loop.id):
                asked_by.setdefault(current, asked_by[loop.id])
                renamed[current] = replace(loop, id=current)
            return _decide_removal(one_offs, loop, listing)

        by_name = [replace(loop, id=name) for loop in loops for name in _names_of(loop)]
        reports = {each.loop.id: each for each in await self.beginnings.act(by_name, decide)}
        # They had other names by then, perhaps those of a release that this code does not know.
        left = [
            loop
            for name, loop in renamed.items()
            if name not in reports or reports[name].did is not Effect.REMOVED
        ]
        if left:
            reports |= {each.loop.id: each for each in await self.beginnings.act(left, decide)}
        gone = {name.task for name, each in reports.items() if each.did is Effect.REMOVED}
        if gone := gone - set(served(self.app)):
            listing = await self.roster.read()  # their queues serve all of their loops
            await self.installation.remove_tasks(
                task for task in gone if not listing.count_of(task)
            )
        by_loop = defaultdict[LoopId, list[Report]](list)
        for name, each in reports.items():
            by_loop[asked_by[name]].append(each)
        return [_as_one(by_loop[loop.id], Effect.REMOVED) for loop in loops]

    def _may_end(self, current: LoopId, former: LoopId) -> bool:
        """Return whether a renamed loop is of the same task here, or of one unknown here.

        A seed would start one that the code has again, from the beginning.
        """
        tasks = served(self.app)
        is_of_task = tasks.get(current.task) in (None, tasks.get(former.task))
        return is_of_task and current not in self.app.loops


def _names_of(loop: Loop) -> list[LoopId]:
    """Return the names that a loop may have, those of its task's aliases first."""
    names = loop.task.names if loop.id.task in loop.task.names else (loop.id.task,)
    return [loop.id._replace(task=name) for name in reversed(names)]


def _decide_removal(one_offs: bool, loop: Loop, listing: Listing) -> Report | Intent:
    listed, loop = listing.get(loop.id), as_listed(loop, listing)
    if listed is None or listed.is_done or (isinstance(listed.schedule, Once) and not one_offs):
        return Report(loop, Effect.NOT_THERE)
    # A gone one is removed again: a previous removal may have died before it called the roll.
    return Intent(Verb.REMOVE, loop, listed, did=Effect.NOT_THERE if listed.is_gone else None)


@dataclass(eq=False)
class Endings:
    """Enter how runs have ended their loops."""

    namespace: str
    beginnings: Beginnings

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
            await self.beginnings.act(list(map(_loop_of, found)), decide)
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
            return Intent(Verb.REMOVE, loop, listed, reason=DONE, recorded=False)
        return Intent(
            Verb.PAUSE,
            loop,
            listed,
            reason=end.reason or "",
            recorded=False,
            checkpoint=checkpoint_of(end, self.namespace, moment_of(LATEST_MS)),
        )


def _loop_of(end: Token) -> Loop:
    return Loop(end.loop, absent(end.loop.task), end.schedule, end.args)


LOST = "lost"
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


@dataclass(eq=False)
class Cancellation:
    """Cancel runs.

    Attributes:
        within: how long to wait for a run to end.
    """

    inquiry: Inquiry
    within: timedelta = timedelta(seconds=10)

    async def running(self, *, stack_of: str | None = None) -> Running:
        """Return the current runs.

        Args:
            stack_of: the run whose stack is included, as for `cancel`.

        Raises:
            NotRunning, UsageError: there is no such run, or more than one.
            QueueNotFound: nothing was seeded.
        """
        running = await self.inquiry.ask()
        if stack_of is None:
            return running
        return await self.inquiry.ask(stack_of=_found(running, stack_of)[0].id)

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
        found = _found(await self.inquiry.ask(), run)
        demand = Demand(by or operator_here(), escalate)
        endings = await self.inquiry.cancel(
            found[-1].id, demand, {each.processor for each in found}, timeout=self.within
        )
        ending = _ending([endings.get(each.processor) for each in found])
        if ending is None and not await self._goes_on(found):
            ending = LOST
        asked = Ending.ESCALATED if escalate else Ending.CANCELLED
        return CancelReport(found[-1], ending, ending == asked)

    async def _goes_on(self, found: Collection[RunningRun]) -> bool:
        """Return whether a run's processor still has it."""
        now = await self.inquiry.ask()
        before = {(run.processor, run.id, run.attempt) for run in found}
        return any((run.processor, run.id, run.attempt) in before for run in now.runs)


def _ending(endings: Collection[str | None]) -> str | None:
    """Return how the last of a run's processors has ended it; None: one has not."""
    if None in endings:
        return None
    settled = [each for each in endings if each != GONE]
    return settled[-1] if settled else GONE


def _found(running: Running, reference: str) -> list[RunningRun]:
    """Return the run of this name, oldest first if several processors have it.

    Matches an ID; else a loop; else a prefix of a call's ID.
    """
    require_text("The name of a run", reference)
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
