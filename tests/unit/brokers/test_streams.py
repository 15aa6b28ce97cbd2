"""How long a stream is given to deliver its first entry."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.brokers.amqp.connection import OFFSET
from scheduler.brokers.amqp.frames import RawMessage
from scheduler.brokers.amqp.streams import read
from scheduler.brokers.properties import encoded
from scheduler.protocol.messages import Message

UP_AFTER_S = 3.2
ENTRY = RawMessage(encoded(Message(headers={OFFSET: 0})), b"1", "", "")


class LateChannel:
    """A channel to a node that has just restarted: its streams deliver some seconds later."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closing = self.loop.create_future()
        self.on_consumer_cancel_callbacks = set[Callable[[object], None]]()

    async def consume(self, stream: str, lay_out: Callable[[RawMessage], None], **_: object) -> str:
        self.loop.call_later(UP_AFTER_S, lay_out, ENTRY)
        return "tag"

    async def cancel(self, tag: str) -> None: ...

    async def depth(self, stream: str) -> tuple[int, int]:
        return 0, 0


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("age", "found"), [(0.1, [b"1"]), (60, [])])
async def test_a_stream_of_a_node_that_may_have_restarted_is_waited_for(
    age: float, found: list[bytes]
) -> None:
    async def open_channel() -> LateChannel:
        return LateChannel()

    async def ready() -> object:
        return SimpleNamespace(
            age=timedelta(seconds=age), open_channel=open_channel, awaiting_answer=nullcontext
        )

    connection: Any = SimpleNamespace(
        ready=ready,
        translated=nullcontext(),
        beginning_to_read=nullcontext,
        close_soon=nullcontext,
    )
    assert [each.body async for each in read(connection, "journal", None, None)] == found
