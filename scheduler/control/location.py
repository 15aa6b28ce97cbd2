"""Where the token of a loop's current epoch is: in its slot, ready for its task, in a hand."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from scheduler.brokers.contract import Broker
from scheduler.control.concurrency import side_by_side
from scheduler.control.processors import Processors
from scheduler.errors import QueueNotFound, QueueUnresponsive
from scheduler.protocol.tokens import LoopId, Token
from scheduler.protocol.topology import Names
from scheduler.queues.hatchery import LOOK_PAUSE, LOOKS, Hatchery
from scheduler.queues.roll_call import Answers, RollCall


class Place(Enum):
    """Where a token is."""

    SLOT = "in its slot"
    READY = "ready for its task, or something else is"
    HAND = "in the hand of a processor"
    NOWHERE = "nowhere, as all say"
    UNKNOWN = "nowhere, as far as was answered"
    UNRESPONSIVE = "its hatchery queue does not answer"
    NO_SLOT = "its hatchery queue does not exist"
    NO_TASK = "the queue of its task does not exist"


@dataclass(frozen=True, slots=True)
class Sighting:
    """Where the token of a loop was seen.

    Attributes:
        token: the one in the slot.
        processors: how many consume from the queue of its task.
        refused: whether it is in a hand, and its slot does not take what comes after it.
        unheard: the processors that might have it, and have not answered.
    """

    place: Place
    token: Token | None = None
    processors: int = 0
    refused: bool = False
    unheard: Sequence[str] = ()

    @property
    def is_lost(self) -> bool:
        """Whether it was nowhere, and all were asked."""
        return self.place is Place.NOWHERE

    @property
    def is_kept_back(self) -> bool:
        """Whether to put it again does not help: its slot takes nothing, or does not answer."""
        return self.refused or self.place is Place.UNRESPONSIVE

    @property
    def is_unattended(self) -> bool:
        """Whether it is due, and nobody consumes from the queue of its task."""
        return self.place is Place.READY and not self.processors


Look = Callable[[LoopId, int], Awaitable[Sighting]]


class Locator:
    """Finds the tokens of a namespace.

    Args:
        roll_call: asks; it is opened for that, unless it listens already.
    """

    def __init__(
        self,
        broker: Broker,
        names: Names,
        hatchery: Hatchery,
        roll_call: RollCall,
        processors: Processors,
    ) -> None:
        self._broker = broker
        self._names = names
        self._hatchery = hatchery
        self._roll_call = roll_call
        self._processors = processors

    async def find(self, loops: Mapping[LoopId, int]) -> dict[LoopId, Sighting]:
        """Where the tokens of these loops are, each of this epoch or a later one.

        It asks slot, queue and hands one after the other: a token that moves meanwhile may be
        missed.
        """
        return await self._find(loops, self._look)

    async def find_due(self, loops: Mapping[LoopId, int]) -> dict[LoopId, Sighting]:
        """The same of loops that are due, without a look into their slots."""
        return await self._find(loops, self._look_behind_slot)

    async def _find(self, loops: Mapping[LoopId, int], look: Look) -> dict[LoopId, Sighting]:
        seen = await side_by_side(lambda each: look(*each), loops.items())
        sightings = dict(zip(loops, seen, strict=True))
        missing = [loop for loop, each in sightings.items() if each.place is Place.NOWHERE]
        if missing:
            answers = await self._ask({loop: loops[loop] for loop in missing})
            for loop in missing:
                sightings[loop] = _in_hands(sightings[loop], answers, loop, loops[loop])
        return sightings

    async def _look(self, loop: LoopId, epoch: int) -> Sighting:
        consumers = 0
        for _ in range(LOOKS):
            try:
                token = await self._hatchery.look(loop)
            except QueueNotFound:
                return Sighting(Place.NO_SLOT)
            except QueueUnresponsive:
                return Sighting(Place.UNRESPONSIVE)
            queue = await self._broker.depth(self._names.processor_queue(loop.task))
            if queue is None:
                return Sighting(Place.NO_TASK)
            consumers = await self._processors.of(loop.task, queue)
            # Behind another one, a token is as good as lost: that one may wait for ever.
            if token is not None and token.epoch >= epoch:
                return Sighting(Place.SLOT, token, consumers)
            if queue.ready:
                return Sighting(Place.READY, processors=consumers)
            await asyncio.sleep(LOOK_PAUSE)
        return Sighting(Place.NOWHERE, processors=consumers)

    async def _look_behind_slot(self, loop: LoopId, epoch: int) -> Sighting:
        queue = await self._broker.depth(self._names.processor_queue(loop.task))
        if queue is None:
            return Sighting(Place.NO_TASK)
        consumers = await self._processors.of(loop.task, queue)
        return Sighting(Place.READY if queue.ready else Place.NOWHERE, processors=consumers)

    async def call_the_roll(self, loops: Mapping[LoopId, int]) -> Answers:
        """What all processors have of these loops.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        async with self._roll_call:
            return await self._roll_call.ask_all(loops)

    async def _ask(self, loops: Mapping[LoopId, int]) -> Answers:
        try:
            return await self.call_the_roll(loops)
        except QueueNotFound:
            return Answers(1, {})


def _in_hands(sighting: Sighting, answers: Answers, loop: LoopId, epoch: int) -> Sighting:
    tokens = [token for token in answers.tokens(loop) if token.position.epoch >= epoch]
    if tokens:
        refused = any(token.refused for token in tokens)
        return replace(sighting, place=Place.HAND, refused=refused)
    if answers.complete:
        return sighting
    return replace(sighting, place=Place.UNKNOWN, unheard=answers.unheard)
