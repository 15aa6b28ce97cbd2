"""One-off messages on a real broker: sent, retried, shared with others, parked, replayed."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from scheduler import Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.errors import TooLarge, Unroutable
from scheduler.events import (
    ConnectionLost,
    Escalated,
    MessageParked,
    RunReturned,
    RunSettled,
)
from scheduler.protocol.messages import Message, failed_deliveries
from scheduler.queues.failed import EVERYTHING
from tests.contract.wire import eventually
from tests.integration.shop import Shop
from tests.sweep import empty

STEP = timedelta(milliseconds=100)
# What a busy machine may add to a delay, on top of the step of the timers.
SLACK = timedelta(seconds=1)
LIMIT = Settings().delivery_limit


# Sending


PROGRAM = """
import asyncio, sys
from scheduler import Scheduler, Settings
app = Scheduler(sys.argv[1], Settings(broker_url=sys.argv[2]))
@app.task()
async def work(n: int) -> None: ...
async def main():
    await work.send(1)
    async with app:
        await work.send(2)
    await work.send(3)
asyncio.run(main())
asyncio.run(work.send(4))
work.blocking.send(5)
"""


async def test_a_script_that_sends_ends_without_a_word(shop: Shop) -> None:
    """Whether it closes its connections or not."""
    program = [sys.executable, "-W", "error", "-c", PROGRAM, shop.namespace, shop.url]
    done = await asyncio.to_thread(
        subprocess.run, program, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == ""
    async with shop.working("work"):
        await shop.until(lambda: len(shop.runs) == 5)
    assert sorted(run.value for run in shop.runs) == [1, 2, 3, 4, 5]


UNSEEDED = """
import asyncio, sys
from scheduler import Scheduler, Settings
from scheduler.errors import Unroutable
app = Scheduler(sys.argv[1], Settings(broker_url=sys.argv[2]))
@app.task()
async def work(n: int) -> None: ...
async def caught():
    for delay in "0s", "5m":
        try:
            await work.send_later(delay, 1)
        except Unroutable:
            pass
async def connected():
    async with app:
        await work.send(1)
with asyncio.Runner(debug=True) as runner:
    runner.get_loop().slow_callback_duration = 60  # of a busy machine nothing is to be said
    runner.run({main})
