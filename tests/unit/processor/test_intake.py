"""How messages come to a processor: what has to wait is in nobody's hand."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Retry
from scheduler.errors import AccessRefused, Unconfirmed
from scheduler.events import RunSettled, RunStarted
from scheduler.protocol.topology import QueueType
from scheduler.queues.heads import NOTHING_NOTED
from tests.stage import START, Stage, new_app, of, seconds_of


def is_about(seconds: float) -> Any:
    """Not early. Where nothing was ever noted, it takes a moment to be sure of that."""
    return pytest.approx(seconds + 0.11, abs=0.111)


async def test_calls_beyond_the_rate_wait_in_the_broker(stage: Stage) -> None:
    send_sms = stage.task("send_sms", rate="1/m", concurrency=5)
    await stage.seed()
    for n in range(5):
        await send_sms.send(n)
    async with stage.processor(grace=30):
        for done in range(1, 5):
            await asyncio.sleep(30)
            assert 5 - await stage.ready_for("send_sms") == done
            assert len(of(RunSettled, stage.events)) == done
            await asyncio.sleep(15 if done == 4 else 30)
        stopped_at = stage.clock.now()
    assert stage.clock.now() - stopped_at < timedelta(seconds=1)
    assert await stage.waiting() == 1


@pytest.mark.parametrize(
    ("rate", "options", "takes", "starts"),
    [
        ("60/m", {"concurrency": 2}, 10, [0, 1, 10, 11, 20]),
        ("6/m", {"ordered": True}, 0, [0, 10, 20, 30, 40]),
    ],
)
async def test_a_task_with_a_rate_keeps_its_concurrency_or_its_order(
    stage: Stage, rate: str, options: dict[str, Any], takes: float, starts: list[int]
) -> None:
    seen: list[int] = []

    @stage.app.task(rate=rate, **options)
    async def send_sms(n: int) -> None:
        seen.append(n)
        await asyncio.sleep(takes)

    await stage.seed()
    for n in range(5):
        await send_sms.send(n)
    async with stage.processor():
        await asyncio.sleep(15)
        assert await stage.ready_for("send_sms") == len([at for at in starts if at > 15])
        await asyncio.sleep(30)
    assert seen == [0, 1, 2, 3, 4]
    assert stage.starts() == [is_about(seconds) for seconds in starts]


@pytest.mark.parametrize("ordered", [False, True])
async def test_calls_that_waited_for_a_slot_keep_to_their_rate(stage: Stage, ordered: bool) -> None:
    other = stage.task("other", takes=55)
    send_sms = stage.task("send_sms", rate="6/m", ordered=ordered)
    await stage.seed()
    async with stage.processor(concurrency=2):
        for _ in range(2):
            await other.send()
        await asyncio.sleep(1)
        for n in range(4):
            await send_sms.send(n)
        await asyncio.sleep(99)
    assert stage.starts("send_sms") == [is_about(seconds) for seconds in (55, 65, 75, 85)]


@pytest.mark.parametrize("ordered", [False, True])
async def test_expired_calls_take_no_turn_of_a_rate(stage: Stage, ordered: bool) -> None:
    offer = stage.task("offer", rate="1/m", ordered=ordered, expires="5m", expired="drop")
    await stage.seed()
    for n in range(5):
        await offer.send(n)
    await asyncio.sleep(600)
    for n in range(2):
        await offer.send(n)
    await stage.work(90)
    assert stage.starts() == [is_about(600), is_about(660)]


async def test_void_tokens_take_no_turn_of_a_rate(stage: Stage) -> None:
    remind = stage.task("remind", rate="1/m")
    await stage.seed()
    async with stage.processor():
        for second in range(5):  # each but the last is void
            await remind.once("cart-7", at=START + timedelta(seconds=10 + second))
        await asyncio.sleep(60)
    assert stage.starts() == [is_about(14)]


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_pause_does_not_shorten_the_wait_for_a_rate(stage: Stage, ordered: bool) -> None:
    book = stage.task("book", rate="1/m", ordered=ordered)
    await stage.seed()
    for n in range(2):
        await book.send(n)
    async with stage.processor():
        await asyncio.sleep(10)
        await stage.app.pause("book")
        await asyncio.sleep(10)
        await stage.app.resume("book")
        await asyncio.sleep(60)
    assert stage.starts() == [is_about(0), is_about(60)]


async def test_an_ordered_retry_waits_in_the_broker_with_all_later_messages(
    stage: Stage, queue_type: QueueType
) -> None:
    stage.app = new_app(queue_type, delivery_limit=1)  # no retry counts as a processor's death
    retry = Retry(3, delays=["2h"], jitter=0)
    book = stage.task("book", raised=ValueError("boom"), in_attempts=1, ordered=True, retry=retry)
    await stage.seed()
    for n in range(3):
        await book.send(n)
    async with stage.processor(), stage.processor():
        await asyncio.sleep(3600)
        assert await stage.ready_for("book") == 3
        await asyncio.sleep(6 * 3600)
    hours = [0, 2, 2, 4, 4, 6]
    assert stage.starts() == [is_about(3600 * hour) for hour in hours]


@pytest.mark.parametrize("kill", [False, True])
async def test_the_next_processor_continues_an_ordered_retry(
    stage: Stage, queue_type: QueueType, kill: bool
) -> None:
    stage.app = new_app(queue_type)
    retry = Retry(2, delays=["1m"], jitter=0)
    stage.task("book", raised=ValueError("boom"), ordered=True, retry=retry)
    await stage.seed()
    for name in "ab":
        await stage.send("book", name)
    for _ in range(13):
        async with stage.processor():
            await asyncio.sleep(19.9)
            if kill:
                stage.server.disconnect_all()
    attempts = [(run.message_id, run.attempt) for run in of(RunStarted, stage.events)]
    assert attempts == [(name, attempt) for name in "ab" for attempt in (1, 2, 3)]
    assert stage.starts() == [is_about(60 * minute) for minute in (0, 1, 2, 2, 3, 4)]
    parked = await stage.parked()
    assert [each.attempts for each in parked] == [3, 3]
    first_failed = [each.first_failed_at for each in parked if each.first_failed_at is not None]
    assert seconds_of(first_failed) == [is_about(0), is_about(120)]


async def test_an_ordered_message_that_kills_its_processors_is_parked(
    stage: Stage, queue_type: QueueType
) -> None:
    app = new_app(queue_type, delivery_limit=3)
    begun: list[int] = []

    @app.task(ordered=True)
    async def book(n: int) -> None:
        begun.append(n)
        if not n:
            await asyncio.sleep(3600)

    await stage.seed(app)
    await book.send(0)
    await book.send(1)
    async with stage.processor():
        for _ in range(5):
            await asyncio.sleep(30)
            stage.server.disconnect_all()
        await asyncio.sleep(30)
    assert begun == [0, 0, 0, 1]
    (parked,) = await stage.parked()
    assert parked.reason == "delivery-limit"


async def test_a_processor_that_stops_counts_as_no_death(
    stage: Stage, queue_type: QueueType
) -> None:
    stage.app = new_app(queue_type, delivery_limit=2)
    book = stage.task("book", takes=60, ordered=True)
    await stage.seed()
    await book.send()
    for seconds in (30, 30, 30, 30, 90):
        await stage.work(seconds, grace=1)
    assert [run.attempt for run in of(RunStarted, stage.events)] == [1] * 5
    assert await stage.parked() == []
    assert len(of(RunSettled, stage.events)) == 1


async def test_an_ordered_message_ends_once_though_its_note_is_not_removed_at_once(
    stage: Stage,
) -> None:
    retry = Retry(1, delays=["1m"], jitter=0)
    book = stage.task("book", raised=ValueError("boom"), in_attempts=1, ordered=True, retry=retry)
    await stage.seed()
    await book.send()
    head = stage.app.names.head("book")
    async with stage.processor(over=stage.faulty):
        await asyncio.sleep(30)
        fault = stage.faulty.on(
            "publish", key=head, where=lambda call: call.message == NOTHING_NOTED, times=1
        ).fails(Unconfirmed("It went."))
        await asyncio.sleep(60)
    assert fault.met
    assert [run.attempt for run in of(RunStarted, stage.events)] == [1, 2]


async def test_a_note_that_cannot_be_read_is_asked_for_at_intervals(stage: Stage) -> None:
    book = stage.task("book", takes=20, ordered=True)
    await stage.seed()
    await book.send()
    await stage.work(1, grace=1)
    refused = stage.faulty.on("get", stage.app.names.head("book"), times=1000)
    refused.fails(AccessRefused("No right to read."))
    async with stage.processor(over=stage.faulty):
        await asyncio.sleep(10)
        assert 50 < len(refused.met) < 120
        await refused.cease()
        await asyncio.sleep(30)
    assert len(of(RunSettled, stage.events)) == 1


async def test_a_delivery_lost_on_arrival_is_taken_again(stage: Stage) -> None:
    send_sms = stage.task("send_sms", rate="60/m")
    await stage.seed()
    async with stage.processor():
        await asyncio.sleep(10)
        await send_sms.send(1)
        stage.server.disconnect_all()
        await asyncio.sleep(10)
    assert len(of(RunSettled, stage.events)) == 1


async def test_a_resting_processor_counts_as_present(stage: Stage) -> None:
    retry = Retry(3, delays=["1h"], jitter=0)
    book = stage.task("book", raised=ValueError("boom"), ordered=True, retry=retry)
    send_sms, _ = stage.task("send_sms", rate="1/m"), stage.task("other")
    await stage.seed()
    async with stage.processor() as worker:
        await asyncio.sleep(1)
        queues = {name: stage.app.names.processor_queue(name) for name in stage.app.tasks}
        assert set(worker.listening) == set(queues.values())
        for task in book, send_sms:
            await task.send()
        await asyncio.sleep(1)
        assert worker.listening == [queues["other"]]
        assert worker.silent == []
        found = await stage.survey.backlogs()
        assert [backlog.processors for backlog in found] == [1, 1, 1]
    found = await stage.survey.backlogs()
    assert [backlog.processors for backlog in found] == [0, 0, 0]
