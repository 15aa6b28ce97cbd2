"""Channels of our connections: aiormq opens and closes them, and messages go past it."""

import asyncio
import itertools
import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import aiormq
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import ChannelInvalidStateError
from pamqp import commands as spec
from pamqp.base import Frame

from scheduler.brokers.amqp.closing import closing_of
from scheduler.brokers.amqp.frames import (
    ACK,
    CONTENT,
    DELIVER,
    GET_EMPTY,
    GET_OK,
    NACK,
    RETURN,
    Arriving,
    Taken,
    acking,
    getting,
    nacking,
    publishing,
    settlement_of,
)
from scheduler.brokers.amqp.refusals import Refused, Returned
from scheduler.brokers.properties import decoded
from scheduler.brokers.tables import short_string

FIRST_NOTED_WITHIN, EACH_NOTED_WITHIN, NOTED_WITHIN = 0.05, 0.0005, 0.8  # seconds
Receiver = Callable[[Taken], None]


class Unconfirmed(NamedTuple):
    """A message that was published, and what is done when it is confirmed."""

    confirmed: asyncio.Future[None]
    message_id: str
    routing_key: str


class Settlements:
    """What was settled over a channel, for as long as the broker may not have taken note of it.

    While more than 32 settlements are on their way to a quorum queue, RabbitMQ holds further ones
    back, and with the channel it forgets them (measured on 4.0: 967 of 1,000 messages came again).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last_at = -math.inf
        self._together = 0

    def add(self) -> None:
        """Take note of one more."""
        now = self._loop.time()
        self._together = self._together + 1 if now - self._last_at < NOTED_WITHIN else 1
        self._last_at = now

    async def noted(self) -> None:
        """Wait until the broker has had the time that it takes."""
        takes = min(FIRST_NOTED_WITHIN + self._together * EACH_NOTED_WITHIN, NOTED_WITHIN)
        await asyncio.sleep(max(self._last_at + takes - self._loop.time(), 0))


class DriverChannel(aiormq.Channel):
    """A channel over which messages are published, got, delivered and settled.

    Nothing is written any more once its closing has begun, from either end: RabbitMQ closes the
    connection (CHANNEL_ERROR) over what comes after the end of a channel.
    """

    connection: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._write: Callable[[bytes], None] = self.connection.write
        self._ends = False
        self._largest_frame = self.connection.connection_tune.frame_max
        self._arriving: Arriving | None = None
        self._consumer_tags = (f"consumer {number}" for number in itertools.count(1))
        self._receivers: dict[str, Receiver] = {}
        self._published = 0
        self._unconfirmed: dict[int, Unconfirmed] = {}
        self._got: asyncio.Future[Taken | None] | None = None
        self._settlements = Settlements(self.loop)
        closing_of(self).add_done_callback(self._fail)

    @property
    def ends(self) -> bool:
        """Whether its closing has begun: it is of no further use."""
        return self._ends or self.is_closed

    async def close(self, *args: Any, **kwargs: Any) -> None:
        self._ends = True
        await super().close(*args, **kwargs)

    async def _on_close_frame(self, frame: spec.Channel.Close) -> None:
        self._ends = True
        await super()._on_close_frame(frame)

    async def _Channel__close_after_failure(self, frame: Frame | None) -> None:
        # It has no other way in, to where it closes a channel over which a call was broken off.
        self._ends = True
        if not isinstance(frame, spec.Channel.Close):  # that is on its way
            close: Any = super()._Channel__close_after_failure  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue, reportUnknownVariableType]
            await close(frame)

    async def end(self) -> None:
        """Close it, when the broker has taken note of what was settled over it."""
        self._ends = True
        await self._settlements.noted()
        await self.close()

    def publish(
        self, body: bytes, properties: bytes, *, exchange: str, routing_key: str, message_id: str
    ) -> asyncio.Future[None]:
        """Publish a message, mandatory; returns what is done when it is confirmed.

        Args:
            message_id: the one that its properties name: by it, and by its key, one is known that
                is returned.
        """
        self._expect_more()
        to = short_string(exchange, "The exchange"), short_string(routing_key, "The routing key")
        frames = publishing(self.number, *to, properties, body, self._largest_frame)
        # The broker counts what comes: nothing that cannot be sent may be counted here.
        self._published += 1
        confirmed = self.loop.create_future()
        self._unconfirmed[self._published] = Unconfirmed(confirmed, message_id, routing_key)
        self._write(frames)
        return confirmed

    async def get(self, queue: str) -> Taken | None:
        """Take the message at the head of a queue, if there is one."""
        self._expect_more()
        self._got = got = self.loop.create_future()
        self._write(getting(self.number, short_string(queue, "The name of the queue")))
        return await got

    async def consume(
        self,
        source: str,
        receiver: Receiver,
        *,
        prefetch: int,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        """Have the receiver called with each message of a stream or a queue; returns its tag."""
        tag = next(self._consumer_tags)
        self._receivers[tag] = receiver
        await self.basic_qos(prefetch_count=prefetch)
        await self.basic_consume(source, _never_called, consumer_tag=tag, arguments=arguments)
        return tag

    async def cancel(self, tag: str) -> None:
        """Have nothing more delivered to a receiver."""
        await self.basic_cancel(tag)
        self._receivers.pop(tag, None)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Have the broker forget a message.

        Raises:
            ChannelInvalidStateError: it has taken the message back.
        """
        self._expect_more()
        self._settlements.add()
        self._write(acking(self.number, tag, multiple=multiple))

    def requeue(self, tag: int, *, multiple: bool = False) -> None:
        """Give a message back.

        Raises:
            ChannelInvalidStateError: the broker has taken it back.
        """
        self._expect_more()
        self._settlements.add()
        self._write(nacking(self.number, tag, multiple=multiple))

    def takes(self, kind: int, payload: bytes) -> bool:
        """Take a frame of a message, or of its confirmation; all others are aiormq's."""
        if kind in CONTENT:
            if self._arriving is not None and self._arriving.add(kind, payload):
                arrived, self._arriving = self._arriving, None
                self._receive(arrived.kind, arrived.message())
            return True
        match payload[:4]:
            case method if method in (DELIVER, GET_OK, RETURN):
                self._arriving = Arriving(payload)
            case method if method in (ACK, NACK):
                self._confirm(*settlement_of(payload), taken=method == ACK)
            case method if method == GET_EMPTY:
                self._answer(None)
            case _:
                return False
        return True

    def _receive(self, kind: bytes, message: Taken) -> None:
        if kind == DELIVER and (receiver := self._receivers.get(message.consumer)) is not None:
            try:
                receiver(message)
            except Exception:
                logging.getLogger(__name__).exception("A message could not be received")
        elif kind == GET_OK:
            self._answer(message)
        elif kind == RETURN:
            self._return(message)

    def _answer(self, message: Taken | None) -> None:
        got, self._got = self._got, None
        if got is not None and not got.done():
            got.set_result(message)

    def _return(self, message: Taken) -> None:
        returned = decoded(message.properties).message_id
        for confirmed, *sent in self._unconfirmed.values():
            if sent == [returned, message.routing_key] and not confirmed.done():
                confirmed.set_exception(Returned(message.routing_key))
                return

    def _confirm(self, last: int, multiple: bool, *, taken: bool) -> None:
        for tag in self._until(last) if multiple else (last,):
            sent = self._unconfirmed.pop(tag, None)
            if sent is None or sent.confirmed.done():
                continue  # it was returned, or nobody waits any more
            if taken:
                sent.confirmed.set_result(None)
            else:
                sent.confirmed.set_exception(Refused())

    def _until(self, last: int) -> list[int]:
        return list(itertools.takewhile(lambda tag: tag <= last, self._unconfirmed))

    def _fail(self, closing: asyncio.Future[Any]) -> None:
        """Tell all who wait for an answer that there will be none."""
        error = None if closing.cancelled() else closing.exception()
        waiting = [sent.confirmed for sent in self._unconfirmed.values()]
        for answer in waiting if self._got is None else [*waiting, self._got]:
            if not answer.done():
                answer.set_exception(error or ChannelInvalidStateError(f"{self!r} was closed"))

    def _expect_more(self) -> None:
        if self.ends:
            raise ChannelInvalidStateError(f"{self!r} is being closed")


async def _never_called(_: DeliveredMessage) -> None: ...


async def closed(channel: DriverChannel) -> None:
    """Close a channel, to the end even when the caller is cancelled meanwhile."""
    if not channel.is_closed:
        await asyncio.shield(asyncio.ensure_future(channel.end()))
