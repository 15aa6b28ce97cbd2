"""Which brokers are asked to leave messages out: a contract test needs one of each."""

import pytest

from scheduler.brokers.amqp.streams import filters
from scheduler.brokers.contract import BrokerInfo


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.10.8", False),
        ("3.13.7", False),  # where it is switched off, asking is refused
        ("4.0.5", True),
        ("4.1.0-beta.3", True),
        ("10.0", True),
        ("", False),
        ("unknown", False),
    ],
)
def test_a_broker_is_asked_to_filter_where_it_always_can(version: str, expected: bool) -> None:
    assert filters(BrokerInfo("RabbitMQ", version)) is expected
