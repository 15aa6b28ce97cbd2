"""One-off messages on a real broker: sent, retried, shared with others, parked, replayed."""

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from yarl import URL

from scheduler import Context, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.errors import NotSent, TooLarge, Unroutable
from scheduler.events import (
    ConnectionLost,
    Escalated,
    MessageParked,
    RunFinished,
    RunReturned,
    RunSettled,
)
from scheduler.protocol.hatchery import AT
from scheduler.protocol.messages import Message, failed_deliveries
from scheduler.queues.failed import EVERYTHING, Parked
from tests.contract.proxy import Proxy
from tests.foreign import foreigner, headers
from tests.integration.conftest import BOTH_TYPES
from tests.integration.shop import Shop, eventually
from tests.rabbitmq import free_ports
from tests.sweep import empty

pytestmark = pytest.mark.timeout(120)

STEP = timedelta(milliseconds=100)
# What a busy machine may add to a delay, on top of the step of the timers.
SLACK = timedelta(seconds=1)
LIMIT = Settings().delivery_limit


# Sending


async def test_a_program_sends_and_a_processor_runs(shop: Shop) -> None:
    async with shop.app:
        first = await shop.work.send(1)
        second = await shop.work.options(message_id="second").send_later("300ms", 2)
        third = await shop.work.send_at(datetime.now(UTC) + timedelta(seconds=0.5), 3)
    async with shop.working("work"):
        await shop.until(lambda: shop.count(RunSettled) == 3)
    assert [run.value for run in shop.runs] == [1, 2, 3]
    assert [run.message.message_id for run in shop.runs] == [first, second, third]
    assert second == "second"
    assert all(run.at >= run.due_at for run in shop.runs)


async def test_many_are_sent_at_once(shop: Shop) -> None:
    ids = await shop.work.send_many({"n": n} for n in range(1000))
    async with shop.working("work"):
        await shop.until(lambda: shop.count(RunSettled) == 1000)
    assert {run.message.message_id: run.value for run in shop.runs} == dict(
        zip(ids, range(1000), strict=True)
    )


async def test_a_thread_sends_and_waits(shop: Shop) -> None:
    sender = shop.work.options(correlation_id="c").blocking
    ids = [
        await asyncio.to_thread(sender.send, 1),
        await asyncio.to_thread(sender.send_later, "100ms", 2),
        await asyncio.to_thread(sender.send_at, datetime.now(UTC), 3),
    ]
    async with shop.working("work"):
        await shop.until(lambda: len(shop.runs) == 3)
    assert {run.message.message_id for run in shop.runs} == set(ids)
    assert {run.message.correlation_id for run in shop.runs} == {"c"}


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


async def test_a_run_sends_from_an_event_loop_of_its_own(shop: Shop) -> None:
    """As who calls blocking code that calls a coroutine does; the processor works meanwhile."""

    @shop.app.task()
    async def relay(ctx: Context) -> None:
        await asyncio.to_thread(lambda: asyncio.run(shop.work.send(1)))

    await shop.seed()
    async with shop.working("relay", "work"):
        await relay.send()
        await shop.until(lambda: shop.count(RunSettled) == 2)
    assert [run.value for run in shop.runs] == [1]
    await shop.sweep_task("relay")


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


async def test_what_is_reported_as_sent_arrives_though_the_connection_breaks(shop: Shop) -> None:
    url = URL(shop.url)
    confirmed: list[str] = []
    async with Proxy(str(url.host), url.port or 5672) as proxy:
        through = Shop(
            str(url.with_host("127.0.0.1").with_port(proxy.port)), shop.namespace, shop.queue_type
        )

        async def send(n: int) -> None:
            confirmed.append(await through.work.send_later("100ms", n))
            if len(confirmed) % 70 == 0:
                proxy.cut()

        async with through.app:
            await asyncio.gather(*map(send, range(300)))
    assert len(set(confirmed)) == 300
    async with shop.working("work"):
        await shop.until(lambda: {r.message.message_id for r in shop.runs} >= set(confirmed))


async def test_a_broker_that_comes_back_within_the_deadline_gets_the_message(shop: Shop) -> None:
    url, (port,) = URL(shop.url), free_ports(1)
    tried = asyncio.Event()

    async def hang_up(_: object, writer: asyncio.StreamWriter) -> None:
        writer.close()
        tried.set()

    away = await asyncio.start_server(hang_up, "127.0.0.1", port)
    through = Shop(str(url.with_host("127.0.0.1").with_port(port)), shop.namespace, shop.queue_type)
    sending = asyncio.create_task(through.work.options(deadline="30s").send(1))
    await tried.wait()
    away.close()
    await away.wait_closed()
    assert not sending.done()
    async with Proxy(str(url.host), url.port or 5672, listen_on=port):
        name = await sending
        async with shop.working("work"):
            await shop.until(lambda: [r.message.message_id for r in shop.runs] == [name])
        await through.app.outbox.close()


