"""Functions that run in processes of their own, on the embedded broker; its time waits for them."""

import asyncio
import gc
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from scheduler import Context, Reject, Retry, RetryLater, Scheduler, StopLoop
from scheduler.errors import RegistrationError
from scheduler.events import Escalated, RunFinished
from scheduler.processor.processes import Child, ProcessEnded
from scheduler.protocol.tokens import Ending
from tests.stage import Stage, new_app, of
from tests.unit.tasks.test_context import context


class Order(BaseModel):
    number: int


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Useless(Reject):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Sealed(Exception):
    def __setattr__(self, *_: object) -> None:
        raise TypeError("sealed")


def write_pid(path: str, order: Order) -> None:
    Path(path).write_text(f"{os.getpid()} {order.number}")


def count(ctx: Context) -> None:
    began = ctx.deadline
    ctx.extend("3h")
    assert ctx.deadline > began + timedelta(minutes=30)
    assert ctx.state is None
    ctx.carry((ctx.carried or 0) + 1)


def fail(way: str) -> None:
    match way:
        case "value":
            raise ValueError("no")
        case "exit":
            os._exit(3)
        case "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        case "reject":
            raise Reject("bad input")
        case "unpicklable":
            raise Unpicklable(1, 2)
        case "reject with arguments":
            raise Useless(1, 2)
        case "sealed":
            raise Sealed("no more")
        case "unformattable":
            place: Any = ("file", "not a number", "nor this", "text")
            raise SyntaxError("misplaced", place)
        case _:
            raise SystemExit(4)


def log(ctx: Context) -> None:
    logging.getLogger("shop").info("%d sold", 7)
    logging.getLogger("shop").debug("hidden")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def fork(path: str, seconds: float) -> str:
    first = os.fork() or time.sleep(600) or os._exit(0)
    escaped = os.fork() or os.setsid() or time.sleep(600) or os._exit(0)
    while os.getsid(escaped) != escaped:
        time.sleep(0.01)
    Path(path).write_text(f"{first} {escaped}")
    time.sleep(seconds)
    return "done"


class Trap:
    """Raises when it is pickled, unpickled, or shown."""

    def __init__(self, error: type[BaseException] = SystemExit) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return spring, (self.error, os.getpid())

    def __repr__(self) -> str:
        raise self.error("shown")


def spring(error: type[BaseException], pid: int) -> Any:
    if pid != os.getpid():  # in the processor only
        raise error("unpickled")
    return "harmless"


class TrapError(Exception):
    def __reduce__(self) -> Any:
        return spring, (SystemExit, os.getpid())


class Shouting(str):
    def __reduce__(self) -> Any:
        raise SystemExit("pickled")


def hand_over(ctx: Context, way: str) -> Any:
    log = logging.getLogger("shop")
    match way:
        case "record":
            log.warning("%s sold", Shouting("tea"), extra={"of": Shouting("x"), "trap": Trap()})
            log.warning("all sold", extra={"lock": threading.Lock(), "error": ValueError("x")})
        case "result":
            return Trap()
        case "unpicklable result":
            return [Shouting("x")]
        case "deep result":
            result: list[Any] = []
            for _ in range(100_000):
                result = [result]
            return result
        case "error":
            raise TrapError("no")
        case "cancelled":
            raise asyncio.CancelledError
        case _:
            ctx.progress(0.5, cast("Any", 5))
            ctx.progress(0.5, Shouting("\x1b[31m " + "x" * 10_000))
            ctx.carry(1)


def linger(path: str) -> str:
    def outlast() -> None:
        threading.main_thread().join()
        Path(path).write_text("over")
        time.sleep(600)

    threading.Thread(target=outlast).start()
    return "done"


def break_off(path: str) -> None:
    here = next(each for each in gc.get_objects() if type(each).__name__ == "ProcessSide")
    here._socket.sendall(b'["log", {"msg": "...')
    escaped = os.fork()
    if not escaped:
        os.setsid()
        time.sleep(600)
    while os.getsid(escaped) != escaped:
        time.sleep(0.01)
    Path(path).write_text(str(escaped))
    os.kill(os.getpid(), signal.SIGKILL)


async def run(stage: Stage, function: Callable[..., Any], **args: Any) -> RunFinished:
    """Run a call of a function in a process of its own."""
    stage.app.task(executor="process", retry=Retry(0))(function)
    await stage.seed()
    await stage.send(function.__name__, **args)
    await stage.work(1)
    (finished,) = of(RunFinished, stage.events)
    return finished


async def test_a_run_has_its_own_process(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    finished = await run(stage, write_pid, path=str(path), order={"number": 5})
    pid, number = path.read_text().split()
    assert (pid != str(os.getpid()), number) == (True, "5")
    assert finished.ending is Ending.SUCCEEDED


async def test_a_context_works_in_a_process(stage: Stage) -> None:
    stage.app.periodic(every="1s", executor="process")(count)
    await stage.seed()
    await stage.work(3.5)
    assert (await stage.token(stage.app.loop("count").id)).carry == 3


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("value", "no"),
        ("exit", "its process ended with the exit code 3, before the function did"),
        ("signal", "its process was ended by SIGKILL"),
        ("reject", "bad input"),
        ("unpicklable", "Unpicklable: 1 and 2"),
        ("reject with arguments", "1 and 2"),
        ("sealed", "no more"),
        ("unformattable", "misplaced (file)"),
        ("system exit", "the task raised SystemExit: 4"),
    ],
)
async def test_the_outcome_of_a_process_is_that_of_its_run(
    stage: Stage, way: str, words: str
) -> None:
    await run(stage, fail, way=way)
    (parked,) = of(Escalated, stage.events)
    assert str(parked.error) == words
    assert way != "value" or "in fail" in str(parked.error.__cause__)


