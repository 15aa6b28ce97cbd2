"""Supervision: looks for the tokens of all loops, and repairs what it misses, or hears twice.

It is itself a loop, so that one processor at a time does it; and each processor looks now and then
whether that loop, and what it needs, is still there.

=========================  =====================================================================
the current epoch's token  what is done
=========================  =====================================================================
put twice since the last   nothing, and nobody looks: it has gone on meanwhile
round, one after the other
in the slot, at its head   nothing; if it waits for long, it is noted (`control.notes`); if it is
                           done, its loop is removed (`control.endings`)
ready for its task         nothing: a processor will take it
in a hand                  nothing: it is running, or being settled
nowhere, twice             lost: a new epoch begins, which goes on from where the journal heard last
                           (a slot that refuses its token is made anew: `control.beginnings`)
nowhere, though put again  stuck: the queue is made anew, if we may, and a new epoch begins
in a hand, and refused     the same, if the slot keeps refusing what the processor puts
nobody can tell            the same, if its slot does not answer: none of its replicas leads it
nowhere, not all answer    nothing yet
no slot                    the queue is declared, if we may, and a new epoch begins
heard of in two lines      doubled: a new epoch begins, so that both are void (`control.doubles`)
=========================  =====================================================================

What this cannot tell: with other messages ready in its task's queue, a token may be one of them.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scheduler.brokers.contract import Broker
from scheduler.control.declaring import Declaring
from scheduler.control.doubles import Doubles, Lines, Trail
from scheduler.control.endings import Endings
from scheduler.control.location import Locator, Place, Sighting
from scheduler.control.loops import loops_of, orphans_of
from scheduler.control.notes import Notes
from scheduler.control.repairs import Repairs
from scheduler.control.seeding import Seeding
from scheduler.errors import AccessRefused, BrokerError, QueueNotFound
from scheduler.events import CensusTaken, LoopReported, SupervisionDelayed
from scheduler.protocol.epochs import Watch
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.roster import Listing
from scheduler.tasks.arguments import Arguments
from scheduler.tasks.context import Context
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.backoff import dice
from scheduler.timing.clock import Clock
from scheduler.timing.durations import SECOND

# Looking at so many costs a broker some tens of milliseconds; the others have their turn in the
# rounds to come.
LOOKED_AT_IN_A_ROUND = 1000
REMEMBERED = 300  # suspects and troubles: what a token can carry is limited
PATIENCE = 20 * SECOND  # how long a round waits for others who create tokens

NOT_DECLARED = (Place.NO_SLOT, Place.NO_TASK)
ADVICE = {
    "done": "Its run has ended, and we may not delete its queue: `scheduler remove` it.",
    "orphan": "The code does not have it: `scheduler seed --prune` removes it.",
    "unattended": "It is due, and nobody consumes from its queue: start a processor for its task.",
    "stuck": "The broker keeps its token back, or takes none, and we may not delete its queue: "
    "delete it, then run `scheduler seed`. The loop goes on from the journal.",
    "missing": "Its queue does not exist, and we may not declare it: run `scheduler seed`.",
}


class Suspicion(BaseModel):
    """What speaks for it that a loop does not go on.

    Attributes:
        epoch: of which it holds.
        misses: how often in a row no token was found, or the slot took none.
        repaired: whether it was put again, and went on to be missed; or that would not help.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    epoch: int = 0
    misses: int = 0
    repaired: bool = False

    @property
    def watch(self) -> Watch:
        return Watch(self.epoch, self.misses)

    def missed(self, epoch: int, *, refused: bool) -> "Suspicion":
        """After one more look that found no token of this epoch, or one that its slot refused."""
        watch = self.watch.looked(epoch, found=False)
        return Suspicion(epoch=epoch, misses=watch.misses, repaired=self.repaired or refused)

    @property
    def is_lost(self) -> bool:
        return self.watch.is_lost

    @property
    def is_stuck(self) -> bool:
        """Whether to put its token again does not help."""
        return self.is_lost and self.repaired


Suspects = Mapping[str, Suspicion]


