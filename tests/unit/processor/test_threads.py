"""Functions that block run in threads, on the embedded broker; its time waits for them."""

import asyncio
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from scheduler import Context, Scheduler
from scheduler.events import RunFinished, RunSettled
from scheduler.middleware import CallNext
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.threads import Threads
from scheduler.protocol.tokens import Ending
from scheduler.tasks.context import current_run
from tests.stage import Stage, new_app, of


async def ran(
    stage: Stage, app: Scheduler, *tasks: str, concurrency: int = 10
) -> list[RunFinished]:
    """Run a call of each of these tasks."""
    await stage.seed(app)
    for task in tasks:
        await stage.send(task)
    await stage.work(1, concurrency=concurrency)
    return of(RunFinished, stage.events)


async def test_a_blocking_function_runs_in_a_thread(stage: Stage) -> None:
    app, found = new_app(), list[Any]()

    @app.task
    def work(ctx: Context) -> str:
        found.extend((ctx.task, current_run.get(), threading.current_thread()))
        return "done"

    (finished,) = await ran(stage, app, "work")
    assert finished.ending is Ending.SUCCEEDED
    task, run, thread = found
    assert (task, run) == ("work", ("work", finished.message_id))
    assert thread is not threading.main_thread()


async def test_a_traceback_begins_in_the_function(stage: Stage) -> None:
    app = new_app()

    @app.task
    def work() -> None:
        raise ValueError

    (failed, *_) = await ran(stage, app, "work")
    assert failed.error is not None
    assert [frame.name for frame in traceback.extract_tb(failed.error.__traceback__)] == ["work"]


async def coroutine() -> None: ...


def return_a_coroutine(_: Context) -> Any:
    return coroutine()


def end_an_iteration(_: Context) -> Any:
    return next(iter(()))


def carry(ctx: Context) -> None:
    ctx.carry(1)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (return_a_coroutine, "write `async def`"),
        (end_an_iteration, "the task raised StopIteration"),
        (carry, "A one-off run has no next run to carry to"),
    ],
)
async def test_a_function_that_cannot_do_so_in_a_thread_fails(
    stage: Stage, function: Callable[[Context], Any], told: str
) -> None:
    app = new_app()
    app.task(name="work")(function)
    finished, *_ = await ran(stage, app, "work")
    assert told in str(finished.error)


async def test_a_run_lasts_as_long_as_its_thread_whatever_is_around_it(stage: Stage) -> None:
    app, left = new_app(), threading.Event()

    @app.around
    async def leave(ctx: Context, call_next: CallNext) -> None:
        await asyncio.wait([asyncio.ensure_future(call_next())], timeout=0)
        left.set()

    @app.task
    def work() -> None:
        assert left.wait(30)

    (finished,) = await ran(stage, app, "work")
    assert finished.ending is Ending.SUCCEEDED
    assert len(of(RunSettled, stage.events)) == 1


async def test_a_thread_may_send_and_extend(stage: Stage) -> None:
    app, received = new_app(), list[int]()

    @app.task
    async def receive(n: int) -> None:
        received.append(n)

    @app.task
    def work(ctx: Context) -> None:
        ctx.extend("1h")
        receive.blocking.send(7)

    @app.task
    async def beside(ctx: Context) -> None:
        await asyncio.to_thread(ctx.extend, "1h")

    @app.around
    async def longer(ctx: Context, call_next: CallNext) -> None:
        ctx.extend("30m")  # in the event loop
        await call_next()

    finished = await ran(stage, app, "work", "beside")
    assert received == [7], [repr(each.error) for each in finished]
    assert {each.ending for each in finished} == {Ending.SUCCEEDED}


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

    finished = await ran(stage, app, *["work"] * 6)
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

    finished = await ran(stage, app, *["works"] * 5, "frees", concurrency=2)
    assert len(finished) == 6


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
