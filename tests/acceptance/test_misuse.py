"""Misuse is answered in a paragraph without a broker; a failure of a program shows its code."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.cli.commands import ELSEWHERE
from tests.acceptance.conftest import APPS, MISUSE, PASSWORD, SHOP, UNREACHABLE, CommandLine

DESK = f"{APPS}/desk.py"
SCHEDULE = "A schedule is --every or --cron, one of them"
NO_OPTION = "is no option: the arguments are one JSON object, such as --args '{\"n\": 1}'."
NO_TEXT = "'\\udcff' is neither UTF-8 text nor an existing file."
AT_SHOP = [
    # Apps
    (f"dev {APPS}/no_tasks.py:app", "has no tasks"),
    # Commands
    ("sede", "No such command 'sede'."),
    ("status --jsn", "No such option: --jsn"),
    ("run --concurrency 0", "'--concurrency': Input should be greater than or equal to 1"),
    (f"next {APPS}/shop.py poll", "`scheduler next` takes APP, and got poll as well."),
    ("import apscheduler x.py", "no command 'apscheduler'; there are: celery, cronjob, crontab."),
    *((name, f"Did you mean `scheduler {here}`?") for name, here in ELSEWHERE.items()),
    # Loops and runs
    ("cancel", "The command needs the argument RUN"),
    ("pause report --all", "LOOP and --all cannot be combined, got: report."),
    ("resume report --now --after 2026-06-01", "--now and --after"),
    ("pause \udcff", NO_TEXT),
    ("dev --for soon", "--for: expected a number and a unit"),
    ("dev --log-format xml", "--log-format is text, dated, json, got 'xml'"),
    # Watching
    ("status --watch", "--watch shows all loops in a terminal"),
    ("status --watch --task raport", "There is no task 'raport'; did you mean 'report'?"),
    ("status --interval 5s", "--interval is for --watch"),
    ("status report --limit 5", "LOOP cannot be combined with --task, --key, --state or --limit."),
    ("doctor --live", "SCHEDULER_HEALTH_PORT"),
    ("doctor --health-port 8000", "--health-port is for --live"),
    ("dashboard --redact sys:path", "--redact names a function of a task and a value"),
    ("dashboard --access sys:path", "--access names a function of the request"),
    # Schedules
    ("schedule set report", f"{SCHEDULE}: --every 5m, or --cron "),
    ("schedule set report --every 5m --cron @daily", SCHEDULE),
    ("schedule set report --every 5m --tz UTC", "no --tz; it takes --every, --fixed-rate, --off"),
    (
        "schedule set report --cron @daily --fixed-rate",
        "Cron takes no --fixed-rate; it takes --cron, --tz",
    ),
]
AT_DESK = [
    # Calls
    ("send", "The command needs the argument TASK"),
    ("send sms", "phone: "),
    ("send sms --args {", "--args: expected a JSON object such as"),
    (f"send sms --args {'[' * 100_000}", "...: maximum recursion depth exceeded"),
    ("send sms --in 1s --at 2090-01-01", "give --in or --at, not both"),
    *((f"send {words}", NO_OPTION) for words in ("sms n=5", f"{DESK} sms 5", "sms --phone 5")),
    # Named one-offs
    ("scheduled move sms.o", "give --at or --after"),
    ("scheduled move sms.o --at tomorrow", "expected a moment such as"),
    # Parked messages
    ("failed list --reason exausted", "There is no reason to park 'exausted'; did you mean"),
    ("failed replay", "the IDs of messages, --task, --reason or --all"),
    ("failed purge --yes ''", "An ID is empty"),
    (f"failed replay {DESK} m1 ''", "An ID is empty"),
    ("failed replay --all --rate fast", 'such as "50/s" or "100/m", got \'fast\''),
    ("failed replay --all --rate ''", 'such as "50/s" or "100/m", got \'\''),
    ("failed replay --all --args ''", "--args: expected a JSON object such as"),
]
SETTINGS = [
    ("dev", {"SCHEDULER_APP": ""}, "No app was named."),
    ("status nosuch", {"SCHEDULER_APP": ""}, "There is no module 'nosuch'. Modules are"),
    ("seed", {"SCHEDULER_BROKER_URL": "memory://"}, "use `scheduler dev`"),
    (
        f'send {DESK} sms --args \'{{"phone": "1"}}\'',
        {"SCHEDULER_BROKER_URL": "memory://"},
        "memory:// lives within one process",
    ),
    ("seed", {"SCHEDULER_BROKER_URL": f"amqp://shop:{PASSWORD}@x:99999/"}, "cannot be read"),
    ("topology show", {"SCHEDULER_HEARTBEAT": "soon"}, "SCHEDULER_HEARTBEAT: "),
]


@pytest.mark.parametrize(
    ("command", "environment", "told"),
    [
        *((command, {}, told) for command, told in AT_SHOP),
        *((command, {"SCHEDULER_APP": DESK}, told) for command, told in AT_DESK),
        *SETTINGS,
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_misuse_is_answered_in_a_line(
    offline: CommandLine, command: str, environment: dict[str, str], told: str
) -> None:
    known = {"SCHEDULER_APP": SHOP, "SCHEDULER_BROKER_URL": UNREACHABLE}
    done = offline(*shlex.split(command), **(known | environment))
    assert (done.code, done.out) == (MISUSE, "")
    *usage, line = done.err.splitlines()
    assert told in line
    assert line.startswith("Error: ") if usage else line.startswith("scheduler: ")
    assert "Traceback" not in done.err
    assert PASSWORD not in done.err


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
import threading
from contextlib import asynccontextmanager

def connect() -> None:
    threading.Thread(target=threading.Event().wait, name="pinger").start()
    raise ConnectionRefusedError("no database")

@asynccontextmanager
async def open_pool(app):
    connect()
    yield

shared = Scheduler("mistakes", lifespan=open_pool)

@shared.periodic(every="100ms")
async def work() -> None: ...
"""


def test_a_connected_program_that_fails_prints_its_own_error_alone(tmp_path: Path) -> None:
    """It sends to the embedded broker before it fails, which takes no seed."""
    (tmp_path / "sends.py").write_text(APP + SENDS)
    environment = {**os.environ, "SCHEDULER_BROKER_URL": "memory://"}
    program = [sys.executable, str(tmp_path / "sends.py")]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    assert done.stdout.strip()
    assert done.stderr.splitlines()[-1] == "ValueError: mine"
    assert done.stderr.count("Traceback") == 1
    assert "Task was destroyed" not in done.stderr


def test_a_lifespan_that_fails_to_open_is_shown_with_its_own_code(
    offline: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "opens.py").write_text(APP + OPENS)
    done = offline.installed("dev", "opens.py:shared", "--for", "1s")
    assert done.code == 1
    *_, first, where, _, raised_at, code, last = done.err.splitlines()
    assert last == "scheduler: These threads do not end and are abandoned: pinger."
    assert first == (
        "scheduler: The lifespan open_pool could not be opened, and no run was begun: "
        "ConnectionRefusedError: no database"
    )
    assert where.startswith('  File "')
    assert where.endswith("in open_pool")
    assert raised_at.endswith("in connect")
    assert code.strip() == 'raise ConnectionRefusedError("no database")'
    assert "Traceback" not in done.err
