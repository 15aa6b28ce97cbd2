"""What the broker has delivered, over which channel, until it is settled."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from aiormq.exceptions import ChannelInvalidStateError

from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.driver import DriverChannel
from scheduler.brokers.amqp.frames import RawMessage
from scheduler.brokers.contract import Delivery
from scheduler.brokers.properties import decoded
from scheduler.errors import DeliveryLost


@dataclass(slots=True, eq=False)
class DeliveryChannel:
    """A channel that deliveries come over, and are settled on.

    Attributes:
        done: called when one of them is settled; None: nothing is.
        acks_together: whether all that comes over the channel is held here, so that what was acked
            before all that is held is acked by one frame.
        held: by the tags of those that are not settled, what is done when they are lost.
        retired: no more will come.
    """

    connection: Connection
    channel: DriverChannel
    lost: asyncio.Future[None]
    done: Callable[[], None] | None = None
    acks_together: bool = False
    held: dict[int, asyncio.Future[None]] = field(default_factory=dict[int, asyncio.Future[None]])
    retired: bool = False
    _acked: list[int] = field(default_factory=list[int], init=False)

    def retire(self) -> None:
        """Close the channel as soon as nothing that came over it is in hand any more."""
        self.retired = True
        if not self.held:
            self.connection.close_soon(self.channel)

    def delivery(
        self, raw: RawMessage, queue: str, *, lost: asyncio.Future[None] | None = None
    ) -> Delivery:
        """What has come, in hand.

        Args:
            lost: done when it is lost; None: one of its own is made. To stop listening to one that
                all share takes longer, the more they are.
        """
        tag = raw.tag
        if not self.held:
            self.lost.add_done_callback(self._lose_all)
        lost = self.held[tag] = lost or asyncio.get_running_loop().create_future()
        return Delivery(
            message=decoded(raw.properties, raw.body),
            queue=queue,
            exchange=raw.exchange,
            routing_key=raw.routing_key,
            redelivered=raw.redelivered,
            lost=lost,
            _ack=partial(self._settle, tag, requeue=False),
            _requeue=partial(self._settle, tag, requeue=True),
        )

    def leave_all(self) -> set[int]:
        """Forget of what is held that it is; returns its tags."""
        tags = set(self.held)
        self.held.clear()
        self.lost.remove_done_callback(self._lose_all)
        return tags

    async def _settle(self, tag: int, *, requeue: bool) -> None:
        try:
            if requeue or not self.acks_together:
                self.channel.settle(tag, requeue=requeue)
            else:
                self._ack(tag)
        except ChannelInvalidStateError:
            raise DeliveryLost from None
        finally:
            self._let_go(tag)

    def _ack(self, tag: int) -> None:
        self.channel.expect_more()
        if not self._acked:
            self.channel.loop.call_soon(self._write_acks)
        self._acked.append(tag)

    def _write_acks(self) -> None:
        """Ack what was acked in this turn of the event loop."""
        acked, self._acked = self._acked, []
        oldest = next(iter(self.held), math.inf)
        together = [tag for tag in acked if tag < oldest]
        with suppress(ChannelInvalidStateError):  # they come again
            if together:
                self.channel.settle(max(together), multiple=len(together) > 1)
            for tag in acked:
                if tag > oldest:
                    self.channel.settle(tag)

    def _let_go(self, tag: int) -> None:
        if self.held.pop(tag, None) is not None and not self.held:
            self.lost.remove_done_callback(self._lose_all)
            if self.retired:
                self.connection.close_soon(self.channel)
        if self.done is not None:
            self.done()

    def _lose_all(self, _: object) -> None:
        for lost in self.held.values():
            if not lost.done():
                lost.set_result(None)
