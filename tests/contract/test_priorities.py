"""Statement 2: which message of a queue comes first, where they have priorities."""

from collections.abc import Iterable

from scheduler.brokers.contract import Broker
from scheduler.protocol.messages import Message
from tests.contract.wire import Wire, has_depth, take, take_all

MIXED = (1, 5, None, 0, 9, 5, 31, 1, 255, 4)
STRICTLY = {
    # As high as the queue has them; without one is 0.
    "classic": [5, 9, 5, 31, 255, 4, 1, 1, None, 0],
    # 31 and more are the same; without one is 4.
    "quorum": [31, 255, 9, 5, 5, None, 4, 1, 1, 0],
}
TWO_CLASSES = [5, 9, 1, 5, 31, None, 255, 0, 1, 4]  # two that are above 4 for each other one


def is_strict(broker: Broker) -> bool:
    """Whether the quorum queues of this broker have all priorities."""
    return broker.info.product == "memory" or release(broker) >= (4, 3)


def release(broker: Broker) -> tuple[int, ...]:
    return tuple(map(int, broker.info.version.split(".")[:2]))


async def queue_with_priorities(wire: Wire) -> str:
    return await wire.declare_queue({"x-max-priority": 5} if wire.queue_type == "classic" else {})


async def publish(broker: Broker, queue: str, priorities: Iterable[int | None]) -> None:
    """One of each of these priorities, which its body tells."""
    for priority in priorities:
        message = Message(str(priority).encode(), priority=priority)
        await broker.publish(message, exchange="", routing_key=queue)


async def test_higher_priorities_come_first(wire: Wire, broker: Broker) -> None:
    queue = await queue_with_priorities(wire)
    await publish(broker, queue, MIXED)
    if wire.queue_type == "classic" or is_strict(broker):
        expected = STRICTLY[wire.queue_type]
    else:
        expected = TWO_CLASSES if release(broker) >= (4, 0) else MIXED
    assert await take_all(broker, queue, len(MIXED)) == [str(each).encode() for each in expected]


async def test_a_requeued_message_comes_first_or_first_of_its_priority(wire: Wire, broker: Broker):
    queue = await queue_with_priorities(wire)
    await publish(broker, queue, (1, 1))
    first, came = await take(broker, queue), list[tuple[bytes, bool]]()
    await publish(broker, queue, (5,))
    await first.requeue()
    await has_depth(broker, queue, ready=3)
    for _ in range(3):
        delivery = await take(broker, queue)
        came.append((delivery.message.body, delivery.redelivered))
        await delivery.ack()
    assert sorted(came) == [(b"1", False), (b"1", True), (b"5", False)]
    assert came.index((b"1", True)) == {"classic": 1, "quorum": 0}[wire.queue_type]
    assert wire.queue_type == "quorum" or came[0] == (b"5", False)
