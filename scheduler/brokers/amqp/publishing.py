"""Publishing over a connection: persistent, mandatory, confirmed."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

from scheduler.brokers.amqp.channels import DriverChannel
from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.session import Session
from scheduler.brokers.properties import check_body, check_key, check_size, encoded
from scheduler.errors import (
    ConfirmationTimeout,
    IncompatibleBroker,
    QueueNotFound,
    TooLarge,
    Unconfirmed,
    Unroutable,
)
from scheduler.events import MessageConfirmed
from scheduler.protocol.messages import Message

SURELY_ACCEPTED = 64 * 1024
"""A larger body goes over a channel of its own, until the broker's limit is known.

The broker closes the channel over which a body comes that is larger than its max_message_size. It
tells this limit only then.
"""


class Publisher:
    """Publishes over a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def publish(
        self,
        message: Message,
        exchange: str,
        routing_key: str,
        timeout: timedelta | None,
        lane: int = 0,
    ) -> None:
        check_key(routing_key)
        session = await self._connection.ready(timeout)
        if timeout is None:
            return await self._publish(session, message, exchange, routing_key, lane)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await self._publish(session, message, exchange, routing_key, lane)
        except TimeoutError:
            raise ConfirmationTimeout(
                f"{self._connection.address} did not confirm a message within "
                f"{timeout.total_seconds():g} s: it may be blocked by a memory or disk alarm. The "
                "message may or may not have been taken."
            ) from None

    async def _publish(
        self, session: Session, message: Message, exchange: str, routing_key: str, lane: int
    ) -> None:
        time = asyncio.get_running_loop().time
        began = time()
        message_id = message.message_id
        if message_id is None:  # by it, one is known that is returned
            message_id = str(uuid4())
            message = replace(message, message_id=message_id)
        properties = encoded(message)
        address, body = self._connection.address, message.body
        check_size(properties, session.frame_max, address)
        check_body(body, session.largest_body, place := f"{exchange} ({routing_key})", address)

        async def publish_over(channel: DriverChannel) -> None:
            await channel.publish(
                body,
                properties,
                exchange=exchange,
                routing_key=routing_key,
                message_id=message_id,
            )

        try:
            with self._connection.translated, session.awaiting_answer():
                if len(body) > SURELY_ACCEPTED and session.largest_body is None:
                    async with session.lone_publisher() as channel:
                        await publish_over(channel)
                else:
                    await publish_over(await session.publisher(exchange, lane).channel())
        except TooLarge as error:
            session.largest_body = error.limit
            check_body(body, error.limit, place, address)
            raise Unconfirmed(str(error)) from None  # it was another message of this channel
        except QueueNotFound:
            raise Unroutable(
                f"The exchange {exchange!r} does not exist in {self._connection.address}."
            ) from None
        except IncompatibleBroker as error:
            # The channel was closed because of one message: this one, or another one beside it.
            raise Unconfirmed(str(error)) from None
        self._connection.emit(MessageConfirmed(exchange, timedelta(seconds=time() - began)))
