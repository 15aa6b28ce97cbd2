"""What stands around runs and around what is sent, on a broker."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from scheduler import Context, Retry, RetryLater, Scheduler, Settings
from scheduler.brokers.contract import Broker
from scheduler.middleware import CallNext, Sending, SendNext
from scheduler.protocol.topology import QueueType
from tests.stage import at_work, processor_of, program_of

request_id: ContextVar[str] = ContextVar("request_id", default="none")


@pytest.fixture
def app(namespace: str, broker_url: str, queue_type: QueueType) -> Scheduler:
    """One whose messages are sent also where no processor lends its connection."""
    url: Any = broker_url
    return Scheduler(namespace, Settings(broker_url=url, queue_type=queue_type))


@pytest.mark.usefixtures("swept")
async def test_a_header_goes_with_a_message_from_wherever_it_is_sent(
    app: Scheduler, broker: Broker
) -> None:
    read, all_read = list[tuple[str, str, int]](), asyncio.Event()

    @app.around_sending
    async def add(sending: Sending, send_next: SendNext) -> None:
        sending.headers["request-id"] = request_id.get()
        await send_next()

    @app.around
    async def postpone(ctx: Context, call_next: CallNext) -> None:
        if ctx.attempt == 1:
            raise RetryLater("300ms")
        await call_next()

    @app.task(retry=Retry(1))
    async def tell(ctx: Context, where: str) -> None:
        read.append((where, str(ctx.message.headers["request-id"]), ctx.attempt))
        if len(read) == 3:
            all_read.set()

    await program_of(app, broker).seeding.seed()
    request_id.set("r1")
    # Through the thread beside, of a coroutine and of blocking code; then over the processor's.
    await tell.send("beside")
    await asyncio.to_thread(tell.blocking.send, "blocking")
    async with at_work(processor_of(app, broker, supervises=False)), asyncio.timeout(30):
        await tell.send_later("100ms", "lent")
        await all_read.wait()
    assert sorted(read) == [("beside", "r1", 2), ("blocking", "r1", 2), ("lent", "r1", 2)]
