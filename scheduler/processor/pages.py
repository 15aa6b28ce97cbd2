"""Serve pages about a processor over HTTP, in threads, which respond when the event loop cannot.

One thread, with its own event loop, reads all requests: a slow one costs no more than its
connection, for some seconds, and their number is limited. A separate thread makes each page, so
that a long one, such as the metrics of many loops, does not hold up a probe.
"""

import asyncio
import http.client
import os
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BytesIO
from urllib.parse import unquote
from wsgiref.handlers import SimpleHandler
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from scheduler.errors import PortUnavailable

LONGEST_VISIT_S = 10.0
# More than arrive while one request is read: asyncio takes 100 at once.
MOST_VISITS = 300
MOST_AT_THE_DOOR = 1024
MOST_LINES, LONGEST_LINE = 100, 16 * 1024

_NOT_UNDERSTOOD = b"HTTP/1.0 400 Bad Request\r\n\r\n"


@contextmanager
def serving(port: int, pages: Mapping[str, WSGIApplication]) -> Generator[None]:
    """Serve pages by path at a port of all addresses, inside the block.

    Raises:
        PortUnavailable: the port is in use, or not permitted.
    """
    try:
        if socket.has_dualstack_ipv6():
            door = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            door = socket.create_server(("", port))
    except OSError as error:
        raise PortUnavailable(
            f"Port {port} cannot be listened on: {os.strerror(error.errno or 0)}. Nothing was "
            "started. Choose another one: two processors on one machine need a port each."
        ) from None
    over = Future[None]()
    serve = _Visits(pages).serve
    thread = threading.Thread(
        target=lambda: asyncio.run(serve(door, over)), name=f"pages {port}", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set_result(None)
        thread.join()


class _Visits:
    """Handle the open connections: one request, and one response each."""

    def __init__(self, pages: Mapping[str, WSGIApplication]) -> None:
        self._makers = {path: (page, ThreadPoolExecutor(1)) for path, page in pages.items()}
        self._going: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def serve(self, door: socket.socket, over: Future[None]) -> None:
        server = await asyncio.start_server(self._visit, sock=door, limit=LONGEST_LINE)
        door.listen(MOST_AT_THE_DOOR)
        await asyncio.wrap_future(over)
        server.close()
        for visit in tuple(self._going):
            self._send_away(visit)
        for _, thread in self._makers.values():
            thread.shutdown(cancel_futures=True)

    def _send_away(self, visit: asyncio.Task[None] | None) -> None:
        self._going.pop(visit).transport.abort()
        if visit is not None:
            visit.cancel()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        self._going[this] = writer
        if len(self._going) > MOST_VISITS:
            self._send_away(next(iter(self._going)))
        with suppress(TimeoutError, OSError, asyncio.CancelledError):
            async with asyncio.timeout(LONGEST_VISIT_S):
                writer.write(await self._answer(reader))
                writer.close()
                await writer.wait_closed()
        writer.transport.abort()
        self._going.pop(this, None)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            lines = [await reader.readline()]
            while lines[-1].strip() and len(lines) <= MOST_LINES:
                lines.append(await reader.readline())
            environ = _understood(b"".join(lines))
        except (ValueError, http.client.HTTPException):
            return _NOT_UNDERSTOOD
        if (maker := self._makers.get(environ["PATH_INFO"])) is None:
            return _made(self._missing, environ)
        page, thread = maker
        return await asyncio.get_running_loop().run_in_executor(thread, _made, page, environ)

    def _missing(self, environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [f"There are: {', '.join(self._makers)}\n".encode()]


def _understood(request: bytes) -> WSGIEnvironment:
    reader = BytesIO(request)
    method, target, protocol = reader.readline().decode("latin-1").split()
    headers = http.client.parse_headers(reader)
    path, _, query = target.partition("?")
    named = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
    return {
        **named,
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(path, "latin-1"),
        "QUERY_STRING": query,
        "SERVER_PROTOCOL": protocol,
    }


def _made(page: WSGIApplication, environ: WSGIEnvironment) -> bytes:
    answer = BytesIO()
    SimpleHandler(BytesIO(), answer, sys.stderr, environ).run(page)
    return answer.getvalue()
