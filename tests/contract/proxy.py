"""A TCP proxy whose connections can be broken, in each of the ways in which networks break them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Self


class Way(Enum):
    """Where bytes go."""

    UP = "to the broker"
    DOWN = "to the client"


class Proxy:
    """Forwards 127.0.0.1:`port` to a host, until it is cut.

    Args:
        listen_on: a port of one's choice.
        others: further hosts and ports. Each connection goes to the next one that takes it.
        tap: told what is forwarded, and where.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        listen_on: int = 0,
        others: Sequence[tuple[str, int]] = (),
        tap: Callable[[Way, bytes], None] = lambda way, data: None,
    ) -> None:
        self._tap = tap
        self._backends = [(host, port), *others]
        self._listen_on = listen_on
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None
        self.closed = False

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
        """Break every connection without a goodbye. New ones are accepted, unless it is closed."""
        for link in self._links:
            link.abort()

    def cut_after(self, octets: int, way: Way) -> None:
        """Break every connection when it has forwarded so many more bytes: in mid frame."""
        for link in self._links:
            link.fuse[way] = octets

    def swallow(self, *ways: Way) -> None:
        """Have the present connections stay open, and nothing arrive any more. New ones work."""
        for link in self._links:
            link.swallowing |= set(ways)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        backend = None if self.closed else await self._connect()
        if backend is None:
            return writer.transport.abort()
        there_reader, there_writer = backend
        link = Link(self._tap, writer, there_writer)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as forwarding:
                forwarding.create_task(link.forward(reader, there_writer, Way.UP))
                forwarding.create_task(link.forward(there_reader, writer, Way.DOWN))
        finally:
            self._links.discard(link)
            link.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in self._backends:
            host, port = self._backends[0]
            self._backends.append(self._backends.pop(0))
            with suppress(OSError):
                return await asyncio.open_connection(host, port)
        return None


class Link:
    """One connection through the proxy: two, from client to proxy and from proxy to broker."""

    def __init__(self, tap: Callable[[Way, bytes], None], *writers: asyncio.StreamWriter) -> None:
        self._tap = tap
        self._writers = writers
        self.fuse: dict[Way, int] = {}
        self.swallowing: set[Way] = set()

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if way in self.swallowing:
                    continue
                self._tap(way, data)
                left = self.fuse.get(way, len(data) + 1)
                writer.write(data[:left])
                await writer.drain()
                if left <= len(data):
                    return self.abort()
                if way in self.fuse:
                    self.fuse[way] -= len(data)
        # Whoever is on the other side of a swallowing link hears of no end either.
        if way not in self.swallowing:
            writer.close()
