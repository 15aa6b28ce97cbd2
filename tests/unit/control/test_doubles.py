"""Loops with two lines, as after a node of the broker handed a token out twice, in virtual time."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler import Context, Every, Scheduler
from scheduler.control.doubles import Doubles, Trail
from scheduler.errors import BrokerUnavailable
from scheduler.events import SupervisionDelayed
from scheduler.protocol.epochs import Verb
from scheduler.protocol.tokens import Act, Ending, LastRun, LoopId, Token, encode
from scheduler.timing.durations import SECOND
from scheduler.timing.moments import milliseconds_since_epoch
from tests.faulty import FaultyBroker
from tests.stage import START, Stage, new_app, of

LOOP, NAME = LoopId("task", "k"), "task.k"  # without a slot: the journal alone hears of it
EPOCH = 7
NONE: Mapping[str, str] = {}
ROUND = 15.0
AWHILE = 6.0  # what is older than this when the journal is read, is not read again by time


def a_put(seq: int, *, started: float = 0, took: float = 20, wait: float = 5, **more: Any) -> Token:
    """What a run has put: seconds since the beginning, and of time."""
    began, ended = START + started * SECOND, START + (started + took) * SECOND
    last = LastRun(Ending.SUCCEEDED, began, began, ended - began)
    token = Token(
        LOOP, Every("5s"), ended, ended + wait * SECOND, epoch=EPOCH, life=1, seq=seq, last=last
    )
    return replace(token, **more)


class Namespace:
    """A namespace whose journal hears what the test puts, and is read now and then."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.doubles = Doubles(stage.journal, stage.clock)
        self.trail = Trail()

    async def puts(
        self, *tokens: Token, wait: float = 5, members: Mapping[str, str] = NONE
    ) -> None:
        names = self._stage.app.names
        for token in tokens:
            message = encode(token, names.namespace, expiration=wait * SECOND)
            body = json.dumps({**json.loads(message.body), **members}).encode()
            message = replace(message, body=body)
            await self._stage.publish(message, f"loop.{NAME}", names.scheduler)

    def lose_place(self) -> None:
        """As after a reading that was not to the end."""
        self.trail = self.trail.model_copy(update={"reached": None})

    async def found(self, epoch: int = EPOCH) -> Mapping[LoopId, int]:
        found, self.going, self.trail = await self.doubles.found(self.trail, lambda _: epoch)
        return found


@pytest.fixture
async def namespace_(stage: Stage) -> Namespace:
    await stage.seed(new_app())
    return Namespace(stage)


NOBODY = frozenset[LoopId]()
ONE_LINE = a_put(4), a_put(5, started=25), a_put(5, started=50, attempt=1), a_put(6, started=71)


async def test_a_line_is_none_of_two(namespace_: Namespace) -> None:
    await namespace_.puts(*ONE_LINE)
    assert await namespace_.found() == {}


@pytest.mark.parametrize("seq", [4, 5])
async def test_a_put_that_is_not_ahead_is_of_another_line(namespace_: Namespace, seq: int) -> None:
    await namespace_.puts(a_put(4), a_put(5, started=25), a_put(seq, started=30))
    assert await namespace_.found() == {LOOP: EPOCH}


async def test_of_an_epoch_that_is_not_current_nothing_is_asked(namespace_: Namespace) -> None:
    await namespace_.puts(a_put(4), a_put(4, started=1))
    assert await namespace_.found(EPOCH + 1) == {}


async def test_an_epoch_that_begins_from_less_is_not_compared_with_the_one_before(
    namespace_: Namespace,
) -> None:
    await namespace_.puts(a_put(4), a_put(1, epoch=EPOCH + 1))
    assert await namespace_.found(EPOCH + 1) == {}


async def test_a_late_put_of_an_older_epoch_does_not_hide_what_was_heard(
    namespace_: Namespace,
) -> None:
    await namespace_.puts(a_put(4), a_put(9, epoch=EPOCH - 1), a_put(4, started=1))
    assert await namespace_.found() == {LOOP: EPOCH}


async def test_what_is_published_again_is_of_the_same_line(namespace_: Namespace) -> None:
    await namespace_.puts(a_put(4))
    await namespace_.puts(a_put(4), wait=3)
    assert await namespace_.found() == {}
    await namespace_.puts(a_put(4), wait=2)
    assert await namespace_.found() == {}


