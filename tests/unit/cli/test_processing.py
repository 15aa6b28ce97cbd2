"""A processor whose user code raises in the event loop what ends a process, in tasks of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
"""


@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt"])
def test_what_a_task_of_a_run_raises_ends_that_run_only(tmp_path: Path, error: str) -> None:
    (tmp_path / "jobs.py").write_text(APP.format(error=error))
    done = subprocess.run(
        [sys.executable, "-m", "scheduler", "dev", "jobs.py", "--for", "1500ms"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    failed = rf"report #1  failed in \d+ ms, attempt 1: RuntimeError: the task raised {error}"
    assert re.search(failed, done.stderr)
    assert f"an asyncio task raised {error}: the processor continues" in done.stderr
    assert re.search(r"stopped, \d messages? requeued\n$", done.stderr)
