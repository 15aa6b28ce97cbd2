"""What a processor says of itself, whatever its broker and its event loop do."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import cast

import pytest

from scheduler.brokers.contract import Broker, Depth
from scheduler.errors import BrokerUnavailable
from scheduler.processor import health
from scheduler.processor.health import (
    BLOCKED_AFTER_S,
    MOST_VISITS,
    NO_ANSWER_S,
    Health,
    Response,
    serving,
)
from scheduler.processor.processor import Worker
from scheduler.processor.watchdog import Block, Watchdog
from scheduler.timing.moments import LoopClock
from tests.integration.watched import Answer, ask
from tests.rabbitmq import free_ports

PATIENCE = 30
LIVEZ = {"/livez": lambda: Response(b"yes")}
QUEUES = ["shop.v1.processor.mail", "shop.v1.processor.report"]


class Case:
    """A broker that answers what the test wants, and a worker that consumes from it."""

    address = "amqp://shop@broker/"
    queues = QUEUES

    def __init__(self) -> None:
        self.connected = True
        self.is_blocked = False
        self.consumers = dict.fromkeys(QUEUES, 1)
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.silent: list[str] = []
        self.listening = QUEUES
        self.stopping = False
        self.watchdog = Watchdog(lambda event: None)
        self.health = Health(cast(Broker, self), cast(Worker, self), self.watchdog)

    async def depth(self, queue: str) -> Depth | None:
        self.asked.append(queue)
        await self.answers.wait()
        if not self.connected:
            raise BrokerUnavailable
        return Depth(0, self.consumers[queue]) if queue in self.consumers else None


@pytest.fixture
def port() -> int:
    (port,) = free_ports(1)
    return port


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
    assert case.asked == QUEUES
    await asyncio.sleep(60)
    assert len(case.asked) == 13 * len(QUEUES)


async def test_slow_checks_run_less_often(case: Case) -> None:
    case.answers.clear()
    await asyncio.sleep(6)  # it is asking
    case.answers.set()
    asked = len(case.asked)
    await asyncio.sleep(15)
    assert len(case.asked) == asked + 1  # the other queue
    await asyncio.sleep(60)
    assert len(case.asked) > asked + 1


async def test_a_disconnected_processor_is_alive_and_not_ready(case: Case) -> None:
    case.connected = False
    await asyncio.sleep(600)
    assert case.health.why_not_live() == []
    assert case.health.why_not_ready() == ["there is no connection to amqp://shop@broker/"]
    case.connected = case.is_blocked = True
    assert "blocked by a memory or disk alarm" in case.health.why_not_ready()[0]
    case.is_blocked = False
    assert case.health.why_not_ready() == []


@pytest.mark.parametrize("gone", [True, False])
async def test_a_consumer_unknown_to_the_broker_is_reported_soon(case: Case, gone: bool) -> None:
    case.consumers = {QUEUES[0]: 1} if gone else {QUEUES[0]: 1, QUEUES[1]: 0}
    await asyncio.sleep(5)
    assert case.health.why_not_ready() == [f"no deliveries from {QUEUES[1]}"]
    case.consumers = dict.fromkeys(QUEUES, 3)
    await asyncio.sleep(1)
    assert case.health.why_not_ready() == []


async def test_an_unresponsive_broker_is_reported(case: Case) -> None:
    case.answers.clear()
    await asyncio.sleep(5 + NO_ANSWER_S - 1)
    assert case.health.why_not_ready() == []
    await asyncio.sleep(2)
    (why,) = case.health.why_not_ready()
    assert "does not respond" in why
    assert case.health.why_not_live() == []
    case.answers.set()
    await asyncio.sleep(0)
    assert case.health.why_not_ready() == []


async def test_a_draining_processor_is_alive_and_not_ready(case: Case) -> None:
    case.stopping = True
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


async def test_a_paused_queue_needs_no_consumer(case: Case) -> None:
    case.listening = QUEUES[:1]
    case.consumers[QUEUES[1]] = 0
    await asyncio.sleep(60)
    assert case.health.why_not_ready() == []


async def test_a_consumer_that_pauses_during_a_check_is_not_missed(case: Case) -> None:
    case.answers.clear()
    await asyncio.sleep(8)
    case.listening = []
    case.consumers = dict.fromkeys(QUEUES, 0)
    case.answers.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    assert case.health.why_not_ready() == []


# The pages


async def test_a_page_is_json_with_the_reason(port: int) -> None:
    case = Case()
    async with case.health:
        await asyncio.sleep(0.1)
        with serving(port, case.health.pages):
            case.silent = QUEUES[:1]
            lives = await asyncio.to_thread(ask, port, "/livez?verbose")
            ready = await asyncio.to_thread(ask, port, "/readyz")
    assert (lives.status, lives.json) == (200, {"live": True, "why": []})
    assert ready.status == 503
    assert ready.json == {"ready": False, "why": [f"no deliveries from {QUEUES[0]}"]}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_server_listens_on_ipv4_and_ipv6(host: str, port: int) -> None:
    try:
        socket.create_server((host, 0), family=family_of(host)).close()
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with serving(port, {}), socket.create_connection((host, port), timeout=2) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b"404 Not Found" in client.recv(1024)


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


@pytest.mark.parametrize(
    ("path", "answer", "found"),
    [
        ("/livez", b'{"live": true, "why": []}', (True, "")),
        ("/livez", b'{"live": false, "why": ["it is blocked"]}', (False, "it is blocked")),
        ("/metrics", b"", (False, "port {} does not serve the health of a processor")),
    ],
)
def test_a_probe_asks_a_processor(
    path: str, answer: bytes, found: tuple[bool, str], port: int
) -> None:
    lives, why = found
    with serving(port, {path: lambda: Response(answer)}):
        assert health.ask(port) == (lives, why.format(port))
    assert health.ask(port) == (False, f"no response at port {port}: Connection refused")


# Pages that are asked for slowly, wrongly, or by too many at once


@contextmanager
def visitors(
    port: int, many: int = 1, asked: bytes = b"GET /livez HTTP/1.0\r\n"
) -> Generator[list[socket.socket]]:
    """Who have sent the beginning of a request, and keep silent."""
    with ExitStack() as stack:
        came: list[socket.socket] = []
        for _ in range(many):
            visitor = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            came.append(stack.enter_context(visitor))
            visitor.sendall(asked)
        yield came


def is_sent_away(visitor: socket.socket) -> bool:
    """Wait until it is, without an answer."""
    try:
        return visitor.recv(1) == b""
    except ConnectionError:
        return True


def test_hundreds_of_slow_clients_delay_no_probe(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setattr(health, "LONGEST_VISIT_S", 10 * PATIENCE)  # not for that they are sent away
    before = set(threading.enumerate())
    with serving(port, LIVEZ), visitors(port, 400) as slow:
        assert ask(port, "/livez") == Answer(200, "yes")
        new = set(threading.enumerate()) - before
        assert len(new) == 2  # of the port, and of the page
        assert all(map(is_sent_away, slow[: -MOST_VISITS + 1]))
        slow[-1].sendall(b"\r\n")
        assert slow[-1].recv(100).startswith(b"HTTP/1.0 200 OK")


def test_a_client_that_sends_slowly_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setattr(health, "LONGEST_VISIT_S", 0.2)
    with serving(port, LIVEZ), visitors(port) as (slow,):
        slow.settimeout(0.01)
        for _ in range(100 * PATIENCE):
            with suppress(TimeoutError):
                assert is_sent_away(slow)
                return
            slow.sendall(b"a")
    pytest.fail("it was never sent away")


def test_a_client_that_does_not_read_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setattr(health, "LONGEST_VISIT_S", 1)
    large = Response(bytes(50_000_000))
    with serving(port, {"/livez": lambda: large}), visitors(port, 2) as (deaf, later):
        deaf.sendall(b"\r\n")
        assert is_sent_away(later)
        read = 0
        with suppress(ConnectionError):
            while some := deaf.recv(1_000_000):
                read += len(some)
    assert 0 < read < 50_000_000


def test_a_slow_page_delays_no_other(port: int) -> None:
    asked, enough = threading.Event(), threading.Event()

    def metrics() -> Response:
        asked.set()
        enough.wait(PATIENCE)
        return Response(b"all")

    with serving(port, {"/metrics": metrics} | LIVEZ), ThreadPoolExecutor() as pool:
        long = pool.submit(ask, port, "/metrics")
        assert asked.wait(PATIENCE)
        assert ask(port, "/livez") == Answer(200, "yes")
        enough.set()
        assert long.result() == Answer(200, "all")


def test_closing_does_not_wait_for_clients(port: int) -> None:
    with ExitStack() as stack:
        with serving(port, LIVEZ):
            (slow,) = stack.enter_context(visitors(port))
            assert ask(port, "/livez").status == 200  # whoever came before is let in
        assert is_sent_away(slow)


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        (b"\r\n\r\n", b"400", b""),
        (b"GET\r\n\r\n", b"400", b""),
        (b"GET /livez HTTP/1.0\r\na: " + b"b" * 20_000 + b"\r\n\r\n", b"400", b""),
        (b"GET /livez?now HTTP/1.1\r\nhost: a\r\n\r\n", b"200", b"yes"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"404", b"There are: /livez\n"),
    ],
    ids=["nothing", "no path", "a long one", "a query", "an unknown path"],
)
def test_each_request_is_answered_at_once(
    asked: bytes, status: bytes, told: bytes, port: int
) -> None:
    with serving(port, LIVEZ), visitors(port, asked=asked) as (visitor,):
        answer = visitor.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.0 " + status)
    assert answer.endswith(told)
