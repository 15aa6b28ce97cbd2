"""Which node is connected to, and what is said where none can be."""

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from aiormq.connection import TCPTransportFactory
from aiormq.exceptions import ProbableAuthenticationError
from yarl import URL

from scheduler import Settings
from scheduler.brokers.amqp import driver
from scheduler.brokers.amqp.connection import CONNECT_TIMEOUT, Endpoint
from scheduler.brokers.credentials import Tls, parse_urls
from scheduler.errors import AccessRefused, BrokerError, BrokerUnavailable
from tests.contract.wire import eventually


def endpoint_of(*urls: str) -> Endpoint:
    together = ",".join(urls)
    return Endpoint(lambda: parse_urls(together), tls=Tls(), heartbeat=timedelta(seconds=20))


DEFAULT = Settings.model_fields["broker_url"].default.get_secret_value()


@pytest.mark.parametrize(
    ("url", "advised"),
    [(DEFAULT, True), ("amqp://broker/", False), ("amqp://localhost:5673/", False)],
)
async def test_no_broker_at_the_default_address_gives_advice(
    monkeypatch: pytest.MonkeyPatch, url: str, advised: bool
) -> None:
    async def refuse(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connect call failed")

    monkeypatch.setattr(driver, "connect", refuse)
    with pytest.raises(BrokerUnavailable) as refused:
        await endpoint_of(url).connect()
    told = str(refused.value)
    assert "Connect call failed." in told
    for words in ("SCHEDULER_BROKER_URL", "docker run", "`scheduler dev`"):
        assert (words in told) is advised


async def test_a_server_that_hangs_up_early_is_not_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    create = TCPTransportFactory.create

    async def create_late(*args: Any, **kwargs: Any) -> Any:
        reader, writer = await create(*args, **kwargs)

        async def has_ended() -> bool:
            return bool(reader.at_eof())

        await eventually(has_ended)
        return reader, writer

    monkeypatch.setattr(TCPTransportFactory, "create", create_late)
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        url = f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(BrokerUnavailable, match=r"before it was open\. .* \(15672\)"):
            await endpoint_of(url).connect()


CLUSTER = [f"amqp://shop:open-sesame@{name}/" for name in ("one", "two", "three")]


class Cluster:
    """Three nodes, as they answer whoever connects.

    Attributes:
        away: what those raise that do not let us in, by their host; None: they never answer.
        asked: the hosts that were asked, in order.
    """

    def __init__(self) -> None:
        self.away: dict[str | None, Exception | None] = {}
        self.asked: list[str | None] = []

    async def connect(self, url: URL, _: object) -> Any:
        self.asked.append(url.host)
        if url.host not in self.away:
            return url.host
        if (error := self.away[url.host]) is not None:
            raise error
        await asyncio.get_running_loop().create_future()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(driver, "connect", cluster.connect)
    return cluster


@pytest.fixture
def endpoint(cluster: Cluster) -> Endpoint:
    return endpoint_of(*CLUSTER)


def refusing() -> Exception:
    return ConnectionRefusedError(111, "Connect call failed")


async def test_nodes_are_tried_in_random_order_and_the_lost_one_last(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    for _ in range(100):
        await endpoint.connect()
    assert set(cluster.asked) == {"one", "two", "three"}
    assert all(here != there for here, there in pairwise(cluster.asked))
    first = [await endpoint_of(*CLUSTER).connect() for _ in range(100)]
    assert {str(each) for each in first} == {"one", "two", "three"}


@pytest.mark.parametrize("away", [None, refusing()])
async def test_unreachable_nodes_are_skipped_and_share_one_timeout(
    clock: object, cluster: Cluster, endpoint: Endpoint, away: Exception | None
) -> None:
    cluster.away = {"one": away, "two": away}
    began = asyncio.get_running_loop().time()
    connected: Any = await endpoint.connect()
    assert (connected, endpoint.address) == ("three", "amqp://shop@three/")
    assert asyncio.get_running_loop().time() - began < CONNECT_TIMEOUT.total_seconds()


async def test_every_node_gives_its_reason_if_none_is_reachable(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    cluster.away = {"one": refusing(), "two": OSError("no route"), "three": refusing()}
    with pytest.raises(BrokerUnavailable) as refused:
        await endpoint.connect()
    told = str(refused.value)
    assert told.startswith("None of the 3 addresses of the broker can be used. ")
    assert "Cannot connect to amqp://shop@one/: Connect call failed." in told
    assert "Cannot connect to amqp://shop@two/: no route." in told
    assert "Cannot connect to amqp://shop@three/: Connect call failed." in told
    assert "sesame" not in told
    assert endpoint.address == "amqp://shop@one/ or amqp://shop@three/ or amqp://shop@two/"


async def test_a_refusal_by_one_node_is_final(cluster: Cluster, endpoint: Endpoint) -> None:
    refused_by_two = ProbableAuthenticationError("ACCESS_REFUSED")
    cluster.away = {"one": refusing(), "two": refused_by_two, "three": refusing()}
    with pytest.raises(BrokerError) as refused:
        await endpoint.connect()
    assert type(refused.value) is AccessRefused


@pytest.mark.parametrize("error", [KeyError("product"), StopAsyncIteration()])
async def test_any_error_of_the_driver_means_unreachable(
    cluster: Cluster, error: Exception
) -> None:
    cluster.away = dict.fromkeys(("one", "two", "three"), error)
    with pytest.raises(BrokerUnavailable):
        await endpoint_of(*CLUSTER).connect()
    assert sorted(map(str, cluster.asked)) == ["one", "three", "two"]
