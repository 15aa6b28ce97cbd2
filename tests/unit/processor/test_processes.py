"""Functions that run in processes of their own, on the embedded broker; its time waits for them."""

import asyncio
import logging
import os
import pickle
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from scheduler import Context, Reject, Retry, RetryLater, Scheduler, StopLoop
from scheduler.errors import RegistrationError
from scheduler.events import Escalated, RunFinished
from scheduler.processor.processes import Child, ProcessEnded
from scheduler.protocol.tokens import Ending
from scheduler.queues.outbox import Posting
from tests.stage import Stage, new_app, of

POSTING = Posting()
ONCE = Retry(0)


class Order(BaseModel):
    number: int


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def write_pid(path: str, order: Order) -> None:
    Path(path).write_text(f"{os.getpid()} {order.number}")


def count(ctx: Context) -> None:
    ctx.carry((ctx.carried or 0) + 1)


def extend(ctx: Context) -> None:
    began = ctx.deadline
    ctx.extend("1h")
    assert ctx.deadline > began + timedelta(minutes=30)


def fail(way: str) -> None:
    match way:
        case "value":
            raise ValueError("no")
        case "os":
            raise OSError("no disk")
        case "exit":
            os._exit(3)
        case "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        case "reject":
            raise Reject("bad input")
        case "unpicklable":
            raise Unpicklable(1, 2)
        case _:
            raise SystemExit(4)


def ask_for_later(ctx: Context) -> None:
    if not ctx.attempt:
        raise RetryLater("10s", "later")


def log(ctx: Context) -> None:
    logging.getLogger("shop").info("%d sold", 7)
    logging.getLogger("shop").debug("hidden")


def use_state(ctx: Context) -> None:
    assert ctx.state is None


def sleep(seconds: float) -> None:
    time.sleep(seconds)


async def run(stage: Stage, app: Scheduler, task: str, seconds: float = 1, **args: Any) -> None:
    await stage.seed(app)
    await app.outbox.send(task, args, POSTING)
    async with stage.processor():
        await asyncio.sleep(seconds)


async def test_it_runs_in_another_process(stage: Stage, tmp_path: Path) -> None:
    app, path = new_app(), tmp_path / "pid"
    app.task(executor="process")(write_pid)
    await run(stage, app, "write_pid", path=str(path), order={"number": 5})
    pid, number = path.read_text().split()
    assert (pid != str(os.getpid()), number) == (True, "5")
    assert [each.ending for each in of(RunFinished, stage.events)] == [Ending.SUCCEEDED]


async def test_it_carries(stage: Stage) -> None:
    app = new_app()
    app.periodic(every="1s", executor="process")(count)
    await stage.seed(app)
    async with stage.processor():
        await asyncio.sleep(3.5)
    assert (await stage.token(app.loop("count").id)).carry == 3


@pytest.mark.parametrize("function", [extend, use_state])
async def test_its_context_is_of_use(stage: Stage, function: Any) -> None:
    app = new_app()
    app.task(executor="process", retry=ONCE)(function)
    await run(stage, app, function.__name__)
    assert [each.error for each in of(RunFinished, stage.events)] == [None]


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("value", "no"),
        ("os", "no disk"),
        ("exit", "its process ended with the exit code 3, before the function did"),
        ("signal", "its process was ended by SIGKILL"),
        ("reject", "bad input"),
        ("unpicklable", "Unpicklable: 1 and 2"),
        ("system exit", "the task raised SystemExit: 4"),
    ],
)
async def test_how_it_ends_is_its_outcome(stage: Stage, way: str, words: str) -> None:
    app = new_app()
    app.task(executor="process", retry=ONCE)(fail)
    await run(stage, app, "fail", way=way)
    (parked,) = of(Escalated, stage.events)
    assert str(parked.error) == words


async def test_where_it_failed_is_told(stage: Stage) -> None:
    app = new_app()
    app.task(executor="process", retry=ONCE)(fail)
    await run(stage, app, "fail", way="value")
    (parked,) = of(Escalated, stage.events)
    assert "in fail" in str(parked.error.__cause__)


async def test_it_may_ask_for_later(stage: Stage) -> None:
    app = new_app()
    app.task(executor="process")(ask_for_later)
    await run(stage, app, "ask_for_later", seconds=15)
    first, second = of(RunFinished, stage.events)
    assert (first.retry_in, second.ending) == (timedelta(seconds=10), Ending.SUCCEEDED)


async def test_it_logs_here(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    app = new_app()
    app.task(executor="process")(log)
    caplog.set_level(logging.INFO)
    await run(stage, app, "log")
    told = [(each.name, each.getMessage()) for each in caplog.records if each.name == "shop"]
    assert told == [("shop", "7 sold")]


def test_named_outcomes_travel() -> None:
    for outcome in Reject("bad"), Reject(), StopLoop("over"), RetryLater("10s", "later"):
        same = pickle.loads(pickle.dumps(outcome))
        assert (type(same), vars(same), str(same)) == (type(outcome), vars(outcome), str(outcome))


def test_the_executor_is_one_that_there_is() -> None:
    app = new_app()

    def local() -> None: ...

    async def coroutine() -> None: ...

    for function, executor, words in (
        (sleep, "gpu", "executor of sleep is 'thread' or 'process', got 'gpu'"),
        (local, "process", "executor of local: another process finds the function by its name"),
        (coroutine, "thread", "executor of coroutine is for functions that block: write `def`"),
    ):
        with pytest.raises(RegistrationError, match=words):
            app.task(executor=executor)(function)  # pyright: ignore[reportArgumentType]


# In real time


def child_of(app: Scheduler, task: str, **args: Any) -> Child:
    from tests.unit.tasks.test_context import context

    run, _ = context()
    run.arguments = args
    return Child(app.tasks[task], run)


async def test_who_asks_before_it_has_started_keeps_no_later_answer_away() -> None:
    app = new_app()
    app.task(executor="process")(sleep)
    child = child_of(app, "sleep", seconds=100)
    too_early = child.ask()
    running = asyncio.ensure_future(asyncio.to_thread(child.run))
    try:
        async with asyncio.timeout(30):
            asked = too_early
            while not asked.done():
                asked = child.ask()
                await asyncio.wait([asyncio.wrap_future(asked)], timeout=0.1)
    finally:
        child.kill()
        await asyncio.wait([running])
    progress, _ = asked.result()
    assert (progress, too_early.done()) == (None, False)
    assert isinstance(running.exception(), ProcessEnded)


@pytest.mark.parametrize("delay", [0, 0.5])
async def test_it_can_be_killed_at_any_time(delay: float) -> None:
    app = new_app()
    app.task(executor="process")(sleep)
    child = child_of(app, "sleep", seconds=100)
    if not delay:
        child.kill()
    running = asyncio.ensure_future(asyncio.to_thread(child.run))
    if delay:
        await asyncio.sleep(delay)
        child.kill()
    with pytest.raises(Exception, match="its process was ended by SIGKILL"):
        await running