NO_NEXT = "A one-off run has no next run to carry to: only loops carry."


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("record", None),
        ("result", None),
        ("unpicklable result", None),
        ("deep result", None),
        ("error", "no"),
        ("cancelled", "the task was cancelled from within"),
        ("progress", NO_NEXT),
    ],
)
async def test_results_of_a_process_do_no_harm(stage: Stage, way: str, words: str | None) -> None:
    finished = await run(stage, hand_over, way=way)
    told = None if finished.error is None else str(finished.error).removeprefix("TrapError: ")
    assert told == words


async def test_a_process_logs_through_the_processor(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await run(stage, log)
    told = [(each.name, each.getMessage()) for each in caplog.records if each.name == "shop"]
    assert told == [("shop", "7 sold")]


def test_outcomes_travel_between_processes() -> None:
    for outcome in Reject("bad"), Reject(), StopLoop("over"), RetryLater("10s", "later"):
        same = pickle.loads(pickle.dumps(outcome))
        assert (type(same), vars(same), str(same)) == (type(outcome), vars(outcome), str(outcome))


def test_an_unknown_executor_is_refused(app: Scheduler) -> None:
    def local() -> None: ...

    async def coroutine() -> None: ...

    for function, executor, words in (
        (sleep, "gpu", "executor of sleep must be 'thread' or 'process', got 'gpu'"),
        (local, "process", "executor of local: another process imports the function by its name"),
        (coroutine, "thread", "executor of coroutine is for functions that block: write `def`"),
    ):
        with pytest.raises(RegistrationError, match=words):
            app.task(executor=executor)(function)  # pyright: ignore[reportArgumentType]


# In real time


def child_of(function: Callable[..., Any], **args: Any) -> Child:
    app = new_app()
    app.task(executor="process")(function)
    run, _ = context()
    run.arguments = args
    return Child(app.tasks[function.__name__], run, carries=False)


def started(function: Callable[..., Any], **args: Any) -> Child:
    child = child_of(function, **args)
    child.start()
    return child


@asynccontextmanager
async def running(child: Child) -> AsyncGenerator[asyncio.Future[Any]]:
    run = asyncio.ensure_future(asyncio.to_thread(child.run))
    try:
        yield run
    finally:
        child.kill()
        await asyncio.wait([run], timeout=60)
        assert run.done()


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(20):
        while not (found := condition()):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
    return found


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended, perhaps while it was read
        return False


async def test_concurrent_questions_to_a_process_share_an_answer() -> None:
    child = child_of(sleep, seconds=100)
    assert child.ask().result() == (None, "")
    child.start()
    assert child.ask() is child.ask()
    async with running(child) as run:
        async with asyncio.timeout(20):
            stack = ""
            while "in sleep" not in stack:
                progress, stack = await asyncio.wrap_future(child.ask())
                assert (progress, run.done()) == (None, False)
    assert isinstance(run.exception(), ProcessEnded)
    assert child.ask().result() == (None, "")


@pytest.mark.parametrize("moment", ["before", "started", "begun"])
async def test_a_process_can_be_killed_at_any_time(moment: str) -> None:
    child = child_of(sleep, seconds=100)
    if moment == "before":
        child.kill()
        with pytest.raises(ProcessEnded, match="it was ended before its process had started"):
            child.start()
        return
    child.start()
    if moment == "started":
        child.kill()
    async with running(child) as run:
        if moment == "begun":
            await asyncio.sleep(0.5)
    with pytest.raises(ProcessEnded, match="its process was ended by SIGKILL"):
        run.result()


async def test_child_processes_end_with_their_run(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    child = started(fork, path=str(path), seconds=100)
    async with running(child) as run:
        pids = [int(pid) for pid in (await until(lambda: text_of(path))).split()]
    assert isinstance(run.exception(), ProcessEnded)
    first, escaped = pids
    try:
        assert await until(lambda: not is_there(first))
        assert is_there(escaped)  # it has a session of its own, and the socket of ours
    finally:
        os.kill(escaped, signal.SIGKILL)
    path.unlink()
    child = started(fork, path=str(path), seconds=0)
    async with running(child) as run:
        first, escaped = [int(pid) for pid in (await until(lambda: text_of(path))).split()]
        async with asyncio.timeout(20):
            assert await run == "done"
        assert await until(lambda: not is_there(first))
    os.kill(escaped, signal.SIGKILL)


async def test_a_finished_run_is_kept_if_its_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "over"
    child = started(linger, path=str(path))
    async with running(child) as run:
        await until(lambda: text_of(path))
        await asyncio.sleep(0.1)
        child.kill()
        assert await run == "done"


async def test_a_partial_message_of_a_killed_process_blocks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    child = started(break_off, path=str(path))
    async with running(child) as run:
        escaped = int(await until(lambda: text_of(path)))
    os.kill(escaped, signal.SIGKILL)
    assert isinstance(run.exception(), ProcessEnded)
