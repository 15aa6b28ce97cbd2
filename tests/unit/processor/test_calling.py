"""What happens to one-off messages in a processor, on the embedded broker and in virtual time."""

import asyncio
import logging
import re
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import Context, Reject, Retry, RetryLater, Scheduler, StopLoop
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.events import (
    Escalated,
    MessageParked,
    RunFinished,
    RunSettled,
    RunStarted,
)
from scheduler.processor.settlement import DeliveredTooOften
from scheduler.protocol.calls import new_call, task_key
from scheduler.protocol.hatchery import SHORT_BY
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import Ending, LoopId
from scheduler.protocol.topology import (
    DELIVERY_BACKSTOP,
    UNROUTED_CALL_FOR,
    QueueType,
)
from scheduler.queues.failed import EVERYTHING
from scheduler.tasks.context import current_run
from scheduler.timing.moments import LoopClock
from tests.bad_input import BAD, GOOD, tasks_of
from tests.stage import FOREIGN, START, Stage, new_app, of, seconds_of

STEP = 0.1
ONCE = Retry(0)


def is_about(seconds: float) -> Any:
    """Not early, and not late by more than a step of the timers."""
    return pytest.approx(seconds + STEP / 2, abs=STEP / 2 + 0.001)


async def test_a_sent_message_runs_at_once_and_is_gone(stage: Stage) -> None:
    seen: list[Any] = []

    @stage.app.task()
    async def greet(ctx: Context, name: str, times: int = 1) -> None:
        seen.append((name, times, ctx.loop, ctx.attempt, ctx.seq, ctx.message.message_id))
        seen.append((ctx.routing_key, ctx.scheduled_at, ctx.carried, ctx.previous_at))

    await stage.seed()
    async with stage.processor():
        name = await greet.send("Ada", times=2)
        await asyncio.sleep(0.01)
    assert seen == [("Ada", 2, "greet", 1, 0, name), ("task.greet", START, None, None)]
    (settled,) = of(RunSettled, stage.events)
    assert settled == RunSettled(LoopId("greet"), None, 1, name)
    assert await stage.waiting() == 0


@pytest.mark.parametrize(
    ("when", "after"),
    [("0s", 0), ("160ms", 0.16), ("90d", 90 * 86_400), (0.04, 0.04), (7, 7), (-3600, 0)],
)
async def test_a_message_runs_after_its_delay_or_at_its_moment_or_now_if_that_has_passed(
    stage: Stage, when: str | float, after: float
) -> None:
    remind = stage.task("remind")
    await stage.seed()
    async with stage.processor():
        if isinstance(when, str):
            await remind.send_later(when)
        else:
            await remind.send_at(START + timedelta(seconds=when))
        await asyncio.sleep(after + 1)
    assert stage.starts() == [pytest.approx(after, abs=0.001)]
    (run,) = of(RunFinished, stage.events)
    assert seconds_of([run.scheduled_at]) == [pytest.approx(after, abs=0.001)]
    assert run.call is not None
    assert run.call.routing_key == "task.remind"


@pytest.mark.parametrize("fast", [timedelta(hours=1), timedelta(0), timedelta(hours=-1)])
async def test_the_processors_clock_times_moments_and_the_broker_times_delays(
    stage: Stage, fast: timedelta
) -> None:
    at, later = stage.task("at", expires="1m"), stage.task("later")
    await stage.seed()
    stage.app.outbox.use(stage.broker, LoopClock(START + fast))
    await at.send_at(START + timedelta(hours=2), 1)
    await later.send_later("10m")
    await stage.work(4 * 3600)
    started = {str(run.loop): run.started_at - START for run in of(RunStarted, stage.events)}
    # A sender whose clock is behind says that it is due already: what is left is not waited for.
    by = timedelta(seconds=STEP) + SHORT_BY if fast < timedelta(0) else timedelta(0)
    assert timedelta(0) <= timedelta(minutes=10) - started["later"] <= by
    if fast < timedelta(0):  # its message comes an hour too late
        assert [parked.reason for parked in await stage.parked()] == ["expired"]
    else:
        assert started["at"] == timedelta(hours=2)
    assert await stage.waiting() == (fast < timedelta(0))


