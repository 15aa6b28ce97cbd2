"""Operate on loops: pause, resume, trigger, set a schedule; each begins an epoch.

A verb decides by the roster. If another creator was first, it reads and decides again. The journal
records it.

A whole task is paused and resumed like a loop. Its roster entry is separate from those of its
loops, which stay as they are. In between, processors take none of its messages: calls and tokens
wait in its queue.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from scheduler.control.beginnings import Beginnings, Change, Intent
from scheduler.control.first_tokens import resumed, triggered
from scheduler.control.loops import as_entered
from scheduler.control.reports import Effect, Report
from scheduler.control.status import Survey
from scheduler.control.where import Where
from scheduler.errors import QueueNotFound, UnknownLoop, UsageError
from scheduler.protocol.epochs import Entry, LoopState, Verb
from scheduler.protocol.tokens import Replay
from scheduler.queues.listing import Listing, RosterEntry, checkpoint_of
from scheduler.queues.namespace import Namespace
from scheduler.tasks.loops import Loop, Override
from scheduler.timing.schedules import Once, Recurring

PAUSED_BY_OPERATOR = "paused by an operator"
NOT_PAUSED = Entry(0, LoopState.GONE, 0)
"""The entry of a whole task that was never paused."""

DUE = Where.READY, Where.RUNNING, Where.UNATTENDED, Where.LATE

_Decide = Callable[[Loop, RosterEntry], Report | Intent]


class Verbs:
    """Operate on an app's loops; on many, in bulk."""

    def __init__(self, namespace: Namespace, beginnings: Beginnings, survey: Survey) -> None:
        self._app, self._broker, self._clock = namespace.app, namespace.broker, namespace.clock
        self._timers = namespace.timers
        self._beginnings = beginnings
        self._survey = survey

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
            QueueNotFound: a loop is not seeded.
            Overtaken: other creators were faster again and again.
        """

        heard_at = self._clock.now()
        tokens = await self._survey.last_tokens([each for each in loops if not each.id.is_whole])

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
                # The journal may have dropped it when the loop is resumed.
                checkpoint=None
                if paused or token is None or token.epoch < listed.entry.life
                else checkpoint_of(token, self._app.namespace, heard_at),
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
        (status,) = await self._survey.status(loop)
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
        listing, tokens = await self._survey.listing(), await self._survey.last_tokens([loop])
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
        await self._timers.put_now(replay)
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
        if loop.id.task not in self._app.tasks:
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
        return (await self._act([*loops, *others], decide))[: len(loops)]

    async def _act(self, loops: Sequence[Loop], decide: _Decide) -> list[Report]:
        try:
            return await self._beginnings.act(
                loops, lambda loop, listing: decide(loop, self._listed(loop, listing))
            )
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
            f"The {what} {loop} is not in {self._broker.address} yet. Nothing was changed; "
            "run `scheduler seed` first."
        )


def _as_operation(verb: Verb) -> Change:
    """Return the record of a pause or resume of a whole task, for the journal."""
    return lambda token: replace(token, act=token.act and replace(token.act, verb=verb))