async def test_a_connection_that_breaks_for_good_is_told_within_the_deadline(shop: Shop) -> None:
    url = URL(shop.url)
    async with Proxy(str(url.host), url.port or 5672) as proxy:
        port = proxy.port
        through = Shop(
            str(url.with_host("127.0.0.1").with_port(port)), shop.namespace, shop.queue_type
        )
        await through.app.outbox.open()
    began = asyncio.get_running_loop().time()
    with pytest.raises(NotSent, match="was not confirmed within 0.5 s"):
        await through.work.options(deadline="500ms").send(1)
    assert asyncio.get_running_loop().time() - began < 2
    await through.app.outbox.close()


# Retries


async def test_a_message_that_fails_for_ever_is_tried_at_the_stated_delays_then_parked_once(
    shop: Shop,
) -> None:
    async with shop.working("fails") as broker:
        name = await shop.fails.send(7)
        await shop.until(lambda: shop.count(RunSettled) == 4)
        runs = shop.runs
        assert [run.attempt for run in runs] == [1, 2, 3, 4]
        waits = [b.at - a.at for a, b in zip(runs, runs[1:], strict=False)]
        for wait, stated in zip(waits, (0.2, 1.5, 1.0), strict=True):
            assert timedelta(seconds=stated) <= wait < timedelta(seconds=stated) + STEP + SLACK
        assert {run.message.message_id for run in runs} == {name}
        (parked,) = await shop.parked(broker)
        assert (parked.reason, parked.error, parked.attempts) == (
            "exhausted",
            "ValueError: boom 7",
            4,
        )
        assert "in fails" in parked.traceback
        assert shop.count(MessageParked) == 1

        sent: list[Parked] = []
        await shop.failed(broker).replay(["fails"], EVERYTHING, tell=sent.append)
        assert [each.id for each in sent] == [parked.id]
        await shop.until(lambda: shop.count(RunSettled) == 8)
        assert [run.attempt for run in runs[4:]] == [1, 2, 3, 4]
        (again,) = await shop.parked(broker)
        assert (again.attempts, again.first_failed_at) == (4, parked.first_failed_at)


FOREIGN = Message(
    b'{"number": 7}',
    {
        "traceparent": "00-ab-cd-01",
        "n": 5,
        "big": 2**62,
        "negative": -5,
        "flag": True,
        "nothing": None,
        "half": 0.5,
        "nested": {"list": [1, "two", {"three": None}]},
        "moment": datetime(2026, 6, 1, tzinfo=UTC),
        "bytes": bytearray(b"\xff\x00"),
    },
    content_type="application/vnd.shop+json",
    message_id="m",
    correlation_id="c",
    type="order",
    priority=3,
    timestamp=datetime(2026, 6, 1, tzinfo=UTC),
    content_encoding="identity",
    reply_to="answers",
    app_id="orders",
)


@BOTH_TYPES
async def test_a_retried_message_of_somebody_else_is_as_it_was_and_comes_to_nobody_else(
    shop: Shop,
) -> None:
    async with shop.working("bill", "ship") as broker:
        message = replace(FOREIGN, expiration=timedelta(hours=1))
        await broker.publish(message, exchange=shop.orders, routing_key="order.shipped")
        await shop.until(lambda: shop.count(RunSettled) == 4)
    assert [(run.task, run.attempt) for run in shop.runs if run.task == "ship"] == [("ship", 1)]
    billed = shop.runs_of("bill")
    assert [run.attempt for run in billed] == [1, 2, 3]
    for run in billed:
        headers = {n: v for n, v in run.message.headers.items() if not n.startswith("scheduler-")}
        assert replace(run.message, headers=headers) == FOREIGN
        assert run.routing_key == "order.shipped"
        assert run.value == FOREIGN.body


ADDED_BY_A_RETRY = {
    "scheduler-attempt",
    "scheduler-due-at-ms",
    "scheduler-exchange",
    "scheduler-first-failed-at-ms",
    "scheduler-key",
    "scheduler-lead-ms",
}


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


async def test_a_retried_message_gets_but_what_counts_its_attempts_and_an_id_if_it_had_none(
    shop: Shop,
) -> None:
    async with shop.working("bill"), foreigner(shop.url) as somebody:
        await somebody.publish(headers(), b"{}", exchange=shop.orders, routing_key=b"order.paid")
        await shop.until(lambda: shop.count(RunSettled) == 3)
    first, *retries = shop.runs_of("bill")
    assert (first.message.message_id, dict(first.message.headers)) == (None, {})
    added = [{name for name in run.message.headers if not name.startswith(AT)} for run in retries]
    assert added == [ADDED_BY_A_RETRY] * 2
    (given,) = {run.message.message_id for run in retries}
    assert given
    for run in retries:
        assert replace(run.message, headers={}, message_id=None) == first.message


async def test_a_message_of_somebody_else_that_kills_its_processors_can_be_replayed(
    shop: Shop,
) -> None:
    queue = shop.app.names.processor_queue("ship")
    async with AmqpBroker(shop.url) as broker:
        await broker.publish(FOREIGN, exchange=shop.orders, routing_key="order.shipped")
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
    assert shop.runs[0].value == FOREIGN.body


