"""Taking what is at the head of a queue.

Over the connection at hand, or over one beside it: RabbitMQ (3.10 to 4.3) breaks off a connection
(INTERNAL_ERROR) over which one gets from a queue that does not answer, as none of its replicas
leads it. A queue that is declared or deleted while nodes are killed may stay so for good (seen on
4.0); it can be deleted, which takes 15 s. And where the death of its only node cut a declaration
off (3.10, 4.0), whoever gets from that queue hears nothing at all; deleting it takes 5 s.
"""

import asyncio
import re

from scheduler.brokers.amqp.asking import calling
from scheduler.brokers.amqp.connection import Connection, pauses
from scheduler.brokers.amqp.deliveries import DeliveryChannel
from scheduler.brokers.amqp.session import Session
from scheduler.brokers.contract import Delivery
from scheduler.errors import QueueUnresponsive, Unconfirmed

LED_WITHIN_S = 8.0  # RabbitMQ itself waits for 10 s, unless a node is down
SAYS_NOTHING_FOR_S = 12.0
OTHERS_WITHIN_S = 30.0
BROKE_IT_OFF = re.compile(r"Cannot get a message from queue '(queue )?'?(?P<queue>[^']+)")


class Getting:
    """Gets from queues, over channels that are kept for the next who gets."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, queue: str) -> Delivery | None:
        """Take what is at the head of a queue, if there is something."""
        return await self._get(queue, await self._connection.ready())

    async def get_aside(self, queue: str) -> Delivery | None:
        """The same, over the connection beside; again, where another queue has ended that.

        Raises:
            QueueUnresponsive: this one has, for as long as a leader may take to be found.
        """
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        for pause in pauses():
            session = await self._connection.beside()
            try:
                async with asyncio.timeout(SAYS_NOTHING_FOR_S):
                    return await self._get(queue, session)
            except TimeoutError:
                # An answer that comes yet may be a message: with the connection, it goes back.
                await session.give_up(f"the queue {queue!r} did not answer")
                async with self._connection.brief_channel():
                    ...  # the broker itself does answer
                raise self._unresponsive(queue) from None
            except Unconfirmed as error:
                took = loop.time() - began
                if took >= LED_WITHIN_S and _is_ended_by(queue, error):
                    raise self._unresponsive(queue) from None
                # Whoever was about to ask when another queue ended it is not told by which.
                if took >= OTHERS_WITHIN_S or not self._connection.connected:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("a backoff has no end")

    def _unresponsive(self, queue: str) -> QueueUnresponsive:
        return QueueUnresponsive(
            f"The queue {queue!r} in {self._connection.address} does not answer: none of its "
            "replicas leads it. Supervision makes it anew, if it may declare."
        )

    async def _get(self, queue: str, session: Session) -> Delivery | None:
        lease = session.borrow_getter()
        try:
            with calling(self._connection, session, lease):
                channel = await lease.channel()
                taken = await channel.get(queue)
        except BaseException:
            session.return_getter(lease)
            raise
        if taken is None:
            session.return_getter(lease)
            return None
        assert lease.lost is not None
        deliveries = DeliveryChannel(
            self._connection, channel, lease.lost, lambda: session.return_getter(lease)
        )
        return deliveries.delivery(taken, queue)


def _is_ended_by(queue: str, error: Unconfirmed) -> bool:
    """Whether the connection was broken off over this queue; the broker cuts off what it says."""
    by = BROKE_IT_OFF.search(str(error))
    return by is not None and queue.startswith(by["queue"])
