"""The operator's verbs: pause, resume, trigger, set a schedule; each begins an epoch.

They are done under the mutex under which tokens are created. What a verb did is told by the token
that it put, and so by the journal.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.beginnings import Beginnings, Begun, Change
from scheduler.control.loops import as_entered
from scheduler.control.new_tokens import paused, resumed
from scheduler.control.reports import Did, Report
from scheduler.errors import QueueNotFound, QueueUnresponsive, UnknownLoop, UsageError
from scheduler.protocol.epochs import LoopState, Verb
from scheduler.protocol.tokens import State, Token
from scheduler.queues.hatchery import Hatchery
from scheduler.queues.roster import Listed, Roster
from scheduler.tasks.loops import Loop, Override
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock
from scheduler.timing.once import Once
from scheduler.timing.schedules import Recurring


class Verbs:
    """The verbs of an app's loops.

    Args:
        patience: how long to wait for others who create tokens.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        hatchery: Hatchery,
        roster: Roster,
        beginnings: Beginnings,
        patience: timedelta,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._hatchery = hatchery
        self._roster = roster
        self._beginnings = beginnings
        self._patience = patience

    async def pause(self, loop: Loop, reason: str = "paused by an operator") -> Report:
        """Have the loop wait until it is resumed.

        A run that is going on ends first; once this has returned, none begins, unless a processor
        has not answered, which is reported.
        """
        async with self._hatchery.mutex(self._patience):
            listed, token = await self._look(loop)
            before = _paused_already(listed, token)
            reason = before or reason
            epoch = await self._begin(
                Verb.PAUSE, loop, listed, lambda token: paused(token, reason), reason
            )
        did = Did.PAUSED if before is None else Did.UNCHANGED
        return Report(loop, did, epoch.token, silent=epoch.silent)

    async def resume(
        self, loop: Loop, *, at_once: bool = False, after: datetime | None = None
    ) -> Report:
        """Have a paused loop go on, at its next nominal time or at once.

        Args:
            after: go on as after a run at this moment: the next nominal time is the first one after
                it. What has been due since, `catch_up` decides about.
        """
        async with self._hatchery.mutex(self._patience):
            listed, token = await self._look(loop)
            if _paused_already(listed, token) is None:
                return Report(loop, Did.NOT_PAUSED, token)
            # One that its own run has paused is active in the roster.
            before = replace(listed, entry=listed.entry._replace(state=LoopState.PAUSED))
            now = self._clock.now()
            epoch = await self._begin(
                Verb.RESUME,
                loop,
                before,
                lambda token: resumed(token, now, at_once=at_once, after=after),
            )
            return Report(loop, Did.RESUMED, epoch.token)

    async def trigger(self, loop: Loop) -> Report:
        """Have a loop that waits run now. One that is due, or running, is left alone."""
        async with self._hatchery.mutex(self._patience):
            listed, token = await self._look(loop)
            if _paused_already(listed, token) is not None:
                return Report(loop, Did.IS_PAUSED, token)
            if token is None:
                return Report(loop, Did.RUNNING)
            now = self._clock.now()
            epoch = await self._begin(
                Verb.TRIGGER,
                loop,
                listed,
                lambda token: replace(token, due_at=min(now, token.due_at)),
            )
            return Report(loop, Did.TRIGGERED, epoch.token)

    async def set_schedule(self, loop: Loop, schedule: Recurring, *, by: str) -> Report:
        """Have a loop go on by this schedule from now on.

        In place of that of the code it holds, whatever is seeded, until it is cleared. A loop that
        was started at run time has no other than this.

        Args:
            by: who says so.

        Raises:
            UsageError: no task of this code runs the loop, or it is a named one-off.
        """
        if loop.id.task not in self._app.tasks:
            raise UsageError(
                f"The loop {loop} is in the broker, and not in this code, which would not run it. "
                "Nothing was changed."
            )
        async with self._hatchery.mutex(self._patience):
            listed, token = await self._look(loop)
            if isinstance(listed.schedule, Once):
                raise UsageError(
                    f"{loop} is a named one-off: it has a moment, and no schedule. Nothing was "
                    "changed; `scheduler scheduled move` gives it another moment."
                )
            before = as_entered(loop, listed)
            override = Override(by, self._clock.now()) if loop.id in self._app.loops else None
            if (before.schedule, before.override is None) == (schedule, override is None):
                return Report(before, Did.UNCHANGED, token)
            return await self._reschedule(
                replace(before, schedule=schedule, override=override), listed
            )

    async def clear_schedule(self, loop: Loop) -> Report:
        """Have a loop go on by the schedule of this code again.

        Raises:
            UsageError: the code has none for it.
        """
        if (of_code := self._app.loops.get(loop.id)) is None:
            raise UsageError(
                f"The loop {loop} is not in the code, which has no schedule for it to go back to. "
                "Nothing was changed; `scheduler schedule set` gives it another."
            )
        async with self._hatchery.mutex(self._patience):
            listed, token = await self._look(loop)
            if listed.override is None:
                return Report(as_entered(of_code, listed), Did.NOT_SET, token)
            return await self._reschedule(replace(of_code, args=listed.args), listed)

    async def _reschedule(self, loop: Loop, listed: Listed) -> Report:
        epoch = await self._beginnings.begin(Verb.RESCHEDULE, loop, listed)
        assert epoch is not None
        return Report(loop, Did.RESCHEDULED, epoch.token)

    async def _look(self, loop: Loop) -> tuple[Listed, Token | None]:
        """What the roster says of a loop, and the token of its epoch in the slot."""
        try:
            listed = (await self._roster.compacted()).get(loop.id)
            token = await self._found(loop)
        except QueueNotFound:
            listed = token = None
        if listed is None or listed.is_gone:
            raise QueueNotFound(
                f"The loop {loop} is not in {self._broker.address} yet. Nothing was changed; "
                "run `scheduler seed` first."
            )
        if token is None or token.epoch < listed.epoch:
            return listed, None
        if token.state is State.DONE:
            raise UnknownLoop(
                f"The run of {loop} has ended, and it was its only one. Nothing was changed."
            )
        return listed, token

    async def _found(self, loop: Loop) -> Token | None:
        try:
            return await self._hatchery.find(loop.id)
        except QueueUnresponsive:  # it is made anew
            return None

    async def _begin(
        self,
        verb: Verb,
        loop: Loop,
        listed: Listed,
        change: Change,
        reason: str | None = None,
    ) -> Begun:
        loop = as_entered(loop, listed)
        epoch = await self._beginnings.begin(verb, loop, listed, change=change, reason=reason)
        assert epoch is not None
        return epoch


def _paused_already(listed: Listed, token: Token | None) -> str | None:
    """Why it is paused; None: it is not."""
    if token is not None and token.state is State.PAUSED:
        return token.reason or ""
    return listed.reason if listed.entry.state is LoopState.PAUSED else None
