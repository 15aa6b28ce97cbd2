"""What the journal tells of what happened, and that it tells it once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Cron, Every, Reject, Retry, RetryLater, Scheduler, StopLoop
from scheduler.errors import QueueNotFound
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import Act, Ending, LoopId, State, Verb, encode
from scheduler.protocol.topology import UNROUTED_FOR
from scheduler.queues.journal import JournalEntry, entry_of
from scheduler.timing.durations import SECOND
from scheduler.timing.schedules import Schedule
from tests.stage import START, Stage, new_app, program_of, seconds_of

TASK = LoopId("task")
EVERY_HOUR, EVERY_MINUTE = Every("1h"), Every("1m")
TOO_OFTEN = "it was delivered too often without an ack: it may kill its processors"
ONE_RETRY = Retry(1, delays=["1s"], jitter=0)


async def told(stage: Stage, loop: str | None = None, **since: Any) -> list[JournalEntry]:
    return [entry async for entry in stage.journal.entries(loop=loop, **since)]


def looping(
    raised: BaseException | None = None,
    *,
    takes: float = 0,
    schedule: Schedule = EVERY_HOUR,
    retry: Retry = ONE_RETRY,
) -> Scheduler:
    """An app with a loop whose runs all end in the same way."""
    app = new_app()

    @app.periodic(schedule=schedule, retry=retry)
    async def task() -> None:
        await asyncio.sleep(takes)
        if raised is not None:
            raise raised

    return app


# Runs


@pytest.mark.parametrize(
    ("raised", "retry", "whats"),
    [
        (None, ONE_RETRY, ["succeeded"]),
        (ValueError("boom"), ONE_RETRY, ["retried", "parked", "escalated"]),
        (ValueError("boom"), Retry(0), ["parked", "escalated"]),
        (RetryLater("1s"), ONE_RETRY, ["retried", "parked", "escalated"]),
        (Reject("bad input"), ONE_RETRY, ["parked", "escalated"]),
        (StopLoop("enough"), ONE_RETRY, ["stopped"]),
    ],
)
async def test_each_ending_of_a_run_is_told_once(
    stage: Stage, raised: BaseException | None, retry: Retry, whats: list[str]
) -> None:
    app = looping(raised, retry=retry)
    await stage.seed(app)
    async with stage.processor():
        await stage.verbs.trigger(app.loop("task"))
        await asyncio.sleep(10)
    assert await stage.history("task") == ["seeded", "triggered", *whats]


async def test_a_tick_that_came_too_late_is_told_as_skipped(stage: Stage) -> None:
    app = looping(schedule=Cron("0 * * * *", catch_up="skip", grace="1m"))
    await stage.seed(app)
    await asyncio.sleep(3600 + 300)
    async with stage.processor():
        await asyncio.sleep(1)
    skipped = (await told(stage, "task"))[-1]
    assert (skipped.what, skipped.seq) == (Ending.SKIPPED, 0)
    assert skipped.note == "late by 300.000 s"


async def test_what_an_entry_holds(stage: Stage) -> None:
    app = looping(ValueError("boom"), takes=2, retry=ONE_RETRY)
    await stage.seed(app)
    async with stage.processor():
        await asyncio.sleep(3700)
    entries = await told(stage, "task")
    moments = [seconds_of([each.at])[0] for each in entries if each.at]
    due = [each.due_at and seconds_of([each.due_at])[0] for each in entries]
    assert [
        (each.what, each.seq, each.attempt, at, next_at, each.note)
        for each, at, next_at in zip(entries, moments, due, strict=True)
    ] == [
        ("seeded", 0, 0, 0.0, 3600.0, ""),
        ("retried", 0, 0, 3602.0, 3603.0, "ValueError: boom"),
        ("parked", 0, 2, 3605.0, None, "exhausted: ValueError: boom"),
        ("escalated", 0, 0, 3605.0, 7205.0, "ValueError: boom"),
    ]
    assert [each.run and each.run.duration for each in entries] == [
        *(None, timedelta(seconds=2), None, timedelta(seconds=2))
    ]


# What else is done to a loop


async def pause(stage: Stage) -> None:
    await stage.verbs.pause(stage.app.loop("task"), "stocktaking")


async def resume(stage: Stage) -> None:
    await stage.verbs.resume(stage.app.loop("task"))


async def trigger(stage: Stage) -> None:
    await stage.verbs.trigger(stage.app.loop("task"))


async def seed(stage: Stage) -> None:
    await stage.seeding.seed()


async def lose(stage: Stage) -> None:
    await stage.lose(TASK)


Deed = Callable[[Stage], Awaitable[None]]


@pytest.mark.parametrize(
    ("deeds", "whats"),
    [
        ([], ["seeded"]),
        ([seed, seed], ["seeded"]),
        ([pause], ["seeded", "paused"]),
        ([pause, pause, seed], ["seeded", "paused"]),
        ([pause, resume], ["seeded", "paused", "resumed"]),
        ([pause, resume, resume], ["seeded", "paused", "resumed"]),
        ([resume], ["seeded"]),
        ([trigger], ["seeded", "triggered"]),
        ([pause, trigger], ["seeded", "paused"]),
        ([lose, seed], ["seeded", "guarded"]),
        ([lose, seed, seed], ["seeded", "guarded"]),
    ],
)
async def test_each_verb_is_told_once_and_what_was_in_vain_is_not(
    stage: Stage, deeds: list[Deed], whats: list[str]
) -> None:
    await stage.seed(looping())
    for deed in deeds:
        await deed(stage)
    assert await stage.history("task") == whats


async def test_a_new_schedule_is_told(stage: Stage) -> None:
    new = looping(schedule=Every("2h"))
    await stage.seed(looping())
    await program_of(new, stage.broker, stage.clock).seeding.seed()
    rescheduled = (await told(stage, "task"))[-1]
    assert rescheduled.what == Verb.RESCHEDULED
    assert rescheduled.due_at == START + timedelta(hours=2)


async def test_a_pause_tells_its_reason_and_that_no_tick_is_due(stage: Stage) -> None:
    await stage.seed(looping())
    await pause(stage)
    paused = (await told(stage, "task"))[-1]
    assert (paused.what, paused.note, paused.due_at) == (Verb.PAUSED, "stocktaking", None)


@pytest.mark.parametrize(
    ("deed", "whats"),
    [
        (pause, ["seeded", "triggered", "paused", "succeeded"]),
        (seed, ["seeded", "triggered", "guarded", "succeeded"]),
        (trigger, ["seeded", "triggered", "succeeded"]),
    ],
)
async def test_what_is_done_during_a_run_does_not_make_its_end_told_twice(
    stage: Stage, deed: Deed, whats: list[str]
) -> None:
    app = looping(takes=10)
    await stage.seed(app)
    async with stage.processor():
        await trigger(stage)
        await asyncio.sleep(5)
        await deed(stage)
        await asyncio.sleep(10)
    assert await stage.history("task") == whats


async def test_a_new_schedule_does_not_make_the_end_of_a_run_told_twice(stage: Stage) -> None:
    app = looping(takes=10)
    await stage.seed(app)
    async with stage.processor():
        await trigger(stage)
        await asyncio.sleep(5)
        await program_of(looping(schedule=Every("2h")), stage.broker, stage.clock).seeding.seed()
        await asyncio.sleep(10)
    assert await stage.history("task") == ["seeded", "triggered", "guarded", "succeeded"]
    assert (await stage.token(TASK)).schedule == Every("2h")


# What was parked


async def test_a_message_of_ours_that_was_parked_tells_its_task_and_its_error(stage: Stage) -> None:
    app = new_app()

    @app.task(retry=Retry(1, delays=["1s"], jitter=0))
    async def sms(phone: str) -> None:
        raise ValueError(f"no line to {phone}")

    await stage.seed(app)
    async with stage.processor():
        await sms.send("1")
        await sms.send_later("10s", "2")
        await asyncio.sleep(20)
    assert [
        (each.loop, each.what, each.seq, each.attempt, each.note)
        for each in await told(stage, "sms")
    ] == [
        ("sms", "parked", None, 2, "exhausted: ValueError: no line to 1"),
        ("sms", "parked", None, 2, "exhausted: ValueError: no line to 2"),
    ]


async def test_messages_of_others_are_told_each_even_if_they_are_the_same(stage: Stage) -> None:
    app = new_app()

    @app.task(retry=Retry(0), subscribe=[("orders", "order.*", "topic")], concurrency=2)
    async def bill(order: bytes) -> None:
        raise ValueError("no such order")

    await stage.seed(app)
    for _ in range(2):
        await stage.publish(Message(b"tea"), "order.paid", "orders")
    async with stage.processor():
        await asyncio.sleep(1)
    entries = await told(stage, "bill")
    assert [each.note for each in entries] == ["exhausted: ValueError: no such order"] * 2


async def test_what_the_broker_parks_is_told_without_a_moment(stage: Stage) -> None:
    app = new_app()
    await stage.seed(app)
    for _ in range(2):
        await stage.publish(Message(b"?"), "task.gone")
    await asyncio.sleep(1 + UNROUTED_FOR.total_seconds())
    entries = [each for each in await told(stage) if each.what == "parked"]
    assert [(each.at, each.loop, each.note) for each in entries] == [
        (None, "", "unknown-task: no queue of a task is bound for its routing key")
    ] * 2


async def test_a_token_that_kills_its_processors_is_told_as_parked(stage: Stage) -> None:
    app = looping(takes=60, schedule=EVERY_MINUTE)
    await stage.seed(app)
    stage.expects_none(LoopId("task"))
    async with stage.processor():
        await asyncio.sleep(61)
        for _ in range(1 + app.settings.delivery_limit):
            stage.server.disconnect_all()
            await asyncio.sleep(1)
    *_, parked = await told(stage, "task")
    assert (parked.what, parked.seq) == ("parked", 0)
    assert parked.note == f"delivery-limit: {TOO_OFTEN}"


@pytest.mark.parametrize(
    ("reason", "note"),
    [
        ("expired", "the broker parked it"),
        ("delivery_limit", f"delivery-limit: {TOO_OFTEN}"),
    ],
)
async def test_of_a_broker_that_keeps_the_first_death_only_no_more_is_told_than_it_says(
    stage: Stage, reason: str, note: str
) -> None:
    await stage.seed(looping())
    token = encode(await stage.token(TASK), "test", expiration=None)
    headers = {**token.headers, "x-first-death-reason": reason}
    entry = entry_of(replace(token, headers=headers), "test")
    assert entry is not None
    assert (entry.what, entry.loop, entry.note) == ("parked", "task", note)


async def test_a_loops_message_that_cannot_be_decoded_is_told_as_parked(stage: Stage) -> None:
    await stage.seed(looping())
    garbage = Message(b"{", {"scheduler-generation": "1", "scheduler-task": "task"})
    async with stage.processor():
        await stage.publish(garbage, "loop.task")
        await asyncio.sleep(1)
    *_, parked = await told(stage, "task")
    assert (parked.what, parked.seq) == ("parked", None)
    assert parked.note.startswith("undecodable: Undecodable: The headers cannot be understood")


# Which of it


async def test_the_journal_can_be_read_from_a_moment_on_and_of_one_loop(stage: Stage) -> None:
    app = looping(schedule=EVERY_MINUTE)

    @app.periodic(every="90s")
    async def other() -> None: ...

    await stage.seed(app)
    async with stage.processor():
        await asyncio.sleep(200)
    since = START + timedelta(seconds=100)
    moments = [seconds_of([each.at])[0] for each in await told(stage, since=since) if each.at]
    assert moments == [120.0, 180.0, 180.0]
    assert [each.loop for each in await told(stage, since=since)] == ["task", "other", "task"]
    assert [each.what for each in await told(stage, "other")] == ["seeded", *["succeeded"] * 2]
    assert await told(stage, "tas") == []


async def test_where_nothing_was_seeded_there_is_no_journal(stage: Stage) -> None:
    await stage.seed(looping())
    await stage.broker.delete(stage.app.names.journal)
    with pytest.raises(QueueNotFound):
        await told(stage)


# The last tokens


@pytest.mark.parametrize(
    ("published", "carry"),
    [
        ([], None),
        ([{"seq": 3}], 3),
        ([{"seq": 3}, {"seq": 4}], 4),
        ([{"seq": 4}, {"seq": 3}], 4),
        ([{"seq": 3}, {"seq": 3, "attempt": 1}], 3),
        ([{"seq": 3}, {"seq": 9, "state": State.REPLAY}], 3),
        ([{"seq": 3}, {"seq": 9, "state": State.GUARD}], 3),
        ([{"seq": 3}, {"seq": 9, "generation": ""}], 3),
        ([{"seq": 3}, {"seq": 4, "state": State.PAUSED}], 4),
        ([{"seq": 3}, {"seq": 9, "loop": LoopId("task", "other")}], 3),
        ([{"seq": 3}, {"seq": 3, "act": Verb.REMOVED}], "none"),
        ([{"seq": 3}, {"seq": 3, "act": Verb.REMOVED}, {"seq": 0, "act": Verb.SEEDED}], 0),
        # The last run of a loop that was removed may end after it was begun anew.
        ([{"seq": 3, "act": Verb.REMOVED}, {"seq": 4}, {"seq": 0, "act": Verb.SEEDED}], 0),
    ],
)
async def test_the_furthest_token_of_a_loop_is_remembered(
    stage: Stage, published: list[dict[str, Any]], carry: Any
) -> None:
    await stage.seed(looping())
    token = await stage.token(TASK)
    for each in published:
        act = Act(each["act"], START) if "act" in each else None
        made = replace(token, **{**each, "carry": each["seq"], "act": act})
        message = encode(made, stage.app.namespace, expiration=None)
        await stage.broker.publish(message, exchange="", routing_key=stage.app.names.journal)
    found = await stage.journal.last_tokens({TASK}, since=None, within=10 * SECOND)
    assert (found[TASK].carry if found else "none") == carry
