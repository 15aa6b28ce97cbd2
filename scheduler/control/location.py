"""Where a loop's token is, if it is not in its slot: ready for its task, in a hand, or nowhere."""

import asyncio
from collections.abc import Collection

from scheduler.brokers.contract import Broker
from scheduler.errors import QueueNotFound
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.queues.roll_call import Answers, RollCall

BETWEEN_ROLL_CALLS = 1.0


class Locator:
    """Finds the tokens of a namespace.

    Args:
        roll_call: asks; it is opened for that, unless it listens already.
    """

    def __init__(self, broker: Broker, names: Names, roll_call: RollCall) -> None:
        self._broker = broker
        self._names = names
        self._roll_call = roll_call

    async def who_has(self, loops: Collection[LoopId]) -> Answers:
        """Which of these loops' tokens processors have in hand."""
        try:
            async with self._roll_call:
                return await self._roll_call.ask_all(loops)
        except QueueNotFound:
            return Answers({}, complete=False)

    async def is_nowhere(self, loop: LoopId) -> bool:
        """Whether the token, which is not in its slot, is in no hand, nor ready for its task."""
        return not await self.is_ready(loop) and await self.is_in_no_hand(loop)

    async def is_ready(self, loop: LoopId) -> bool:
        """Whether something waits for the task."""
        depth = await self._broker.depth(self._names.processor_queue(loop.task))
        return depth is not None and depth.ready > 0

    async def is_in_no_hand(self, loop: LoopId) -> bool:
        """Whether all processors say, twice, that they do not have it."""
        for pause in (BETWEEN_ROLL_CALLS, 0):
            answers = await self.who_has([loop])
            if loop in answers.claims or not answers.complete:
                return False
            await asyncio.sleep(pause)
        return True
