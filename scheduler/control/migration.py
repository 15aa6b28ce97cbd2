"""Recreate queues with other arguments, without losing their messages.

The arguments of a queue cannot be changed, so it is recreated under the same name, while a second
one replaces it:

1. the second one is declared, and gets the new messages
2. the messages of the first one move to the second one
3. the first one is deleted, and declared again
4. all messages move back in the same way
5. the second one is deleted

Each message is confirmed in one before it is acked in the other. A killed migration leaves both
queues, and the next one repeats all steps. A message that another application publishes while both
are bound is in both, and runs twice.

The tokens in a timer, and that of supervision, are lost: their loops continue from the journal, as
after any loss.
"""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Broker, ready_in
from scheduler.control.installation import Installation
from scheduler.errors import OtherArguments, UsageError
from scheduler.protocol.calls import is_call, placed, unclaimed
from scheduler.protocol.messages import own_headers
from scheduler.protocol.topology import Queue, Topology
from scheduler.queues.timers import send_again
from scheduler.tasks.registry import App, served
from scheduler.timing.durations import ZERO


class Migration:
    """Recreate the queues of a namespace that do not fit the code any more."""

    def __init__(self, app: App, broker: Broker, installation: Installation) -> None:
        self._app = app
        self._names = app.names
        self._broker = broker
        self._installation = installation

    async def migrate(self) -> None:
        """Recreate queues, or delete those whose messages can be replaced.

        Raises:
            UsageError: one of them has consumers. Nothing was changed.
        """
        wanted = self._app.topology()
        misfits = [queue.name for queue in wanted.queues if await self._is_misfit(queue)]
        for queue in misfits:
            depth = await self._broker.depth(queue)
            if depth is not None and depth.consumers:
                raise UsageError(
                    f"{queue!r} must be recreated, but {depth.consumers} processors consume from "
                    f"it. Nothing was changed: stop all processors of the app, then rerun this."
                )
        await self._broker.declare(wanted.only({self._names.imprint}))
        before = await self._installation.imprint()
        await self._installation.leave_imprint(before, being_made_anew=misfits)
        for queue in misfits:
            await self._clear_away(queue, wanted.only({queue}))
        for queue, task in self._of_tasks.items():
            await self._bring_back(task, wanted.only({queue}))

    @property
    def _of_tasks(self) -> Mapping[str, str]:
        return {self._names.processor_queue(task): task for task in served(self._app)}

    async def _is_misfit(self, queue: Queue) -> bool:
        if await self._broker.depth(queue.name) is None:
            return False
        try:
            await self._broker.declare(Topology(queues=(queue,)))
        except OtherArguments:
            return True
        return False

    async def _clear_away(self, queue: str, wanted: Topology) -> None:
        if (task := self._of_tasks.get(queue)) is not None:
            second = wanted.in_place_of(queue, self._names.moving(queue))
            await self._lead(wanted, second)
            await self._move(queue, task)
        if queue in map(self._names.head, self._app.tasks):
            return await self._keep_note(queue, wanted)
        await self._broker.delete(queue)

    async def _bring_back(self, task: str, wanted: Topology) -> None:
        (queue,) = (each.name for each in wanted.queues)
        moving = self._names.moving(queue)
        if await self._broker.depth(moving) is not None:
            await self._lead(wanted.in_place_of(queue, moving), wanted)
            await self._move(moving, task)
            await self._broker.delete(moving)

    async def _keep_note(self, queue: str, wanted: Topology) -> None:
        """Recreate a queue with one message that is not essential."""
        note = await self._broker.get(queue)
        await self._broker.delete(queue)
        await self._broker.declare(wanted)
        if note is not None:
            control = self._names.control
            await self._broker.publish(note.message, exchange=control, routing_key=queue)

    async def _lead(self, away: Topology, there: Topology) -> None:
        """Redirect the messages of one queue to another."""
        # A timer's unroutable messages wait, so they must not be in both queues.
        patient = self._names.processor, self._names.delayed
        at_once = tuple(each for each in there.bindings if each.source not in patient)
        await self._broker.declare(replace(there, bindings=at_once))
        queues = {queue.name for queue in away.queues}
        await self._broker.unbind(each for each in away.bindings if each.destination in queues)
        await self._broker.declare(there)

    async def _move(self, source: str, task: str) -> None:
        """Send all messages of a queue to their task again, unchanged."""
        async with aclosing(ready_in(self._broker, source)) as waiting:
            async for delivery in waiting:
                message = delivery.message
                sent = replace(message, headers=own_headers(message.headers), expiration=None)
                if delivery.exchange in self._names.token_exchanges:
                    await self._broker.publish(
                        sent,
                        exchange=self._names.processor,
                        routing_key=delivery.routing_key,
                        timeout=AS_LONG_AS_IT_TAKES,
                    )
                else:
                    if not self._names.bring_retries(delivery.exchange, delivery.routing_key):
                        sent = unclaimed(sent)
                    if not is_call(message):
                        sent = placed(sent, delivery.exchange, delivery.routing_key)
                    await send_again(
                        self._broker, self._names, task, sent, ZERO, AS_LONG_AS_IT_TAKES
                    )
                await delivery.ack()
