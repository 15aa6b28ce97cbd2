"""Pages that are asked for slowly, wrongly, or by too many at once."""

import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

from scheduler.processor import health
from scheduler.processor.health import MOST_VISITS, Response, serving
from tests.integration.watched import Answer, ask
from tests.rabbitmq import free_ports

PATIENCE = 30
LIVEZ = {"/livez": lambda: Response(b"yes")}


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


def test_hundreds_of_slow_clients_delay_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LONGEST_VISIT_S", 10 * PATIENCE)  # not for that they are sent away
    (port,) = free_ports(1)
    threads = threading.active_count()
    with serving(port, LIVEZ), visitors(port, 400) as slow:
        assert ask(port, "/livez") == Answer(200, "yes")
        assert threading.active_count() == threads + 2  # of the port, and of the page
        assert all(map(is_sent_away, slow[: -MOST_VISITS + 1]))
        slow[-1].sendall(b"\r\n")
        assert slow[-1].recv(100).startswith(b"HTTP/1.0 200 OK")


def test_a_client_that_sends_slowly_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LONGEST_VISIT_S", 0.2)
    (port,) = free_ports(1)
    with serving(port, LIVEZ), visitors(port) as (slow,):
        slow.settimeout(0.01)
        for _ in range(100 * PATIENCE):
            with suppress(TimeoutError):
                assert is_sent_away(slow)
                return
            slow.sendall(b"a")
    pytest.fail("it was never sent away")


def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LONGEST_VISIT_S", 1)
    (port,) = free_ports(1)
    large = Response(bytes(50_000_000))
    with serving(port, {"/livez": lambda: large}), visitors(port, 2) as (deaf, later):
        deaf.sendall(b"\r\n")
        assert is_sent_away(later)
        read = 0
        with suppress(ConnectionError):
            while some := deaf.recv(1_000_000):
                read += len(some)
    assert 0 < read < 50_000_000


def test_a_slow_page_delays_no_other() -> None:
    (port,) = free_ports(1)
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


def test_closing_does_not_wait_for_clients() -> None:
    (port,) = free_ports(1)
    with ExitStack() as stack:
        with serving(port, LIVEZ):
            (slow,) = stack.enter_context(visitors(port))
            assert ask(port, "/livez").status == 200  # whoever came before is let in
        assert is_sent_away(slow)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"\r\n\r\n", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.0\r\na: " + b"b" * 20_000 + b"\r\n\r\n", b"400"),
        (b"GET /livez?now HTTP/1.1\r\nhost: a\r\n\r\n", b"200"),
    ],
    ids=["nothing", "no path", "a long one", "a query"],
)
def test_each_request_is_answered_at_once(asked: bytes, status: bytes) -> None:
    (port,) = free_ports(1)
    with serving(port, LIVEZ), visitors(port, asked=asked) as (visitor,):
        assert visitor.recv(100).startswith(b"HTTP/1.0 " + status)