@pytest.mark.parametrize(
    ("puts", "going"),
    [
        (ONE_LINE, frozenset([LOOP])),
        ([a_put(4), a_put(4, started=1, attempt=1)], frozenset([LOOP])),
        ([a_put(4)], NOBODY),
        ([a_put(4), a_put(4)], NOBODY),  # its slot keeps refusing it
        ([a_put(4), a_put(5, epoch=EPOCH + 1)], NOBODY),  # of which no run is known
        ([a_put(4, epoch=EPOCH - 1), a_put(5)], NOBODY),
        ([a_put(4, epoch=EPOCH - 1), a_put(5, epoch=EPOCH - 1)], NOBODY),
        ([a_put(4), a_put(5, started=25), a_put(4, started=30)], NOBODY),  # it has two lines
    ],
)
async def test_a_loop_goes_on_that_has_put_twice_what_follows_each_other(
    namespace_: Namespace, puts: Sequence[Token], going: frozenset[LoopId]
) -> None:
    await namespace_.puts(*puts)
    await namespace_.found()
    assert namespace_.going == going


async def test_what_was_heard_before_is_no_sign_that_a_loop_still_goes_on(
    namespace_: Namespace,
) -> None:
    await namespace_.puts(*ONE_LINE)
    await asyncio.sleep(10)
    await namespace_.found()
    await namespace_.puts(a_put(7, started=96))
    await namespace_.found()
    assert namespace_.going == NOBODY


PUT_BY_OTHERS = [
    {"act": Act(Verb.PAUSE, START)},
    {"first": True},
]


@pytest.mark.parametrize("fields", PUT_BY_OTHERS)
async def test_what_no_run_put_is_of_no_line(namespace_: Namespace, fields: Any) -> None:
    await namespace_.puts(a_put(4), a_put(3, started=1, **fields))
    assert await namespace_.found() == {}


async def test_what_is_no_token_is_of_no_line(namespace_: Namespace) -> None:
    await namespace_.puts(a_put(4))
    await namespace_.puts(a_put(3, started=1), members={"seq": "many"})
    assert await namespace_.found() == {}


# From one reading to the next


async def test_lines_of_which_each_reading_hears_one_are_told_apart(namespace_: Namespace) -> None:
    await namespace_.puts(a_put(4))
    assert await namespace_.found() == {}
    await asyncio.sleep(3600)
    await namespace_.puts(a_put(4, started=10))
    assert await namespace_.found() == {LOOP: EPOCH}


async def test_what_is_read_again_is_of_no_other_line(namespace_: Namespace) -> None:
    await namespace_.puts(*ONE_LINE)
    assert await namespace_.found() == {}
    assert await namespace_.found() == {}
    await namespace_.puts(a_put(7, started=100))
    assert await namespace_.found() == {}


async def test_a_loop_whose_lines_meet_in_the_slot_need_not_be_remembered(
    namespace_: Namespace,
) -> None:
    await namespace_.puts(a_put(4, took=20, wait=20))
    await namespace_.found()
    assert list(namespace_.trail.last) == [NAME]
    await namespace_.puts(a_put(5, started=40, took=19, wait=20))
    await namespace_.found()
    assert namespace_.trail.last == {}


