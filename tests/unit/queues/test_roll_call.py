"""Telling all processors at once, and asking them, on the embedded broker and in virtual time."""

import asyncio
import json
from importlib.metadata import version
from typing import Any

import pytest

from scheduler.errors import QueueNotFound, Unconfirmed
from scheduler.protocol.epochs import Answer, Position, awaited, unaware
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.queues.about import DISTRIBUTION, About
from scheduler.queues.roll_call import (
    ANSWER,
    GOODBYE,
    QUESTION,
    TIMEOUT,
    Answers,
    Attendance,
    Holdings,
    InHand,
    RollCall,
)
from scheduler.timing.moments import milliseconds_since_epoch
from tests.faulty import Call
from tests.stage import START
from tests.unit.queues.conftest import NAMES, Hand, Room, took

A, B, C = LoopId("a"), LoopId("a", "key"), LoopId("c")
A3 = InHand(Position(7, 3))
A3_RUNS = InHand(Position(7, 3), running=True)
A4 = InHand(Position(7, 4, attempt=2), running=True)
B_FIRST = InHand(Position(9, 2, joined=False))


@pytest.mark.parametrize(
    ("hands", "told"),
    [
        ([Hand({A: [A3]}), Hand({B: [B_FIRST]})], {A: [A3], B: [B_FIRST]}),
        ([Hand({A: [A3, A4]}), Hand({A: [A3_RUNS]})], {A: [A3, A4, A3_RUNS], B: []}),
        ([Hand({C: [A3]})], {A: [], B: []}),
    ],
)
async def test_the_tokens_held_by_all_processors_are_collected(
    room: Room, hands: list[Hand], told: dict[LoopId, list[InHand]]
) -> None:
    processors = [each.processor for each in await room.seat(*hands)]
    answers = await room.ask(A, B)
    assert answers.complete
    assert set(answers.said) == set(processors)
    found = {loop: sorted(answers.tokens(loop)) for loop in (A, B)}
    assert found == {loop: sorted(tokens) for loop, tokens in told.items()}


@pytest.mark.parametrize(
    ("hands", "answer"),
    [
        ([A3], Answer(5)),
        ([A3_RUNS], Answer(5, running=7)),
        ([InHand(Position(4, 9), running=True), A3_RUNS], Answer(5, running=4)),
        ([InHand(Position(2, 9)), A3_RUNS], Answer(5, running=7)),
    ],
)
async def test_an_answer_has_the_oldest_run(
    room: Room, hands: list[InHand], answer: Answer
) -> None:
    (processor,) = await room.seat(Hand({A: hands}))
    assert (await room.ask(A)).of(A, 5) == {processor.processor: answer}


async def test_the_answers_are_incomplete_if_one_does_not_answer_in_time(room: Room) -> None:
    mute = await room.connect()
    mute.on("publish", NAMES.control).hangs()
    async with RollCall(mute, NAMES, Hand({A: [A4]})):
        (other,) = await room.seat(Hand({A: [A3]}))
        asking = asyncio.create_task(room.ask(A))
        await asyncio.sleep(0.1)
        to_another = json.dumps({"hands": [["a", "", 9, 9, 0, 0, 1]]}).encode()
        properties = {"correlation_id": "an earlier question", "app_id": other.processor}
        await room.say(to_another, type=ANSWER, **properties)
        answers = await asking
        assert took() == pytest.approx(TIMEOUT.total_seconds())
    assert (answers.complete, answers.expected, answers.silent) == (False, 2, 1)
    assert list(answers.tokens(A)) == [A3]
    said = answers.of(A, 5)
    assert unaware(5, said) == awaited(5, said) == ["an unknown processor (1)"]


async def test_a_silent_processor_that_answered_before_is_named(room: Room) -> None:
    mute = await room.connect()
    (other,) = await room.seat(Hand())
    async with RollCall(mute, NAMES, Hand()) as silent:
        async with RollCall(await room.connect(), NAMES, Hand()):
            assert (await room.ask(A)).unheard == []
        mute.on("publish", NAMES.control).hangs()
        assert (await room.ask(A)).unheard == [silent.processor]
        for _ in range(10):  # as whoever waits for it does
            assert (await other.ask_all({A: 5})).unheard == [silent.processor]
        async with RollCall(await room.connect(), NAMES) as newcomer:  # who reads what was said
            assert (await newcomer.ask_all({A: 5})).unheard == [silent.processor]


@pytest.mark.parametrize(
    ("expected", "answered", "missing", "unheard"),
    [
        (3, 1, ["b", "a"], ["a", "b"]),
        (3, 1, ["a"], ["a", "an unknown processor (2)"]),
        (2, 1, ["b", "a"], ["1 of a, b"]),
    ],
)
def test_silent_processors_are_named_as_far_as_they_are_known(
    expected: int, answered: int, missing: list[str], unheard: list[str]
) -> None:
    said = {f"here {number}": Holdings() for number in range(answered)}
    assert Answers(expected, said, missing=missing).unheard == unheard


async def test_the_answer_of_a_new_processor_does_not_stand_for_a_silent_one(room: Room) -> None:
    mute = await room.connect()
    mute.on("publish", NAMES.control).hangs()

    async def seat_another(call: Call) -> None:
        await room.seat(Hand())

    async with RollCall(mute, NAMES, Hand()):
        room.broker.on("publish", NAMES.control, times=1).first(seat_another)
        answers = await room.ask(A)
    assert (len(answers.said), answers.silent) == (1, 1)


