"""Where there is no POSIX, such as on Windows: what needs it is hidden from a Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
FUNCTIONS = ("fork", "forkpty", "geteuid", "getuid", "mkfifo", "register_at_fork", "setsid")
ELSEWHERE = f"""
import asyncio, os, subprocess, sys, sysconfig, tempfile
sys.modules |= dict.fromkeys({MODULES})
for name in {FUNCTIONS}:
    if hasattr(os, name):
        delattr(os, name)
asyncio.SelectorEventLoop.add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler
"""
IMPORT_ALL = """
import importlib, pkgutil, scheduler, tests.conftest, tests.stage, tests.faulty
for module in pkgutil.walk_packages(scheduler.__path__, "scheduler."):
    if module.name != "scheduler.__main__":
        importlib.import_module(module.name)
print(*(name for name in sys.modules if name.startswith("scheduler.")))
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of such a Python."""
    (tmp_path / "sitecustomize.py").write_text(ELSEWHERE)
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}


def test_every_module_can_be_imported(elsewhere: dict[str, str]):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{IMPORT_ALL}"],
        env=elsewhere,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {"scheduler.cli.processing", "scheduler.metrics"} <= set(done.stdout.split())


def test_an_app_is_developed(elsewhere: dict[str, str]):
    command = [sys.executable, "-m", "scheduler", "dev", "examples/heartbeat.py", "--for", "1100ms"]
    done = subprocess.run(command, cwd=ROOT, env=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0
    assert "beat #0  succeeded" in done.stderr
    assert done.stderr.endswith("stopped, 0 messages requeued\n")
