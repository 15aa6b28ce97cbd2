"""Hold deliveries until they are settled; reopen the channels of consumers."""

import asyncio
import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Self

from aiormq.exceptions import ChannelInvalidStateError

from scheduler.brokers.amqp.connection import Connection, pauses
from scheduler.brokers.amqp.driver import DriverChannel, closed, closing_of, lost_with, reason_of
from scheduler.brokers.amqp.frames import RawMessage
from scheduler.brokers.amqp.session import Session
from scheduler.brokers.contract import Delivery, cancelled
from scheduler.brokers.properties import decoded
from scheduler.errors import BrokerError, BrokerUnavailable, DeliveryLost
from scheduler.events import ConsumerInterrupted, ConsumerResumed
from scheduler.protocol.messages import summary_of

FIRST_TRIES = 9
# RabbitMQ closes the connection of a consumer whose quorum queue is being deleted.
BEFORE_RESUMING = timedelta(seconds=0.1)


@dataclass(slots=True, eq=False)
class DeliveryChannel:
    """Hold a channel on which messages are delivered and settled.

    Attributes:
        done: called when a delivery is settled; None: no callback.
        acks_together: whether all deliveries of the channel are held here, so that one frame acks
            everything before the oldest of them.
        held: by the tags of unsettled deliveries, the future to complete when they are lost.
        retired: no more deliveries will come.
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
        """Close the channel once all its deliveries are settled."""
        self.retired = True
        if not self.held:
            self.connection.close_soon(self.channel)

    def delivery(
        self, raw: RawMessage, queue: str, *, lost: asyncio.Future[None] | None = None
    ) -> Delivery:
        """Return an unsettled delivery for a received message.

        Args:
            lost: completed when it is lost; None: create one. Unsubscribing from a shared one gets
                slower, the more there are.
        """
        tag = raw.tag
        if not self.held:
            self.lost.add_done_callback(self._lose_all)
        lost = self.held[tag] = lost or self.channel.loop.create_future()
        return Delivery(
            message=decoded(raw.properties, raw.body),
            queue=queue,
            exchange=raw.exchange,
            routing_key=raw.routing_key,
            redelivered=raw.redelivered,
            lost=lost,
            ack=partial(self._settle, tag, requeue=False),
            requeue=partial(self._settle, tag, requeue=True),
        )

    def leave_all(self) -> set[int]:
        """Stop holding all deliveries; return their tags."""
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
        """Ack the messages that were acked in this turn of the event loop."""
        acked, self._acked = self._acked, []
        oldest = next(iter(self.held), math.inf)
        together = [tag for tag in acked if tag < oldest]
        with suppress(ChannelInvalidStateError):  # they are redelivered
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


class AmqpConsumer:
    """Consume with a separate channel, and reopen it when the broker closes it."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        prefetch: int,
        receive: Callable[[DeliveryChannel, RawMessage], None],
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._prefetch = prefetch
        self._receive = receive
        self._deliveries: DeliveryChannel | None = None
        self._tag: str | None = None
        self._interrupted: asyncio.Future[str] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._consumers: set[AmqpConsumer] = set()

    @property
    def active(self) -> bool:
        if self._tag is None or self._interrupted is None:  # it is still trying to consume
            return False
        return not self._interrupted.done()

    async def start(self, consumers: "set[AmqpConsumer]") -> Self:
        """Consume from now on, as one of these consumers, until cancelled."""
        try:
            await self._begin_patiently()
        except BaseException:
            # The broker may know the consumer already: it would keep its messages unacked.
            if (deliveries := self._let_go("given up")) is not None:
                self._connection.close_soon(deliveries.channel)
            raise
        self._consumers = consumers
        consumers.add(self)
        self._keeper = asyncio.create_task(self._keep_consuming(), name=f"consume {self._queue}")
        return self

    async def cancel(self) -> None:
        await self.stop()
        if self.active and self._deliveries is not None and self._tag is not None:
            # A closed channel has cancelled it already.
            with suppress(BrokerError), self._connection.translated:
                await self._deliveries.channel.cancel(self._tag)
        if (deliveries := self._let_go("cancelled")) is not None:
            deliveries.retire()

    async def leave(self) -> None:
        await self.stop()
        if (deliveries := self._let_go("left")) is not None:
            # With its channel, the broker drops the consumer and requeues its messages at once.
            with suppress(BrokerError), self._connection.translated:
                await closed(deliveries.channel)

    def _let_go(self, reason: str) -> DeliveryChannel | None:
        self._interrupt(reason)
        self._consumers.discard(self)
        deliveries, self._deliveries = self._deliveries, None
        return deliveries

    async def stop(self) -> None:
        """Stop consuming after the next interruption."""
        if self._keeper is not None:
            await cancelled(self._keeper)

    async def _begin_patiently(self) -> None:
        # RabbitMQ closes the connection of a consumer whose quorum queue is being declared; and a
        # node that restarts does not have all streams at once.
        for delay in itertools.islice(pauses(), FIRST_TRIES):
            with suppress(BrokerUnavailable):
                return await self._begin()
            await asyncio.sleep(delay)
        await self._begin()

    async def _begin(self) -> None:
        interrupted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        session = await self._connection.ready()
        with self._connection.translated:
            if self._deliveries is None or self._deliveries.channel.is_closed:
                self._deliveries = await self._open(session)
            deliveries = self._deliveries

            def receive(raw: RawMessage) -> None:
                if deliveries is self._deliveries and self._tag is None:
                    self._tag = raw.consumer  # the response may be read a moment later
                self._receive(deliveries, raw)

            self._interrupted, self._tag = interrupted, None
            self._tag = await deliveries.channel.consume(
                self._queue, receive, prefetch=self._prefetch, arguments=self._arguments()
            )

    async def _open(self, session: Session) -> DeliveryChannel:
        channel = await session.open_channel()
        lost = lost_with(channel)
        deliveries = DeliveryChannel(self._connection, channel, lost, acks_together=True)

        def on_close(closing: asyncio.Future[Any]) -> None:
            if self._deliveries is deliveries:
                self._interrupt(reason_of(closing))

        closing_of(channel).add_done_callback(on_close)
        channel.on_consumer_cancel_callbacks.add(
            lambda _: self._interrupt("the broker cancelled it")
        )
        return deliveries

    def _interrupt(self, reason: str) -> None:
        if self._interrupted is not None and not self._interrupted.done():
            self._interrupted.set_result(reason)

    async def _until_interrupted(self, interrupted: asyncio.Future[str]) -> bool:
        """Wait until it has to restart; return whether it chose to itself."""
        await asyncio.wait([interrupted])
        return False

    def _arguments(self) -> dict[str, Any]:
        return {}

    async def _keep_consuming(self) -> None:
        while True:
            assert self._interrupted is not None
            # Not awaited itself: cancelling this task would cancel the future too.
            planned = await self._until_interrupted(self._interrupted)
            await asyncio.sleep(BEFORE_RESUMING.total_seconds())
            # A lost connection is logged once.
            reported = self._connection.connected and not planned
            if reported:
                self._connection.emit(ConsumerInterrupted(self._queue, self._interrupted.result()))
            reported |= await self._begin_again()
            if reported:
                self._connection.emit(ConsumerResumed(self._queue))

    async def _begin_again(self) -> bool:
        """Restart consuming; return whether an event was emitted on the way."""
        reported = False
        for delay in pauses():
            try:
                await self._begin()
                break
            except BrokerError:
                pass  # the interruption, or the connection, was reported already
            except (
                Exception
            ) as error:  # a consumer that gave up would stay registered and do nothing
                reported = True
                self._connection.emit(ConsumerInterrupted(self._queue, summary_of(error)))
            await asyncio.sleep(delay)
        return reported
