"""What supervision does about loops whose token is lost, kept back, or somewhere it cannot see.

Each is done under the mutex, and told by an event and by the token that is put.
"""

from collections.abc import Collection
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.location import Locator
from scheduler.control.loops import hatchery_of
from scheduler.control.recovery import Recovery
from scheduler.events import LoopRepaired
from scheduler.protocol.tokens import Act, LoopId, State, Token, Verb
from scheduler.queues.hatchery import Hatchery
from scheduler.queues.roll_call import Answers
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock


class Repairs:
    """The repairs of an app's loops.

    Args:
        patience: how long to wait for others who create tokens.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        hatchery: Hatchery,
        locator: Locator,
        recovery: Recovery,
        patience: timedelta,
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._patience = patience
        self._locator = locator
        self._hatchery = hatchery
        self._recovery = recovery

    async def unite(self, loop: Loop) -> None:
        """Make one token of several that wait in the slot."""
        async with self._hatchery.mutex(self._patience):
            occupants = await self._hatchery.take_all(loop.id)
            if len(occupants) > 1:
                await self._hatchery.unite(occupants, Act(Verb.REPAIRED, self._clock.now()))
            else:
                for occupant in occupants:
                    await occupant.delivery.requeue()
        if len(occupants) > 1:
            self._repaired(loop.id, "doubled", f"{len(occupants)} tokens waited; one does now")

    async def repair(self, loops: Collection[Loop]) -> list[LoopId]:
        """Put the tokens of loops that were found lost; returns those that it was tried for.

        A loop goes on from where the journal saw it last. It is left as it is if the journal could
        not be read to its end, which is told; or if it is not lost any more.
        """
        async with self._hatchery.mutex(self._patience):
            tokens = await self._recovery.last_tokens(loops)
            # Time has passed since they were found.
            answers = await self._locator.who_has([loop.id for loop in loops])
            known = [loop for loop in loops if loop.id in tokens]
            nowhere = await self._nowhere(known, answers)
            repaired = [loop for loop in nowhere if await self._restore(loop, tokens[loop.id])]
        for loop in repaired:
            where = f"tick {tokens[loop.id].seq} was put again"
            self._repaired(loop.id, "lost", f"its token was nowhere; {where}")
        return [loop.id for loop in nowhere]

    async def renew(self, loops: Collection[Loop]) -> list[LoopId]:
        """Make the slots anew whose loops do not go on; returns those that were.

        After a node of a cluster stood still or was killed (seen on 3.10), RabbitMQ may keep a
        token that is due for ever, out of everybody's reach, or take tokens into a queue that is
        broken: such a loop goes on from where the journal saw it last. Or it may refuse the token
        that a processor has in hand, though none waits: that one is put by who has it.

        Raises:
            AccessRefused: this user may not declare.
        """
        renewed: list[LoopId] = []
        async with self._hatchery.mutex(self._patience):
            tokens = await self._recovery.last_tokens(loops)
            answers = await self._locator.who_has([loop.id for loop in loops])
            known = [loop for loop in loops if loop.id in tokens]
            kept = await self._nowhere(known, answers)
            for loop in kept:
                if await self._made_anew(loop):
                    token = await self._hatchery.put(tokens[loop.id])
                    where = f"it goes on with tick {token.seq}"
                    self._repaired(loop.id, "stuck", f"the broker kept its token back; {where}")
                    renewed.append(loop.id)
            for loop in loops:
                if loop.id in answers.refused and await self._made_anew(loop):
                    self._repaired(loop.id, "stuck", "its queue took no token, and was made anew")
                    renewed.append(loop.id)
        return renewed

    async def _nowhere(self, loops: Collection[Loop], answers: Answers) -> list[Loop]:
        """Those whose token is neither in a hand, as all say, nor ready for its task."""
        unclaimed = [loop for loop in loops if answers.complete and loop.id not in answers.claims]
        return [loop for loop in unclaimed if not await self._locator.is_ready(loop.id)]

    async def _made_anew(self, loop: Loop) -> bool:
        """Make the slot of a loop anew, if nothing waits there; says whether it was."""
        if await self._hatchery.look(loop.id) is not None:
            return False
        await self._broker.delete(self._app.names.hatchery(loop.id))
        await self._broker.declare(hatchery_of(self._app, loop.id))
        return True

    async def guard(self, loops: Collection[Loop]) -> None:
        """Put guards for loops whose tokens are in no queue, and may or may not be in a hand."""
        free = [loop for loop in loops if await self._hatchery.look(loop.id) is None]
        tokens = await self._recovery.last_tokens(free)
        for loop in free:
            if loop.id not in tokens:
                continue
            guard = await self._recovery.guard_for(loop, tokens[loop.id])
            if not await self._hatchery.offer(guard):
                continue
            if guard.state is State.GUARD:
                self._repaired(loop.id, "guarded", f"if it is lost, it goes on at {guard.due_at}")
            else:
                self._repaired(loop.id, "lost", "its token was nowhere; it is paused again")

    async def _restore(self, loop: Loop, token: Token) -> bool:
        """Put the token of a loop that has none, or a guard only; says whether that was so."""
        occupant = await self._hatchery.find(loop.id)
        if occupant is None:
            # Refused, it is on its way: the slot holds it still.
            return await self._hatchery.offer(token)
        if occupant.token.state is State.GUARD:
            return await self._hatchery.replace(occupant, token) is token
        await occupant.delivery.requeue()
        return False

    def _repaired(self, loop: LoopId, kind: str, detail: str) -> None:
        self._app.events.emit(LoopRepaired(loop, kind, detail))
