"""What a connection to a real broker has open, as its driver sees it."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from typing import Any, cast

import aiormq
import pytest
from aiormq.exceptions import AMQPConnectionError, AMQPError, ChannelInvalidStateError
from yarl import URL

from scheduler.brokers.amqp import driver, session, streams
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.amqp.connection import Endpoint
from scheduler.brokers.amqp.driver import DriverChannel, closed, closing_of
from scheduler.brokers.contract import Delivery, Depth
from scheduler.errors import BrokerUnavailable, DeliveryLost, IncompatibleBroker, Unconfirmed
from scheduler.events import (
    Connected,
    ConnectionLost,
    ConnectionRetried,
    ConsumerInterrupted,
    ConsumerResumed,
    Event,
)
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Queue, Topology
from tests.contract.proxy import Proxy, Way
from tests.contract.wire import Inbox, RabbitWire, Reader, has_depth, send, take_all, until
from tests.rabbitmq import PrivateNode
from tests.stage import of

connections: list[driver.DriverConnection] = []


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note each connection that is made."""
    connect = driver.connect
    connections.clear()

    async def noting(*args: Any, **kwargs: Any) -> Any:
        connections.append(await connect(*args, **kwargs))
        return connections[-1]

    monkeypatch.setattr(driver, "connect", noting)


def channels() -> int:
    """How many are open on the first connection."""
    return len(connections[0].channels)


def consuming(connection: driver.DriverConnection) -> Any:
    """The one channel over which something is consumed."""
    open_ones = list[Any](connection.channels.values())
    (channel,) = (each for each in open_ones if each is not None and each.consumers)
    return channel


async def back(events: list[Event]) -> None:
    """Wait until a connection was made again."""
    await until(lambda: of(Connected, events))


async def closed_down_to(number: int) -> None:
    await until(lambda: channels() == number)


async def test_a_cancelled_consumer_leaves_nothing_behind(wire: RabbitWire) -> None:
    queue, unused = await wire.declare_queue(), await wire.declare_queue()
    await send(wire.broker, queue, b"a", b"b", b"c")
    await has_depth(wire.broker, queue, ready=3)  # over a channel that is kept
    before = channels()
    for _ in range(20):
        await (await Inbox.open(wire.broker, unused, prefetch=1)).consumer.cancel()
    await closed_down_to(before)
    inbox = await Inbox.open(wire.broker, queue, prefetch=2)
    first, second = await inbox.next(), await inbox.next()
    await inbox.consumer.cancel()
    await has_depth(wire.broker, queue, ready=1)
    assert channels() == before + 1  # what it holds is still its own
    await first.ack()
    await has_depth(wire.broker, queue, ready=1)
    assert channels() == before + 1
    await second.requeue()
    await closed_down_to(before)
    await inbox.consumer.cancel()
    consumer = weakref.ref(inbox.consumer)
    del inbox, first, second
    assert await take_all(wire.broker, queue, 2) == [b"b", b"c"]
    await wire.broker.delete(queue)  # aiormq has the channel of what it read last
    gc.collect()
    assert consumer() is None


async def test_a_queue_that_does_not_respond_is_not_taken_for_empty(
    node: PrivateNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def let(queue: str, do: str) -> None:
        """Suspend or resume the leader of a queue."""
        name = f'rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)'
        node.ctl(
            "eval", f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), sys:{do}(amqqueue:get_pid(Q))."
        )

    limit = "scheduler.brokers.amqp.connection.COUNTED_WITHIN"
    async with RabbitWire("quorum", node.url) as wire:
        queue = await wire.declare_queue()
        await send(wire.broker, queue, b"a")
        await asyncio.to_thread(let, queue, "suspend")
        monkeypatch.setattr(limit, timedelta(minutes=2))  # so long it may take to resume it
        counting = asyncio.create_task(wire.broker.depth(queue))
        await asyncio.wait([counting], timeout=1)
        assert not counting.done()
        monkeypatch.setattr(limit, timedelta(milliseconds=500))
        with pytest.raises(BrokerUnavailable, match=f"{queue}.* has not responded for 0.5 s"):
            await wire.broker.depth(queue)
        await asyncio.to_thread(let, queue, "resume")
        assert await counting == Depth(1, 0)


async def test_browsing_leaves_no_channel_open(wire: RabbitWire, queue: str) -> None:
    await send(wire.broker, queue, b"a", b"b", b"c")
    before = channels()
    for _ in range(5):
        await has_depth(wire.broker, queue, ready=3)
        async with wire.broker.browse(queue, limit=3) as found:
            assert len([each async for each in found]) == 3
    await closed_down_to(before)