async def test_no_more_is_remembered_than_a_token_can_carry(
    namespace_: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.control.doubles.REMEMBERED", 2)
    for keys in (("a", "b"), ("c",)):
        await namespace_.puts(*(a_put(4, loop=LoopId("task", key)) for key in keys))
        await asyncio.sleep(AWHILE)
        await namespace_.found()
    assert list(namespace_.trail.last) == ["task.c", "task.a"]


# How much is read


async def test_what_the_last_reading_has_read_is_not_read_again(
    namespace_: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await namespace_.puts(a_put(4))
    await asyncio.sleep(AWHILE)
    await namespace_.found()
    monkeypatch.setattr("scheduler.control.doubles.MOST_READ", 2)
    await namespace_.puts(a_put(5, started=25), a_put(5, started=26))
    assert await namespace_.found() == {LOOP: EPOCH}


@pytest.mark.parametrize(("seconds", "is_read"), [(-0.5, True), (0.5, False)])
async def test_it_is_not_read_further_back_than_five_minutes_and_what_clocks_may_differ(
    namespace_: Namespace, seconds: float, is_read: bool
) -> None:
    await namespace_.puts(a_put(4))
    await asyncio.sleep(5 * 60 + 5 + seconds)
    await namespace_.puts(a_put(4, started=1))
    assert bool(await namespace_.found()) is is_read


async def test_one_whose_clock_was_ahead_has_the_next_one_leave_nothing_out(
    stage: Stage, namespace_: Namespace
) -> None:
    ahead = milliseconds_since_epoch(stage.clock.now()) + 3_600_000
    namespace_.trail = Trail(read_at_ms=ahead)
    await namespace_.puts(a_put(4), a_put(4, started=1))
    assert await namespace_.found() == {LOOP: EPOCH}


async def test_of_too_many_messages_some_are_left_out_and_what_they_leave_open_is_not_told(
    namespace_: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.sleep(AWHILE)
    await namespace_.puts(a_put(4), a_put(5, started=25))
    await namespace_.found()
    for most, found in ((1, {}), (2, {})):  # 4 is read again, and 5 after it or not
        monkeypatch.setattr("scheduler.control.doubles.MOST_READ", most)
        namespace_.lose_place()
        assert await namespace_.found() == found
    await namespace_.puts(a_put(5, started=26))
    for most, found in ((2, {}), (3, {LOOP: EPOCH})):
        monkeypatch.setattr("scheduler.control.doubles.MOST_READ", most)
        namespace_.lose_place()
        assert await namespace_.found() == found


async def test_a_reading_goes_on_where_the_last_one_came_to_the_end(namespace_: Namespace) -> None:
    assert namespace_.trail.reached is None
    await namespace_.puts(a_put(4))
    await namespace_.found()
    assert (reached := namespace_.trail.reached) is not None
    await namespace_.found()
    assert namespace_.trail.reached == reached
    await namespace_.puts(a_put(5, started=25))
    await namespace_.found()
    assert namespace_.trail.reached > reached
    assert namespace_.going == set()  # 4, which went before it, was heard by another reading


async def test_a_place_that_is_too_long_ago_is_none(namespace_: Namespace) -> None:
    await namespace_.puts(a_put(4))
    await namespace_.found()
    await namespace_.puts(a_put(4, started=1))
    await asyncio.sleep(5 * 60 + 6)
    assert await namespace_.found() == {}


async def test_of_what_was_left_out_the_next_reading_begins_at_a_time(
    namespace_: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.control.doubles.MOST_READ", 1)
    await namespace_.puts(a_put(4), a_put(5, started=25))
    await namespace_.found()
    assert namespace_.trail.reached is None


# In supervision


def overlapping() -> tuple[Scheduler, list[int], list[int]]:
    """An app whose runs take longer than its waits; the ticks that ran, and how many at once."""
    app, ticks, at_once = new_app(), list[int](), [0]

    @app.periodic(every="5s")
    async def task(ctx: Context) -> None:
        ticks.append(ctx.seq)
        at_once.append(at_once[-1] + 1)
        await asyncio.sleep(20)
        at_once.append(at_once[-1] - 1)

    return app, ticks, at_once


async def hand_out_twice(stage: Stage, loop: LoopId) -> None:
    """Have a token come to a second processor, ten seconds after the first one has begun with it.

    The two lines of a loop of `overlapping` never meet in the slot then.
    """
    names = stage.app.names
    delivery = await stage.broker.get(names.hatchery(loop))
    assert delivery is not None
    await delivery.requeue()
    await asyncio.sleep(15)
    await stage.publish(delivery.message, delivery.routing_key)


async def test_two_lines_that_never_meet_in_the_slot_end_within_two_rounds(stage: Stage) -> None:
    app, ticks, at_once = overlapping()
    await stage.seed(app)
    async with stage.supervised(), stage.supervised():
        await hand_out_twice(stage, LoopId("task"))
        await asyncio.sleep(20)  # until the second one is settled
        assert stage.repairs() == []
        await asyncio.sleep(2 * ROUND)
        assert stage.repairs() == [("task", "doubled")]
        assert max(at_once) == 2
        del ticks[:-1], at_once[:-1]
        await asyncio.sleep(300)
    ended = at_once.index(0)  # the runs of both
    assert max(at_once[ended:]) == 1
    assert ticks == [*range(ticks[0], ticks[0] + len(ticks))]
    assert len(ticks) > 10
    assert stage.repairs() == [("task", "doubled")]


async def test_a_round_that_cannot_read_the_journal_repairs_what_is_lost_and_tells_of_it(
    stage: Stage,
) -> None:
    app = new_app()

    @app.periodic(every="1h")
    async def task() -> None: ...

    await stage.seed(app)
    await stage.lose(LoopId("task"))
    broker = FaultyBroker(stage.server)
    cut_off = broker.on("read", ".journal").fails(BrokerUnavailable("It is cut off."))
    async with stage.supervised(over=broker):
        await asyncio.sleep(2 * ROUND + 2)
        assert stage.repairs() == [("task", "lost")]
        assert {event.reason for event in of(SupervisionDelayed, stage.events)} == {
            "It is cut off."
        }
        await cut_off.cease()
        await asyncio.sleep(ROUND)
