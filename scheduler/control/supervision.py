"""Supervision: counts the tokens of all loops, and repairs what it finds.

It is itself a loop, so that one processor at a time does it; and each processor looks now and then
whether that loop, and what it needs, is still there.

=========================  =====================================================================
tokens in the slot         what is done
=========================  =====================================================================
one                        nothing
two or more                they are united under the mutex
none, ready for a task     nothing: a processor will take it
none, in a hand            nothing: it is running, or being settled
none, in no hand, twice    lost: put again from where the journal saw it last
none, though put again     stuck: the queue is made anew, if we may, and the token put again
none, and it takes none    the same; but whoever has the token puts it
none, and not all answer   a guard is put; once all answer, as above
no slot                    the queue is declared, if we may, and the loop is seeded
=========================  =====================================================================

What this cannot tell: with other messages ready in its task's queue, a token may be one of them.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from scheduler.brokers.contract import Broker, Consumer
from scheduler.control.concurrency import side_by_side
from scheduler.control.declaring import Declaring
from scheduler.control.location import Locator
from scheduler.control.loops import loops_of, orphans_of
from scheduler.control.repairs import Repairs
from scheduler.control.seeding import Seeding
from scheduler.errors import AccessRefused, BrokerError, QueueNotFound
from scheduler.events import CensusTaken, LoopReported, SupervisionDelayed
from scheduler.protocol.tokens import LoopId, State
from scheduler.queues.hatchery import LOOK_PAUSE, LOOKS, Hatchery
from scheduler.queues.roster import Listed, Roster
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
STRIKES = 2
STUCK = 3
PATIENCE = 20 * SECOND  # how long a round waits for others who create tokens

ADVICE = {
    "orphan": "The code does not have it: `scheduler seed --prune` removes it.",
    "unattended": "It is due, and nobody consumes from its queue: start a processor for its task.",
    "stuck": "The broker keeps its token back, or takes none, and we may not delete its queue: "
    "delete it, then run `scheduler seed`. The loop goes on from the journal.",
    "missing": "Its queue does not exist, and we may not declare it: run `scheduler seed`.",
}


class Memory(BaseModel):
    """What a round hands on to the next, whichever processor runs it.

    Attributes:
        cursor: where in the list of loops the next round begins.
        suspects: loops whose token was in no queue, with how often in a row nobody claimed it, or
            whoever had it could not put the next.
        reported: loops in a trouble that was told.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    cursor: int = 0
    suspects: Mapping[str, int] = {}
    reported: Mapping[str, str] = {}


