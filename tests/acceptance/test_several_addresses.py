"""A broker that several addresses are named of, most of which nobody listens at."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.conftest import LOOPS, SHOP, CommandLine
from tests.rabbitmq import Users
from tests.stage import an_app
from tests.sweep import clear

PASSWORD = "open-sesame-17"
DEAD = (1, 2, 3)  # ports that nobody listens on: the order is random, so the first is one of them
FINE = 0


@pytest.fixture
def cluster(broker_url: str, namespace: str, users: Users, tmp_path: Path) -> Iterator[CommandLine]:
    alive = users.add(PASSWORD, configure=".*", write=".*", read=".*")
    address = urlsplit(alive)
    dead = [alive.replace(f":{address.port}", f":{port}") for port in DEAD]
    yield CommandLine(
        tmp_path,
        SCHEDULER_BROKER_URL=",".join([*dead, alive]),
        SCHEDULER_APP=SHOP,
        SHOP_NAMESPACE=namespace,
    )
    asyncio.run(clear(broker_url, an_app(namespace, LOOPS).topology()))


def test_commands_find_the_address_that_is_alive_and_tell_no_password(cluster: CommandLine):
    seed, status, doctor = cluster("seed"), cluster("status"), cluster("doctor")
    assert (seed.code, status.code, doctor.code) == (FINE, FINE, FINE), doctor.output
    found = " ".join(doctor.out.split())
    assert "warning addresses of the broker: 3 of 4 cannot be used: Cannot connect to" in found
    assert [port for port in DEAD if f"@127.0.0.1:{port}/: " not in found] == []
    assert "Fix it or remove it from SCHEDULER_BROKER_URL." in found
    assert PASSWORD not in seed.output + status.output + doctor.output
