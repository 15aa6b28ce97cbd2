"""The brokers that the tests start: what the other tests take for granted."""

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.rabbitmq import (
    NoBroker,
    PrivateNode,
    wait_for_amqp,
)

START_A_NODE_AND_DIE = """
import os, signal
from tests.rabbitmq import PrivateNode
node = PrivateNode(management=False)
node.start()
print(node.url, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def answers(url: str) -> bool:
    address = urlsplit(url)
    try:
        wait_for_amqp(str(address.hostname), address.port or 5672, timeout=0.5)
    except TimeoutError:
        return False
    return True


def test_a_node_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START_A_NODE_AND_DIE],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("amqp://"), done.stderr
    url, deadline = done.stdout.strip(), time.monotonic() + 60
    while (list(tmp_path.iterdir()) or answers(url)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())
    assert not answers(url)


def test_a_node_that_cannot_start_says_why() -> None:
    with pytest.raises(NoBroker, match="nonsense"), PrivateNode("nonsense = 1", management=False):
        pass