class Supervisor:
    """The part that one processor takes in supervision."""

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        hatchery: Hatchery,
        roster: Roster,
        locator: Locator,
        repairs: Repairs,
        seeding: Seeding,
        declaring: Declaring,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._hatchery = hatchery
        self._roster = roster
        self._locator = locator
        self._repairs = repairs
        self._seeding = seeding
        self._declaring = declaring
        self._listed: dict[LoopId, Listed] = {}
        self._strikes: Mapping[str, int] = {}
        self._following: Consumer | None = None
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
        """Begin to follow the roster, and to look after the supervision loop."""
        self._following = await self._roster.follow(self._listed)
        self._watching = asyncio.create_task(self._watch_supervision(), name="supervision")
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._watching is not None
        assert self._following is not None
        self._watching.cancel()
        await asyncio.wait([self._watching])
        await self._following.cancel()

    async def round(self, memory: Memory) -> Memory:
        """Count the tokens of the loops whose turn it is, and of those that were suspect."""
        began = self._clock.now()
        loops = loops_of(self._app, self._listed)
        turn = _turn(loops, memory)
        counts = await side_by_side(self._count, turn)
        count_of = {loop.id: count for loop, count in zip(turn, counts, strict=True)}
        gone = [loop for loop in turn if count_of[loop.id] is None]
        incomplete = bool(gone) or await self._tasks_without_queue()
        adopted = not incomplete or await self._adopt()
        for loop in turn:
            if (count_of[loop.id] or 0) > 1:
                await self._repairs.unite(loop)
        empty = [loop for loop in turn if count_of[loop.id] == 0 or str(loop) in memory.suspects]
        suspects = await self._examine(empty, memory.suspects)
        troubles = {
            **{str(loop): "orphan" for loop in orphans_of(self._app, self._listed)},
            **{str(loop): "missing" for loop in gone if not adopted},
            **{str(loop): "unattended" for loop in await self._unattended(empty)},
            **_stuck(suspects),
        }
        self._report(troubles, memory.reported)
        took = self._clock.now() - began
        self._app.events.emit(CensusTaken(len(turn), len(loops), took))
        cursor = (memory.cursor + LOOKED_AT_IN_A_ROUND) % max(len(loops), 1)
        within = len(loops) <= LOOKED_AT_IN_A_ROUND
        return Memory(
            cursor=0 if within else cursor,
            suspects=_first(suspects),
            reported=_first(troubles),
        )

    async def _count(self, loop: Loop) -> int | None:
        depth = await self._broker.depth(self._app.names.hatchery(loop.id))
        return None if depth is None else depth.ready

    async def _tasks_without_queue(self) -> bool:
        queues = [self._app.names.processor_queue(task) for task in self._app.tasks]
        return bool(await self._declaring.absent(queues))

    async def _adopt(self) -> bool:
        try:
            await self._seeding.adopt(self._listed, patience=PATIENCE)
        except AccessRefused:
            return False
        listed = await self._roster.read()
        for forgotten in self._listed.keys() - listed.keys():
            del self._listed[forgotten]
        return True

    async def _examine(
        self, loops: Collection[Loop], suspects: Mapping[str, int]
    ) -> dict[str, int]:
        """Repair what is lost of the loops with no token in the slot; returns who is suspect."""
        if not loops:
            return {}
        answers = await self._locator.who_has([loop.id for loop in loops])
        unclaimed = [loop for loop in loops if loop.id not in answers.claims]
        nowhere = await side_by_side(self._is_nowhere, unclaimed)
        absent = [loop for loop, gone in zip(unclaimed, nowhere, strict=True) if gone]
        refused = [loop for loop in loops if loop.id in answers.refused]
        if not answers.complete:
            await self._repairs.guard(absent)
        counted = (*absent, *refused) if answers.complete else refused
        strikes = {str(loop): suspects.get(str(loop), 0) for loop in (*absent, *refused)}
        strikes |= {str(loop): strikes[str(loop)] + 1 for loop in counted}
        if stuck := [loop for loop in counted if strikes[str(loop)] >= STUCK]:
            dice.shuffle(stuck)  # one that the broker fails at shall not keep the others waiting
            with suppress(AccessRefused):  # which is reported
                for loop in await self._repairs.renew(stuck):
                    strikes[str(loop)] = STRIKES - 1
        # Seen in the next round, those that are put again are suspect no more.
        lost = [loop for loop in counted if loop in absent and strikes[str(loop)] >= STRIKES]
        if lost:
            tried = await self._repairs.repair(lost)
            strikes |= {str(loop): STRIKES - 1 for loop in lost if loop.id not in tried}
        return strikes

    async def _is_nowhere(self, loop: Loop) -> bool:
        """Whether the token is in no queue; a token on its way is for a moment."""
        for _ in range(LOOKS):
            try:
                token = await self._hatchery.look(loop.id)
            except QueueNotFound:
                return False
            if token is not None and token.state is not State.GUARD:
                return False
            queue = await self._broker.depth(self._app.names.processor_queue(loop.id.task))
            if queue is None or queue.ready:
                return False
            await asyncio.sleep(LOOK_PAUSE)
        return True

    async def _unattended(self, loops: Collection[Loop]) -> list[Loop]:
        tasks = list({loop.id.task for loop in loops})
        queues = [self._app.names.processor_queue(task) for task in tasks]
        depths = await side_by_side(self._broker.depth, queues)
        idle = {
            task
            for task, depth in zip(tasks, depths, strict=True)
            if depth is not None and depth.ready and not depth.consumers
        }
        return [loop for loop in loops if loop.id.task in idle]

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
        count = await self._count(loop)
        if count is None:
            if not await self._adopt():
                raise QueueNotFound(
                    "The queue of supervision does not exist, and this user may not declare it. "
                    "Lost loops are not repaired; run `scheduler seed`."
                )
        elif count > 1:
            await self._repairs.unite(loop)
        before = self._strikes
        self._strikes = await self._examine([loop], before) if count == 0 or before else {}
        self._report(_stuck(self._strikes), _stuck(before))


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


def _stuck(suspects: Mapping[str, int]) -> dict[str, str]:
    return {name: "stuck" for name, strikes in suspects.items() if strikes >= STUCK}


def _first(entries: dict[str, Any]) -> dict[str, Any]:
    return dict(list(entries.items())[:REMEMBERED])
