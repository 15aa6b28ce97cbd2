"""Begin epochs of loops, as every creator of a token does: append, put, and call the roll.

Entries are compare-and-append: of two concurrent creators, one entry is accepted and the other
creator learns that it was overtaken. So no lock is needed. A creator may die after each step: its
remains are void, or found overdue by supervision.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scheduler.brokers.contract import IN_FLIGHT
from scheduler.control.first_tokens import first_token, joined
from scheduler.control.loops import as_listed
from scheduler.control.reports import Effect, Report, actor
from scheduler.errors import BrokerError, Overtaken, Rejected, TooLarge, Undecodable
from scheduler.events import LoopRepaired
from scheduler.protocol.epochs import CALLING, LoopState, Verb, awaited, begun, unaware
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.concurrency import side_by_side
from scheduler.queues.entries import Checkpoint, RosterEntry, rank_of
from scheduler.queues.journal import MARGIN, LoopRecord, born_at, look_backs
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.queues.roll_call import in_parts
from scheduler.tasks.loops import Loop
from scheduler.timing.durations import SECOND
from scheduler.timing.pacing import backoff

# A processor that hangs loses its connection within minutes; operators wait less.
CALLING_TIMEOUT = timedelta(seconds=10)

BEGUN_AT_ONCE = 10_000
REPAIRED = {
    "lost": "its token was put again",
    "doubled": "a node of the broker delivered its token twice: one token replaces both",
}
WITHOUT_NOTE = Verb.REMOVE, Verb.SEED
"""Their entries do not continue from the note of the entry before."""

TRIES = 10
LOOK_BACK = timedelta(minutes=10)
"""The span of the journal that a creator reads itself."""

Change = Callable[[Token], Token]


def unchanged(token: Token) -> Token:
    return token


@dataclass(frozen=True, slots=True)
class Intent:
    """Describe an epoch to begin.

    Attributes:
        loop: with its new schedule, override and arguments.
        before: the loop's entry that the creator has seen, or that of the loop that it renames;
            None: it has none.
        change: the effect of the verb on the first token.
        reason: why the loop is paused or gone; None: as before.
        brand_new: no older token of this loop exists, so no processor needs to be asked.
        paused: start the loop paused.
        recorded: record it in the journal, and have all processors confirm a pause or an end.
        checkpoint: the loop's progress, if known; None, or behind what is noted: as noted.
        did: the reported effect; None: that of the verb.
    """

    verb: Verb
    loop: Loop
    before: RosterEntry | None
    change: Change = unchanged
    reason: str | None = None
    brand_new: bool = False
    paused: bool = False
    recorded: bool = True
    checkpoint: Checkpoint | None = None
    did: Effect | None = None


Decide = Callable[[Loop, Listing], Report | Intent]
"""Decides about a loop of the code or the broker, by its roster entry."""


class Beginnings:
    """Begin epochs; open the roll call for that, unless it listens already."""

    def __init__(self, namespace: Namespace) -> None:
        self._app, self._clock = namespace.app, namespace.clock
        self._roster, self._journal = namespace.roster, namespace.journal
        self._timers, self._roll_call = namespace.timers, namespace.roll_call

    async def act(self, loops: Sequence[Loop], decide: Decide) -> list[Report]:
        """Decide about loops and begin the chosen epochs; retry if other creators were first.

        Args:
            loops: without duplicates.

        Raises:
            QueueNotFound: nothing was seeded.
            Overtaken: other creators were first again and again.
        """
        reports = dict[LoopId, Report]()
        pending = list(loops)
        for _ in range(TRIES):
            decided = await self._roster.consult(
                [loop.id for loop in pending],
                lambda listing: {loop.id: decide(loop, listing) for loop in pending},  # noqa: B023
            )
            reports |= {id: each for id, each in decided.items() if isinstance(each, Report)}
            wanted = [each for each in decided.values() if isinstance(each, Intent)]
            reports |= await self.begin_all(wanted)
            pending = [loop for loop in pending if loop.id not in reports]
            if not pending:
                return [reports[loop.id] for loop in loops]
        names = ", ".join(map(str, pending))
        raise Overtaken(
            f"{names}: other programs changed it first, {TRIES} times in a row. Try again."
        )

    async def begin_all(self, wanted: Sequence[Intent]) -> Mapping[LoopId, Report]:
        """Begin epochs of different loops, in bulk.

        Returns:
            Those that began. For the other loops, the verb has no effect, or another creator
            was first: see the roster.

        Raises:
            QueueNotFound: nothing was seeded.
            BrokerError: some may have begun.
            TooLarge: the broker does not accept the arguments of one; the others have begun.
        """
        found = dict[LoopId, Report]()
        for begin in range(0, len(wanted), BEGUN_AT_ONCE):
            found |= await self._begin(wanted[begin : begin + BEGUN_AT_ONCE])
        return found

    async def _begin(self, wanted: Sequence[Intent]) -> dict[LoopId, Report]:
        now, at_ms = self._clock.now(), self._roster.next_epoch_ms()
        planned = [entry for each in wanted if (entry := self._planned(each, now, at_ms))]
        answers = await self._roster.append(planned) if planned else []
        entries = {each.loop: each for each in answers if isinstance(each, RosterEntry)}
        accepted = [each for each in wanted if each.loop.id in entries]
        tokens = {each.loop.id: _first(each, entries[each.loop.id]) for each in accepted}
        tokens |= await self._exchanged(tokens, entries)
        untold = [each.loop.id for each in accepted if _is_untold(each, entries[each.loop.id])]
        past_journal = set(untold)
        await side_by_side(
            lambda each: self._put(each, entries[each.loop.id], tokens[each.loop.id], past_journal),
            accepted,
            at_once=IN_FLIGHT,
        )
        await self._journal.record([tokens[loop] for loop in untold])
        silent = await self._call(accepted, entries)
        for refusal in answers:
            if isinstance(refusal, TooLarge):  # the others have begun
                raise refusal
        reports = (
            _report(each, entries[each.loop.id], tokens[each.loop.id], silent.get(each.loop.id, ()))
            for each in accepted
        )
        return {report.loop.id: report for report in reports}

    async def repair(
        self, loops: Collection[Loop], kind: str, *, epochs: Mapping[LoopId, int] | None = None
    ) -> Collection[LoopId]:
        """Begin an epoch of loops that are lost or doubled; return the repaired ones.

        A repair may be wrong: then the overlooked token is void. The loop continues as the roster
        says, from the last progress in the journal, once no older run is running.

        Args:
            epochs: in which each was seen: one that has begun another epoch since is left alone.
        """
        if not loops:
            return ()
        listing = await self._roster.read()
        still = [
            loop for loop in loops if epochs is None or epochs[loop.id] == listing.known(loop.id)
        ]
        repaired = await self.begin_all(
            [Intent(Verb.REPAIR, as_listed(loop, listing), listing.get(loop.id)) for loop in still]
        )
        for loop in repaired:
            self._app.events.emit(LoopRepaired(loop, kind, REPAIRED[kind]))
        return repaired.keys()

    def _planned(self, wanted: Intent, now: datetime, at_ms: int) -> RosterEntry | None:
        loop, before = wanted.loop, wanted.before
        beginning = begun(
            wanted.verb,
            None if before is None else before.entry,
            # A loop that is renamed begins after the one that had its name.
            at_ms=max(at_ms, self._roster.listing.known(loop.id) + 1),
            paused=wanted.paused,
        )
        if beginning is None:
            return None
        return RosterEntry(
            loop.id,
            loop.schedule,
            loop.args,
            beginning.entry,
            _reason(wanted, beginning.entry.state),
            by=actor(self._roll_call.processor),
            at=now,
            checkpoint=self._checkpoint(wanted, now),
            override=None if wanted.verb is Verb.REMOVE else loop.override,
            renames=before.loop.task if wanted.verb is Verb.RENAME and before else None,
            former=_former(wanted),
        )

    def _checkpoint(self, wanted: Intent, now: datetime) -> Checkpoint | None:
        before, known = wanted.before, wanted.checkpoint
        if before is None or wanted.verb in WITHOUT_NOTE:
            return known
        noted = before.noted(namespace := self._app.namespace)
        if noted is not None and wanted.verb is Verb.RENAME:
            noted = noted.of(wanted.loop.id, namespace)
        # The journal may have forgotten what has been noted since the creator read of it.
        if noted is None or (known is not None and rank_of(known.body) >= rank_of(noted.body)):
            return known
        return noted.ended(now)

    async def _exchanged(
        self, tokens: Mapping[LoopId, Token], entries: Mapping[LoopId, RosterEntry]
    ) -> dict[LoopId, Token]:
        """Return the exchanged first tokens of loops that no processor runs (R4).

        Three kinds are left to their processors: loops that run, loops that need the journal from
        far back, and loops that may replace others.
        """
        sinces = {
            loop: since
            for loop, first in tokens.items()
            if first.first
            and entries[loop].is_active
            and (since := self._heard_since(first, entries[loop]))
        }
        if not sinces:
            return {}
        try:
            free = await self._not_running({loop: entries[loop].epoch for loop in sinces})
            old = [loop for loop in free if not _is_start(tokens[loop])]
            since = min((sinces[loop] for loop in old), default=None)
            heard = {loop: LoopRecord() for loop in old}
            if old:
                await self._journal.hear(heard, since=since)
        except BrokerError:
            return {}
        return {
            loop: token
            for loop in free
            if (token := self._exchange(tokens[loop], entries[loop], heard.get(loop, LoopRecord())))
        }

    def _heard_since(self, first: Token, listed: RosterEntry) -> datetime | None:
        """Return from when on the journal covers a loop; None: too long ago, or elsewhere too."""
        now = self._clock.now()
        if listed.former:
            return None
        if _is_start(first):
            return now
        if listed.checkpoint is not None:
            since = min(listed.checkpoint.until, now) - MARGIN
        else:
            near, _ = look_backs(first.schedule, self._clock)
            since = max(near, born_at(first.life))
        return since if now - since <= LOOK_BACK else None

    def _exchange(self, first: Token, listed: RosterEntry, heard: LoopRecord) -> Token | None:
        if listed.checkpoint is not None:
            try:
                heard.note(listed.checkpoint.token(self._app.namespace))
            except Undecodable:
                return None
        if not _is_start(first) and not heard.has_line(first.life):
            return None
        token = joined(first, heard, listed.entry)
        return None if token.rests else replace(token, act=first.act)

    async def _not_running(self, epochs: Mapping[LoopId, int]) -> list[LoopId]:
        """Return the loops whose epoch all processors know, without older runs."""
        free = list[LoopId]()
        for some in in_parts(epochs):
            answers = await self._roll_call.ask_all(some)
            known = answers.known
            free += [
                loop
                for loop, epoch in some.items()
                if not awaited(epoch, answers.of(loop, epoch)) and known.get(loop, epoch) <= epoch
            ]
        return free

    async def _put(
        self, wanted: Intent, listed: RosterEntry, token: Token, past_journal: Collection[LoopId]
    ) -> None:
        if not listed.is_active:
            if wanted.recorded:  # it has no token: the journal gets a record of the operation
                await self._timers.record(replace(token, state=State.PAUSED))
            return
        put = self._timers.put_now if token.first else self._timers.put
        if listed.loop in past_journal:
            put = self._timers.start
        with suppress(Rejected):  # its task's queue is full: supervision finds the token lost
            await put(token)

    async def _call(
        self, wanted: Sequence[Intent], entries: Mapping[LoopId, RosterEntry]
    ) -> Mapping[LoopId, Sequence[str]]:
        """Call the roll with the epochs of loops that are paused or gone, and of whole tasks.

        Returns:
            The silent processors.
        """
        called = [
            each.loop.id
            for each in wanted
            if each.recorded and (each.verb in CALLING or each.loop.id.is_whole)
        ]
        silent, now_silent = dict[LoopId, Sequence[str]](), dict[LoopId, Sequence[str]]()
        epochs = {name: entries[loop].epoch for loop in called for name in entries[loop].names}
        for some in in_parts(epochs):
            until = self._clock.now() + CALLING_TIMEOUT
            async with self._roll_call:
                for pause in backoff(last=SECOND):
                    answers = await self._roll_call.ask_all(some)
                    now_silent = {
                        loop: missing
                        for loop, epoch in some.items()
                        if (missing := unaware(epoch, answers.of(loop, epoch)))
                    }
                    if not now_silent or self._clock.now() >= until:
                        break
                    await asyncio.sleep(pause)  # under an alarm, a call ends at once
            silent |= now_silent
        return silent


def _first(wanted: Intent, listed: RosterEntry) -> Token:
    token = wanted.change(first_token(listed, wanted.verb))
    return replace(token, first=not wanted.brand_new, former=listed.former)


def _is_untold(wanted: Intent, listed: RosterEntry) -> bool:
    """Return whether the journal need not hear a token: its entry in the roster is its note."""
    return wanted.brand_new and listed.is_active and listed.is_own_note


def _is_start(first: Token) -> bool:
    """Return whether a token begins a new life of its loop, without progress."""
    return first.epoch == first.life


def _report(wanted: Intent, listed: RosterEntry, token: Token, silent: Sequence[str]) -> Report:
    did = wanted.did or (Effect.CREATED if wanted.verb is Verb.SEED else Effect(wanted.verb))
    due_at = token.due_at if listed.is_active else None
    is_paused = listed.entry.state is LoopState.PAUSED
    return Report(wanted.loop, did, due_at, is_paused=is_paused, silent=silent)


def _reason(wanted: Intent, state: LoopState) -> str:
    if wanted.reason is None and wanted.before is not None and state is LoopState.PAUSED:
        return wanted.before.reason
    return wanted.reason or ""


def _former(wanted: Intent) -> tuple[str, ...] | None:
    """Return the former tasks of a loop: an epoch of theirs may still run."""
    if (before := wanted.before) is None:
        return None
    tasks = dict.fromkeys((before.loop.task, *(before.former or ())))
    tasks.pop(wanted.loop.id.task, None)
    return tuple(tasks) or None
