"""What a processor says of itself, whatever its broker and its event loop do."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from scheduler.brokers.contract import Broker, Depth
from scheduler.errors import BrokerUnavailable
from scheduler.processor import health
from scheduler.processor.health import BLOCKED_AFTER_S, NO_ANSWER_S, Health, Response, serving
from scheduler.processor.processor import Worker
from scheduler.processor.watchdog import Block, Watchdog
from scheduler.timing.moments import LoopClock
from tests.integration.watched import ask
from tests.rabbitmq import free_ports

QUEUES = ["shop.v1.processor.mail", "shop.v1.processor.report"]


class SomeBroker:
    """A broker that answers what the test wants."""

    address = "amqp://shop@broker/"

    def __init__(self) -> None:
        self.connected = True
        self.is_blocked = False
        self.consumers = dict.fromkeys(QUEUES, 1)
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def depth(self, queue: str) -> Depth | None:
        self.asked.append(queue)
        await self.answers.wait()
        if not self.connected:
            raise BrokerUnavailable
        return Depth(0, self.consumers[queue]) if queue in self.consumers else None


class SomeWorker:
    queues = QUEUES

    def __init__(self) -> None:
        self.silent: list[str] = []
        self.listening = QUEUES
        self.stopping = False


class Case:
    def __init__(self) -> None:
        self.broker = SomeBroker()
        self.worker = SomeWorker()
        self.watchdog = Watchdog(lambda event: None)
        self.health = Health(cast(Broker, self.broker), cast(Worker, self.worker), self.watchdog)


@pytest.fixture
async def case(clock: LoopClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    """In virtual time, which the health then reads too."""
    monkeypatch.setattr(health, "monotonic", lambda: asyncio.get_running_loop().time())
    case = Case()
    async with case.health:
        await asyncio.sleep(0.1)
        yield case


async def test_probes_read_a_periodic_check_of_the_broker(case: Case) -> None:
    for _ in range(1000):
        case.health.why_not_ready()
    assert case.broker.asked == QUEUES
    await asyncio.sleep(60)
    assert len(case.broker.asked) == 13 * len(QUEUES)


async def test_slow_checks_run_less_often(case: Case) -> None:
    case.broker.answers.clear()
    await asyncio.sleep(6)  # it is asking
    case.broker.answers.set()
    asked = len(case.broker.asked)
    await asyncio.sleep(15)
    assert len(case.broker.asked) == asked + 1  # the other queue
    await asyncio.sleep(60)
    assert len(case.broker.asked) > asked + 1


async def test_a_disconnected_processor_is_alive_and_not_ready(case: Case) -> None:
    case.broker.connected = False
    await asyncio.sleep(600)
    assert case.health.why_not_live() == []
    assert case.health.why_not_ready() == ["there is no connection to amqp://shop@broker/"]
    case.broker.connected = case.broker.is_blocked = True
    (why,) = case.health.why_not_ready()
    assert "blocked by a memory or disk alarm" in why
    case.broker.is_blocked = False
    assert case.health.why_not_ready() == []


@pytest.mark.parametrize("gone", [True, False])
async def test_a_consumer_unknown_to_the_broker_is_reported_soon(case: Case, gone: bool) -> None:
    case.broker.consumers = {QUEUES[0]: 1} if gone else {QUEUES[0]: 1, QUEUES[1]: 0}
    await asyncio.sleep(5)
    assert case.health.why_not_ready() == [f"no deliveries from {QUEUES[1]}"]
    case.broker.consumers = dict.fromkeys(QUEUES, 3)
    await asyncio.sleep(1)
    assert case.health.why_not_ready() == []


async def test_an_unresponsive_broker_is_reported(case: Case) -> None:
    case.broker.answers.clear()
    await asyncio.sleep(5 + NO_ANSWER_S - 1)
    assert case.health.why_not_ready() == []
    await asyncio.sleep(2)
    (why,) = case.health.why_not_ready()
    assert "does not respond" in why
    assert case.health.why_not_live() == []
    case.broker.answers.set()
    await asyncio.sleep(0)
    assert case.health.why_not_ready() == []


async def test_a_draining_processor_is_alive_and_not_ready(case: Case) -> None:
    case.worker.stopping = True
    assert case.health.why_not_live() == []
    assert "draining" in case.health.why_not_ready()[0]


async def test_a_processor_with_a_blocked_event_loop_is_neither_alive_nor_ready(case: Case) -> None:
    case.watchdog.block = Block("run report #7", "jobs.py:12 (report)", 0)
    await asyncio.sleep(BLOCKED_AFTER_S - 1)
    assert case.health.why_not_live() == []
    await asyncio.sleep(2)
    why = "the event loop has been blocked for 11 s by run report #7, at jobs.py:12 (report)"
    assert case.health.why_not_live() == case.health.why_not_ready() == [why]
    case.watchdog.block = None
    assert case.health.why_not_live() == []


# The pages


async def test_a_page_is_json_with_the_reason() -> None:
    (port,) = free_ports(1)
    case = Case()
    async with case.health:
        await asyncio.sleep(0.1)
        with serving(port, case.health.pages):
            case.worker.silent = QUEUES[:1]
            lives = await asyncio.to_thread(ask, port, "/livez?verbose")
            ready = await asyncio.to_thread(ask, port, "/readyz")
    assert (lives.status, lives.json) == (200, {"live": True, "why": []})
    assert ready.status == 503
    assert ready.json == {"ready": False, "why": [f"no deliveries from {QUEUES[0]}"]}


def test_an_unknown_path_lists_the_known_ones() -> None:
    (port,) = free_ports(1)
    with serving(port, {"/livez": lambda: Response(b"")}):
        answer = ask(port, "/health")
    assert (answer.status, answer.text) == (404, "There are: /livez\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_server_listens_on_ipv4_and_ipv6(host: str) -> None:
    (port,) = free_ports(1)
    try:
        socket.create_server((host, 0), family=family_of(host)).close()
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with serving(port, {}), socket.create_connection((host, port), timeout=2) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b"404 Not Found" in client.recv(1024)


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def test_a_port_is_free_again_afterwards() -> None:
    (port,) = free_ports(1)
    for _ in range(3):
        with serving(port, {}):
            assert ask(port, "/").status == 404
    assert ask(port, "/").status == 0


# Asking one's own processor


def test_a_probe_of_a_closed_port_explains_the_failure() -> None:
    (port,) = free_ports(1)
    assert health.ask(port) == (False, f"no response at port {port}: Connection refused")


def test_a_probe_of_another_server_explains_the_failure() -> None:
    (port,) = free_ports(1)
    with serving(port, {"/metrics": lambda: Response(b"")}):
        lives, why = health.ask(port)
    assert (lives, "does not serve the health of a processor" in why) == (False, True)


@pytest.mark.parametrize("why", [[], ["it is blocked"]])
def test_a_probe_prints_the_reasons_of_a_failure(why: list[str]) -> None:
    (port,) = free_ports(1)

    body = json.dumps({"live": not why, "why": why}).encode()
    with serving(port, {"/livez": lambda: Response(body)}):
        assert health.ask(port) == (not why, "".join(why))


async def test_a_paused_queue_needs_no_consumer(case: Case) -> None:
    case.worker.listening = QUEUES[:1]
    case.broker.consumers[QUEUES[1]] = 0
    await asyncio.sleep(60)
    assert case.health.why_not_ready() == []


async def test_a_consumer_that_pauses_during_a_check_is_not_missed(case: Case) -> None:
    case.broker.answers.clear()
    await asyncio.sleep(8)
    case.worker.listening = []
    case.broker.consumers = dict.fromkeys(QUEUES, 0)
    case.broker.answers.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    assert case.health.why_not_ready() == []
