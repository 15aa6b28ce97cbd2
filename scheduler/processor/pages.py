"""Pages about a processor, over HTTP: by threads, which answer when the event loop cannot.

One thread, with an event loop of its own, reads all requests: a slow one costs no more than its
connection, for some seconds, and of these there are only so many. Each page is made by a thread of
its own, so that a long one, such as the metrics of many loops, does not hold up a probe.
"""

import asyncio
import http.client
import os
import re
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from urllib.parse import unquote
from wsgiref.handlers import SimpleHandler
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from scheduler.errors import PortUnavailable

LONGEST_VISIT_S = 10.0
# More than come in while a request that is there is read: asyncio takes 100 at once.
MOST_VISITS = 300
MOST_AT_THE_DOOR = 1024
LONGEST_REQUEST = 16 * 1024

_END = re.compile(rb"\r?\n\r?\n")
_NOT_UNDERSTOOD = b"HTTP/1.0 400 Bad Request\r\n\r\n"


@contextmanager
def serving(port: int, pages: Mapping[str, WSGIApplication]) -> Generator[None]:
    """Answer at a port of all addresses, inside the block.

    Args:
        pages: what answers, by path.

    Raises:
        PortUnavailable: the port is taken, or may not be listened on.
    """
    try:
        listening = _listening(port)
    except OSError as error:
        raise PortUnavailable(
            f"Port {port} cannot be listened on: {os.strerror(error.errno or 0)}. Nothing was "
            "started. Choose another one: two processors on one machine need a port each."
        ) from None
    over = Future[None]()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(listening, pages, over)),
        name=f"pages {port}",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        over.set_result(None)
        thread.join()


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


async def _serve(
    listening: socket.socket, pages: Mapping[str, WSGIApplication], over: Future[None]
) -> None:
    makers = {path: _Maker(page) for path, page in pages.items()}
    visits: dict[_Visit, None] = {}
    server = await asyncio.get_running_loop().create_server(
        lambda: _Visit(makers, visits), sock=listening
    )
    listening.listen(MOST_AT_THE_DOOR)
    await asyncio.wrap_future(over)
    server.close()
    for visit in list(visits):
        visit.end()
    for maker in makers.values():
        maker.stop()


class _Maker:
    """Makes one page, for one visitor after the other."""

    def __init__(self, page: WSGIApplication) -> None:
        self._page = page
        self._thread = ThreadPoolExecutor(1)

    def make(self, environ: WSGIEnvironment) -> asyncio.Future[bytes]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._thread, _made, self._page, environ)

    def stop(self) -> None:
        self._thread.shutdown(cancel_futures=True)


class _Visit(asyncio.Protocol):
    """A connection: one request, and one answer."""

    _transport: asyncio.Transport
    _deadline: asyncio.TimerHandle
    _answer: asyncio.Future[bytes] | None = None

    def __init__(self, makers: Mapping[str, _Maker], visits: "dict[_Visit, None]") -> None:
        self._makers = makers
        self._visits = visits
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(LONGEST_VISIT_S, self.end)
        self._visits[self] = None
        if len(self._visits) > MOST_VISITS:
            next(iter(self._visits)).end()

    def data_received(self, data: bytes) -> None:
        self._request += data
        if _END.search(self._request) or len(self._request) > LONGEST_REQUEST:
            self._transport.pause_reading()
            self._reply()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def end(self) -> None:
        """Let nobody wait for it any more, nor it for anybody."""
        self._visits.pop(self, None)
        self._deadline.cancel()
        self._transport.abort()
        if self._answer is not None:
            self._answer.cancel()

    def _reply(self) -> None:
        environ = _understood(self._request)
        if environ is None:
            self._send(_NOT_UNDERSTOOD)
        elif maker := self._makers.get(environ["PATH_INFO"]):
            self._answer = maker.make(environ)
            self._answer.add_done_callback(self._hand_over)
        else:
            self._send(_made(self._missing, environ))

    def _hand_over(self, answer: asyncio.Future[bytes]) -> None:
        if not answer.cancelled():
            self._send(answer.result())

    def _send(self, answer: bytes) -> None:
        self._transport.write(answer)
        self._transport.close()

    def _missing(self, environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [f"There are: {', '.join(self._makers)}\n".encode()]


def _understood(request: bytes) -> WSGIEnvironment | None:
    """What was asked for; None: it is no request."""
    reader = BytesIO(request)
    try:
        method, target, protocol = reader.readline().decode("latin-1").split()
        headers = http.client.parse_headers(reader)
    except (ValueError, http.client.HTTPException):
        return None
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