@pytest.mark.parametrize(
    ("sent_ago", "runs"),
    [
        (timedelta(hours=1), True),
        (timedelta(hours=3), False),
        (None, True),
        (START - datetime(9999, 12, 31, 23, tzinfo=UTC), True),
    ],
)
async def test_a_foreign_message_expires_by_its_timestamp(
    stage: Stage, sent_ago: timedelta | None, runs: bool
) -> None:
    seen: list[bytes] = []

    @stage.app.task(subscribe=[("orders", "order.*", "topic")], expires="2h")
    async def paid(order: bytes) -> None:
        seen.append(order)

    await stage.seed()
    sent_at = None if sent_ago is None else START - sent_ago
    await stage.publish(replace(FOREIGN, timestamp=sent_at), "order.paid", "orders")
    async with stage.processor():
        await asyncio.sleep(1)
        assert seen == [FOREIGN.body] * runs
        assert [parked.reason for parked in await stage.parked()] == ["expired"] * (not runs)
        await stage.failed.replay(stage.app.tasks, EVERYTHING)  # an operator knows what he does
        await asyncio.sleep(1)
    assert seen == [FOREIGN.body]


@pytest.mark.parametrize(
    ("raised", "endings", "waits", "reason"),
    [
        (RetryLater("7s"), [Ending.RETRIED] * 2 + [Ending.ESCALATED], [7, 7], "exhausted"),
        (RetryLater("0s"), [Ending.RETRIED] * 2 + [Ending.ESCALATED], [0, 0], "exhausted"),
        (Reject("bad input"), [Ending.ESCALATED], [], "rejected"),
        (StopLoop("enough"), [Ending.STOPPED], [], None),
        (KeyError("never again"), [Ending.ESCALATED], [], "exhausted"),
        (asyncio.CancelledError(), [Ending.RETRIED] * 2 + [Ending.ESCALATED], [1, 1], "exhausted"),
    ],
    ids=["later", "at once", "reject", "stop", "given up", "cancel"],
)
async def test_a_task_rejects_or_retries_its_own_run(
    stage: Stage,
    raised: BaseException,
    endings: list[Ending],
    waits: list[float],
    reason: str | None,
) -> None:
    retry = Retry(2, delays=["1s"], jitter=0, give_up_on=(KeyError,))
    task = stage.task("task", raised=raised, retry=retry)
    await stage.seed()
    await task.send()
    await stage.work(60)
    assert [run.ending for run in of(RunFinished, stage.events)] == endings
    starts = stage.starts()
    gaps = [b - a for a, b in zip(starts, starts[1:], strict=False)]
    assert gaps == [is_about(wait) for wait in waits]
    assert [parked.reason for parked in await stage.parked()] == ([reason] if reason else [])
    assert await stage.waiting() == (1 if reason else 0)


async def test_a_retry_can_wait_longer_than_the_longest_timer(stage: Stage) -> None:
    task = stage.task("task", raised=RetryLater("1400d"), in_attempts=1, retry=Retry(2))
    await stage.seed()
    await task.send()
    for day in 0, 1350, 1399, 1400, 1401:
        await asyncio.sleep((START + timedelta(days=day) - stage.clock.now()).total_seconds())
        await stage.work(3600)
    assert stage.starts() == [is_about(0), is_about(1400 * 86_400)]
    assert await stage.waiting() == 0


# What comes back


