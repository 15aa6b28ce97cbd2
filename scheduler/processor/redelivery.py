"""Whether a token that comes was settled before: then its successor goes on, and it ends here."""

import asyncio
import math
from contextlib import suppress
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.errors import MessageError, QueueNotFound
from scheduler.events import Connected, Event
from scheduler.processor.loop_turns import LoopTurns
from scheduler.processor.runs import Run
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.tokens import State, Token, decode
from scheduler.queues.hatchery import Hatchery, superseded
from scheduler.queues.roll_call import Answers, RollCall
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.backoff import backoff
from scheduler.timing.durations import SECOND

# A broker that was away may have handed a token on without noting it; then it does so once more,
# after its dead_letter_worker_publisher_confirm_timeout of 180 s.
DUPLICATES_EXPECTED_S = 200.0
FIRST_PAUSE = timedelta(milliseconds=50)


class Redelivery:
    """Recognises tokens that this processor, or another one, has settled.

    Args:
        roll_call: asked about tokens that somebody had before; None: nobody is asked.
    """

    def __init__(
        self,
        broker: Broker,
        namespace: str,
        hatchery: Hatchery,
        turns: LoopTurns,
        shutdown: Shutdown,
        roll_call: RollCall | None,
    ) -> None:
        self._broker = broker
        self._namespace = namespace
        self._hatchery = hatchery
        self._turns = turns
        self._shutdown = shutdown
        self._roll_call = roll_call
        self._duplicates_until = -math.inf

    def hear(self, event: Event) -> None:
        """Learn that the broker was away; to be called with each event."""
        if isinstance(event, Connected):  # anew: the first time is not an event
            self._duplicates_until = asyncio.get_running_loop().time() + DUPLICATES_EXPECTED_S

    async def was_settled(self, run: Run, token: Token, *, waited: bool) -> bool:
        """Whether the token's successor exists.

        Args:
            waited: whether another token of the loop was in hand before this one.
        """
        if token.state is State.REPLAY:
            return False
        if waited or run.delivery.redelivered:
            return await self._is_superseded(run, token)
        recently_away = asyncio.get_running_loop().time() < self._duplicates_until
        return recently_away and await self._has_successor(token)

    async def _is_superseded(self, run: Run, token: Token) -> bool:
        """Whether its successor exists: put by us, in the slot, in the queue, or by others."""
        if await self._has_successor(token):
            return True
        with suppress(QueueNotFound):
            if superseded(token, await self._next_ready(run)):
                return True
        if any(superseded(token, other) for other in self._turns[token.loop].tokens):
            return True
        return await self._is_settled_elsewhere(run, token)

    async def _has_successor(self, token: Token) -> bool:
        """Whether its successor was put by us, or waits in the slot."""
        generation, progress = self._turns.settled().get(token.loop, ("", token.progress))
        if generation == token.generation and progress > token.progress:
            return True
        try:
            occupant = await self._hatchery.look(token.loop)
        except QueueNotFound:
            return False
        self._turns[token.loop].occupied = occupant is not None
        return superseded(token, occupant)

    async def _next_ready(self, run: Run) -> Token | None:
        """The token behind this one in its queue, if it is of the same loop."""
        delivery = await self._broker.get(run.delivery.queue)
        if delivery is None:
            return None
        try:
            token = decode(delivery.message, self._namespace)
        except MessageError:
            return None  # whoever takes it will park it
        finally:
            await delivery.requeue()
        return token if token.loop == run.loop else None

    async def _is_settled_elsewhere(self, run: Run, token: Token) -> bool:
        """Whether another processor has put its successor, as far as they answer in time.

        One that has the loop in hand before us is waited for: a node of a cluster that stood still
        takes a token back from a processor whose connection goes on, and does not tell it. And a
        token may come back together with a successor that was never confirmed.
        """
        if self._roll_call is None or token.loop == SUPERVISION:
            return False
        time = asyncio.get_running_loop().time
        longest = run.task.timeout.total_seconds()
        patience, seen = time() + longest, False
        for pause in backoff(FIRST_PAUSE, SECOND, jitter=0):
            if time() >= patience or run.delivery.lost.done() or self._shutdown.stopping:
                break
            others = _Others(await self._roll_call.ask_all([token.loop]), token, self._roll_call)
            if others.have_settled:
                return True
            if not others.go_first and (others.complete or not seen):
                break
            seen = seen or others.go_first
            if others.running:
                patience = time() + longest  # a run may be given more time
            await self._shutdown.pause(run.delivery, pause)
        # Whoever ran it may have settled it, and be gone.
        return seen and await self._has_successor(token)


class _Others:
    """What the other processors say of a token that this one has in hand."""

    def __init__(self, answers: Answers, token: Token, asking: RollCall) -> None:
        holders = answers.holders.get(token.loop, ())
        others = [holder for holder in holders if holder.processor != asking.processor]
        settled = answers.settled.get((token.loop, token.generation), token.progress)
        furthest = max([settled, *(other.progress for other in others)])
        me = token.progress, asking.processor
        self.complete = answers.complete
        self.have_settled = furthest > token.progress
        self.running = any(other.running for other in others)
        self.go_first = any(
            other.running or (other.progress, other.processor) < me for other in others
        )
