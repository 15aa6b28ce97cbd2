"""How an epoch of a loop begins: whoever creates a token does it so, with the mutex in hand.

One may die after each step: what is left behind is void, or found missing by supervision.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scheduler.control.acting import actor
from scheduler.control.declaring import Declaring
from scheduler.control.new_tokens import first_token, going_on
from scheduler.errors import AccessRefused, QueueUnresponsive, Rejected
from scheduler.protocol.epochs import Entry, LoopState, Step, Verb, begun, steps, unaware
from scheduler.protocol.tokens import State, Token
from scheduler.queues.checkpoints import Checkpoint
from scheduler.queues.hatchery import Hatchery
from scheduler.queues.roll_call import RollCall
from scheduler.queues.roster import Listed, Roster
from scheduler.tasks.loops import Loop
from scheduler.timing.clock import Clock
from scheduler.timing.moments import milliseconds_since_epoch

# A processor that stands still is given up by the broker within minutes; no operator waits so long.
CALLING_TIMEOUT = timedelta(seconds=10)

Change = Callable[[Token], Token]


def unchanged(token: Token) -> Token:
    """The token as its epoch finds it."""
    return token


@dataclass(frozen=True, slots=True)
class Begun:
    """An epoch that has begun.

    Attributes:
        token: the one that was put; None: the loop is gone.
        found: what was in the slot.
        silent: who has not said that they know of it, of the processors that were asked.
    """

    listed: Listed
    token: Token | None
    found: list[Token]
    silent: Sequence[str] = ()


class Beginnings:
    """Begins epochs.

    Args:
        roll_call: tells the processors; it is opened for that, unless it listens already.
    """

    def __init__(
        self,
        clock: Clock,
        hatchery: Hatchery,
        roster: Roster,
        roll_call: RollCall,
        declaring: Declaring,
    ) -> None:
        self._clock = clock
        self._hatchery = hatchery
        self._roster = roster
        self._roll_call = roll_call
        self._declaring = declaring

    async def begin(
        self,
        verb: Verb,
        loop: Loop,
        before: Listed | None,
        *,
        change: Change = unchanged,
        reason: str | None = None,
        brand_new: bool = False,
        paused: bool = False,
    ) -> Begun | None:
        """Begin an epoch of a loop; None: the verb has nothing to do.

        Args:
            loop: with the schedule, the override and the arguments with which it goes on.
            before: the loop's last entry in the roster, if it has one.
            change: what the verb does to the token.
            reason: why the loop is paused, or gone, if it is; None: why it was paused before.
            brand_new: there is no older token of this loop, anywhere.
            paused: whether a loop that is started waits until it is resumed.

        Raises:
            QueueNotFound: the loop has no hatchery queue.
            Rejected: that takes no token, and may not be made anew.
        """
        now = self._clock.now()
        latest = None if before is None else before.entry
        beginning = begun(verb, latest, at_ms=milliseconds_since_epoch(now), paused=paused)
        if beginning is None:
            return None
        listed = Listed(
            loop.id,
            loop.schedule,
            loop.args,
            beginning.entry,
            _reason(beginning.entry, before, reason),
            by=actor(self._roll_call.processor),
            checkpoint=_checkpoint(verb, before, now),
            override=None if verb is Verb.GONE else loop.override,
        )
        epoch = Begun(await self._roster.append(listed), None, [])
        for step in steps(verb)[1:]:
            match step:
                case Step.PURGE:
                    epoch = replace(epoch, found=await self._clear(verb, loop, brand_new))
                case Step.PUT:
                    first = _first(verb, loop, epoch, now, brand_new)
                    going = going_on(first, epoch.found, latest.epoch if latest else 0)
                    token = await self._put(verb, loop, _changed(going, change))
                    epoch = replace(epoch, token=token)
                case Step.CALL:
                    epoch = replace(epoch, silent=await self._call(loop, beginning.entry))
                case _:
                    raise AssertionError(f"a creator does not {step.value}")
        return epoch

    async def _clear(self, verb: Verb, loop: Loop, brand_new: bool) -> list[Token]:
        if verb is Verb.GONE:
            await self._declaring.remove_slot(loop)
            return []
        try:
            return await self._hatchery.clear(loop.id, is_new=brand_new)
        except QueueUnresponsive:
            await self._declaring.renew_slot(loop)
            return []

    async def _put(self, verb: Verb, loop: Loop, token: Token) -> Token:
        # What it goes on from is not known yet, and may be due.
        at_once = verb in (Verb.REPAIR, Verb.RESCHEDULE) and not token.known
        try:
            await self._hatchery.put_first(token, at_once=at_once)
        except Rejected as rejected:
            # After a node of a cluster was frozen, a slot may refuse for ever (seen on 4.0). Who
            # begins one epoch after the other there would keep supervision from seeing that.
            token = replace(token, known=False)  # a token that nobody saw may go with the slot
            await self._renew(loop, rejected)
            await self._hatchery.put_first(token, at_once=at_once)
        return token

    async def _renew(self, loop: Loop, rejected: Rejected) -> None:
        try:
            await self._declaring.renew_slot(loop)
        except AccessRefused:
            raise rejected from None

    async def _call(self, loop: Loop, entry: Entry) -> list[str]:
        """Tell all processors; returns those that have not answered."""
        epoch = entry.epoch
        until = self._clock.now() + CALLING_TIMEOUT
        async with self._roll_call:
            while True:
                answers = await self._roll_call.ask_all({loop.id: epoch})
                silent = unaware(epoch, answers.of(loop.id, epoch))
                if not silent or self._clock.now() >= until:
                    return silent


def _changed(token: Token, change: Change) -> Token:
    """What the verb makes of it; one that was done since somebody looked stays so."""
    return token if token.state is State.DONE else change(token)


def _reason(entry: Entry, before: Listed | None, reason: str | None) -> str:
    if reason is None and before is not None and entry.state is LoopState.PAUSED:
        return before.reason
    return reason or ""


def _checkpoint(verb: Verb, before: Listed | None, now: datetime) -> Checkpoint | None:
    if before is None or before.checkpoint is None or verb is Verb.GONE:
        return None
    return before.checkpoint.ended(now)


def _first(verb: Verb, loop: Loop, epoch: Begun, now: datetime, brand_new: bool) -> Token:
    token = first_token(loop, epoch.listed.entry, verb, now, epoch.listed.reason, epoch.listed.by)
    # Nothing was before its life. But where it is not brand-new, older runs may go on.
    return replace(token, first=not brand_new, known=not brand_new) if verb is Verb.START else token
