"""A processor in a process of its own, asked over HTTP as a kubelet and a Prometheus ask it."""

import asyncio
import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.protocol.topology import topology
from tests.integration.conftest import Field
from tests.rabbitmq import free_ports

APP = f"{Path(__file__).parent / 'apps' / 'watched.py'}:app"


def seeded(field: Field) -> Field:
    """Have the app in a field, seeded."""
    field.app = APP
    field.declares = topology(field.namespace, ("beat", "block", "fail"))
    field.call("seed")
    return field


@dataclass(frozen=True)
class Answer:
    """What a page said; status 0: nobody answered."""

    status: int
    text: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Watched:
    """A processor, and the port at which it tells of itself."""

    def __init__(self, field: Field) -> None:
        self._log = field.log_of(len(field.processes))
        (self.port,) = free_ports(1)
        self.process = field.start(
            "run",
            SCHEDULER_HEALTH_PORT=str(self.port),
            SCHEDULER_METRICS_PORT=str(self.port),
        )

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text()

    async def asked(self, path: str) -> Answer:
        return await asyncio.to_thread(ask, self.port, path)

    async def until(
        self, path: str, condition: Callable[[Answer], bool], seconds: float = 30
    ) -> Answer:
        """Ask until the answer is the one that is waited for, which must come in this time."""
        answer = Answer(0)
        try:
            async with asyncio.timeout(seconds):
                while not condition(answer := await self.asked(path)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{path} still says {answer}\n{self.log}") from None
        return answer

    async def until_status(self, path: str, status: int, seconds: float = 30) -> Answer:
        return await self.until(path, lambda answer: answer.status == status, seconds)


def ask(port: int, path: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode())
    except OSError:
        return Answer(0)
    finally:
        connection.close()
