"""What a command loads, output that goes nowhere, and Ctrl-C before anything has begun."""

import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from scheduler import __main__ as program
from tests.acceptance.conftest import APPS, SHOP, UNREACHABLE, CommandLine


def loaded(offline: CommandLine, *command: str) -> set[str]:
    """The modules that a command imports."""
    environment = {"SCHEDULER_APP": SHOP, "SCHEDULER_BROKER_URL": UNREACHABLE}
    # A program of its own: the one that others are forked off has imported all before.
    done = offline.installed(*command, PYTHONPROFILEIMPORTTIME="1", **environment)
    lines = [line for line in done.err.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


OF_VERSION = {"scheduler.queues", "scheduler.queues.about"}


@pytest.mark.parametrize(("command", "more"), [("--help", set[str]()), ("--version", OF_VERSION)])
def test_the_list_of_commands_loads_the_parser_and_nothing_else(
    offline: CommandLine, command: str, more: set[str]
):
    modules = loaded(offline, command)
    assert {name for name in modules if name.startswith("scheduler")} == more | {
        "scheduler",
        "scheduler.__main__",
        "scheduler.cli",
        "scheduler.cli.commands",
        "scheduler.errors",
    }
    assert not modules & {"aiormq", "asyncio", "croniter", "pydantic", "rich"}


BROKER = {"aiormq", "scheduler.control.verbs", "scheduler.processor"}


@pytest.mark.parametrize(
    ("command", "loads", "spares"),
    [
        ("seed --help", set[str](), {"shop", "aiormq"}),
        ("failed --help", set[str](), {"shop", "aiormq"}),
        ("status --help", set[str](), {"shop", "aiormq", "starlette", "scheduler.dashboard"}),
        ("next", {"scheduler.app", "pydantic"}, {"rich", "pydantic_settings"} | BROKER),
        ("topology show", {"rich"}, set[str]()),
        ("status", {"aiormq"}, set[str]()),
    ],
)
def test_a_command_loads_only_its_modules(
    offline: CommandLine, command: str, loads: set[str], spares: set[str]
):
    modules = loaded(offline, *command.split())
    assert loads <= modules
    assert not modules & spares


COMMAND = f"{Path(sys.executable).with_name('scheduler')} next {APPS}/quick.py:app"


def run(command: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of it."""
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True)


@pytest.mark.parametrize("command", [COMMAND, f"{COMMAND} -n 1000", f"{COMMAND} --json", "help"])
def test_output_that_cannot_be_written_is_reported_in_a_line(command: str):
    command = f"{COMMAND.split()[0]} --help" if command == "help" else command
    done = run(f"{command} >/dev/full")
    assert done.stderr == "scheduler: The output cannot be written: No space left on device.\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("closed", "code", "lines"),
    [(">&-", 0, 0), (">&- 2>&-", 0, 0), ("nothing >&- 2>&-", 2, 0), ("-n 1000 | head -n 1", 0, 1)],
)
def test_a_closed_stream_is_no_error(closed: str, code: int, lines: int):
    done = run(f"{COMMAND} {closed}")
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (code, lines, "")


def test_an_interrupt_while_the_program_is_loaded_is_no_error(monkeypatch: pytest.MonkeyPatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    commands = ModuleType("scheduler.cli.commands")
    monkeypatch.setattr(commands, "main", interrupted, raising=False)
    monkeypatch.setitem(sys.modules, "scheduler.cli.commands", commands)
    monkeypatch.setattr(threading, "enumerate", list)  # pytest has threads that do not end
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 130
