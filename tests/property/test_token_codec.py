"""What holds for every token, and for whatever else arrives."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import Undecodable
from scheduler.protocol.epochs import Verb
from scheduler.protocol.messages import TRACE_HEADERS, Message
from scheduler.protocol.tokens import (
    TOKEN_TYPE,
    Act,
    Ending,
    LastRun,
    LoopId,
    Replay,
    State,
    Token,
    decode,
    encode,
)
from scheduler.timing.schedules import Cron, Every, Schedule

MS = timedelta(milliseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

moments = st.integers(0, 221_876_928_000_000).map(lambda ms: EPOCH + ms * MS)
spans = st.integers(0, 10**12).map(lambda ms: ms * MS)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
names = st.text("abcXYZ019_-", min_size=1, max_size=64)
# JSON has neither infinity nor NaN, and a surrogate is no character.
jsons = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
schedules: st.SearchStrategy[Schedule] = st.one_of(
    st.integers(100, 10**9).map(lambda ms: Every(ms * MS)),
    st.integers(100, 10**9).map(lambda ms: Every(ms * MS, mode="fixed_rate", catch_up="all")),
    st.integers(0, 59).map(lambda minute: Cron(f"{minute} 9 * * *", tz="Europe/Berlin")),
)
last_runs = st.builds(
    LastRun,
    *(st.sampled_from(Ending), moments, moments, spans, st.none() | texts, st.integers(1, 2**31)),
)
epochs = st.integers(0, 2**62)
tokens = st.builds(
    Token,
    loop=st.builds(LoopId, names, texts),
    schedule=schedules,
    scheduled_at=moments,
    due_at=moments,
    epoch=epochs,
    life=epochs,
    seq=st.integers(0, 2**62),
    attempt=st.integers(0, 2**31),
    returns=st.none() | st.integers(0, 2**31),
    state=st.sampled_from(State),
    args=st.dictionaries(texts, jsons, max_size=3),
    carry=jsons,
    reason=st.none() | texts,
    former=st.none() | st.lists(names, min_size=1, max_size=3).map(tuple),
    previous_at=st.none() | moments,
    last=st.none() | last_runs,
    act=st.none() | st.builds(Act, st.sampled_from(Verb), moments),
    trace=st.dictionaries(st.sampled_from(TRACE_HEADERS), texts),
)
tokens |= st.builds(replace, tokens, first=st.just(True))
tokens |= st.builds(Replay.of, st.builds(replace, tokens, state=st.just(State.ARMED)))


@given(tokens, names)
def test_every_token_comes_back_as_it_was_sent(token: Token, namespace: str):
    message = encode(token, namespace)
    assert decode(message, namespace) == token
    json.loads(message.body.decode())
    assert message.headers == token.trace


EVERY_MEMBER = Token(
    LoopId("report"),
    Every("1s"),
    EPOCH,
    EPOCH,
    reason="r",
    previous_at=EPOCH,
    first=True,
    last=LastRun(Ending.SUCCEEDED, EPOCH, EPOCH, MS, "e"),
    act=Act(Verb.PAUSE, EPOCH),
)
MEMBERS = sorted(json.loads(encode(EVERY_MEMBER, "shop").body))


def read(message: Message) -> Token | None:
    try:
        return decode(message, "shop")
    except Undecodable:
        return None


@given(st.binary(max_size=100))
def test_no_message_breaks_the_decoder(body: bytes):
    assert read(Message(body, type=TOKEN_TYPE)) is None


@given(tokens, jsons, st.dictionaries(st.sampled_from(MEMBERS), jsons, max_size=2))
def test_no_body_or_member_breaks_the_decoder(token: Token, value: Any, changed: dict[str, Any]):
    message = encode(token, "shop")
    body: Any = json.loads(message.body) | changed if changed else value
    decoded = read(replace(message, body=json.dumps(body).encode()))
    if decoded is not None:  # then it meant what it said
        read_back = json.loads(encode(decoded, "shop").body)
        plain = {name: value for name, value in changed.items() if value or value == 0}
        assert all(read_back[name] == plain[name] for name in plain.keys() & read_back.keys())


@given(tokens, st.data())
def test_no_cut_or_flipped_body_breaks_the_decoder(token: Token, data: st.DataObject):
    message = encode(token, "shop")
    body = bytearray(message.body[: data.draw(st.integers(0, len(message.body)))])
    if body:
        body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(0, 255))
    read(replace(message, body=bytes(body)))