"""


@pytest.mark.parametrize(
    ("main", "tracebacks"), [("work.send(1)", 1), ("connected()", 1), ("caught()", 0)]
)
async def test_a_script_that_cannot_send_says_so_once(
    broker_url: str, namespace: str, main: str, tracebacks: int
) -> None:
    text = UNSEEDED.replace("{main}", main)
    program = [sys.executable, "-W", "error", "-c", text, namespace, broker_url]
    done = await asyncio.to_thread(
        subprocess.run, program, capture_output=True, text=True, timeout=30
    )
    assert done.stdout == ""
    assert done.stderr.count("Traceback") == tracebacks
    told = "scheduler.errors.Unroutable: The broker has no queue for the task 'work': nothing was "
    begun = [line[: len(told)] for line in done.stderr.splitlines() if not line.startswith(" ")]
    assert begun == ["Traceback (most recent call last):", told] * tracebacks


# Retries


async def test_what_an_app_publishes_is_retried_and_parked_for_each_task_on_its_own(
    shop: Shop,
) -> None:
    body = {"order": 1, "at": datetime(2026, 6, 1, tzinfo=UTC)}
    async with shop.working("bill", "ship") as broker:
        name = await shop.app.publish(
            shop.orders, "order.shipped", body, headers={"x": "y"}, correlation_id="c"
        )
        text = await shop.app.publish(shop.orders, "order.paid", "no JSON", message_id="m")
        await shop.until(lambda: shop.count(RunSettled) == 7)
        with pytest.raises(Unroutable, match="no queue bound for the routing key 'elsewhere'"):
            await shop.app.publish(shop.orders, "elsewhere", b"")
        with pytest.raises(Unroutable, match="'nowhere' does not exist"):
            await shop.app.publish("nowhere", "order.paid", b"")
        assert await shop.parked(broker) == []
    assert (name.stored, text) == (False, "m")
    billed, shipped = shop.runs_of("bill"), shop.runs_of("ship")
    ours = [run for run in billed if run.message.message_id == name]
    assert [run.attempt for run in ours] == [1, 2, 3]
    assert [run.attempt for run in shipped] == [1]
    for run in (*ours, *shipped):
        assert run.routing_key == "order.shipped"
        assert run.message.headers["x"] == "y"
        assert (run.message.correlation_id, run.message.message_id) == ("c", name)
    assert ours[0].value == b'{"order":1,"at":"2026-06-01T00:00:00Z"}'
    assert [run.value for run in billed if run not in ours] == [b"no JSON"] * 3


async def test_a_message_of_somebody_else_that_kills_its_processors_can_be_replayed(
    shop: Shop,
) -> None:
    queue, message = shop.app.names.processor_queue("ship"), Message(b"{}", message_id="m")
    async with AmqpBroker(shop.url) as broker:
        await broker.publish(message, exchange=shop.orders, routing_key="order.shipped")
        await empty(broker, shop.app.names.processor_queue("bill"))

        async def dies_with_it() -> bool:
            async with AmqpBroker(shop.url) as doomed:
                taken = await doomed.get(queue)
                return taken is not None and failed_deliveries(taken.message) >= LIMIT - 1

        await eventually(dies_with_it)
        async with shop.working("ship"):
            await shop.until(lambda: shop.count(MessageParked) == 1)
            (parked,) = await shop.parked(broker)
            assert (parked.reason, parked.task) == ("delivery-limit", "ship")
            assert not shop.runs
            await shop.failed(broker).replay(["ship"], EVERYTHING)
            await shop.until(lambda: len(shop.runs) == 1)
    assert shop.runs[0].routing_key == "order.shipped"
    assert shop.runs[0].value == message.body


# What is as large as it can be


async def full(broker: AmqpBroker) -> Message:
    """A message of somebody else whose headers fill a frame to its last byte."""
    message = Message(b"no json", {"traceparent": "00-ab", "blob": "x" * 1_000_000}, message_id="m")
    with pytest.raises(TooLarge) as refused:
        await broker.publish(message, exchange="", routing_key="nowhere")
    blob = message.headers["blob"][refused.value.excess :]
    return replace(message, headers={"traceparent": "00-ab", "blob": blob})


LEFT_OVER = {"traceparent": "00-ab", "scheduler-left-out": "blob"}


async def test_what_leaves_no_room_for_a_retry_is_parked_at_once_and_told(shop: Shop) -> None:
    told: list[str] = []

    @shop.app.on_escalation
    def tell(event: Escalated) -> None:
        told.append(f"{event.loop} {event.error}")

    async with shop.working("bill") as broker:
        message = await full(broker)
        await broker.publish(message, exchange=shop.orders, routing_key="order.paid")
        await shop.until(lambda: shop.count(RunSettled) == 1)
        (parked,) = await shop.parked(broker)
        assert (parked.reason, parked.error) == ("too-large", "ValueError: boom")
        assert (parked.attempts, parked.message.body) == (1, message.body)
        assert LEFT_OVER.items() <= dict(parked.headers).items()
        assert told == ["bill boom"]
        assert [run.value for run in shop.runs] == [message.body]
        # Replayed by somebody who has seen what it lacks, it has room for its retries.
        await shop.failed(broker).replay(["bill"], EVERYTHING)
        await shop.until(lambda: shop.count(RunSettled) == 4)
    assert [run.attempt for run in shop.runs] == [1, 1, 2, 3]
    assert {run.routing_key for run in shop.runs} == {"order.paid"}
    assert LEFT_OVER.items() <= dict(shop.runs[-1].message.headers).items()
    assert shop.count(ConnectionLost) == 0


# Flow


async def test_an_ordered_task_keeps_the_order_over_two_processors_and_through_retries(
    shop: Shop,
) -> None:
    async with shop.working("book"), shop.working("book") as broker:
        for n in range(5):
            await shop.book.send(n)
        await shop.until(lambda: shop.count(RunSettled) == 5)
        tried = [(1, attempt) for attempt in range(1, 9)]
        expected = [(0, 1), *tried, (2, 1), (3, 1), (3, 2), (4, 1)]
        assert [(run.value, run.attempt) for run in shop.runs] == expected
        retries = shop.runs[1:9]
        waits = [b.at - a.at for a, b in zip(retries, retries[1:], strict=False)]
        assert STEP <= min(waits) < STEP + SLACK
        (parked,) = await shop.parked(broker)
        assert (parked.reason, parked.attempts) == ("exhausted", 8)
    assert shop.count(RunReturned) == 0
