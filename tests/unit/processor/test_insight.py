"""What is told of runs that are going on, on the embedded broker."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scheduler import Context, Retry, Scheduler, UsageError
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.control.verbs import Cancellation
from scheduler.errors import NotRunning
from scheduler.events import Event, RunFinished, RunStarted
from scheduler.processor.stacks import LIMIT, of_thread
from scheduler.protocol.tokens import Ending
from scheduler.queues.outbox import Posting
from scheduler.queues.running import RunningRun
from tests.contract.wire import eventually
from tests.stage import Stage, at_work, new_app, processor_of, program_of
from tests.unit.tasks.test_context import context

SHORT = timedelta(seconds=0.3)


async def test_supervision_is_neither_listed_nor_cancelled(stage: Stage) -> None:
    app, asked = new_app(), list[Any]()

    def ask(event: Event) -> None:
        asked.append(asyncio.ensure_future(stage.program.cancellation.running()))
        asked.append(asyncio.ensure_future(stage.program.cancellation.cancel("_supervision")))

    await stage.seed(app)
    async with stage.supervised():
        app.events.listen(ask, RunStarted)
        await asyncio.sleep(60)
    running, refused = asked[:2]
    assert running.result().runs == []
    assert all(isinstance(each.exception(), NotRunning) for each in asked[1::2])
    assert refused in asked


async def test_a_run_is_described_with_its_progress(stage: Stage) -> None:
    @stage.app.periodic(every="1h", timeout="1m")
    async def report(ctx: Context) -> None:
        ctx.progress(0.4, "page 4\nof 10")
        ctx.extend("1h")
        await asyncio.sleep(30)

    await stage.seed()
    async with stage.processor():
        await stage.verbs.trigger(stage.app.loop("report"))
        await asyncio.sleep(5)
        running = await stage.app.running()
    (run,) = running.runs
    assert (running.complete, running.more) == (True, 0)
    assert (run.id, run.task, run.loop, run.key, run.seq, run.attempt) == (
        *("report#0", "report", "report", "", 0, 1),
    )
    assert (run.executor, run.cancelled_by, run.stack) == ("coroutine", None, None)
    assert (run.progress, run.text) == (0.4, "page 4 of 10")
    assert (run.deadline - run.started_at).total_seconds() == pytest.approx(3600, abs=0.01)
    assert run.processor.count(":") == 2


async def wait_inside(free: asyncio.Event) -> None:
    await free.wait()


async def test_the_stack_of_a_coroutine_begins_in_the_task_and_has_no_values(stage: Stage) -> None:
    app, free = new_app(), asyncio.Event()

    @app.around
    async def around(ctx: Context, call_next: Any) -> None:
        await call_next()

    @app.task
    async def work(secret: str) -> None:
        await wait_inside(free)

    await stage.seed(app)
    for name in ("other", "mine"):
        await stage.send("work", name, secret="hunter2")
    async with stage.processor():
        await asyncio.sleep(1)
        stacks = {run.id: run.stack for run in (await app.running(stack_of="mi")).runs}
        free.set()
    assert stacks["other"] is None
    assert stacks["mine"] is not None
    calls = [line.split()[-1] for line in stacks["mine"].splitlines() if "File" in line]
    assert calls == ["around", "work", "wait_inside", "wait"]
    assert "await wait_inside(free)" in stacks["mine"]
    assert "hunter2" not in stacks["mine"]


async def test_any_progress_of_a_run_can_be_reported(stage: Stage) -> None:
    app, over = new_app(), asyncio.get_running_loop().create_future()

    @app.task
    async def work(ctx: Context) -> None:
        told: Any = (Path("\udcff"), 5, None, "\x1b[31m\n" + "x" * 100_000, "\udcff")
        for text in told:
            ctx.progress(True, text)
        await over

    await stage.seed(app)
    await stage.send("work", "mine")
    async with stage.processor():
        await asyncio.sleep(1)
        (run,) = (await app.running(stack_of="mine")).runs
        over.set_result(None)
    assert (run.progress, run.text) == (1, r"\udcff")
    assert "await over" in (run.stack or "")


@pytest.mark.parametrize("error", [OSError, ValueError, SystemExit])
def test_a_stack_is_shown_with_any_module_loader(error: Any) -> None:
    class Loader:
        def get_source(self, _: str) -> str:
            raise error

    scope = {"__name__": "strange", "__loader__": Loader(), "ask": ask_for_own_stack}
    exec(compile("text = ask()", "\udcff \x1b.py", "exec"), scope)
    assert str(scope["text"]).replace("\n", "").isprintable()


def ask_for_own_stack() -> str:
    return of_thread(threading.get_ident(), {__file__})


def deep_stack(depth: int, name: str) -> str:
    """The stack of a thread that is in so many calls of functions with this name."""
    calls = [f"ask_{name}{n}" for n in range(depth)]
    code = [f"def {here}(ask): return {there}(ask)\n" for here, there in pairwise(calls)]
    scope: dict[str, Any] = {}
    code.append(f"def {calls[-1]}(ask): return ask()\n")
    exec(compile("".join(code), "deep.py", "exec"), scope)
    return scope[calls[0]](ask_for_own_stack)


def test_a_deep_or_long_stack_keeps_its_innermost_calls() -> None:
    deep, long = deep_stack(300, "x"), deep_stack(60, "x" * 500)
    assert "  (202 calls before these are left out)\n" in deep
    assert len(long) <= LIMIT + 100
    assert long.startswith("  (truncated: ")
    for text in deep, long:
        assert "in ask_for_own_stack" in text


@pytest.mark.parametrize("fraction", [40, -0.1, float("nan"), "0.4", None])
def test_progress_must_be_a_fraction(fraction: Any) -> None:
    run, _ = context()
    with pytest.raises(UsageError, match="a fraction from 0 to 1, such as 0.4, got"):
        run.progress(fraction)


# Threads and processes: the time of the stage would stand still for as long as they run.


class Show:
    """An app at work in real time."""

    def __init__(self, app: Scheduler, broker: MemoryBroker) -> None:
        self.program = program_of(app, broker)
        self.cancellation = Cancellation(self.program.inquiry, within=SHORT)
        self.finished = asyncio.get_running_loop().create_future()
        app.events.listen(self.finished.set_result, RunFinished)

    async def told(self, stack_of: str | None = None) -> RunningRun:
        (run,) = (await self.cancellation.running(stack_of=stack_of)).runs
        return run

    async def until(self, is_so: Callable[[RunningRun], bool]) -> RunningRun:
        """Ask until something is told of the run, and of its stack."""

        async def found() -> RunningRun | None:
            return run if is_so(run := await self.told("id")) else None

        return await eventually(found)

    async def ending(self) -> Ending:
        return (await asyncio.wait_for(self.finished, 30)).ending


@asynccontextmanager
async def at_show(app: Scheduler, **arguments: Any) -> AsyncGenerator[Show]:
    """One call of the task of an app is run."""
    server = MemoryServer()
    async with AsyncExitStack() as opened:
        broker = await opened.enter_async_context(MemoryBroker(server))
        working = await opened.enter_async_context(MemoryBroker(server))
        show = Show(app, broker)
        opened.enter_context(app.lending(broker, app.outbox.clock))
        await show.program.seeding.seed()
        (task,) = app.tasks
        started = asyncio.Event()
        opened.enter_context(app.events.listening(lambda _: started.set(), RunStarted))
        await app.outbox.send(task, arguments, Posting(message_id="id"))
        await opened.enter_async_context(at_work(processor_of(app, working, supervises=False)))
        await started.wait()
        yield show


async def test_the_run_of_a_thread_ends_with_its_function_and_counts_as_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, free = new_app(), threading.Event()

    @app.task(retry=Retry(3))
    def work(ctx: Context) -> None:
        ctx.progress(1, "all")
        free.wait()

    async with at_show(app) as show:
        run = await show.until(lambda run: "free.wait()" in (run.stack or ""))
        assert run.stack is not None
        assert run.stack.splitlines()[0].endswith("in work")
        assert (run.executor, run.progress, run.text) == ("thread", 1, "all")
        report = await show.cancellation.cancel("id")
        assert (report.ending, show.finished.done()) == (None, False)
        assert "its thread cannot be interrupted" in caplog.text
        assert (await show.told()).cancelled_by is not None
        free.set()
        assert await show.ending() is Ending.CANCELLED


def work_alone(ctx: Context) -> None:
    ctx.progress(0.25, "a quarter")
    wait_alone()


def wait_alone() -> None:
    time.sleep(100)


def write_and_stop(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


async def test_a_process_reports_progress_and_stack_and_can_be_killed(app: Scheduler) -> None:
    app.task(executor="process", retry=Retry(3))(work_alone)
    async with at_show(app) as show:
        run = await show.until(lambda run: "time.sleep(100)" in (run.stack or ""))
        assert run.stack is not None
        calls = [line.split()[-1] for line in run.stack.splitlines() if "File" in line]
        assert calls == ["work_alone", "wait_alone"]
        assert (run.executor, run.progress, run.text) == ("process", 0.25, "a quarter")
        assert (await show.told()).stack is None
        show.cancellation = Cancellation(show.program.inquiry)
        assert (await show.cancellation.cancel("id")).as_asked
        assert await show.ending() is Ending.CANCELLED


async def test_an_unresponsive_process_delays_no_answer(tmp_path: Path) -> None:
    app, path = new_app(), tmp_path / "pid"
    app.task(executor="process")(write_and_stop)
    async with at_show(app, path=str(path)) as show:
        run = await show.until(lambda _: path.exists() and bool(path.read_text()))
        run = await show.until(lambda run: "has not answered" in (run.stack or ""))
        assert run.progress is None
        os.kill(int(path.read_text()), signal.SIGCONT)
        assert await show.ending() is Ending.SUCCEEDED
