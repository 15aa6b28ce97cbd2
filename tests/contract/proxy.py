"""A TCP proxy whose connections can be broken."""

import asyncio
from contextlib import suppress
from typing import Self


class Proxy:
    """Forwards 127.0.0.1:`port` to a host, until it is cut.

    Args:
        listen_on: a port of one's choice.
    """

    def __init__(self, host: str, port: int, *, listen_on: int = 0) -> None:
        self._host = host
        self._port = port
        self._listen_on = listen_on
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._listen_on)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break every connection without a goodbye. New ones are accepted."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        both = {writer, there_writer}
        self._writers |= both
        try:
            async with asyncio.TaskGroup() as forwarding:
                forwarding.create_task(_forward(reader, there_writer))
                forwarding.create_task(_forward(there_reader, writer))
        finally:
            self._writers -= both


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