class Memory(BaseModel):
    """What a round hands on to the next, whichever processor runs it.

    Attributes:
        cursor: where in the list of loops the next round begins.
        suspects: loops whose token was missed.
        reported: loops in a trouble that was told.
        trail: what was heard of loops that may have two lines.
        noted: how many tokens were noted since the roster was read last.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    cursor: int = 0
    suspects: Suspects = {}
    reported: Mapping[str, str] = {}
    trail: Trail = Trail()
    noted: int = Field(default=0, ge=0)


class Supervisor:
    """The part that one processor takes in supervision.

    Attributes:
        endings: removes what is done.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        listing: Listing,
        locator: Locator,
        repairs: Repairs,
        seeding: Seeding,
        declaring: Declaring,
        doubles: Doubles,
        notes: Notes,
        endings: Endings,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._listing = listing
        self._locator = locator
        self._repairs = repairs
        self._seeding = seeding
        self._declaring = declaring
        self._doubles = doubles
        self._notes = notes
        self.endings = endings
        self._suspects: Suspects = {}
        self._watching: asyncio.Task[None] | None = None

    @property
    def task(self) -> TaskSpec:
        """The task of the supervision loop, for a worker to run."""

        async def supervise(ctx: Context) -> None:
            try:
                memory = await self.round(_memory(ctx.carried))
            except BrokerError as error:
                self._app.events.emit(SupervisionDelayed(str(error)))
            except Exception:
                # Not parked like the failure of any other run: the next round is soon.
                logging.getLogger(__name__).exception("A round of supervision failed")
            else:
                ctx.carry(memory.model_dump())

        spec = self._app.supervision.task
        return replace(spec, function=supervise, arguments=Arguments(supervise))

    async def __aenter__(self) -> "Supervisor":
        """Begin to look after the supervision loop."""
        self._watching = asyncio.create_task(self._watch_supervision(), name="supervision")
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._watching is not None
        self._watching.cancel()
        await asyncio.wait([self._watching])

    async def round(self, memory: Memory) -> Memory:
        """Look for the tokens of the loops whose turn it is, and of those that were suspect."""
        began = self._clock.now()
        loops = loops_of(self._app, self._listing)
        lines = await self._lines(memory.trail)
        counted = _turn(loops, memory)
        turn = [loop for loop in counted if loop.id not in lines.going]
        sightings = await self._find(turn)
        gone = [loop for loop in turn if sightings[loop.id].place in NOT_DECLARED]
        incomplete = bool(gone) or await self._lacks_queues()
        adopted = not incomplete or await self._adopt()
        suspects = await self._examine(turn, sightings, memory.suspects)
        waiting = _tokens_in(sightings)
        left = {} if await self.endings.sweep(waiting) else _done(waiting)
        troubles = {
            **{str(loop): "orphan" for loop in orphans_of(self._app, self._listing)},
            **{str(loop): "missing" for loop in gone if not adopted},
            **{str(loop): "unattended" for loop in turn if sightings[loop.id].is_unattended},
            **_stuck(suspects),
            **left,
        }
        self._report(troubles, memory.reported)
        took = self._clock.now() - began
        self._app.events.emit(CensusTaken(len(counted), len(loops), took))
        ended = await self._end_doubles(loops, lines.doubled)
        return Memory(
            cursor=(memory.cursor + LOOKED_AT_IN_A_ROUND) % max(len(loops), 1),
            suspects=_first(suspects),
            reported=_first(troubles),
            trail=lines.trail if ended else memory.trail,
            noted=await self._notes.take(waiting, memory.noted),
        )

    async def _find(self, loops: Collection[Loop]) -> dict[LoopId, Sighting]:
        return await self._locator.find({loop.id: self._listing.known(loop.id) for loop in loops})

    async def _lacks_queues(self) -> bool:
        names = self._app.names
        streams = names.roster, names.snapshots, names.journal, names.roll_call
        of_tasks = (names.processor_queue(task) for task in self._app.tasks)
        return bool(await self._declaring.absent((*streams, names.presence, *of_tasks)))

    async def _adopt(self) -> bool:
        try:
            await self._seeding.adopt(dict(self._listing), patience=PATIENCE)
        except AccessRefused:
            return False
        return True

    async def _examine(
        self, loops: Collection[Loop], sightings: Mapping[LoopId, Sighting], before: Suspects
    ) -> dict[str, Suspicion]:
        """Repair what is lost; returns who is suspect."""
        suspects = dict[str, Suspicion]()
        for loop in loops:
            seen, suspicion = sightings[loop.id], before.get(str(loop), Suspicion())
            if seen.is_lost or seen.is_kept_back:
                epoch = self._listing.known(loop.id)
                suspects[str(loop)] = suspicion.missed(epoch, refused=seen.is_kept_back)
            elif seen.place is Place.UNKNOWN and suspicion != Suspicion():
                suspects[str(loop)] = suspicion
        stuck = [loop for loop in loops if _of(suspects, loop).is_stuck]
        lost = [loop for loop in loops if _of(suspects, loop).is_lost and loop not in stuck]
        if stuck:
            dice.shuffle(stuck)  # one that the broker fails at shall not keep the others waiting
            with suppress(AccessRefused):  # which is reported
                await self._repairs.renew(stuck)
                suspects |= {str(loop): Suspicion() for loop in stuck}
        if lost:
            watched = [(loop, _of(suspects, loop).watch) for loop in lost]
            await self._repairs.repair(watched, "lost")
            suspects |= {str(loop): Suspicion(repaired=True) for loop in lost}
        return suspects

    async def _lines(self, before: Trail) -> Lines:
        """What the journal shows; where it cannot be read, nothing, and the next round tries it."""
        try:
            return await self._doubles.found(before, self._listing.known)
        except BrokerError as error:
            self._app.events.emit(SupervisionDelayed(str(error)))
            return Lines({}, (), before)

    async def _end_doubles(self, loops: Collection[Loop], doubled: Mapping[LoopId, int]) -> bool:
        """Repair loops that have two lines; says whether that was done."""
        try:
            if watched := [(loop, Watch(doubled[loop.id])) for loop in loops if loop.id in doubled]:
                await self._repairs.repair(watched, "doubled")
        except BrokerError as error:
            self._app.events.emit(SupervisionDelayed(str(error)))
            return False
        return True

    def _report(self, troubles: Mapping[str, str], known: Mapping[str, str]) -> None:
        for name, trouble in troubles.items():
            if known.get(name) != trouble:
                task, _, key = name.partition(".")
                self._app.events.emit(LoopReported(LoopId(task, key), trouble, ADVICE[trouble]))

    async def _watch_supervision(self) -> None:
        """Look now and then whether the supervision loop is there, for as long as we live."""
        interval = self._app.settings.supervision_interval.total_seconds()
        while True:
            await asyncio.sleep(interval * dice.uniform(0.8, 1.2))
            if not self._broker.connected:
                continue  # that is told, and being mended
            try:
                await self._look_after_supervision()
            except BrokerError as error:
                self._app.events.emit(SupervisionDelayed(str(error)))
            except Exception:
                logging.getLogger(__name__).exception("Looking after supervision failed")

    async def _look_after_supervision(self) -> None:
        loop = self._app.supervision
        sightings = await self._find([loop])
        if sightings[loop.id].place in NOT_DECLARED and not await self._adopt():
            raise QueueNotFound(
                "The queue of supervision does not exist, and this user may not declare it. "
                "Lost loops are not repaired; run `scheduler seed`."
            )
        before = self._suspects
        self._suspects = await self._examine([loop], sightings, before)
        self._report(_stuck(self._suspects), _stuck(before))