async def test_channels_to_many_exchanges_are_not_all_kept(
    wire: RabbitWire, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MOST_EXCHANGES", 3)
    exchanges = [await wire.declare_exchange("fanout") for _ in range(10)]
    bindings = tuple(Binding(each, queue, "") for each in exchanges)
    await wire.broker.declare(Topology(bindings=bindings))
    before = channels()
    for exchange in exchanges:
        await wire.broker.publish(Message(b"x"), exchange=exchange, routing_key="")
    await has_depth(wire.broker, queue, ready=10)
    await closed_down_to(before + 1)


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "closed"])
async def test_a_channel_that_both_ends_close_is_closed_once(
    broker_url: str, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """The caller goes some turns of the event loop before the broker's refusal is answered."""
    answer = DriverChannel._on_close_frame  # pyright: ignore[reportPrivateUsage]
    turns = iter(range(16))

    async def late(channel: DriverChannel, frame: Any) -> None:
        if is_cut:
            asking.cancel()
        else:
            leaving.append(asyncio.ensure_future(closed(channel)))
        for _ in range(next(turns)):
            await asyncio.sleep(0)
        await answer(channel, frame)

    monkeypatch.setattr(DriverChannel, "_on_close_frame", late)
    async with session_to(URL(broker_url)) as opened:
        for _ in range(16):
            channel, leaving = await opened.open_channel(), list[asyncio.Future[None]]()
            asked = channel.consume("none", print, prefetch=1) if is_cut else channel.depth("none")
            asking = asyncio.ensure_future(cast("Coroutine[Any, Any, Any]", asked))
            await asyncio.wait([asking])
            await closed(channel)
            await asyncio.gather(*leaving)
            for _ in range(3):  # until the last answer about that channel is read
                await closed(await opened.open_channel())
            again = DriverChannel(opened.connection, channel.number)
            await closed(await opened.connection.open(again))


async def test_a_consumer_that_is_given_up_while_it_begins_holds_nothing(
    wire: RabbitWire, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consume = DriverChannel.consume

    async def cut(*args: Any, **kwargs: Any) -> str:
        tag = await consume(*args, **kwargs)
        this = asyncio.current_task()
        assert this is not None
        this.cancel()
        await asyncio.sleep(0)
        return tag

    await send(wire.broker, queue, b"a")
    await has_depth(wire.broker, queue, ready=1)
    before = channels()
    monkeypatch.setattr(DriverChannel, "consume", cut)
    beginning = asyncio.ensure_future(wire.broker.consume(queue, print, prefetch=1))
    await asyncio.wait([beginning])
    assert beginning.cancelled()
    await closed_down_to(before)
    await has_depth(wire.broker, queue, ready=1)


async def test_a_connection_without_a_free_channel_says_so(
    wire: RabbitWire, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = driver.connect

    async def limited(*args: Any) -> driver.DriverConnection:
        connection: Any = await connect(*args)
        connection.connection_tune.channel_max = 8
        return connection

    monkeypatch.setattr(driver, "connect", limited)
    broker = await wire.connect()
    await send(broker, queue, *[b"x"] * 9)
    await has_depth(broker, queue, ready=9)
    taken = list[Delivery | None]()

    async def take() -> None:
        while len(taken) < 9:
            taken.append(await broker.get(queue))

    with pytest.raises(BrokerUnavailable, match="All 7 channels .* raise channel_max"):
        await take()
    assert taken[0] is not None
    await taken[0].requeue()
    assert await broker.get(queue) is not None


@pytest.mark.parametrize("began", [True, False], ids=["after something", "after nothing"])
async def test_a_follower_that_gets_no_deliveries_subscribes_again(
    wire: RabbitWire, began: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = timedelta(seconds=0.5)
    monkeypatch.setattr(streams, "SILENCE_BEFORE_ASKING_ANEW", silence)
    stream = await wire.declare_stream()
    reader = await Reader.open(wire.broker, stream)
    if began:
        await send(wire.broker, stream, b"a")
        assert await reader.bodies(1) == [b"a"]
    for channel in list[Any](connections[0].channels.values()):
        if channel is not None:
            channel.consumers.clear()
    await send(wire.broker, stream, b"b", b"c")
    assert await reader.bodies(2) == [b"b", b"c"]
    await asyncio.sleep(3 * silence.total_seconds())
    assert reader.is_empty
    await send(wire.broker, stream, b"d")
    assert await reader.bodies(1) == [b"d"]


async def test_an_ack_over_a_closing_channel_does_not_end_the_connection(
    wire: RabbitWire, queue: str
) -> None:
    await send(wire.broker, queue, b"a")
    inbox = await Inbox.open(wire.broker, queue, prefetch=1)
    delivery = await inbox.next()
    closing = asyncio.create_task(consuming(connections[0]).close())
    for _ in range(10):  # until that is written, and not answered
        await asyncio.sleep(0)
    with pytest.raises(DeliveryLost):
        await delivery.ack()
    await closing
    await (await inbox.next()).ack()
    assert len(connections) == 1


@pytest.mark.parametrize("waits", ["send", "get"])
async def test_a_connection_without_answers_is_replaced(
    wire: RabbitWire,
    queue: str,
    proxy: Proxy,
    through: str,
    waits: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "ANSWER_TIMEOUT", timedelta(seconds=2))
    events = list[Event]()
    async with AmqpBroker(through, emit=events.append) as broker:
        await send(broker, queue, b"a")
        proxy.swallow(Way.DOWN)
        with pytest.raises(Unconfirmed, match="was lost before the broker responded"):
            await (send(broker, queue, b"b") if waits == "send" else broker.get(queue))
        await back(events)
        await send(broker, queue, b"c")
        bodies = [b"a", b"b", b"c"] if waits == "send" else [b"a", b"c"]
        await has_depth(wire.broker, queue, ready=len(bodies))
        assert sorted(await take_all(wire.broker, queue, len(bodies))) == bodies
    (lost,) = of(ConnectionLost, events)
    assert lost.reason == "the broker did not respond for 2 s, and no alarm blocks it"


@pytest.mark.timeout(240)
async def test_a_connection_that_an_alarm_blocks_is_kept(
    node: PrivateNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ANSWER_TIMEOUT", timedelta(seconds=5))
    events, limit = list[Event](), "set_vm_memory_high_watermark"
    async with AmqpBroker(node.url, emit=events.append) as broker:
        await broker.declare(Topology(queues=(Queue("q", {"x-queue-type": "quorum"}),)))
        await asyncio.to_thread(node.ctl, limit, "0.000001")
        try:
            waiting = set[asyncio.Task[None]]()
            while not waiting:  # the alarm comes some time after its limit
                publish = broker.publish(Message(), exchange="", routing_key="q", timeout=None)
                _, waiting = await asyncio.wait([asyncio.create_task(publish)], timeout=10)
        finally:
            await asyncio.to_thread(node.ctl, limit, "0.6")
        await asyncio.gather(*waiting)
        await broker.delete("q")
    assert not of(ConnectionLost, events)


@pytest.mark.parametrize("ends", ["leaves", "is cancelled"])
async def test_acked_messages_do_not_return_when_their_consumer_ends(
    wire: RabbitWire, queue: str, ends: str
) -> None:
    count = 1000
    await asyncio.gather(*(send(wire.broker, queue, b"%d" % n) for n in range(count)))
    inbox = await Inbox.open(wire.broker, queue, prefetch=count)
    held = [await inbox.next() for _ in range(count)]
    before = channels()
    await asyncio.gather(*(delivery.ack() for delivery in held))
    await (inbox.consumer.leave() if ends == "leaves" else inbox.consumer.cancel())
    await closed_down_to(before - 1)
    await send(wire.broker, queue, b"next")
    assert await take_all(wire.broker, queue, 1) == [b"next"]


CHANNEL_CLOSE = b"\x00\x14\x00\x28"  # class 20, method 40


@asynccontextmanager
async def session_to(url: URL) -> AsyncGenerator[session.Session]:
    opened = session.Session(await driver.connect(url, None))
    try:
        yield opened
    finally:
        await opened.close()


async def test_a_channel_whose_closing_is_not_answered_in_time_is_closed_once(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, forwarded = URL(broker_url), list[tuple[Way, bytes]]()

    def tap(way: Way, data: bytes) -> None:
        forwarded.append((way, data))

    async with Proxy(url.host or "", url.port or 5672, tap=tap) as proxy:
        through = url.with_host("127.0.0.1").with_port(proxy.port)
        async with session_to(through) as opened:
            channel = await opened.open_channel()
            monkeypatch.setattr(opened.connection.connection_tune, "heartbeat", 0.2)
            proxy.swallow(Way.DOWN)
            await channel.close()
            await opened.connection.written()
        up = b"".join(data for way, data in forwarded if way is Way.UP)
    assert up.count(CHANNEL_CLOSE) == 1


async def test_a_cancelled_caller_does_not_wait_until_its_channel_is_open(broker_url: str) -> None:
    url = URL(broker_url)
    async with Proxy(url.host or "", url.port or 5672) as proxy:
        through = url.with_host("127.0.0.1").with_port(proxy.port)
        async with session_to(through) as opened:
            proxy.swallow(Way.DOWN)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await opened.open_channel()


async def test_nothing_is_written_to_a_channel_that_the_broker_has_closed(broker_url: str) -> None:
    async with session_to(URL(broker_url)) as opened:
        channel, over = await opened.open_channel(), asyncio.Event()
        close = channel.close

        async def slowly(*args: Any, **kwargs: Any) -> None:
            await over.wait()
            await close(*args, **kwargs)

        channel.close = slowly
        got = asyncio.ensure_future(channel.get("there-is-no-such-queue"))
        async with asyncio.timeout(30):
            while _takes_more(channel):  # noqa: ASYNC110 - the broker is to close it meanwhile
                await asyncio.sleep(0)
        over.set()
        with pytest.raises(AMQPError):
            await got
        other = await opened.open_channel()
        await other.basic_qos(prefetch_count=1)


def _takes_more(channel: DriverChannel) -> bool:
    try:
        channel.settle(1, requeue=True)
    except ChannelInvalidStateError:
        return False
    return True


def stumbling(monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str) -> None:
    """Have a method raise what nobody expects, the next two times."""
    method, obstacles = getattr(owner, name), [KeyError("x"), StopAsyncIteration()]

    async def stumble(*args: Any, **kwargs: Any) -> Any:
        if obstacles:
            raise obstacles.pop(0)
        return await method(*args, **kwargs)

    monkeypatch.setattr(owner, name, stumble)


STUMBLED = ["KeyError: 'x'", "StopAsyncIteration"]


async def test_a_lost_connection_is_made_again_after_any_error(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: asyncio.Queue[Event] = asyncio.Queue()
    async with AmqpBroker(broker_url, emit=events.put_nowait):
        stumbling(monkeypatch, Endpoint, "connect")
        await connections[0].close(ConnectionError())
        lost, *retried, again = [await events.get() for _ in range(4)]
    assert isinstance(lost, ConnectionLost)
    assert [each.reason for each in of(ConnectionRetried, retried)] == STUMBLED
    assert isinstance(again, Connected)


async def test_an_interrupted_consumer_begins_again_after_any_error(
    wire: RabbitWire, queue: str, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: asyncio.Queue[Event] = asyncio.Queue()
    async with AmqpBroker(broker_url, emit=events.put_nowait) as broker:
        inbox = await Inbox.open(broker, queue)
        stumbling(monkeypatch, session.Session, "open_channel")
        await consuming(connections[1]).close()
        interrupted = [await events.get() for _ in range(3)]
        assert await events.get() == ConsumerResumed(queue)
        await send(wire.broker, queue, b"a")
        assert await inbox.bodies(1) == [b"a"]
    assert [each.reason for each in of(ConsumerInterrupted, interrupted)][1:] == STUMBLED


def test_a_connection_that_was_closed_leaves_no_task_behind(broker_url: str) -> None:
    async def connect() -> None:
        async with AmqpBroker(broker_url):
            pass

    for _ in range(20):  # one in two did
        with closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(connect())
            assert asyncio.all_tasks(loop) == set()


# Connections that a program opens with the driver itself


async def test_a_queue_that_is_exclusive_to_another_connection_cannot_be_declared(broker_url: str):
    async with RabbitWire("classic", broker_url) as wire:
        queue = wire.queue()
        other = await aiormq.connect(broker_url)
        await (await other.channel()).queue_declare(queue.name, exclusive=True)
        with pytest.raises(IncompatibleBroker, match=f"exclusive access .* '{queue.name}'"):
            await wire.broker.declare(Topology(queues=(queue,)))
        await other.close()


async def test_the_driver_logs_for_connections_of_others_and_not_for_ours(
    proxy: Proxy, through: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = list[Event]()
    async with AmqpBroker(through, emit=events.append):
        proxy.cut()
        await back(events)
        assert not [each for each in caplog.records if each.name.startswith("aiormq")]
        other = await aiormq.connect(through)
        events.clear()
        proxy.cut()
        with pytest.raises(AMQPConnectionError):
            await closing_of(other)
        await back(events)
    (told,) = [each for each in caplog.records if each.name.startswith("aiormq")]
    assert told.getMessage() == "Cancelling cause reader exited abnormally"
