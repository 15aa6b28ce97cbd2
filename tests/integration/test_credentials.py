"""A password that is changed while a processor is connected."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from scheduler import Scheduler, Settings
from scheduler.brokers.opening import broker_of
from scheduler.errors import AccessRefused
from scheduler.events import Connected, ConnectionRetried
from tests.contract.proxy import Proxy
from tests.integration.witness import Witness
from tests.rabbitmq import Users, free_ports

OLD, NEW = "old & 100% @/:?# é", "new & 100% @/:?# é"


@pytest.fixture
def user(users: Users) -> str:
    """The name of a user whose password is the old one."""
    name = urlsplit(users.add(OLD, configure=".*", write=".*", read=".*")).username
    assert name
    return name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return holding(OLD, tmp_path / "password")


def holding(password: str, file: Path) -> Path:
    file.write_text(f"{password}\n")
    return file


@pytest.fixture
def app(namespace: str, proxy: Proxy, broker_url: str, user: str, file: Path) -> Scheduler:
    values: dict[str, Any] = {
        "broker_url": f"amqp://127.0.0.1:{proxy.port}{urlsplit(broker_url).path}",
        "broker_user": user,
        "broker_password_file": file,
    }
    return Scheduler(namespace, Settings(**values))


async def test_a_changed_password_is_taken_without_a_restart(
    app: Scheduler, proxy: Proxy, users: Users, user: str, file: Path
) -> None:
    witness = Witness(app)
    async with broker_of(app.settings, emit=app.events.emit) as broker:
        assert await broker.depth("no such queue") is None
        users.set_password(user, NEW)
        proxy.cut()
        await witness.heard(ConnectionRetried, 2)
        holding(NEW, file)
        await witness.heard(Connected, 1)
        assert await broker.depth("no such queue") is None
    told = [each for each in witness.events if isinstance(each, ConnectionRetried)]
    assert all(f"refused access for user {user!r}: ACCESS_REFUSED" in each.reason for each in told)
    assert not [each for each in told if "100%" in repr(each)]


async def test_who_had_to_wait_for_the_broker_is_not_patient_with_a_refusal_either(
    namespace: str, broker_url: str
) -> None:
    (port,) = free_ports(1)
    url: Any = f"amqp://mallory:{quote(OLD, safe='')}@127.0.0.1:{port}/"
    app = Scheduler(namespace, Settings(broker_url=url))
    witness = Witness(app)

    async def open_and_close() -> None:
        async with broker_of(app.settings, emit=app.events.emit, patient=True):
            pass

    opening = asyncio.create_task(open_and_close())
    await witness.heard(ConnectionRetried, 1)
    address = urlsplit(broker_url)
    async with Proxy(str(address.hostname), address.port or 5672, listen_on=port):
        with pytest.raises(AccessRefused, match="refused access for user 'mallory'"):
            await opening
