"""Laws of how messages travel: nothing is lost, and nothing that comes breaks the reader."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.brokers.properties import decoded, encoded
from scheduler.protocol.messages import Message

TEXTS = st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape"))
MOMENTS = st.datetimes(
    min_value=datetime(1970, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    timezones=st.just(UTC),
).map(lambda moment: moment.replace(microsecond=0))
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(min_value=-1000, max_value=1000, places=3).map(Decimal.normalize),
    TEXTS,
    st.binary(max_size=40),
    MOMENTS,
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
KNOWN = {"CC", "BCC", "scheduler-cc", "scheduler-bcc"}
HEADERS = st.dictionaries(TEXTS.filter(lambda name: name not in KNOWN), VALUES, max_size=6)


@given(HEADERS, st.one_of(st.none(), TEXTS.filter(bool)), st.integers(0, 255), MOMENTS)
def test_every_message_comes_back_as_it_was_sent(
    headers: dict[str, Any], message_id: str | None, priority: int, moment: datetime
) -> None:
    message = Message(
        headers=headers, message_id=message_id, priority=priority, timestamp=moment, type="t"
    )
    assert decoded(encoded(message)) == message


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader_and_what_is_read_can_be_sent_on(properties: bytes) -> None:
    message = decoded(properties)
    assert decoded(encoded(message)) == message


@given(HEADERS, st.data())
def test_no_cut_or_flipped_bytes_break_the_reader(headers: dict[str, Any], data: Any) -> None:
    properties = bytearray(encoded(Message(headers=headers, message_id="m")))
    properties[data.draw(st.integers(0, len(properties) - 1))] = data.draw(st.integers(0, 255))
    message = decoded(bytes(properties[: data.draw(st.integers(0, len(properties)))]))
    assert decoded(encoded(message)) == message
