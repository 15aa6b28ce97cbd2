"""Names that a shell completes, asked for as bash does: words, and which of them is begun."""

import socket
from pathlib import Path

import pytest

from tests.acceptance.conftest import APPS, FINE, LOOPS, SHOP, CommandLine

SHOP_ALONE = SHOP.removesuffix(":app")
NOISY = f"""
import sys
print("loading")
print("loading", file=sys.stderr)
sys.path.insert(0, {str(APPS)!r})
from shop import app
"""


def completed(command_line: CommandLine, *words: str, **environment: str) -> list[str]:
    """What a last word that is begun is completed to."""
    asked = {
        "_SCHEDULER_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(("scheduler", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = command_line(**asked, **environment)
    assert (done.code, done.err) == (FINE, "")
    return done.out.split()


def test_commands_options_and_loops_are_completed(offline: CommandLine):
    assert completed(offline, "sta") == ["status"]
    assert completed(offline, "failed", "re") == ["replay", "restore"]
    assert completed(offline, "status", "--w") == ["--watch"]
    for command in "pause", "resume", "trigger", "remove", "status", "history":
        assert completed(offline, command, SHOP_ALONE, "re") == ["report"]


def test_bash_splits_words_at_colons_and_asks_within_a_line(offline: CommandLine):
    file, attribute = SHOP.split(":")
    assert completed(offline, "pause", file, ":", attribute, "re") == ["report"]
    assert completed(offline, "pause", file, ":", attribute) == []
    asked = {"_SCHEDULER_COMPLETE": "complete_bash", "COMP_CWORD": "2", "SCHEDULER_APP": SHOP}
    done = offline(**asked, COMP_WORDS="scheduler\npause\nre\nshop.py\n:\napp")
    assert done.out.split() == ["report"]


def test_the_app_may_be_left_out(offline: CommandLine):
    assert completed(offline, "pause", "", SCHEDULER_APP=SHOP) == list(LOOPS)
    assert completed(offline, "pause", "report", "", SCHEDULER_APP=SHOP) == []
    assert completed(offline, "seed", "", SCHEDULER_APP=SHOP) == []  # it takes no loop
    assert completed(offline, "pause", "") == []
    assert completed(offline, "pause", "nowhere", ":", "app", "") == []


def test_tasks_are_completed(offline: CommandLine):
    for command in "list", "replay", "purge", "restore":
        assert completed(offline, "failed", command, SHOP_ALONE, "--task", "se") == ["sell"]
    assert completed(offline, "failed", "list", "--task", "se", SCHEDULER_APP=SHOP) == ["sell"]
    assert completed(offline, "run", SHOP_ALONE, "--tasks", "se") == ["sell"]


@pytest.mark.parametrize("code", ["def", "raise ValueError", "import sys; sys.exit('no')", ""])
def test_nothing_of_an_app_that_cannot_be_imported_is_completed(
    offline: CommandLine, tmp_path: Path, code: str
):
    (tmp_path / "broken.py").write_text(code)
    assert completed(offline, "pause", "broken.py", "") == []


def test_output_of_the_app_is_not_completed(offline: CommandLine, tmp_path: Path):
    (tmp_path / "noisy.py").write_text(NOISY)
    assert completed(offline, "pause", "noisy.py", "") == list(LOOPS)


def test_no_broker_is_asked(offline: CommandLine):
    with socket.create_server(("127.0.0.1", 0)) as broker:
        url = f"amqp://127.0.0.1:{broker.getsockname()[1]}/"
        assert completed(offline, "pause", SHOP_ALONE, "re", SCHEDULER_BROKER_URL=url) == ["report"]
        broker.setblocking(False)
        with pytest.raises(BlockingIOError):
            broker.accept()
