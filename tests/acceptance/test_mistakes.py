"""What is written wrong in a program or its settings, and programs that fail: a line each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.cli.commands import ELSEWHERE
from tests.acceptance.conftest import CommandLine

APP = """
import asyncio
from scheduler import Context, RetryLater, Scheduler

app = Scheduler("mistakes")

@app.periodic(every="300ms")
async def poll(ctx: Context) -> None:
    raise RetryLater("3s")

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


def test_a_setting_that_there_is_not_is_answered_with_the_nearest(here: CommandLine) -> None:
    done = here("dev", "shop.py:app", "--for", "1s", SCHEDULER_CONCURENCY="5")
    assert done.code == 2
    assert done.err.splitlines()[-1] == (
        "scheduler: There is no setting SCHEDULER_CONCURENCY: did you mean SCHEDULER_CONCURRENCY?"
    )
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["beat", "help", "purge", "rm", "worker"])
def test_a_command_of_another_program_is_answered_with_the_one_here(
    here: CommandLine, command: str
) -> None:
    done = here(command)
    told = f"No such command '{command}'. Did you mean `scheduler {ELSEWHERE[command]}`?"
    assert (done.code, told in done.err) == (2, True)
    assert here(*ELSEWHERE[command].split(), "--help").code == 0


def test_a_command_that_a_group_has_not_is_answered_with_those_that_it_has(
    here: CommandLine,
) -> None:
    done = here("import", "apscheduler", "shop.py")
    told = "There is no command 'apscheduler'; there are: celery, cronjob, crontab."
    assert (done.code, told in done.err) == (2, True)


def test_a_word_too_many_is_answered_with_the_arguments_that_there_are(here: CommandLine) -> None:
    done = here("next", "shop.py", "poll")
    told = "Error: `scheduler next` takes APP, and got poll as well."
    assert (done.code, done.err.splitlines()[-1]) == (2, told)


def test_a_file_that_there_is_not_is_no_loop(here: CommandLine) -> None:
    done = here("status", "nosuch.py", SCHEDULER_APP="shop.py")
    assert (done.code, "There is no file 'nosuch.py' in '/" in done.err) == (2, True)


def test_a_word_is_an_app_where_none_is_named_else(here: CommandLine) -> None:
    done = here("status", "nosuch")
    assert (done.code, "There is no module 'nosuch'. Modules are" in done.err) == (2, True)
    assert here("next", "shop").out.startswith("poll")


@pytest.mark.parametrize("words", [["sell", "n=5"], ["shop", "sell", "5"], ["sell", "--n", "5"]])
def test_how_arguments_are_sent_is_told(here: CommandLine, words: list[str]) -> None:
    done = here("send", *words, SCHEDULER_APP="shop")
    told = "is no option: the arguments are one JSON object, such as --args '{\"n\": 1}'."
    assert (done.code, told in done.err) == (2, True)


@pytest.mark.parametrize(
    ("command", "words", "told"),
    [
        (
            "schedule set",
            ["poll", "--every", "5s", "--grace", "5s"],
            "--grace needs --catch-up skip, got: --catch-up latest",
        ),
        (
            "schedule set",
            ["poll", "--every", "5s", "--offset", "1s"],
            "--offset needs --fixed-rate",
        ),
        ("scheduled list", ["--task", "sel"], "There is no task 'sel'; did you mean 'sell'?"),
        ("pause", ["\udcff"], "'\\udcff' is neither UTF-8 text nor an existing file."),
        ("status", ["--key", "\udcff"], "'\\udcff' is neither UTF-8 text nor an existing file."),
    ],
)
def test_an_option_with_a_wrong_value_is_told(
    here: CommandLine, command: str, words: list[str], told: str
) -> None:
    done = here(*command.split(), "shop.py", *words)
    assert (done.code, done.out) == (2, "")
    assert told in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


def test_a_reason_that_there_is_not_is_answered_with_those_that_there_are(
    here: CommandLine,
) -> None:
    done = here("failed", "list", "shop.py:app", "--reason", "exhasted")
    assert done.code == 2
    assert "exhausted" in done.err.splitlines()[-1]


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


def test_who_asks_for_later_without_a_reason_is_told_in_a_line(here: CommandLine) -> None:
    done = here("dev", "shop.py:app", "--for", "1s")
    assert done.code == 0
    assert "attempt 1: RetryLater: The task asked to be tried again later., again at" in done.err


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
