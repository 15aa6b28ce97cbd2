"""What the runs of a processor share, on the embedded broker and in virtual time."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from scheduler import Context, Scheduler
from scheduler.errors import LifespanError, QueueNotFound
from scheduler.events import RunSettled
from tests.stage import START, Stage, new_app, of

Step = Callable[[], Awaitable[None]]


async def nothing() -> None: ...


class Pool:
    """What an app's runs share, and what has happened, in order."""

    def __init__(self, opening: Step = nothing, closing: Step = nothing) -> None:
        self.said: list[Any] = []
        self._opening = opening
        self._closing = closing
        self.opened = 0

    @asynccontextmanager
    async def open(self, app: Scheduler) -> AsyncGenerator[int]:
        self.opened += 1
        number, task = self.opened, asyncio.current_task()
        self.said.append("opening")
        await self._opening()
        self.said.append(("open", number))
        yield number
        assert asyncio.current_task() is task
        await self._closing()
        self.said.append(("closed", number))

    def app(self) -> Scheduler:
        app = new_app(lifespan=self.open)

        @app.task(name="sell")
        async def sell(ctx: Context[int], seconds: float = 0) -> None:
            self.said.append(("run", ctx.state))
            await asyncio.sleep(seconds)

        app.events.listen(lambda _: self.said.append("settled"), RunSettled)
        return app


async def raise_refused() -> None:
    raise ConnectionRefusedError("no database")


async def test_a_lifespan_opens_before_the_first_run_and_closes_after_the_last(
    stage: Stage,
) -> None:
    pool = Pool(opening=lambda: asyncio.sleep(60))
    await stage.seed(pool.app())
    await stage.send("sell")
    async with stage.processor() as worker:
        await asyncio.sleep(59.9)
        assert pool.said == ["opening"]
        assert await stage.waiting() == 1
        assert worker.silent  # so it is not ready
        await asyncio.sleep(1)
        await stage.send("sell", seconds=3)
        await asyncio.sleep(1)
    run = [("run", 1), "settled"]
    assert pool.said == ["opening", ("open", 1), *run, *run, ("closed", 1)]


async def test_nothing_is_consumed_if_the_lifespan_cannot_open(stage: Stage) -> None:
    pool = Pool(opening=raise_refused)
    await stage.seed(pool.app())
    await stage.send("sell")
    told = "The lifespan Pool.open could not be opened, .*: ConnectionRefusedError: no database"
    with pytest.raises(LifespanError, match=told) as raised:
        await stage.work(1)
    assert isinstance(raised.value.__cause__, ConnectionRefusedError)
    assert pool.said == ["opening"]
    assert await stage.waiting() == 1


async def test_stopping_does_not_wait_for_a_lifespan_that_opens(stage: Stage) -> None:
    pool = Pool(opening=lambda: asyncio.sleep(3600))
    await stage.seed(pool.app())
    await stage.send("sell")
    await stage.work(1)
    assert stage.clock.now().timestamp() - START.timestamp() < 2
    assert pool.said == ["opening"]
    left = await stage.broker.get(stage.app.names.processor_queue("sell"))
    assert left is not None
    assert not left.redelivered  # it was never taken
    await left.requeue()


async def test_an_error_while_it_closes_is_logged_and_hides_no_other(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(closing=raise_refused)
    await stage.seed(pool.app())
    await stage.broker.delete(stage.app.names.processor_queue("sell"))
    with pytest.raises(QueueNotFound, match="has no queue"):
        await stage.work(1)
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage() == "The lifespan Pool.open could not be closed"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ConnectionRefusedError)


async def test_a_failing_task_of_a_lifespan_ends_the_processor_after_its_run(stage: Stage) -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise ConnectionResetError("the feed is gone")

    @asynccontextmanager
    async def feeding(app: Scheduler) -> AsyncGenerator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            yield

    stage.app = new_app(lifespan=feeding)
    stage.task("sell", takes=3)
    await stage.seed()
    await stage.send("sell")
    with pytest.raises(LifespanError, match=r"feeding has ended the processor: ExceptionGroup: "):
        await stage.work(10)
    assert len(of(RunSettled, stage.events)) == 1


async def test_closing_a_lifespan_times_out(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool(closing=lambda: asyncio.sleep(3600))
    await stage.seed(pool.app())
    await stage.work(1)
    assert 5 <= stage.clock.now().timestamp() - START.timestamp() < 10
    assert "The lifespan Pool.open could not be closed" in caplog.text


async def test_a_lifespan_may_send_while_it_opens_and_closes(stage: Stage) -> None:
    @asynccontextmanager
    async def greeting(app: Scheduler) -> AsyncGenerator[None]:
        await stage.send("hear", "opening")
        yield
        await stage.send("hear", "closing")

    stage.app = new_app(lifespan=greeting)
    stage.task("hear")
    await stage.seed()
    await stage.work(1)
    assert [run.message_id for run in of(RunSettled, stage.events)] == ["opening"]
    assert await stage.waiting() == 1
