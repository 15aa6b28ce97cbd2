"""Nodes of a cluster that have no replica of a stream: left for one that has it.

Which node a connection leads to is for the load balancer to say. Here the n-th connection is to a
node that refuses to read streams as RabbitMQ does, where a test says so.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from aiormq.exceptions import ChannelPreconditionFailed

from scheduler.brokers.amqp import driver
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.errors import NoReplica
from scheduler.events import Connected, ConnectionLost, ConnectionRetried, Event
from tests.contract.wire import Inbox, RabbitWire, Reader, eventually, has_depth, send, until
from tests.stage import of

REFUSAL = (
    "PRECONDITION_FAILED - stream queue 's' in vhost '/' does not have a running replica on the "
    "local node"
)


class Nodes:
    """The nodes that one broker is connected to, one after the other.

    Attributes:
        lacking: the numbers of those that have no replica of any stream.
    """

    def __init__(self) -> None:
        self.lacking = set[int]()
        self.connections: list[driver.DriverConnection] = []

    def refuses(self, connection: Any) -> bool:
        known = self.connections
        return connection in known and known.index(connection) in self.lacking

    @property
    def latest(self) -> int:
        return len(self.connections) - 1


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes, connect, consume = Nodes(), driver.connect, driver.DriverChannel.basic_consume

    async def noting(*args: Any, **kwargs: Any) -> Any:
        connection = await connect(*args, **kwargs)
        nodes.connections.append(connection)
        return connection

    async def refusing(channel: driver.DriverChannel, queue: str, *args: Any, **kwargs: Any) -> Any:
        reads_stream = "x-stream-offset" in (kwargs.get("arguments") or {})
        if reads_stream and nodes.refuses(channel.connection):
            raise ChannelPreconditionFailed(REFUSAL)
        return await consume(channel, queue, *args, **kwargs)

    monkeypatch.setattr(driver, "connect", noting)
    monkeypatch.setattr(driver.DriverChannel, "basic_consume", refusing)
    return nodes


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "scheduler.brokers.amqp.connection.REPLICA_PATIENCE", timedelta(seconds=0.3)
    )


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
async def broker(
    wire: RabbitWire, nodes: Nodes, broker_url: str, events: list[Event]
) -> AsyncIterator[AmqpBroker]:
    """A connection that is noted, which those of the wire are not."""
    async with AmqpBroker(broker_url, emit=events.append) as broker:
        yield broker


def reasons(kind: type[ConnectionLost | ConnectionRetried], events: list[Event]) -> list[str]:
    return [event.reason for event in events if isinstance(event, kind)]


@pytest.mark.usefixtures("_impatient")
async def test_readers_use_a_node_with_a_replica(
    wire: RabbitWire, broker: AmqpBroker, nodes: Nodes, events: list[Event]
) -> None:
    nodes.lacking = {0, 1, 2}
    stream = await wire.declare_stream()
    reader = await Reader.open(broker, stream, since="first")
    await send(broker, stream, b"a")
    assert await reader.bodies(1) == [b"a"]
    assert nodes.latest == 3
    (lost,), retried = reasons(ConnectionLost, events), reasons(ConnectionRetried, events)
    assert len(retried) == 2
    assert all("add_replica" in reason for reason in (lost, *retried))
    nodes.lacking.add(3)

    async def is_read() -> bool:
        reading = broker.read_to_end(stream, exchange="", routing_key=stream)
        try:
            async with aclosing(reading) as messages:
                return [message.body async for message in messages] == [b"a"]
        except NoReplica:
            return False

    await eventually(is_read)
    assert nodes.latest == 4


@pytest.mark.usefixtures("_impatient")
async def test_reconnecting_to_a_node_without_a_replica_holds_no_message(
    wire: RabbitWire, broker: AmqpBroker, nodes: Nodes, events: list[Event]
) -> None:
    stream, queue, other = *(await wire.declare_stream(), await wire.declare_queue()), wire.broker
    reader = await Reader.open(broker, stream)
    inbox = await Inbox.open(broker, queue, prefetch=1)
    await send(other, queue, b"a")
    first = await inbox.next()
    nodes.lacking = set(range(1, 100))
    await nodes.connections[0].close(ConnectionError())
    await first.lost
    taken_there = await inbox.next()
    await taken_there.lost
    await has_depth(other, queue, ready=1, consumers=0)
    nodes.lacking.clear()
    await (await inbox.next()).ack()
    await send(other, stream, b"b")
    assert await reader.bodies(1) == [b"b"]
    assert len(reasons(ConnectionLost, events)) == 2


async def test_a_node_that_lacks_a_replica_for_a_moment_is_not_left(
    wire: RabbitWire, broker: AmqpBroker, nodes: Nodes, events: list[Event]
) -> None:
    stream, nodes.lacking = await wire.declare_stream(), {0}
    opening = asyncio.create_task(Reader.open(broker, stream, since="first"))
    await asyncio.sleep(0.5)
    with pytest.raises(NoReplica):
        await anext(broker.read(stream))
    nodes.lacking.clear()
    await send(wire.broker, stream, b"a")
    assert await (await opening).bodies(1) == [b"a"]
    assert events == []


@pytest.mark.usefixtures("_impatient")
async def test_a_stream_that_was_deleted_is_not_waited_for(
    wire: RabbitWire, broker: AmqpBroker, nodes: Nodes, events: list[Event]
) -> None:
    stream, nodes.lacking = await wire.declare_stream(), {0}
    reading = asyncio.create_task(Reader.open(broker, stream))
    while not reasons(ConnectionLost, events):
        await wire.broker.delete(stream)
        await asyncio.sleep(0.05)

    await until(lambda: of(Connected, events))
    reading.cancel()
    assert nodes.latest == 1
