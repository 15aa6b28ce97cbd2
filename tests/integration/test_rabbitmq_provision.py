"""The brokers that the tests start: what the other tests take for granted."""

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import aiormq
import pytest
from aiormq.exceptions import ChannelAccessRefused, ProbableAuthenticationError

from tests.rabbitmq import (
    NoBroker,
    PrivateNode,
    Users,
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


async def test_the_shared_broker_takes_connections(broker_url: str) -> None:
    connection = await aiormq.connect(broker_url)
    await connection.close()


@pytest.mark.timeout(240)  # each of its commands is an Erlang of its own
async def test_users_can_be_made_without_the_management_api(node: PrivateNode) -> None:
    users = Users(node.ctl, node.url)
    url = users.add("old & odd/", configure="^mine$")
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    await channel.queue_declare("mine", exclusive=True)
    with pytest.raises(ChannelAccessRefused):
        await channel.queue_declare("theirs", exclusive=True)
    await connection.close()
    users.set_password(str(urlsplit(url).username), "new")
    with pytest.raises(ProbableAuthenticationError):
        await aiormq.connect(url)
    users.delete_all()


def test_a_node_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START_A_NODE_AND_DIE],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("amqp://"), done.stderr
    url, deadline = done.stdout.strip(), time.monotonic() + 10
    while (list(tmp_path.iterdir()) or answers(url)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())
    assert not answers(url)


def test_a_node_that_cannot_start_says_why() -> None:
    with pytest.raises(NoBroker, match="nonsense"), PrivateNode("nonsense = 1", management=False):
        pass
