"""The streams of a broker, read back: to where nothing more comes, or to a mark."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.readings import Reading
from scheduler.brokers.contract import Since
from scheduler.brokers.marks import is_mark, new_mark
from scheduler.protocol.messages import Message

# On a busy machine, the first entry of a stream comes a second after it was asked for.
FIRST_ENTRY_TIMEOUT = timedelta(seconds=2)
SOON = timedelta(seconds=0.5)

Write = Callable[[Message], Awaitable[None]]
"""Gets a mark into a stream."""


class Streams:
    """Reads the streams that one connection leads to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def read(self, stream: str, *, since: Since, quiet: timedelta) -> AsyncGenerator[Message]:
        async with self._reading(stream, "first" if since is None else since) as reading:
            await reading.look_for_end()
            # That the stream is not empty, RabbitMQ says seconds later.
            entry = await reading.next(max(quiet, FIRST_ENTRY_TIMEOUT).total_seconds())
            while entry is not None:
                if not is_mark(entry.message):
                    yield entry.message
                ended = reading.ends_with(entry)
                entry = None if ended else await reading.next(quiet.total_seconds())

    async def read_to_end(
        self,
        stream: str,
        write: Write,
        since: Since,
        timeout: timedelta,
    ) -> AsyncGenerator[Message]:
        deadline = asyncio.get_running_loop().time() + timeout.total_seconds()
        mark = new_mark()
        async with self._reading_past(stream, since, mark, write, deadline) as reading:
            entry = await reading.next_by(deadline)
            while entry.message.message_id != mark.message_id:
                if not is_mark(entry.message):
                    yield entry.message
                entry = await reading.next_by(deadline)

    @asynccontextmanager
    async def _reading_past(
        self,
        stream: str,
        since: Since,
        mark: Message,
        write: Write,
        deadline: float,
    ) -> AsyncGenerator[Reading]:
        """Read from somewhere on, or from the first entry, past a mark."""
        async with self._reading(stream, "first" if since is None else since) as reading:
            await write(mark)
            if (
                not isinstance(since, int)
                or await reading.has_begun(SOON.total_seconds())
                or await self._end_of(stream, write, deadline) >= since
            ):
                yield reading
                return
        # It was made anew, and nothing comes to who asks for more than it has.
        async with self._reading(stream, "first") as reading:
            yield reading

    async def _end_of(self, stream: str, write: Write, deadline: float) -> int:
        """Where that begins which is written into a stream from now on."""
        mark = new_mark()
        async with self._reading(stream, "next") as reading:
            await write(mark)
            while (entry := await reading.next_by(deadline)).message.message_id != mark.message_id:
                pass
            return entry.offset

    async def last(self, stream: str) -> Message | None:
        async with self._reading(stream, "last") as reading:
            entry = await reading.next(FIRST_ENTRY_TIMEOUT.total_seconds())
            return None if entry is None else entry.message

    @asynccontextmanager
    async def _reading(self, stream: str, offset: str | int | datetime) -> AsyncGenerator[Reading]:
        session = await self._connection.ready()
        with self._connection.translated:
            channel = await session.open_channel()
            try:
                reading = Reading(channel, stream)
                async with self._connection.beginning_to_read(stream):
                    with self._connection.translated, session.awaiting_answer():
                        await reading.begin(offset)
                yield reading
            finally:
                # What is still under way over it is of no use to anybody.
                self._connection.close_soon(channel)
