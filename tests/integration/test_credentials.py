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
from tests.stage import of

OLD, NEW = "old & 100% @/:?# é", "new & 100% @/:?# é"


async def test_a_changed_password_is_used_without_a_restart(
    namespace: str, proxy: Proxy, broker_url: str, users: Users, tmp_path: Path
) -> None:
    user = urlsplit(users.add(OLD, configure=".*", write=".*", read=".*")).username
    assert user
    file = tmp_path / "password"
    file.write_text(f"{OLD}\n")
    values: dict[str, Any] = {
        "broker_url": f"amqp://127.0.0.1:{proxy.port}{urlsplit(broker_url).path}",
        "broker_user": user,
        "broker_password_file": file,
    }
    app = Scheduler(namespace, Settings(**values))
    witness = Witness(app)
    async with broker_of(app.settings, emit=app.events.emit) as broker:
        assert await broker.depth("no such queue") is None
        users.set_password(user, NEW)
        proxy.cut()
        await witness.heard(ConnectionRetried, 2)
        file.write_text(f"{NEW}\n")
        await witness.heard(Connected, 1)
        assert await broker.depth("no such queue") is None
    reasons = [each.reason for each in of(ConnectionRetried, witness.events)]
    assert all(f"refused access for user {user!r}: ACCESS_REFUSED" in each for each in reasons)
    assert "100%" not in str(reasons)


async def test_a_client_that_waited_for_the_broker_does_not_retry_a_refusal(
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
