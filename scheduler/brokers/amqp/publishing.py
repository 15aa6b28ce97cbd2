"""Publishing over a connection: persistent, mandatory, confirmed."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.session import Session
from scheduler.brokers.properties import check_key, check_size, encoded
from scheduler.errors import IncompatibleBroker, QueueNotFound, Unconfirmed, Unroutable
from scheduler.events import MessageConfirmed
from scheduler.protocol.messages import Message


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
            raise Unconfirmed(
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
        check_size(properties, session.frame_max, self._connection.address)
        try:
            with self._connection.translated, session.awaiting_answer():
                channel = await session.publisher(exchange, lane).channel()
                await channel.publish(
                    message.body,
                    properties,
                    exchange=exchange,
                    routing_key=routing_key,
                    message_id=message_id,
                )
        except QueueNotFound:
            raise Unroutable(
                f"The exchange {exchange!r} does not exist in {self._connection.address}."
            ) from None
        except IncompatibleBroker as error:
            # The channel was closed because of one message: this one, or another one beside it.
            raise Unconfirmed(str(error)) from None
        self._connection.emit(MessageConfirmed(exchange, timedelta(seconds=time() - began)))
