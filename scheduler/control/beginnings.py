"""Begin epochs of loops, as every creator of a token does: append, put, and call the roll.

Entries are compare-and-append: of two creators that act at once, one entry is accepted and the
other creator learns that it was overtaken. So no lock is needed. A creator may die after each
step: what it leaves behind is void, or found overdue by supervision.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scheduler.control.acting import actor
from scheduler.control.concurrency import side_by_side
from scheduler.control.joining import joined
from scheduler.control.new_tokens import first_token
from scheduler.control.reports import Did, Report
from scheduler.errors import BrokerError, Overtaken, Rejected, TooLarge, Undecodable
from scheduler.protocol.epochs import LoopState, Step, Verb, awaited, begun, steps, unaware
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.checkpoints import Checkpoint
from scheduler.queues.journal import MARGIN, Heard, Journal, born_at, look_backs
from scheduler.queues.listing import Listed, Listing
from scheduler.queues.roll_call import RollCall
from scheduler.queues.roster import Roster
from scheduler.queues.timers import Timers
from scheduler.tasks.loops import Loop
from scheduler.timing.clock import Clock

# A processor that hangs loses its connection within minutes; no operator waits so long.
CALLING_TIMEOUT = timedelta(seconds=10)
CALLED_AT_ONCE = 2_000
"""Loops in one question of a roll call: some 100 kB."""

TRIES = 10
LOOK_BACK = timedelta(minutes=10)
"""So far back a creator reads the journal itself."""

Change = Callable[[Token], Token]
Told = Callable[[Report], None]


def unchanged(token: Token) -> Token:
    """Return the token as it is."""
    return token


@dataclass(frozen=True, slots=True)
class Wanted:
    """An epoch that a creator wants to begin.

    Attributes:
        loop: with the schedule, the override and the arguments with which it goes on.
        before: the loop's entry that the creator has seen; None: it has none.
        change: what the verb does to the first token.
        reason: why the loop is paused or gone; None: why it was paused before.
        brand_new: no older token of this loop exists, so no processor needs to be asked.
        paused: a loop that is started waits until it is resumed.
        is_told: the journal hears of it, and all processors confirm a pause or an end.
        checkpoint: how far the loop has come, where that is known; None: as noted before.
    """

    verb: Verb
    loop: Loop
    before: Listed | None
    change: Change = unchanged
    reason: str | None = None
    brand_new: bool = False
    paused: bool = False
    is_told: bool = True
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """An epoch that has begun.

    Attributes:
        token: its first token; None: the loop is paused or gone.
        silent: the processors that have not confirmed that they know of it, of those asked.
    """

    listed: Listed
    token: Token | None
    silent: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """An epoch to begin, and how to report it."""

    did: Did
    wanted: Wanted


Decide = Callable[[Loop, Listing], Report | Decision]
"""Decides about a loop, as the code or the broker names it, by what the roster says."""


class Beginnings:
    """Begins epochs.

    Args:
        roll_call: asks the processors; it is opened for that, unless it listens already.
    """

    def __init__(
        self,
        namespace: str,
        clock: Clock,
        timers: Timers,
        roster: Roster,
        roll_call: RollCall,
        journal: Journal,
    ) -> None:
        self._namespace = namespace
        self._clock = clock
        self._timers = timers
        self._roster = roster
        self._roll_call = roll_call
        self._journal = journal

    async def act(
        self, loops: Sequence[Loop], decide: Decide, *, tell: Told = lambda report: None
    ) -> list[Report]:
        """Decide about loops and begin the epochs decided on, again where others were first.

        Args:
            loops: no two of which are the same.
            tell: called with each report as it comes.

        Raises:
            QueueNotFound: nothing was seeded.
            Overtaken: other creators were first again and again.
        """
        reports = dict[LoopId, Report]()
        pending = list(loops)
        for _ in range(TRIES):
            listing = await self._roster.compacted()
            decided = [decide(loop, listing) for loop in pending]
            decisions = [each for each in decided if isinstance(each, Decision)]
            epochs = await self.begin_all([each.wanted for each in decisions])
            found = [each for each in decided if isinstance(each, Report)]
            found += [
                _report(*each)
                for each in zip(decisions, epochs, strict=True)
                if each[1] is not None
            ]
            for report in found:
                reports[report.loop.id] = report
                tell(report)
            pending = [loop for loop in pending if loop.id not in reports]
            if not pending:
                return [reports[loop.id] for loop in loops]
        names = ", ".join(map(str, pending))
        raise Overtaken(f"{names}: changed by others {TRIES} times in a row. Try again.")

    async def begin_all(self, wanted: Sequence[Wanted]) -> list[Begun | None]:
        """Begin epochs of different loops, in bulk.

        Returns:
            For each, what has begun. None: the verb has nothing to do, or another creator was
            first: the roster tells.

        Raises:
            QueueNotFound: nothing was seeded.
            BrokerError: some may have begun.
            TooLarge: the broker does not accept the arguments of one; the others have begun.
        """
        now = self._clock.now()
        at_ms = self._roster.next_epoch_ms()
        planned = [self._planned(each, now, at_ms) for each in wanted]
        entries = [entry for entry in planned if entry is not None]
        answers = await self._roster.append(entries) if entries else []
        refused = [answer for answer in answers if isinstance(answer, TooLarge)]
        taken = iter(None if isinstance(answer, TooLarge) else answer for answer in answers)
        accepted = [None if entry is None else next(taken) for entry in planned]
        pairs = list(zip(wanted, accepted, strict=True))
        firsts = [
            _first(each, listed, now)
            for each, listed in pairs
            if listed is not None and listed.entry.state is LoopState.ACTIVE
        ]
        going_on = await self._exchanged(firsts, {each.loop: each for each in accepted if each})
        tokens = await side_by_side(lambda pair: self._put(*pair, going_on, now), pairs)
        silent = await self._call(pairs)
        for refusal in refused:  # the others have begun
            raise refusal
        return [
            None if listed is None else Begun(listed, token, silent.get(listed.loop, ()))
            for listed, token in zip(accepted, tokens, strict=True)
        ]

    def _planned(self, wanted: Wanted, now: datetime, at_ms: int) -> Listed | None:
        loop, before = wanted.loop, wanted.before
        beginning = begun(
            wanted.verb,
            None if before is None else before.entry,
            at_ms=at_ms,
            paused=wanted.paused,
        )
        if beginning is None:
            return None
        return Listed(
            loop.id,
            loop.schedule,
            loop.args,
            beginning.entry,
            _reason(wanted, beginning.entry.state),
            by=actor(self._roll_call.processor),
            checkpoint=_checkpoint(wanted, now),
            override=None if wanted.verb is Verb.GONE else loop.override,
        )

    async def _exchanged(
        self, firsts: Sequence[Token], entries: Mapping[LoopId, Listed]
    ) -> Mapping[LoopId, Token]:
        """Return what first tokens are exchanged for, of loops that no processor runs (R4).

        Those of other loops, and those that the journal has to be read far back for, are left to
        their processors.
        """
        sinces = {
            first.loop: since
            for first in firsts
            if first.first and (since := self._heard_since(first, entries[first.loop]))
        }
        if not sinces:
            return {}
        try:
            free = set(await self._not_running({loop: entries[loop].epoch for loop in sinces}))
            old = {first.loop for first in firsts if not _is_start(first)} & free
            since = min((sinces[loop] for loop in old), default=None)
            heard = await self._journal.heard(old, since=since) if old else {}
        except BrokerError:
            return {}
        found = (
            self._exchange(first, entries[first.loop], heard.get(first.loop, Heard()))
            for first in firsts
            if first.loop in free
        )
        return {token.loop: token for token in found if token is not None}

    def _heard_since(self, first: Token, listed: Listed) -> datetime | None:
        """Return from when on the journal tells of a loop; None: from too long ago."""
        now = self._clock.now()
        if _is_start(first):
            return now
        if listed.checkpoint is not None:
            since = min(listed.checkpoint.until, now) - MARGIN
        else:
            near, _ = look_backs([first.schedule], self._clock)
            since = max(near, born_at(first.life))
        return since if now - since <= LOOK_BACK else None

    def _exchange(self, first: Token, listed: Listed, heard: Heard) -> Token | None:
        if listed.checkpoint is not None:
            try:
                heard.note(listed.checkpoint.token(self._namespace))
            except Undecodable:
                return None
        if not _is_start(first) and not heard.has_line(first.life):
            return None
        token = joined(first, heard, listed.entry)
        return None if token.rests else replace(token, act=first.act)

    async def _not_running(self, epochs: Mapping[LoopId, int]) -> list[LoopId]:
        """Return the loops of which all processors know the epoch, and none is in an older run."""
        free, loops = list[LoopId](), list(epochs)
        async with self._roll_call:
            for begin in range(0, len(loops), CALLED_AT_ONCE):
                some = {loop: epochs[loop] for loop in loops[begin : begin + CALLED_AT_ONCE]}
                answers = await self._roll_call.ask_all(some)
                free += [
                    loop
                    for loop, epoch in some.items()
                    if not awaited(epoch, answers.of(loop, epoch))
                    and answers.known.get(loop, epoch) <= epoch
                ]
        return free

    async def _put(
        self,
        wanted: Wanted,
        listed: Listed | None,
        exchanged: Mapping[LoopId, Token],
        now: datetime,
    ) -> Token | None:
        if listed is None:
            return None
        token = _first(wanted, listed, now)
        if listed.entry.state is not LoopState.ACTIVE:
            if wanted.is_told:  # it has no token: only the journal hears what was done
                await self._timers.tell(replace(token, state=State.PAUSED))
            return None
        going_on = exchanged.get(token.loop, token)
        with suppress(Rejected):  # its task's queue is full: supervision finds the token lost
            if going_on.first:
                await self._timers.put_now(going_on)
            else:
                await self._timers.put(going_on)
        return going_on

    async def _call(
        self, pairs: Sequence[tuple[Wanted, Listed | None]]
    ) -> Mapping[LoopId, Sequence[str]]:
        """Call the roll with the epochs of loops that are paused or gone."""
        epochs = {
            listed.loop: listed.epoch
            for wanted, listed in pairs
            if listed is not None and wanted.is_told and Step.CALL in steps(wanted.verb, None)
        }
        silent = dict[LoopId, Sequence[str]]()
        loops = list(epochs)
        for begin in range(0, len(loops), CALLED_AT_ONCE):
            silent |= await self._confirmed(
                {loop: epochs[loop] for loop in loops[begin : begin + CALLED_AT_ONCE]}
            )
        return silent

    async def _confirmed(self, epochs: Mapping[LoopId, int]) -> dict[LoopId, Sequence[str]]:
        until = self._clock.now() + CALLING_TIMEOUT
        async with self._roll_call:
            while True:
                answers = await self._roll_call.ask_all(epochs)
                silent: dict[LoopId, Sequence[str]] = {
                    loop: missing
                    for loop, epoch in epochs.items()
                    if (missing := unaware(epoch, answers.of(loop, epoch)))
                }
                if not silent or self._clock.now() >= until:
                    return silent


def _first(wanted: Wanted, listed: Listed, now: datetime) -> Token:
    token = first_token(wanted.loop, listed.entry, wanted.verb, now, listed.reason, listed.by)
    return replace(wanted.change(token), first=not wanted.brand_new)


def _is_start(first: Token) -> bool:
    """Return whether a token begins a new life of its loop: it goes on from nothing."""
    return first.epoch == first.life


def _report(decision: Decision, epoch: Begun | None) -> Report:
    assert epoch is not None
    return Report(
        decision.wanted.loop,
        decision.did,
        epoch.token and epoch.token.due_at,
        is_paused=epoch.listed.entry.state is LoopState.PAUSED,
        silent=epoch.silent,
    )


def _reason(wanted: Wanted, state: LoopState) -> str:
    if wanted.reason is None and wanted.before is not None and state is LoopState.PAUSED:
        return wanted.before.reason
    return wanted.reason or ""


def _checkpoint(wanted: Wanted, now: datetime) -> Checkpoint | None:
    before = wanted.before
    if wanted.checkpoint is not None:
        return wanted.checkpoint
    if before is None or before.checkpoint is None or wanted.verb in (Verb.GONE, Verb.START):
        return None
    return before.checkpoint.ended(now)