async def test_retries_keep_all_properties_of_a_message(
    stage: Stage, queue_type: QueueType
) -> None:
    app = new_app(queue_type)
    seen: list[tuple[Message, str, int]] = []

    @app.task(
        subscribe=[("orders", "order.*", "topic")],
        retry=Retry(2, delays=["1.5s", "1m1s"], jitter=0),
    )
    async def paid(ctx: Context, order: dict[str, Any]) -> None:
        assert order == {"number": 7}
        ours: Any = ctx.message.headers
        headers = {n: deepcopy(v) for n, v in ours.items() if not n.startswith("scheduler-")}
        seen.append((replace(ctx.message, headers=headers), ctx.routing_key, ctx.attempt))
        ours["nested"]["a"].append("changed")
        ours.clear()
        raise ValueError("boom")

    await stage.seed(app)
    async with stage.processor():
        await stage.publish(replace(FOREIGN, expiration=timedelta(hours=1)), "order.paid", "orders")
        await asyncio.sleep(100)
        (parked,) = await stage.parked()
        assert parked.queue == app.names.failed_queue("paid")
        await stage.failed.replay(app.tasks, EVERYTHING)
        await asyncio.sleep(1)
    assert seen == [(FOREIGN, "order.paid", attempt) for attempt in (1, 2, 3, 1)]
    assert not any(name.startswith("x-") for name in parked.message.headers)


@pytest.mark.parametrize("message_id", ["m", None])  # somebody else need not give it one
async def test_two_tasks_count_the_deliveries_of_one_message_separately(
    stage: Stage,
    message_id: str | None,
) -> None:
    retry = Retry(2, delays=["1m"], jitter=0)

    @stage.app.task(ordered=True, subscribe=[("orders", "order.paid", "topic")], retry=retry)
    async def bill(order: bytes) -> None:
        raise ValueError("boom")

    @stage.app.task(subscribe=[("orders", "order.shipped", "topic")], retry=ONCE)
    async def ship(order: bytes) -> None: ...

    await stage.seed()
    message = replace(FOREIGN, message_id=message_id)
    async with stage.processor():
        await stage.publish(message, "order.paid", "orders")
        await asyncio.sleep(70)  # it waits for its last attempt
        await stage.publish(message, "order.shipped", "orders")
        await asyncio.sleep(70)
    attempts = [(run.loop.task, run.attempt) for run in of(RunStarted, stage.events)]
    assert attempts == [("bill", 1), ("bill", 2), ("ship", 1), ("bill", 3)]


# What cannot be run


# What no task takes is parked when it has been tried twice.
LONG_ENOUGH = 1 + UNROUTED_CALL_FOR.total_seconds()


@pytest.mark.parametrize(("delay", "after"), [(60, 60), (0, UNROUTED_CALL_FOR.total_seconds())])
async def test_an_unroutable_call_waits_for_the_rest_of_its_delay(
    stage: Stage, delay: float, after: float
) -> None:
    stage.task("greet")
    await stage.seed()
    sent, due_at = START, START + timedelta(seconds=delay)
    call = new_call("test", "greet", {}, message_id="m", sent_at=sent, due_at=due_at)
    await stage.publish(call, task_key("greet"), stage.app.names.later_unrouted)
    await stage.work(120)
    assert stage.starts() == [is_about(after)]


def told_to_a_hook(app: Scheduler) -> list[tuple[str, str, str, bool]]:
    """What a hook is told of each message that is parked."""
    told: list[tuple[str, str, str, bool]] = []
    app.on_escalation(
        lambda event: told.append((str(event.loop), event.message_id, event.reason, event.paused))
    )
    return told


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
async def test_an_unrunnable_message_is_parked_with_the_reason(stage: Stage, bad: Any) -> None:
    ran: list[tuple[str, Any]] = []
    tasks_of(stage.app, "orders", ran)
    told = told_to_a_hook(stage.app)
    await stage.seed()
    message = bad.message(stage.app.namespace)
    async with stage.processor():
        key, exchange = bad.key, "orders" if bad.is_foreign else ""
        await stage.publish(message, key, exchange)
        await asyncio.sleep(LONG_ENOUGH)
        (parked,) = await stage.parked()
        by_processor = [] if bad.reason == "unknown-task" else [bad.reason]
        assert told == [(bad.task, bad.name, reason, False) for reason in by_processor]
        assert parked.reason == bad.reason
        assert re.search(bad.told, parked.error)
        assert parked.message.body == message.body
        assert message.headers.items() <= dict(parked.headers).items()
        assert ran == []
        # A replay forgets the headers of retries: if they were all that was wrong, it runs.
        await stage.failed.replay(stage.app.tasks, EVERYTHING)
        await asyncio.sleep(LONG_ENOUGH)
    assert len(ran) + len(await stage.parked()) == 1
    assert await stage.waiting() + len(ran) == 1


