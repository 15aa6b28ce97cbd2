"""What a processor tells of the tokens that it has in hand, and which of them it holds for void."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from scheduler.processor import recognition
from scheduler.processor.recognition import LoopTurns
from scheduler.protocol.epochs import Entry, LoopState, Position
from scheduler.protocol.tokens import LoopId, Replay, Token
from scheduler.queues.entries import RosterEntry
from scheduler.queues.listing import Listing
from scheduler.queues.roll_call import InHand
from scheduler.timing.schedules import Every
from tests.stage import START

LOOP = LoopId("task")
TOKEN = Token(LOOP, Every("1h"), START, START, epoch=4, seq=7, attempt=1)
REPLAY = Replay.of(replace(TOKEN, epoch=0))
HERE = Position(4, 7, 1)


@asynccontextmanager
async def taken(turns: LoopTurns, token: Token) -> AsyncGenerator[None]:
    end = await turns.take(token)
    try:
        yield
    finally:
        end()


async def test_a_token_is_held_from_delivery_to_settlement() -> None:
    turns = LoopTurns(Listing())
    assert turns.in_hand(LOOP) == []
    async with taken(turns, TOKEN):
        assert turns.in_hand(LOOP) == [InHand(HERE)]
        turns.begin(TOKEN)
        assert turns.in_hand(LOOP) == [InHand(HERE, running=True)]
    assert turns.in_hand(LOOP) == []


async def test_one_token_of_a_loop_runs_at_a_time_and_all_are_reported() -> None:
    turns, first, had_it = LoopTurns(Listing()), replace(TOKEN, epoch=5, first=True), list[int]()

    async def take(token: Token) -> None:
        async with taken(turns, token):
            had_it.append(token.epoch)

    async with taken(turns, TOKEN):
        turns.begin(TOKEN)
        waiting = asyncio.create_task(take(first))
        await asyncio.sleep(0)
        unjoined = InHand(Position(5, 7, 1, joined=False))
        assert turns.in_hand(LOOP) == [InHand(HERE, running=True), unjoined]
        assert had_it == []
    await waiting
    assert had_it == [5]


async def test_a_replay_runs_next_to_its_loop_and_is_not_reported() -> None:
    turns = LoopTurns(Listing())
    async with taken(turns, REPLAY):
        turns.begin(REPLAY)
        assert turns.in_hand(LOOP) == []


def test_a_token_is_void_once_a_later_epoch_is_known() -> None:
    by_roster, by_roll_call = Listing(), LoopTurns(Listing())
    by_roster.enter(RosterEntry(LOOP, Every("1h"), {}, Entry(5, LoopState.ACTIVE, 1)))
    by_roll_call.learn(LOOP, 5)
    for turns in LoopTurns(by_roster), by_roll_call:
        assert turns.known(LOOP) == 5
        assert turns.is_void(TOKEN)
        assert not turns.is_void(replace(TOKEN, epoch=5))
        assert not turns.is_void(replace(TOKEN, loop=LoopId("other")))
        assert not turns.is_void(REPLAY)


def test_a_token_is_behind_if_it_or_a_later_one_was_settled_in_its_epoch() -> None:
    turns = LoopTurns(Listing())
    assert not turns.is_behind(TOKEN)
    turns.settle(TOKEN)
    for number in range(5_000):
        turns.settle(replace(TOKEN, loop=LoopId("task", str(number)), epoch=9))
    retry, later = replace(TOKEN, attempt=2), replace(TOKEN, epoch=5, seq=0)
    for behind in TOKEN, replace(TOKEN, attempt=0), replace(TOKEN, seq=6, attempt=3):
        assert turns.is_behind(behind)
    for ahead in retry, replace(TOKEN, seq=8, attempt=0), later, replace(TOKEN, epoch=3):
        assert not turns.is_behind(ahead)
    turns.settle(replace(REPLAY, epoch=4, seq=9))
    assert not turns.is_behind(retry)
    turns.settle(later)
    assert turns.is_behind(later)


def test_the_loops_settled_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, others = LoopTurns(Listing()), [replace(TOKEN, loop=LoopId("task", k)) for k in "ab"]
    monkeypatch.setattr(recognition, "MOST_REMEMBERED", 2)
    for token in TOKEN, others[0], TOKEN, others[1]:
        turns.settle(token)
    assert [turns.is_behind(token) for token in (TOKEN, *others)] == [True, False, True]
