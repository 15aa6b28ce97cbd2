"""What happens to a message in a processor, on the embedded broker and in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Context, Cron, Every, Retry, Scheduler
from scheduler.brokers.memory.broker import MemoryBroker, MemoryConsumer
from scheduler.control.loops import Where
from scheduler.errors import QueueNotFound
from scheduler.events import (
    ProcessorStarted,
    ProcessorStopped,
    ProcessorStopping,
    RunReturned,
    RunSettled,
    RunStarted,
    TicksSkipped,
)
from scheduler.protocol.tokens import LoopId
from scheduler.queues.failed import EVERYTHING, Selection
from scheduler.testing import simulate
from tests.stage import START, Stage, an_app, at_work, looping, new_app, of, processor_of


@pytest.mark.parametrize(
    ("schedule", "ticks", "skipped"),
    [
        (Every("10s", mode="fixed_rate"), [50, 60], [("late", 4)]),
        (Every("10s", mode="fixed_rate", catch_up="skip", grace="3s"), [60], [("late", 5)]),
        (Every("10s", mode="fixed_rate", catch_up="all"), [10, 20, 30, 40, 50, 60], []),
        (Cron("* * * * * */10"), [50, 60], [("late", 4)]),
        (Every("10s"), [10], []),  # the next one is counted from the end of the late run
    ],
)
async def test_ticks_missed_without_a_processor(
    stage: Stage, schedule: Every | Cron, ticks: list[int], skipped: list[tuple[str, int]]
) -> None:
    @stage.app.periodic(schedule=schedule)
    async def task() -> None: ...

    await stage.seed()
    await asyncio.sleep(55)
    await stage.work(8)
    ran = [(run.scheduled_at - START).seconds for run in of(RunStarted, stage.events)]
    assert ran == ticks
    told = [(event.reason, event.count) for event in of(TicksSkipped, stage.events)]
    assert told == skipped
    assert await stage.tokens() == 1


def test_ticks_during_a_long_run_are_skipped_and_reported(app: Scheduler) -> None:
    @app.periodic(every="10s", mode="fixed_rate")
    async def long() -> None:
        await asyncio.sleep(25)

    events = simulate(app, "100s", start=START)
    ran = [(run.scheduled_at - START).seconds for run in of(RunStarted, events)]
    assert ran == [10, 40, 70, 100][: len(ran)]
    assert {(event.reason, event.count) for event in of(TicksSkipped, events)} == {("overrun", 2)}


async def test_each_version_of_the_code_runs_a_loop_with_arguments_that_fit_it(
    stage: Stage,
) -> None:
    old, new = new_app(), new_app()
    ran: list[str] = []

    @old.periodic(every="10s", args={"region": "eu"}, name="task")
    async def before(region: str) -> None: ...

    @new.periodic(every="10s", args={"city": "Rome"}, name="task")
    async def after(city: str) -> None:
        ran.append(city)

    await stage.seed(old)
    await stage.work(25, app=new)
    assert ran == ["Rome", "Rome"]
    assert await stage.parked() == []


async def test_a_keyed_loop_with_outdated_arguments_is_parked_and_paused(stage: Stage) -> None:
    old, new = new_app(), new_app()

    @old.task(name="digest")
    async def before(user: str) -> None: ...

    @new.task(name="digest")
    async def after(account: int) -> None: ...

    told = list[tuple[str, str, bool]]()
    new.on_escalation(lambda event: told.append((str(event.loop), event.reason, event.paused)))
    await stage.seed(old)
    await before.start("ann", every="10s", args={"user": "ann"})
    await stage.work(25, app=new)
    assert told == [("digest.ann", "invalid-arguments", True)]
    (parked,) = await stage.parked()
    assert parked.reason == "invalid-arguments"
    assert "account" in parked.error
    (status,) = await stage.survey.status()
    assert status.where is Where.PAUSED
    assert "account" in (status.reason or "")


async def test_a_replayed_tick_runs_once_more_next_to_its_loop(stage: Stage) -> None:
    well = asyncio.Event()

    @stage.app.periodic(every="1h", retry=Retry(0))
    async def task(ctx: Context) -> None:
        if not well.is_set():
            raise ValueError("boom")

    await stage.seed()
    async with stage.processor():
        await asyncio.sleep(3601)
        await stage.failed.replay(stage.app.tasks, EVERYTHING)
        await asyncio.sleep(1)
        (again,) = await stage.failed.browse(stage.app.tasks)  # it failed again: parked again
        well.set()
        assert await stage.failed.replay(stage.app.tasks, Selection(ids=frozenset([again.id]))) == 1
        await asyncio.sleep(1)
    assert await stage.failed.browse(stage.app.tasks) == []
    assert [run.seq for run in of(RunStarted, stage.events)] == [0, 0, 0]
    ticks = {run.scheduled_at for run in of(RunStarted, stage.events)}
    assert len(ticks) == 1
    assert await stage.tokens() == 1


@pytest.mark.parametrize("raises", [asyncio.CancelledError, ConnectionError, TimeoutError])
async def test_a_processor_requeues_its_runs_uncounted_after_its_grace(
    stage: Stage, raises: type[BaseException]
) -> None:
    @stage.app.periodic(every="10s")
    async def task() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise raises

    await stage.seed()
    async with stage.processor(grace=5):
        await asyncio.sleep(11)
        stopped_at = stage.clock.now()
    assert timedelta(seconds=5) <= stage.clock.now() - stopped_at < timedelta(seconds=6)
    assert len(of(RunReturned, stage.events)) == 1
    assert await stage.tokens() == 1
    async with stage.processor(grace=600) as worker:
        await asyncio.sleep(1)
        stopped_at = stage.clock.now()
        worker.abort()
    assert stage.clock.now() - stopped_at < timedelta(seconds=1)
    assert [run.attempt for run in of(RunStarted, stage.events)] == [1, 1]
    assert await stage.tokens() == 1


async def test_a_run_that_returns_when_its_processor_stops_is_settled(stage: Stage) -> None:
    @stage.app.periodic(every="10s")
    async def task(ctx: Context) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ctx.carry("page 7")

    await stage.seed()
    await stage.work(11)
    assert len(of(RunSettled, stage.events)) == 1
    assert (await stage.token(LoopId("task"))).carry == "page 7"


async def test_a_processor_reports_its_tasks_once_it_consumes(stage: Stage) -> None:
    await stage.seed(an_app("test", ["task", "other"]))
    async with stage.supervised():
        assert await stage.consumers_of("task") == 0
        assert of(ProcessorStarted, stage.events) == []
        await asyncio.sleep(1)
        (started,) = of(ProcessorStarted, stage.events)
    assert (started.namespace, started.tasks) == ("test", ("task", "other"))


async def test_a_processor_of_a_task_without_a_queue_starts_nothing(stage: Stage) -> None:
    await stage.seed(app := an_app("test", ["task", "other"]))
    await stage.broker.delete(app.names.processor_queue("other"))
    process = processor_of(app, stage.broker, stage.clock, supervises=False)
    with pytest.raises(QueueNotFound, match="'other' has no queue in .*run `scheduler seed`"):
        await process.run()
    assert of(ProcessorStarted, stage.events) == []
    assert await stage.consumers_of("task") == 0


async def test_a_cancelled_processor_shuts_down_in_order(stage: Stage) -> None:
    await stage.seed(app := looping("a", "b", every="10s", takes=20))
    async with MemoryBroker(stage.server) as broker:
        process = processor_of(app, broker, stage.clock, concurrency=1, grace=60, supervises=False)
        running = asyncio.create_task(process.run())
        await asyncio.sleep(15)  # one runs, and the other one waits for its turn
        running.cancel()
        await asyncio.sleep(1)
        given_back = [await stage.ready_for(name) for name in "ab"]
        assert sum(given_back) == 1  # at once
        await asyncio.wait([running])
    assert len(of(RunStarted, stage.events)) == len(of(RunSettled, stage.events)) == 1
    assert of(ProcessorStopping, stage.events) == [ProcessorStopping(1, timedelta(seconds=60))]
    assert [event.returned for event in of(ProcessorStopped, stage.events)] == [1]


def slowly(end: Callable[[MemoryConsumer], Awaitable[None]]) -> Any:
    async def end_slowly(consumer: MemoryConsumer) -> None:
        await asyncio.sleep(1)
        await end(consumer)

    return end_slowly


async def test_a_stopping_processor_does_not_get_its_requeued_messages(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryConsumer, "cancel", slowly(MemoryConsumer.cancel))

    work = stage.task("work")
    await stage.seed()
    async with stage.processor() as worker:
        worker.stop()
        await asyncio.sleep(0.5)
        await work.send()
    assert [event.returned for event in of(ProcessorStopped, stage.events)] == [1]


async def test_a_stopped_processor_has_left_its_ordered_tasks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryConsumer, "leave", slowly(MemoryConsumer.leave))

    stage.task("book", ordered=True)
    await stage.seed()
    async with MemoryBroker(stage.server) as broker:
        async with at_work(processor_of(stage.app, broker, stage.clock, supervises=False)):
            await asyncio.sleep(1)
        assert await stage.consumers_of("book") == 0


async def test_a_deleted_queue_raises_no_error(stage: Stage) -> None:
    stage.task("work")
    await stage.seed()
    async with stage.processor() as worker:
        await asyncio.sleep(1)
        assert worker.silent == []
        await stage.broker.delete(stage.app.names.processor_queue("work"))
        assert worker.silent == worker.queues


async def test_deliveries_lost_with_the_connection_do_not_run(stage: Stage) -> None:
    await stage.seed(looping("a", "b", every="10s", takes=20))
    async with stage.processor(concurrency=1):
        await asyncio.sleep(15)
        stage.server.disconnect_all()
        await asyncio.sleep(1)
        assert [run.redelivered for run in of(RunStarted, stage.events)] == [False, True]