async def test_an_unusual_but_valid_message_runs(stage: Stage) -> None:
    ran: list[tuple[str, Any]] = []
    tasks_of(stage.app, "orders", ran)
    await stage.seed()
    for message in GOOD:
        await stage.publish(message, "scan.page", "orders")
    await stage.work(1)
    assert ran == [("scan", message.body) for message in GOOD]


# Too late


@pytest.mark.parametrize("expired", ["park", "drop"])
async def test_a_message_that_is_too_old_is_parked_or_dropped_and_counted(
    stage: Stage, expired: Any
) -> None:
    offer = stage.task("offer", expires="1h", expired=expired)
    told = told_to_a_hook(stage.app)
    await stage.seed()
    name = await offer.send(1)
    await offer.options(expires="3h").send(2)
    await offer.send_later("90m", 3)  # it expires an hour after its time
    await asyncio.sleep(7200)
    await stage.work(3600)
    (skipped,) = [run for run in of(RunFinished, stage.events) if run.ending is Ending.SKIPPED]
    assert (skipped.skipped, skipped.message_id) == ("it expired 3600.0 s ago", name)
    assert len(of(RunStarted, stage.events)) == 2
    assert not of(Escalated, stage.events)
    parked = await stage.parked()
    assert told == [("offer", name, each.reason, False) for each in parked]
    assert [(each.reason, each.attempts) for each in parked] == (
        [("expired", 0)] if expired == "park" else []
    )
    assert len(of(MessageParked, stage.events)) == len(parked)
    if parked:
        assert parked[0].error == "TimeoutError: it expired 3600.0 s ago"
        assert parked[0].message.body == b'{"args":{"n":1}}'
        async with stage.processor():  # an operator who replays it wants it run
            await stage.failed.replay(stage.app.tasks, EVERYTHING)
            await asyncio.sleep(1)
        assert len(of(RunStarted, stage.events)) == 3


async def test_an_expired_retry_is_parked_with_its_attempts(stage: Stage) -> None:
    retry = Retry(5, delays=["20s"], jitter=0)
    offer = stage.task("offer", raised=ValueError("boom"), expires="30s", retry=retry)
    await stage.seed()
    async with stage.processor():
        await offer.send()
        await asyncio.sleep(300)
    assert stage.starts() == [0, is_about(20)]
    (parked,) = await stage.parked()
    assert (parked.reason, parked.attempts, parked.first_failed_at) == ("expired", 2, START)


# At once


