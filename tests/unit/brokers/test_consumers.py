"""What is acked at once is acked by few frames, and by none what is held."""

import asyncio
from typing import Any

from scheduler.brokers.amqp.consumers import DeliveryChannel
from scheduler.brokers.amqp.frames import RawMessage


class Channel:
    """Notes what is settled over it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.settled = list[tuple[int, bool]]()

    def expect_more(self) -> None: ...

    def settle(self, tag: int, *, requeue: bool = False, multiple: bool = False) -> None:
        assert not requeue
        self.settled.append((tag, multiple))


async def settled_of(acked: tuple[int, ...], *, acks_together: bool) -> list[tuple[int, bool]]:
    """Ack some of six messages in one turn of the event loop."""
    channel, lost = Channel(), asyncio.get_running_loop().create_future()
    anything: Any = channel
    deliveries = DeliveryChannel(anything, anything, lost, acks_together=acks_together)
    came = [
        deliveries.delivery(RawMessage(b"\0\0", b"", "exchange", "key", tag), "queue")
        for tag in range(1, 7)
    ]
    for tag in acked:
        await came[tag - 1].ack()
    await asyncio.sleep(0)
    return channel.settled


async def test_what_was_acked_before_all_that_is_held_is_acked_by_one_frame() -> None:
    assert await settled_of((2, 1, 4, 6), acks_together=True) == [(2, True), (4, False), (6, False)]
    assert await settled_of((3, 2, 1, 4, 6, 5), acks_together=True) == [(6, True)]
    assert await settled_of((1,), acks_together=True) == [(1, False)]
    assert await settled_of((2,), acks_together=True) == [(2, False)]


async def test_where_others_are_kept_over_the_channel_each_is_acked_alone() -> None:
    assert await settled_of((2, 1), acks_together=False) == [(2, False), (1, False)]
