"""Serve liveness and readiness of a processor over HTTP.

=========  ======================================================================================
page       is 200, unless
=========  ======================================================================================
/livez     the event loop is blocked: a restart helps
/readyz    that; or it is draining, is not connected, an alarm blocks the broker, or the broker has
           no consumer of a queue
=========  ======================================================================================

Otherwise it is 503. Both are a JSON object with the reason. A processor stays alive when the broker
is down: it reconnects by itself.

Threads serve the pages, which respond when the event loop cannot. One, with its own event loop,
reads all requests: a slow one costs no more than its connection, for some seconds, and their number
is limited. A separate thread makes each page, so that a long one, such as the metrics of many
loops, does not hold up a probe.
"""

import asyncio
import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any, NamedTuple, Self, cast

from scheduler.brokers.contract import Broker, cancelled
from scheduler.errors import BrokerError, PortUnavailable
from scheduler.processor.processor import Worker
from scheduler.processor.watchdog import Watchdog

BLOCKED_AFTER_S = 10.0
ASK_AGAIN_S = 5.0
ASK_SOON_S = 1.0
ASK_AT_LEAST_EVERY_S = 60.0
NO_ANSWER_S = 10.0
ASKING_SHARE = 20  # asking takes at most this share of the time
LONGEST_VISIT_S = 10.0
# More than arrive while one request is read: asyncio takes 100 at once.
MOST_VISITS = 300
MOST_AT_THE_DOOR = 1024
LONGEST_REQUEST = 16 * 1024


class Response(NamedTuple):
    """Hold the response of a page."""

    body: bytes
    content_type: str = "text/plain"
    status: HTTPStatus = HTTPStatus.OK

    @property
    def message(self) -> bytes:
        head = (
            f"HTTP/1.0 {self.status:d} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
        )
        return "\r\n".join((*head, "", "")).encode() + self.body


Page = Callable[[], Response]


class Health:
    """Track the health of a processor. Open it with `async with`, in the event loop to watch.

    That loop keeps the state of the pages up to date; requests only read it, so a probe costs the
    broker nothing.
    """

    def __init__(self, broker: Broker, worker: Worker, watchdog: Watchdog) -> None:
        self._broker = broker
        self._worker = worker
        self._watchdog = watchdog
        self._asking_since: float | None = None
        self._unheard_of: list[str] = []
        self._asking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._asking = asyncio.create_task(self._keep_asking(), name="health")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._asking is not None:
            await cancelled(self._asking)

    @property
    def pages(self) -> Mapping[str, Page]:
        return {
            "/livez": partial(_health, "live", self.why_not_live),
            "/readyz": partial(_health, "ready", self.why_not_ready),
        }

    def why_not_live(self) -> list[str]:
        """Return what is wrong with the event loop; empty: it is alive."""
        block = self._watchdog.block
        if block is None or (silence := monotonic() - block.since) < BLOCKED_AFTER_S:
            return []
        return [f"the event loop has been blocked for {silence:.0f} s by {block}"]

    def why_not_ready(self) -> list[str]:
        """Return what keeps it from processing; empty: it is ready."""
        if blocked := self.why_not_live():
            return blocked
        if self._worker.stopping:
            return ["it is draining: it takes no more messages, and lets its runs finish"]
        if not self._broker.connected:
            return [f"there is no connection to {self._broker.address}"]
        if self._broker.is_blocked:
            return [
                f"{self._broker.address} is blocked by a memory or disk alarm: no run is settled"
            ]
        asking_since = self._asking_since
        if asking_since is not None and monotonic() - asking_since > NO_ANSWER_S:
            return [f"{self._broker.address} does not respond; it may be blocked by an alarm"]
        missing = dict.fromkeys((*self._worker.silent, *self._unheard_of))
        return [f"no deliveries from {queue}" for queue in missing]

    async def _keep_asking(self) -> None:
        """Ask the broker for its side: it may not know a consumer that seems active."""
        while True:
            began = monotonic()
            if self._broker.connected:
                with suppress(BrokerError):
                    self._unheard_of = await self._unknown_to_broker()
            took = monotonic() - began
            seldom = min(max(ASK_AGAIN_S, took * ASKING_SHARE), ASK_AT_LEAST_EVERY_S)
            await asyncio.sleep(ASK_SOON_S if self._unheard_of else seldom)

    async def _unknown_to_broker(self) -> list[str]:
        asked = [(queue, await self._is_consumed(queue)) for queue in self._worker.listening]
        listening = self._worker.listening  # some may be cancelled by now
        return [queue for queue, known in asked if not known and queue in listening]

    async def _is_consumed(self, queue: str) -> bool:
        self._asking_since = monotonic()
        try:
            depth = await self._broker.depth(queue)
            return depth is not None and depth.consumers > 0
        finally:
            self._asking_since = None


def ask(port: int) -> tuple[bool, str]:
    """Ask the processor at a port of this machine whether it is alive; return why not."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/livez")
        answer: Any = json.loads(connection.getresponse().read())
        return bool(answer["live"]), "; ".join(cast(list[str], answer["why"]))
    except OSError as error:
        return False, f"no response at port {port}: {error.strerror or error}"
    except (http.client.HTTPException, ValueError, TypeError, KeyError):
        return False, f"port {port} does not serve the health of a processor"
    finally:
        connection.close()


def _health(what: str, why_not: Callable[[], list[str]]) -> Response:
    why = why_not()
    body = json.dumps({what: not why, "why": why}) + "\n"
    status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
    return Response(body.encode(), "application/json", status)


@contextmanager
def serving(port: int, pages: Mapping[str, Page]) -> Generator[None]:
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

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._makers = {path: (page, ThreadPoolExecutor(1)) for path, page in pages.items()}
        self._going: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def serve(self, door: socket.socket, over: Future[None]) -> None:
        server = await asyncio.start_server(self._visit, sock=door, limit=LONGEST_REQUEST)
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
        try:
            with suppress(TimeoutError, OSError, asyncio.CancelledError):
                async with asyncio.timeout(LONGEST_VISIT_S):
                    writer.write((await self._answer(reader)).message)
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()
            self._going.pop(this, None)

    async def _answer(self, reader: asyncio.StreamReader) -> Response:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            _, target, _ = request.split(maxsplit=2)
        except (ValueError, EOFError, asyncio.LimitOverrunError):
            return Response(b"", status=HTTPStatus.BAD_REQUEST)
        path = target.partition(b"?")[0].decode("latin-1")
        if (maker := self._makers.get(path)) is None:
            known = f"There are: {', '.join(self._makers)}\n"
            return Response(known.encode(), status=HTTPStatus.NOT_FOUND)
        page, thread = maker
        return await asyncio.get_running_loop().run_in_executor(thread, page)
