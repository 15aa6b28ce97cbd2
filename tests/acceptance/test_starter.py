"""What `scheduler init` writes runs, passes its test, and is never written over."""

import subprocess
import sys
from pathlib import Path

import yaml

from tests.acceptance.conftest import CommandLine


def test_a_first_app_runs_and_passes_its_test(tmp_path: Path) -> None:
    here = CommandLine(tmp_path)
    assert here("init", "my shop").code == 0
    folder = tmp_path / "my shop"
    shop = CommandLine(folder)
    with shop.terminal("dev", "jobs.py") as terminal:
        terminal.until("run 1\n")
        terminal.interrupt()
        done = terminal.end()
    assert (done.code, "count, greet of my-shop" in done.out) == (0, True)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 passed" in tested.stdout, tested.stdout + tested.stderr
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert services.keys() == {"rabbitmq", "processor"}


def test_no_file_is_written_over(tmp_path: Path) -> None:
    here = CommandLine(tmp_path)
    (tmp_path / "compose.yaml").write_text("mine")
    done = here("init")
    assert (done.code, "compose.yaml exists: nothing was written." in done.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["compose.yaml"]
    for folder in ("compose.yaml", "a" * 1000):
        assert "cannot be written to" in here("init", folder).err
