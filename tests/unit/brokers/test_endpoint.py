"""What is said where nobody can be connected to."""

from datetime import timedelta

import pytest

from scheduler import Settings
from scheduler.brokers.amqp import driver
from scheduler.brokers.amqp.endpoint import Endpoint
from scheduler.brokers.amqp.tls import Tls
from scheduler.brokers.credentials import parse_url
from scheduler.errors import BrokerUnavailable

DEFAULT = Settings.model_fields["broker_url"].default.get_secret_value()


@pytest.mark.parametrize(
    ("url", "advised"),
    [
        (DEFAULT, True),
        ("amqp://shop:secret@localhost/shop", True),
        ("amqp://broker/", False),
        ("amqp://localhost:5673/", False),
    ],
)
async def test_where_nothing_is_at_the_default_address_it_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, url: str, advised: bool
) -> None:
    async def refuse(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connect call failed")

    monkeypatch.setattr(driver, "connect", refuse)
    endpoint = Endpoint(lambda: parse_url(url), tls=Tls(), heartbeat=timedelta(seconds=20))
    with pytest.raises(BrokerUnavailable) as refused:
        await endpoint.connect()
    told = str(refused.value)
    assert "Connect call failed." in told
    for words in ("SCHEDULER_BROKER_URL", "docker run", "`scheduler dev`"):
        assert (words in told) is advised