def _memory(carried: Any) -> Memory:
    with suppress(ValidationError):  # of another version, say: begin anew
        return Memory.model_validate(carried or {})
    return Memory()


def _turn(loops: list[Loop], memory: Memory) -> list[Loop]:
    """The loops that a round looks at: the suspects, and the next of the others."""
    ahead = [*loops[memory.cursor :], *loops[: memory.cursor]][:LOOKED_AT_IN_A_ROUND]
    here = {loop.id for loop in ahead}
    return [
        *ahead,
        *(loop for loop in loops if loop.id not in here and str(loop) in memory.suspects),
    ]


def _of(suspects: Suspects, loop: Loop) -> Suspicion:
    return suspects.get(str(loop), Suspicion())


def _tokens_in(sightings: Mapping[LoopId, Sighting]) -> list[Token]:
    return [seen.token for seen in sightings.values() if seen.token is not None]


def _done(tokens: Collection[Token]) -> dict[str, str]:
    return {str(token.loop): "done" for token in tokens if token.state is State.DONE}


def _stuck(suspects: Suspects) -> dict[str, str]:
    return {name: "stuck" for name, suspicion in suspects.items() if suspicion.is_stuck}


def _first(entries: dict[str, Any]) -> dict[str, Any]:
    return dict(list(entries.items())[:REMEMBERED])
