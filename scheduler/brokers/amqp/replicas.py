"""Streams that are not to be read where we are connected.

RabbitMQ lets a stream be read only over a node that has a running replica of it. One that was cut
off may stay without for many minutes (seen on 4.3), while its queues deliver as ever: who stays
there takes messages, and cannot find out whether they are to be run. So such a node is left; and no
new connection is used before the streams that were missed can be read over it.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import timedelta

from scheduler.brokers.amqp.channels import closed
from scheduler.brokers.amqp.refusals import Translation
from scheduler.brokers.amqp.session import Session
from scheduler.errors import NoReplica, QueueNotFound

PATIENCE = timedelta(seconds=5)  # a replica that has another leader is restarted


class Replicas:
    """The streams that were missed, and since when, by the running event loop."""

    def __init__(self) -> None:
        self._missed: dict[str, float] = {}

    @contextmanager
    def beginning_to_read(self, stream: str) -> Generator[None]:
        """Note whether a stream can be read, inside the block."""
        try:
            yield
        except NoReplica:
            self._missed.setdefault(stream, asyncio.get_running_loop().time())
            raise
        self._missed.pop(stream, None)

    @property
    def are_missed_for_long(self) -> bool:
        """Whether one of them has been missed for so long that the node is to be left."""
        now = asyncio.get_running_loop().time()
        return any(now - since >= PATIENCE.total_seconds() for since in self._missed.values())

    async def check(self, session: Session, translated: Translation) -> None:
        """See that all that were missed, and are there, can be read over a session.

        Raises:
            NoReplica: one cannot.
            BrokerUnavailable: the connection went.
        """
        for stream in tuple(self._missed):
            with suppress(QueueNotFound), self.beginning_to_read(stream), translated:
                await _begin_to_read(stream, session)


async def _begin_to_read(stream: str, session: Session) -> None:
    channel = await session.open_channel()
    try:
        with session.awaiting_answer():
            await channel.consume(
                stream, lambda _: None, prefetch=1, arguments={"x-stream-offset": "next"}
            )
    finally:
        await closed(channel)
