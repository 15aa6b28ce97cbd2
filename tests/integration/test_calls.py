"""One-off messages on a real broker: sent, delayed, retried, parked, replayed; and what dies."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.errors import TooLarge
from scheduler.events import ConnectionLost, Escalated, RunReturned, RunSettled
from scheduler.protocol.messages import Message
from scheduler.queues.failed import EVERYTHING
from tests.integration.conftest import Field
from tests.integration.shop import Shop

pytestmark = pytest.mark.timeout(180)

CLERK = f"{Path(__file__).parent / 'apps' / 'clerk.py'}:app"
STEP = timedelta(milliseconds=100)
# What a busy machine may add to a delay, on top of the step of the timers.
SLACK = timedelta(seconds=1)


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


async def full(broker: AmqpBroker) -> Message:
    """A message of somebody else whose headers fill a frame to its last byte."""
    message = Message(b"no json", {"traceparent": "00-ab", "blob": "x" * 1_000_000}, message_id="m")
    with pytest.raises(TooLarge) as refused:
        await broker.publish(message, exchange="", routing_key="nowhere")
    blob = message.headers["blob"][refused.value.excess :]
    return replace(message, headers={"traceparent": "00-ab", "blob": blob})


LEFT_OVER = {"traceparent": "00-ab", "scheduler-left-out": "blob"}


async def test_a_message_too_large_to_retry_is_parked_and_reported(shop: Shop) -> None:
    told: list[str] = []

    @shop.app.on_escalation
    def tell(event: Escalated) -> None:
        told.append(f"{event.loop} {event.error}")

    async with shop.working("bill") as broker:
        message = await full(broker)
        await broker.publish(message, exchange=shop.orders, routing_key="order.paid")
        await shop.until(lambda: bool(told))
        (parked,) = await shop.parked(broker)
        assert (parked.reason, parked.message.body) == ("broken", message.body)
        assert parked.error.startswith("TooLarge: The headers and properties of the message are")
        assert LEFT_OVER.items() <= dict(parked.headers).items()
        assert told == [f"bill {parked.error.removeprefix('TooLarge: ')}"]
        assert [run.value for run in shop.runs] == [message.body]
        # Replayed by somebody who has seen what it lacks, it has room for its retries.
        await shop.failed(broker).replay(["bill"], EVERYTHING)
        await shop.until(lambda: shop.count(RunSettled) == 3)
    assert [run.attempt for run in shop.runs] == [1, 1, 2, 3]
    assert {run.routing_key for run in shop.runs} == {"order.paid"}
    assert LEFT_OVER.items() <= dict(shop.runs[-1].message.headers).items()
    assert shop.count(ConnectionLost) == 0


async def test_an_ordered_task_keeps_the_order_over_two_processors_and_through_retries(shop: Shop):
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


# Delays, and processors that are killed

WORK = ("run", "--tasks", "work,fails", "--json")


async def test_a_delayed_call_is_held_by_the_broker_and_by_no_processor(shop: Shop) -> None:
    queue = f"{shop.app.names.prefix}.later.2x6h"  # though some time passes until it is sent
    async with shop.app, shop.working("work") as broker:
        await asyncio.gather(*(shop.work.send_later("13h", n) for n in range(100)))
        depth = await broker.depth(queue)
        assert depth is not None
        assert (depth.ready, depth.consumers) == (100, 0)
        await shop.work.send(1)
        await shop.until(lambda: shop.count(RunSettled) == 1)
    assert shop.count(RunReturned) == 0


@pytest.fixture
def clerks(shop: Shop, tmp_path: Path) -> Iterator[Field]:
    """Processes of the clerk's app, and what they wrote down."""
    field = Field(shop.url, shop.namespace, "quorum", tmp_path / "record", app=CLERK)
    yield field
    field.kill()


async def test_every_delayed_call_runs_and_none_early_though_a_processor_is_killed(
    shop: Shop, clerks: Field
) -> None:
    def seen() -> set[int]:
        return {note["n"] for note in clerks.notes("work")}

    random, count = Random(1), 300
    doomed = clerks.start(*WORK)
    async with shop.app:
        await asyncio.gather(
            *(shop.work.send_later(f"{random.randint(100, 3000)}ms", n) for n in range(count))
        )
    await clerks.until(lambda: len(seen()) >= 20)
    clerks.start(*WORK)
    doomed.send_signal(signal.SIGKILL)
    assert doomed.wait(timeout=30) == -signal.SIGKILL
    await clerks.until(lambda: len(seen()) == count)
    assert all(note["late"] >= 0 for note in clerks.notes("work"))


@pytest.mark.parametrize(
    ("moment", "attempts", "copies"),
    [
        ("RunFinished@1", [1, 1, 2, 3], 1),  # before anything was published
        # Killed between the confirmed retry and the ack, which is written a moment later.
        ("RunSettled@1", [1, 1, 2, 2, 3, 3], 2),
        ("MessageParked", [1, 2, 3, 3], 2),  # between the confirmed parking and the ack
    ],
)
async def test_a_failing_call_is_parked_whenever_its_processor_is_killed(
    shop: Shop, clerks: Field, moment: str, attempts: list[int], copies: int
) -> None:
    name = await shop.fails.send(1)
    await shop.app.outbox.close()
    await clerks.until_killed(*WORK, KILL_AT=moment)
    clerks.start(*WORK)
    async with AmqpBroker(shop.url) as broker:
        await shop.until_parked(broker, copies)
        parked = await shop.failed(broker).browse(["fails"])
    assert len(parked) == copies
    assert {each.message.message_id for each in parked} == {name}
    assert {(each.reason, each.error, each.attempts) for each in parked} == {
        ("exhausted", "ValueError: boom 1", 3)
    }
    assert sorted(note["attempt"] for note in clerks.notes("fails")) == attempts