async def test_an_unpublished_question_gets_no_answer(room: Room) -> None:
    await room.seat(Hand())
    room.broker.on("publish", NAMES.control).fails(Unconfirmed())
    assert (await room.ask(A)).silent == 1


async def test_a_processor_follows_the_questions_before_it_is_counted(room: Room) -> None:
    broker, counted_at_first = await room.connect(), list[int]()
    following = broker.follow

    async def follow(*args: Any, **options: Any) -> Any:
        counted_at_first.append(await room.present())
        return await following(*args, **options)

    broker.follow = follow  # pyright: ignore[reportAttributeAccessIssue]
    async with RollCall(broker, NAMES, Hand()) as processor:
        assert (counted_at_first, processor.present) == ([0], True)
        assert await room.present() == 1
    assert (await room.present(), processor.present) == (0, False)


async def test_a_processor_that_has_left_neither_answers_nor_is_waited_for(room: Room) -> None:
    async with RollCall(room.broker, NAMES, hand := Hand({A: [A3]})):
        assert list((await room.ask(A)).tokens(A)) == [A3]
    assert (await room.ask(A)).expected == 0
    await room.ask_by_hand({A: 6})
    assert (await room.said(), hand.epochs) == ([QUESTION, ANSWER, GOODBYE, QUESTION], {A: 5})


async def test_a_processor_that_lost_its_place_does_not_answer(room: Room) -> None:
    """Counted again it is by the broker alone."""
    (processor,) = await room.seat(Hand({A: [A3]}))
    await room.broker.delete(NAMES.presence)
    assert not processor.present
    await room.ask_by_hand({A: 5})
    assert await room.said() == ["scheduler.question"]
    with pytest.raises(QueueNotFound, match="processors cannot be asked"):
        await room.ask(A)


async def test_questions_at_the_same_time_are_asked_as_one(room: Room) -> None:
    hand = Hand({A: [A3], B: [B_FIRST]}, epochs={C: 9})
    await room.seat(hand)
    asked = [{A: 6}, {B: 5}, {C: 5}, {A: 5}]
    answer, *others = await asyncio.gather(*map(room.asking.ask_all, asked))
    assert others == [answer] * 3
    assert await room.said() == ["scheduler.question", "scheduler.answer"]
    found = {loop: list(answer.tokens(loop)) for loop in (A, B, C)}
    assert found == {A: [A3], B: [B_FIRST], C: []}
    assert answer.known == {C: 9}
    assert hand.epochs == {A: 6, B: 5, C: 9}
    await room.ask(A)
    assert len(await room.said()) == 4


async def test_messages_that_cannot_be_read_are_ignored(room: Room) -> None:
    hand = Hand({A: [A3]})
    await room.seat(hand)
    asking = asyncio.create_task(room.ask(A))
    await asyncio.sleep(0.001)
    bodies = (b"\xff", b"[]", b'{"loops": [["a", "", "x"]]}', b'{"hands": [["a", "", 9, 9]]}')
    await room.say_nonsense(("question", "answer", "other"), bodies)
    answers = await asking
    assert (answers.complete, list(answers.tokens(A)), hand.epochs) == (True, [A3], {A: 5})


async def test_the_answer_of_an_older_version_counts(room: Room) -> None:
    async with RollCall(await room.connect(), NAMES, Hand()) as older:

        async def told() -> dict[str, Any]:
            return {"hands": []}

        older.on(
            QUESTION,
            lambda message: older.answer(ANSWER, message.correlation_id or "", told()),
        )
        answers = await room.ask(A)
    assert answers.complete
    assert answers.said == {older.processor: Holdings(About())}


async def test_the_members_of_a_question_and_an_answer(room: Room) -> None:
    hand = Hand({A: [A4], B: [B_FIRST]}, epochs={A: 8})
    async with RollCall(await room.connect(), NAMES, hand, START) as processor:
        answers = await room.asking.ask_all({A: 7, B: 9})
    about = About(version(DISTRIBUTION), START)
    held = Holdings(about, {A: [A4], B: [B_FIRST]}, {A: 8})
    assert answers.said == {processor.processor: held}
    question, answer, _ = await room.all_said()
    assert answer.app_id == processor.processor
    assert json.loads(question.body) == {"loops": [["a", "", 7], ["a", "key", 9]]}
    assert json.loads(answer.body) == {
        "version": version(DISTRIBUTION),
        "since_ms": milliseconds_since_epoch(START),
        "known": [["a", "", 8]],
        "hands": [["a", "", 7, 4, 2, 0, 1], ["a", "key", 9, 2, 0, 1, 0]],
    }
    assert question.correlation_id == answer.correlation_id


def attendance(*said: str) -> Attendance:
    """What is known after a question ("?"), answers ("a") and goodbyes ("-a")."""
    attendance = Attendance()
    for each in said:
        kind = QUESTION if each == "?" else GOODBYE if each.startswith("-") else ANSWER
        attendance.hear(Message(type=kind, app_id=each.strip("?-")))
    return attendance


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ("", []),
        ("? here a ? here ? here ? here ? here ? here ? here", ["a"]),
        ("? here a -a", []),
        ("? here a -a ? here a", ["a"]),
        ("? here a b ? b here", ["b"]),
        ("? a here ? b here ? here", ["b"]),
    ],
)
def test_a_processor_that_answered_last_time_is_missing(said: str, missing: list[str]) -> None:
    assert attendance(*said.split()).missing({"here"}, 1) == missing
