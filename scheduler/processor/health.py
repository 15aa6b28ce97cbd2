"""Serve liveness and readiness of a processor.

=========  ======================================================================================
page       is 200, unless
=========  ======================================================================================
/livez     the event loop is blocked: a restart helps
/readyz    that; or it is draining, is not connected, an alarm blocks the broker, or the broker has
           no consumer of a queue
=========  ======================================================================================

Otherwise it is 503. Both are a JSON object with the reason. A processor stays alive when the broker
is down: it reconnects by itself.
"""

import asyncio
import http.client
import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Self, cast
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from scheduler.brokers.contract import Broker, cancelled
from scheduler.errors import BrokerError
from scheduler.processor.processor import Worker

BEAT_S = 1.0
BLOCKED_AFTER_S = 10.0
ASK_AGAIN_S = 5.0
ASK_SOON_S = 1.0
ASK_AT_LEAST_EVERY_S = 60.0
NO_ANSWER_S = 10.0
STACK_DEPTH = 15
ASKING_SHARE = 20  # asking takes at most this share of the time


class Health:
    """Track the health of a processor. Open it with `async with`, in the event loop to watch.

    That loop keeps the state of the pages up to date; requests only read it, so a probe costs the
    broker nothing.
    """

    def __init__(self, broker: Broker, worker: Worker) -> None:
        self._broker = broker
        self._worker = worker
        self._thread = threading.get_ident()
        self._beaten_at = monotonic()
        self._asking_since: float | None = None
        self._unheard_of: list[str] = []
        self._told = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._beat(), name="health beat"),
            asyncio.create_task(self._keep_asking(), name="health asking"),
        ]
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in self._tasks:
            await cancelled(task)

    @property
    def pages(self) -> Mapping[str, WSGIApplication]:
        return {
            "/livez": _page("live", self.why_not_live),
            "/readyz": _page("ready", self.why_not_ready),
        }

    def why_not_live(self) -> list[str]:
        """Return what is wrong with the event loop; empty: it is alive."""
        silence = monotonic() - self._beaten_at
        if silence < BLOCKED_AFTER_S:
            self._told = False
            return []
        stack = traceback.extract_stack(sys._current_frames().get(self._thread), STACK_DEPTH)  # pyright: ignore[reportPrivateUsage]
        line = stack[-1]
        why = (
            f"the event loop has been blocked for {silence:.0f} s, "
            f"now by {line.filename}:{line.lineno} ({line.name})"
        )
        if not self._told:
            self._told = True
            logging.getLogger(__name__).error("%s\n%s", why, "".join(stack.format()))
        return [why]

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

    async def _beat(self) -> None:
        while True:
            self._beaten_at = monotonic()
            await asyncio.sleep(BEAT_S)

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


def _page(what: str, why_not: Callable[[], list[str]]) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        why = why_not()
        body = json.dumps({what: not why, "why": why}) + "\n"
        status = "503 Service Unavailable" if why else "200 OK"
        start(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [body.encode()]

    return answer