# What is as large as it can be


async def full(broker: AmqpBroker) -> Message:
    """A message of somebody else whose headers fill a frame to its last byte."""
    message = Message(b"no json", {"traceparent": "00-ab", "blob": "x" * 1_000_000}, message_id="m")
    with pytest.raises(TooLarge) as refused:
        await broker.publish(message, exchange="", routing_key="nowhere")
    blob = message.headers["blob"][refused.value.excess :]
    return replace(message, headers={"traceparent": "00-ab", "blob": blob})


LEFT_OVER = {"traceparent": "00-ab", "scheduler-left-out": "blob"}


async def test_what_leaves_no_room_for_the_reason_is_parked_with_less(shop: Shop) -> None:
    async with shop.working("paid") as broker:
        message = await full(broker)
        await broker.publish(message, exchange=shop.orders, routing_key="order.paid")
        await shop.until(lambda: shop.count(MessageParked) == 1)
        (parked,) = await shop.parked(broker)
        assert (parked.reason, parked.message.body) == ("invalid-arguments", message.body)
        placed = {"scheduler-exchange": shop.orders, "scheduler-key": "order.paid"}
        assert parked.headers == LEFT_OVER | placed
    assert shop.count(ConnectionLost) == 0


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


# What cannot be run


async def test_twenty_megabytes(shop: Shop) -> None:
    large = b"x" * 20_000_000
    async with shop.working("scan", "work") as broker:
        if broker.info.version.startswith("4."):
            with pytest.raises(TooLarge, match="accepts 16.00 MiB"):
                await shop.ship.send(large)
        try:
            await broker.publish(Message(large), exchange=shop.orders, routing_key="scan.page")
        except TooLarge:
            assert broker.info.version.startswith("4.")
        else:  # up to 3.12 a broker takes 128 MiB
            await shop.until(lambda: shop.ran == [("scan", large)])
        await shop.work.send(1)
        await shop.until(lambda: [run.value for run in shop.runs] == [1])


# Flow


@BOTH_TYPES
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
        assert all(STEP <= wait < STEP + SLACK for wait in waits)
        (parked,) = await shop.parked(broker)
        assert (parked.reason, parked.attempts) == ("exhausted", 8)
    assert shop.count(RunReturned) == 0


async def test_an_ordered_task_keeps_the_order_while_its_processors_are_replaced(
    shop: Shop,
) -> None:
    shop.gate.clear()
    async with AsyncExitStack() as later:
        async with shop.working("book"):
            await later.enter_async_context(shop.working("book"))
            await shop.book.send(2)
            await shop.book.send(4)
            await shop.until(lambda: len(shop.runs) == 1)
            # Time enough for the other one to take what it should not.
            asyncio.get_running_loop().call_later(1, shop.gate.set)
        await shop.until(lambda: shop.count(RunSettled) == 2)
    assert [(run.task, run.value) for run in shop.runs] == [
        ("book", 2),
        ("book ended", 2),
        ("book", 4),
    ]


async def test_an_ordered_retry_is_taken_over_with_its_attempts_and_its_delay(shop: Shop) -> None:
    await shop.book.send(3)
    await shop.book.send(4)
    async with shop.working("book"):
        await shop.until(lambda: shop.count(RunFinished) == 1)
    async with shop.working("book") as broker:
        await shop.until(lambda: shop.count(RunSettled) == 2)
        assert await shop.parked(broker) == []
    assert [(run.value, run.attempt) for run in shop.runs] == [(3, 1), (3, 2), (4, 1)]
    assert shop.runs[1].at - shop.runs[0].at >= timedelta(seconds=1.5)


@BOTH_TYPES
async def test_higher_priorities_go_first(shop: Shop) -> None:
    async with AmqpBroker(shop.url) as broker:
        has_priorities = shop.queue_type == "classic" or broker.info.version.startswith("4.")
        for n in range(6):
            await shop.one_by_one.options(priority=5 if n % 2 else 1).send(n)
        async with shop.working("one_by_one"):
            await shop.until(lambda: len(shop.runs) == 6)
    order = [run.value for run in shop.runs]
    if not has_priorities:
        assert order == [0, 1, 2, 3, 4, 5]
    elif shop.queue_type == "classic":
        assert order == [1, 3, 5, 0, 2, 4]
    else:  # a quorum queue gives two of the higher class for one of the other
        assert order[:2] == [1, 3]


@BOTH_TYPES
async def test_what_somebody_else_let_expire_is_listed_as_that(shop: Shop) -> None:
    async with AmqpBroker(shop.url) as broker:
        brief = Message(b"order", expiration=timedelta(milliseconds=100))
        await broker.publish(brief, exchange=shop.orders, routing_key="order.shipped")
        expected = ["expired"] * 2  # two tasks listen to it

        async def are_there() -> bool:
            return [each.reason for each in await shop.parked(broker)] == expected

        await eventually(are_there)
