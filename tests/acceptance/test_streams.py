"""Output that goes nowhere, and Ctrl-C before anything has begun."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scheduler import __main__ as program
from tests.acceptance.conftest import APPS

COMMAND = f"{Path(sys.executable).with_name('scheduler')} next {APPS}/quick.py:app"


def run(command: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of it."""
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True)


@pytest.mark.parametrize("command", [COMMAND, f"{COMMAND} -n 1000", f"{COMMAND} --json", "help"])
def test_what_cannot_be_written_is_told_in_a_line(command: str):
    command = f"{COMMAND.split()[0]} --help" if command == "help" else command
    done = run(f"{command} >/dev/full")
    assert done.stderr == "scheduler: The output cannot be written: No space left on device.\n"
    assert done.returncode == 1


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), (">&- 2>&-", 0), ("nothing >&- 2>&-", 2)])
def test_a_stream_that_is_closed_takes_everything(closed: str, code: int):
    done = run(f"{COMMAND} {closed}")
    assert (done.returncode, done.stderr) == (code, "")


def test_who_has_seen_enough_is_told_nothing():
    done = run(f"{COMMAND} -n 1000 | head -n 1")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_an_interrupt_while_the_program_is_loaded_is_no_error(monkeypatch: pytest.MonkeyPatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    commands = ModuleType("scheduler.cli.commands")
    monkeypatch.setattr(commands, "main", interrupted, raising=False)
    monkeypatch.setitem(sys.modules, "scheduler.cli.commands", commands)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 130
