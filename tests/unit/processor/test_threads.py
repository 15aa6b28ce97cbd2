"""Functions that block run in threads, on the embedded broker; its time waits for them."""

import asyncio
import threading
import traceback
from typing import Any

import pytest

from scheduler import Context, Scheduler
from scheduler.events import RunFinished
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.threads import Threads
from scheduler.protocol.tokens import Ending
from scheduler.queues.outbox import Posting
from scheduler.tasks.context import current_run
from tests.stage import Stage, new_app, of

POSTING = Posting()


async def ran(stage: Stage, app: Scheduler, seconds: float = 1) -> list[RunFinished]:
    await stage.seed(app)
    for name, task in app.tasks.items():
        if task.called:
            await app.outbox.send(name, {}, POSTING)
    async with stage.processor():
        await asyncio.sleep(seconds)
    return [each for each in of(RunFinished, stage.events) if each.loop.task in app.tasks]


async def test_a_blocking_function_runs_in_a_thread(stage: Stage) -> None:
    app, found = new_app(), list[Any]()

    @app.task
    def work(ctx: Context) -> str:
        found.extend((ctx.task, current_run.get(), threading.current_thread()))
        return "done"

    (finished,) = await ran(stage, app)
    assert finished.ending is Ending.SUCCEEDED
    task, run, thread = found
    assert (task, run) == ("work", ("work", finished.message_id))
    assert thread is not threading.main_thread()


async def test_a_traceback_begins_in_the_function(stage: Stage) -> None:
    app = new_app()

    @app.task
    def work() -> None:
        raise ValueError

    (failed, *_) = await ran(stage, app)
    assert failed.error is not None
    assert [frame.name for frame in traceback.extract_tb(failed.error.__traceback__)] == ["work"]


async def test_a_function_that_returns_a_coroutine_fails(stage: Stage) -> None:
    app = new_app()

    async def coroutine() -> None: ...

    @app.task
    def work() -> Any:
        return coroutine()

    finished, *_ = await ran(stage, app)
    assert "write `async def`" in str(finished.error)


async def test_a_thread_may_send_and_extend(stage: Stage) -> None:
    app, received = new_app(), list[int]()

    @app.task
    async def receive(n: int) -> None:
        received.append(n)

    @app.task
    def work(ctx: Context) -> None:
        ctx.extend("1h")
        receive.blocking.send(7)

    await stage.seed(app)
    await app.outbox.send("work", {}, POSTING)
    async with stage.processor():
        await asyncio.sleep(1)
    assert received == [7], [repr(each.error) for each in of(RunFinished, stage.events)]


async def test_concurrent_runs_are_limited_by_the_threads(stage: Stage) -> None:
    app, at_once, lock = new_app(threads=2), list[int](), threading.Lock()
    going, full = 0, threading.Barrier(2, timeout=20)

    @app.task
    def work() -> None:
        nonlocal going
        with lock:
            going += 1
            at_once.append(going)
        full.wait()
        with lock:
            going -= 1

    await stage.seed(app)
    for _ in range(6):
        await app.outbox.send("work", {}, POSTING)
    async with stage.processor():
        await asyncio.sleep(1)
    finished = of(RunFinished, stage.events)
    assert [each.ending for each in finished] == [Ending.SUCCEEDED] * 6
    assert max(at_once) == 2


async def test_a_run_that_waits_for_a_thread_delays_no_other(stage: Stage) -> None:
    app, free = new_app(threads=1), threading.Event()

    @app.task
    def works() -> None:
        assert free.wait(20)

    @app.task
    async def frees() -> None:
        free.set()

    await stage.seed(app)
    for _ in range(5):
        await app.outbox.send("works", {}, POSTING)
    await app.outbox.send("frees", {}, POSTING)
    async with stage.processor(concurrency=2):
        await asyncio.sleep(1)
    assert len(of(RunFinished, stage.events)) == 6


async def test_aborting_waits_for_no_thread() -> None:
    threads, begun, ends = Threads(1, shutdown := Shutdown()), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert ends.wait(20)

    waiting = asyncio.ensure_future(threads.result_of(threads.begin(work)))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    await asyncio.sleep(0)
    shutdown.abort()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert threads.going == 1
    ends.set()
