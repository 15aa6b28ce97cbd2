"""What may end the process of a processor: signals, and what its user code raises."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.cli.processing import on_signal

ROOT = Path(__file__).parents[3]
APP = """
import asyncio

from scheduler import Retry, Scheduler

app = Scheduler("shop")

async def give_up() -> None:
    raise {error}(3)

@app.periodic(every="200ms", retry=Retry(0))
async def report() -> None:
    await asyncio.gather(give_up(), asyncio.sleep(60))

async def numbers():
    try:
        yield 1
    finally:
        raise {error}(3)

kept = []

@app.periodic(every="200ms")
async def stray() -> None:
    kept.append(numbers())
    await anext(kept[-1])
    asyncio.get_running_loop().stop()
"""


STUBBORN = """
import asyncio
import time

from scheduler import Scheduler

app = Scheduler("shop")

@app.periodic(every="200ms")
async def report() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("no")

@app.periodic(every="200ms")
async def threaded() -> None:
    await asyncio.to_thread(time.sleep, 600)
"""


RUINOUS = """
import asyncio

from scheduler import Scheduler

app = Scheduler("shop")

@app.periodic(every="200ms")
async def report() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
"""


def developed(folder: Path, app: str, span: str, code: int = 0, **environment: str) -> str:
    """What a processor of an app has logged, which ended by itself."""
    (folder / "jobs.py").write_text(app)
    done = subprocess.run(
        [sys.executable, "-m", "scheduler", "dev", "jobs.py", "--for", span],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt"])
def test_an_exception_in_a_task_of_a_run_ends_that_run_only(tmp_path: Path, error: str) -> None:
    log = developed(tmp_path, APP.format(error=error), "1500ms")
    failed = rf"report #1  failed in \d+ ms, attempt 1: RuntimeError: the task raised {error}"
    assert re.search(failed, log)
    assert f"an asyncio task or callback raised {error}: 3: the event loop continues" in log
    assert "an asyncio task or callback stopped the event loop: the event loop continues" in log
    assert re.search(r"stray #1  succeeded", log)
    assert re.search(r"stopped, \d messages? requeued\n", log)


def test_a_run_that_cancels_all_tasks_ends_the_processor_with_an_error(tmp_path: Path) -> None:
    log = developed(tmp_path, RUINOUS, "60s", code=1)
    assert "report #0  failed" in log
    assert "scheduler: The processor was stopped: user code has cancelled its asyncio task." in log


def test_a_run_that_ignores_cancellation_does_not_block_exit(tmp_path: Path) -> None:
    log = developed(tmp_path, STUBBORN, "1s", SCHEDULER_SHUTDOWN_GRACE="0s")
    assert re.search(r"stopped, \d messages? requeued\n", log)
    assert re.search(r"run report #0 ignores its cancellation: the process ends without", log)
    assert "asyncio.to_thread: a call has not ended: the process ends without it" in log


@pytest.fixture
def handlers_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("on_windows", [False, True])
@pytest.mark.usefixtures("handlers_as_they_were")
async def test_the_latest_handler_gets_a_signal(
    monkeypatch: pytest.MonkeyPatch, on_windows: bool
) -> None:
    loop = asyncio.get_running_loop()
    if on_windows:
        missing = asyncio.AbstractEventLoop.add_signal_handler
        monkeypatch.setattr(type(loop), "add_signal_handler", missing)
    told: asyncio.Queue[str] = asyncio.Queue()
    on_signal(lambda _: pytest.fail("another one has asked since"))
    on_signal(told.put_nowait)
    for name in ("SIGTERM", "SIGINT", "SIGTERM"):
        signal.raise_signal(signal.Signals[name])
        assert await asyncio.wait_for(told.get(), 10) == name
