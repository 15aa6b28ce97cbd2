"""Statement 6: declaring is idempotent and changes nothing that exists."""

import pytest

from scheduler.brokers.contract import Broker, Depth
from scheduler.errors import IncompatibleBroker, OtherArguments, QueueNotFound, Unroutable
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Exchange, Queue, Topology
from tests.contract.wire import Inbox, Wire, has_depth, send, take, take_all


async def test_declaring_again_changes_nothing(wire: Wire, broker: Broker) -> None:
    exchange, queue = Exchange(wire.name("exchange"), "topic"), wire.queue({"x-max-length": 5})
    binding = Binding(exchange.name, queue.name, "a.#")
    topology = Topology((exchange,), (queue,), (binding,))
    await broker.declare(topology)
    await broker.publish(Message(b"x"), exchange=exchange.name, routing_key="a.b")
    await broker.declare(topology)
    await (await wire.connect()).declare(topology)
    assert await take_all(broker, queue.name, 1) == [b"x"]
    untyped = Queue(wire.name("queue"))
    for each in untyped, Queue(untyped.name, {"x-queue-type": "classic"}):
        await broker.declare(Topology(queues=(each,)))


async def test_a_queue_with_other_arguments_is_refused_and_unchanged(wire: Wire, broker: Broker):
    queue = wire.queue({"x-message-ttl": 60_000})
    await broker.declare(Topology(queues=(queue,)))
    inbox = await Inbox.open(broker, queue.name)  # over a connection that lives on
    same, other_type = queue.arguments, {"classic": "quorum", "quorum": "classic"}[wire.queue_type]
    for arguments in (
        {**same, "x-message-ttl": 30_000},
        {"x-queue-type": wire.queue_type},
        {**same, "x-max-length": 1},
        {"x-queue-type": other_type},
    ):
        with pytest.raises(OtherArguments, match=queue.name) as refused:
            await broker.declare(Topology(queues=(Queue(queue.name, arguments),)))
        assert refused.value.queue == queue.name
        assert refused.value.argument.startswith("x-")
    await broker.declare(Topology(queues=(queue,)))
    await send(broker, queue.name, b"x")
    assert await inbox.bodies(1) == [b"x"]


async def test_an_exchange_of_another_type_is_refused_and_unchanged(
    wire: Wire, broker: Broker, queue: str
) -> None:
    name = await wire.declare_exchange("topic", {"a.#": queue})
    for other in Exchange(name, "fanout"), Exchange(name, "topic", {"alternate-exchange": "x"}):
        with pytest.raises(IncompatibleBroker, match=name):
            await broker.declare(Topology(exchanges=(other,)))
    await broker.publish(Message(b"x"), exchange=name, routing_key="a.b")
    assert await take_all(broker, queue, 1) == [b"x"]


async def test_an_unbound_exchange_delivers_nothing_more(wire: Wire, broker: Broker, queue: str):
    name = await wire.declare_exchange("topic", {"a": queue, "b": queue})
    first, other = (Binding(name, queue, key) for key in "ab")
    for _ in range(2):  # it need not be there
        await broker.unbind([first])
    with pytest.raises(Unroutable):
        await broker.publish(Message(b"x"), exchange=name, routing_key="a")
    await broker.publish(Message(b"y"), exchange=name, routing_key="b")
    await broker.declare(Topology(bindings=(first,)))
    await broker.publish(Message(b"z"), exchange=name, routing_key="a")
    assert await take_all(broker, queue, 2) == [b"y", b"z"]
    await broker.unbind([first, other])
    with pytest.raises(Unroutable):
        await broker.publish(Message(b"x"), exchange=name, routing_key="b")
    entrance = await wire.declare_exchange("direct", {})
    way = Binding(entrance, name, "c", "exchange")
    await broker.declare(Topology(bindings=(way, Binding(name, queue, "c"))))
    await broker.publish(Message(b"w"), exchange=entrance, routing_key="c")
    await broker.unbind([way])
    with pytest.raises(Unroutable):
        await broker.publish(Message(b"x"), exchange=entrance, routing_key="c")


async def test_a_foreign_exchange_must_exist(wire: Wire, broker: Broker) -> None:
    queue, theirs = await wire.declare_queue(), wire.name("theirs")
    wanted = Topology(
        exchanges=(Exchange(theirs, "topic", passive=True),),
        bindings=(Binding(theirs, queue, "a.#"),),
    )
    with pytest.raises(IncompatibleBroker, match=theirs):
        await broker.declare(wanted)
    with pytest.raises(Unroutable):  # it was not made
        await broker.publish(Message(b"x"), exchange=theirs, routing_key="a")
    await broker.declare(Topology(exchanges=(Exchange(theirs, "direct"),)))
    await broker.declare(wanted)
    await broker.publish(Message(b"y"), exchange=theirs, routing_key="a.#")
    assert await take_all(broker, queue, 1) == [b"y"]


async def test_a_binding_to_nothing_is_refused(wire: Wire, broker: Broker) -> None:
    exchange, missing = await wire.declare_exchange(), wire.name("missing")
    with pytest.raises(QueueNotFound, match=missing):
        await broker.declare(Topology(bindings=(Binding(exchange, missing, "#"),)))


async def test_the_depth_counts_messages_and_consumers(wire: Wire, broker: Broker, queue: str):
    await send(broker, queue, b"a", b"b", b"c")
    assert await broker.depth(queue) == Depth(ready=3, consumers=0)
    for held in 1, 2:
        inbox = await Inbox.open(await wire.connect(), queue, prefetch=1)
        await inbox.next()
        assert await broker.depth(queue) == Depth(ready=3 - held, consumers=held)
    # A quorum queue takes who holds a message for a consumer.
    taken = await take(broker, queue)
    consumers = {"classic": 2, "quorum": 3}[wire.queue_type]
    assert await broker.depth(queue) == Depth(ready=0, consumers=consumers)
    await taken.ack()
    await has_depth(broker, queue, ready=0, consumers=2)


async def test_a_missing_queue_has_no_depth_and_cannot_be_read(wire: Wire, broker: Broker) -> None:
    missing = wire.name("missing")
    await broker.delete(missing)
    assert await broker.depth(missing) is None
    with pytest.raises(QueueNotFound, match=missing):
        await broker.get(missing)
    with pytest.raises(QueueNotFound, match=missing):
        await Inbox.open(broker, missing)


async def test_deleting_deletes_the_queue_its_messages_and_its_bindings(wire: Wire, broker: Broker):
    queue, other = wire.queue(), await wire.declare_queue()
    await broker.declare(Topology(queues=(queue,)))
    exchange = await wire.declare_exchange("topic", {"a": queue.name, "#": other})
    await send(broker, queue.name, b"x")
    await broker.delete(queue.name)
    assert await broker.depth(queue.name) is None
    # It may come back with another type.
    other_type = "classic" if wire.queue_type == "quorum" else "quorum"
    await broker.declare(Topology(queues=(Queue(queue.name, {"x-queue-type": other_type}),)))
    await broker.publish(Message(b"y"), exchange=exchange, routing_key="a")
    assert await broker.get(queue.name) is None
    assert await take_all(broker, other, 1) == [b"y"]
    await send(broker, queue.name, b"z")
    assert await take_all(broker, queue.name, 1) == [b"z"]
