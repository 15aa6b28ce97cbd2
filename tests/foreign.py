"""A foreign publisher, which writes any bytes into its frames."""

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from yarl import URL

METHOD, HEADER, BODY = 1, 2, 3
START, TUNE, OPEN_OK = 0x000A000A, 0x000A001E, 0x000A0029
CHANNEL_OPEN_OK, SELECT_OK = 0x0014000B, 0x0055000B
ACK, NACK, CLOSE, CHANNEL_CLOSE = 0x003C0050, 0x003C0078, 0x000A0032, 0x00140028
RETURN = 0x003C0032


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def headers(*entries: bytes) -> bytes:
    """Properties that are nothing but headers; of each entry: its name, its kind, its bytes."""
    return b"\x20\x00" + sized(b"".join(entries))


class Refused(Exception):
    """The broker did not take what was published, and closed the channel or the connection."""


class Foreigner:
    """A connection to RabbitMQ that sends any bytes as properties and keys.

    Attributes:
        returned: how many of the mandatory messages no queue was bound for.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.returned = 0
        self._reader = reader
        self._writer = writer

    async def publish(
        self,
        properties: bytes,
        body: bytes,
        *,
        exchange: str,
        routing_key: bytes,
        mandatory: bool = False,
    ) -> None:
        """Publish, and wait until that is confirmed.

        Raises:
            Refused: the broker takes no such message.
        """
        method = b"\0\0" + short(exchange.encode()) + short(routing_key) + bytes([mandatory])
        self._send(1, METHOD, struct.pack(">I", 0x003C0028) + method)
        self._send(1, HEADER, struct.pack(">HHQ", 60, 0, len(body)) + properties)
        for at in range(0, len(body), 100_000):
            self._send(1, BODY, body[at : at + 100_000])
        await self._until(ACK, NACK)

    async def open(self, url: URL) -> None:
        user, password = url.user or "guest", url.password or "guest"
        vhost = url.path.removeprefix("/") or "/"
        self._writer.write(b"AMQP\0\0\x09\x01")
        await self._until(START)
        said = sized(f"\0{user}\0{password}".encode())
        self._method(0, 0x000A000B, sized(b"") + short(b"PLAIN") + said + short(b"en_US"))
        tune = await self._until(TUNE)
        self._method(0, 0x000A001F, tune[4:10] + b"\0\0")
        self._method(0, 0x000A0028, short(vhost.encode()) + b"\0\0")
        await self._until(OPEN_OK)
        self._method(1, 0x0014000A, b"\0")
        await self._until(CHANNEL_OPEN_OK)
        self._method(1, 0x0055000A, b"\0")
        await self._until(SELECT_OK)

    async def _until(self, *methods: int) -> bytes:
        while True:
            kind, payload = await self._read()
            self.returned += kind == RETURN
            if kind in methods:
                return payload
            if kind in (CLOSE, CHANNEL_CLOSE):
                raise Refused(payload[7 : 7 + payload[6]].decode(errors="replace"))

    async def _read(self) -> tuple[int, bytes]:
        try:
            kind, _, size = struct.unpack(">BHI", await self._reader.readexactly(7))
            payload = (await self._reader.readexactly(size + 1))[:-1]
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Refused(f"the connection was closed: {error}") from None
        return (int.from_bytes(payload[:4]) if kind == METHOD else 0), payload

    def _method(self, channel: int, method: int, arguments: bytes) -> None:
        self._send(channel, METHOD, struct.pack(">I", method) + arguments)

    def _send(self, channel: int, kind: int, payload: bytes) -> None:
        frame = struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"
        self._writer.write(frame)


@asynccontextmanager
async def foreigner(url: str) -> AsyncGenerator[Foreigner]:
    """Open a connection that is none of the package."""
    where = URL(url)
    reader, writer = await asyncio.open_connection(where.host, where.port or 5672)
    try:
        one = Foreigner(reader, writer)
        await one.open(where)
        yield one
    finally:
        writer.close()