@pytest.mark.parametrize(("of_task", "of_processor", "at_once"), [(3, 10, 3), (10, 4, 4)])
async def test_concurrent_runs_stay_within_the_limits_of_task_and_processor(
    stage: Stage, of_task: int, of_processor: int, at_once: int
) -> None:
    work = stage.task("work", takes=1, concurrency=of_task)
    await stage.seed()
    for n in range(20):
        await work.send(n)
    async with stage.processor(concurrency=of_processor):
        await asyncio.sleep(0.5)
        # It holds what it runs, and no more.
        assert await stage.ready_for("work") == 20 - at_once
        await asyncio.sleep(20)
    assert stage.starts() == [pytest.approx(n // at_once, abs=0.01) for n in range(20)]


# What goes wrong around it


async def killed(stage: Stage, queue: str, times: int) -> None:
    """Processors have taken the message at the head of this queue, and died."""
    for _ in range(times):
        async with MemoryBroker(stage.server) as doomed:
            assert await doomed.get(queue)


async def test_a_message_that_kills_processors_is_parked_by_the_next_or_by_the_broker(
    stage: Stage,
) -> None:
    work = stage.task("work")
    await stage.seed()
    names, limit = stage.app.names, stage.app.settings.delivery_limit
    queue, failed = names.processor_queue("work"), names.failed_queue("work")
    spared = await work.send()
    await killed(stage, queue, limit - 1)
    await stage.work(1)
    name = await work.send()
    await killed(stage, queue, limit)
    async with stage.processor():
        await asyncio.sleep(1)
        (parked,) = await stage.parked()
        assert (parked.reason, parked.queue) == ("delivery-limit", failed)
        assert [type(each.error) for each in of(Escalated, stage.events)] == [DeliveredTooOften]
        await stage.failed.replay(stage.app.tasks, EVERYTHING)
        await asyncio.sleep(1)
    assert [(run.message_id, run.skipped) for run in of(RunFinished, stage.events)] == [
        (spared, None),
        (name, "it was delivered too often"),
        (name, None),
    ]
    assert [run.message_id for run in of(RunStarted, stage.events)] == [spared, name]
    await work.send()
    await killed(stage, queue, DELIVERY_BACKSTOP + 1)
    (parked,) = await stage.parked()
    assert (parked.reason, parked.queue) == ("delivery-limit", failed)


async def test_escalation_hooks_are_called_and_their_errors_do_no_harm(
    stage: Stage,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Any] = []

    retry = Retry(1, delays=["1s"], jitter=0)
    ours = stage.task("ours", raised=ValueError("boom"), retry=retry)

    @stage.app.on_escalation
    def plain(event: Escalated) -> None:
        told.append((current_run.get(), event.reason, str(event.error), event.attempt))

    @stage.app.on_escalation
    def bad(event: Escalated) -> None:
        raise RuntimeError("the pager is broken")

    @stage.app.on_escalation
    async def hangs(event: Escalated) -> None:
        await asyncio.sleep(3600)

    @stage.app.on_escalation
    async def ignores_its_cancellation(event: Escalated) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(10)

    @stage.app.on_escalation
    async def coroutine(event: Escalated) -> None:
        await asyncio.sleep(1)
        told.append(("coroutine", event.paused))

    await stage.seed()
    async with stage.processor():
        name = await ours.send(1)
        await asyncio.sleep(35)  # a second for the retry, and 30 for all hooks
        assert [each.attempt for each in of(RunSettled, stage.events)] == [1, 2]
        await asyncio.sleep(10)
    assert told == [(("ours", name), "exhausted", "boom", 2), ("coroutine", False)]
    assert len(await stage.parked()) == 1
    failed = [r for r in caplog.records if "escalation hook" in r.getMessage()]
    errors = [type(r.exc_info[1]) for r in failed if r.exc_info]
    assert errors == [RuntimeError, TimeoutError, TimeoutError]
    assert {record.levelno for record in failed} == {logging.ERROR}
    async with stage.processor():  # which is stopped while hooks run
        await ours.send(2)
        await asyncio.sleep(5)
    await stage.work(15)  # until the last of them has ended
    assert len(await stage.parked()) == 2
    assert "TimeoutError: its processor was stopped" in caplog.text


async def test_hooks_of_a_message_parked_after_the_abort_are_called(stage: Stage) -> None:
    told: list[str] = []

    @stage.app.task
    async def gives_up() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise Reject("too late") from None

    @stage.app.on_escalation
    def plain(event: Escalated) -> None:
        told.append("plain")

    @stage.app.on_escalation
    async def coroutine(event: Escalated) -> None:
        await asyncio.sleep(0.5)
        told.append("coroutine")

    await stage.seed()
    async with stage.processor(grace=2):
        await gives_up.send()
        await asyncio.sleep(1)
    assert told == ["plain", "coroutine"]
    assert [each.reason for each in await stage.parked()] == ["rejected"]
    assert await stage.ready_for("gives_up") == 0
