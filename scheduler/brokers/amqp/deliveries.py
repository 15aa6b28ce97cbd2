"""What the broker has delivered, over which channel, until it is settled."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiormq.abc import AbstractChannel, DeliveredMessage

from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.frames import message_of
from scheduler.brokers.contract import Delivery
from scheduler.errors import BrokerError, DeliveryLost


@dataclass(slots=True, eq=False)
class DeliveryChannel:
    """A channel that deliveries come over, and are settled on.

    Attributes:
        done: called when one of them is settled.
        held: the tags of those that are not.
        retired: no more will come.
    """

    connection: Connection
    channel: AbstractChannel
    lost: asyncio.Future[None]
    done: Callable[[], None] = lambda: None
    held: set[int] = field(default_factory=set[int])
    retired: bool = False

    def retire(self) -> None:
        """Close the channel as soon as nothing that came over it is in hand any more."""
        self.retired = True
        if not self.held:
            self.connection.close_soon(self.channel)

    def delivery(self, taken: DeliveredMessage, queue: str) -> Delivery:
        tag = taken.delivery_tag
        assert tag is not None
        self.held.add(tag)
        return Delivery(
            message=message_of(taken),
            queue=queue,
            exchange=taken.exchange or "",
            routing_key=taken.routing_key or "",
            redelivered=bool(taken.redelivered),
            lost=self.lost,
            _ack=lambda: self._settle(tag, self.channel.basic_ack(tag)),
            _requeue=lambda: self._settle(tag, self.channel.basic_nack(tag, requeue=True)),
        )

    async def _settle(self, tag: int, sent: Awaitable[None]) -> None:
        try:
            with self.connection.translated():
                await sent
        except BrokerError:
            raise DeliveryLost from None
        finally:
            self.held.discard(tag)
            if self.retired and not self.held:
                self.connection.close_soon(self.channel)
            self.done()
