"""What is written wrong in a program or its settings, and programs that fail: a line each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import CommandLine

APP = """
import asyncio
from scheduler import Scheduler

app = Scheduler("mistakes")

@app.task
async def sell(n: int) -> None: ...
"""
SENDS = """
async def main():
    async with app:
        print(await sell.send(5))
        raise ValueError("mine")

asyncio.run(main())
"""
OPENS = """
from contextlib import asynccontextmanager

def connect() -> None:
    raise ConnectionRefusedError("no database")

@asynccontextmanager
async def open_pool(app):
    connect()
    yield

shared = Scheduler("mistakes", lifespan=open_pool)

@shared.periodic(every="100ms")
async def work() -> None: ...
"""


@pytest.fixture
def here(tmp_path: Path) -> CommandLine:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "sends.py").write_text(APP + SENDS)
    return CommandLine(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("@app.listen\nasync def hear(event): ...", "is a coroutine function"),
        ("@app.around\ndef f(ctx, call_next): ...", "takes a coroutine function"),
        ("@app.task(max_retries=3)\nasync def t(): ...", "takes no max_retries="),
        ("class A:\n    @app.task\n    async def t(self): ...", "is a method"),
    ],
)
def test_what_is_registered_wrong_is_told_before_anything_runs(
    here: CommandLine, tmp_path: Path, wrong: str, words: str
) -> None:
    (tmp_path / "wrong.py").write_text(APP + wrong + "\n")
    done = here("dev", "wrong.py:app", "--for", "1s")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert words in line
    assert "wrong.py, line" in line


def test_of_a_program_that_fails_while_it_is_connected_only_its_own_error_is_told(
    here: CommandLine, tmp_path: Path
) -> None:
    """It sends to the embedded broker before it fails, which takes no seed."""
    environment = {**os.environ, "SCHEDULER_BROKER_URL": "memory://"}
    program = [sys.executable, str(tmp_path / "sends.py")]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    assert done.stdout.strip()
    assert done.stderr.splitlines()[-1] == "ValueError: mine"
    assert done.stderr.count("Traceback") == 1
    assert "Task was destroyed" not in done.stderr


def test_of_a_lifespan_that_cannot_be_opened_its_own_code_is_told(
    here: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "opens.py").write_text(APP + OPENS)
    done = here("dev", "opens.py:shared", "--for", "1s")
    assert done.code == 1
    *_, first, where, _, raised_at, code = done.err.splitlines()
    assert first == (
        "scheduler: The lifespan open_pool could not be opened, and no run was begun: "
        "ConnectionRefusedError: no database"
    )
    assert where.startswith('  File "')
    assert where.endswith("in open_pool")
    assert raised_at.endswith("in connect")
    assert code.strip() == 'raise ConnectionRefusedError("no database")'
    assert "Traceback" not in done.err
