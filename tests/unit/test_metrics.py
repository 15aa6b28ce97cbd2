"""What Prometheus is told of what happened."""

import asyncio
import logging
import math
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from scheduler import Context, Reject, Retry, Scheduler, StopLoop
from scheduler.events import (
    Connected,
    ConnectionLost,
    EpochHeard,
    Event,
    EventLoopBlocked,
    LoopRepaired,
    MessageConfirmed,
    MessageParked,
    MessageStored,
    ProcessorStarted,
    RunFinished,
    RunLost,
    RunReturned,
    RunStarted,
    TicksSkipped,
)
from scheduler.metrics import instrument
from scheduler.protocol.calls import new_call, task_key
from scheduler.protocol.hatchery import NO_WAIT
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import Ending, LoopId, State, Token, token_key
from scheduler.queues.failed import Selection
from scheduler.queues.unsent import Unsent
from scheduler.timing.schedules import Cron, Every, Schedule
from tests.stage import START, Stage, new_app, of

LOOP = LoopId("report")
BERLIN, PARIS = LoopId("report", "berlin"), LoopId("report", "paris")
SECOND = timedelta(seconds=1)
DUE = START + timedelta(hours=1)


class Told:
    """An app that is measured, told events, and what Prometheus reads then."""

    def __init__(self, app: Scheduler | None = None) -> None:
        self.app = app or new_app()
        self.registry = instrument(self.app)

    def __call__(self, *events: Event) -> "Told":
        for event in events:
            self.app.events.emit(event)
        return self

    def read(self, name: str, task: str = "report", loop: str = "report", **labels: str) -> Any:
        return read(self.registry, name, task=task, loop=loop, **labels)


def read(registry: CollectorRegistry, name: str, **labels: str) -> Any:
    return registry.get_sample_value(f"scheduler_{name}", {"namespace": "test", **labels})


def about(loop: LoopId = LOOP) -> tuple[LoopId, int | None, int, str]:
    return loop, 7, 0, "id"


def started(loop: LoopId = LOOP) -> RunStarted:
    return RunStarted(*about(loop), START, START, START, False, None, None, 0.2 * SECOND)


def token(schedule: Schedule | None = None, state: State = State.ARMED) -> Token:
    return Token(LOOP, schedule or Every("1h"), DUE, DUE, seq=8, state=state)


def finished(ending: Ending = Ending.SUCCEEDED, successor: Token | None = None) -> RunFinished:
    return RunFinished(*about(), START, START, 2 * SECOND, ending, None, successor)


@pytest.fixture
def told() -> Told:
    return Told()


def test_runs_that_are_broken_off_or_never_start_take_no_time(told: Told):
    told(started(), started())
    assert told.read("running") == 2
    told(RunLost(*about()), RunReturned(*about()))
    for ending in (Ending.SKIPPED, Ending.ESCALATED):
        told(replace(finished(ending), skipped="it was delivered too often"))
    for outcome in ("lost", "returned", "skipped", "escalated"):
        assert told.read("runs_total", outcome=outcome) == 1
    assert told.read("running") == told.read("run_duration_seconds_sum") == 0
    assert told.read("attempts_total") == 2
    assert told.read("start_delay_seconds_sum") == 0.4


def test_a_paused_loop_is_not_due_after_it_was_paused(told: Told):
    told(finished(successor=token(state=State.PAUSED)))
    ended_at = START.timestamp() + 2
    assert told.read("paused_timestamp_seconds") == ended_at
    told(replace(finished(successor=token()), void=True))
    assert told.read("next_due_timestamp_seconds") == ended_at
    told(finished(successor=token()))
    assert told.read("paused_timestamp_seconds") == ended_at
    assert told.read("next_due_timestamp_seconds") == DUE.timestamp() > ended_at


@pytest.mark.parametrize(
    ("schedule", "period"),
    [
        (Every("90s"), 90),
        (Every("1h", mode="fixed_rate", jitter="10m"), 3600),
        (Cron("0 * * * *"), 3600),
        # From a Monday at noon; from each working day to the next.
        (Cron("0 12 * * MON,FRI"), 4 * 86400),
    ],
)
def test_the_period_is_that_of_the_schedule(told: Told, schedule: Schedule, period: float):
    told(finished(successor=token(schedule)))
    assert told.read("period_seconds") == period


def test_the_lead_is_from_the_last_message(told: Told):
    assert told.read("lead_seconds") is None
    told(replace(started(), headers={"scheduler-lead-ms": 45}))
    assert told.read("lead_seconds") == 0.045
    told(started())
    assert told.read("lead_seconds") == 0


def test_loops_with_keys_are_counted_together(told: Told):
    told(started(BERLIN), started(PARIS), started())
    assert told.read("attempts_total", loop="report.*") == 2
    assert told.read("attempts_total") == 1
    told(*(started(LoopId("report", str(key))) for key in range(1000)))
    assert told.read("attempts_total", loop="report.*") == 1002
    assert told.read("attempts_total", loop="report.7") is None


def test_repairs_skipped_ticks_and_parked_messages_are_counted_and_waits_are_measured(told: Told):
    told(LoopRepaired(LOOP, "lost", "nobody has it"), LoopRepaired(LOOP, "lost", "nor now"))
    told(LoopRepaired(LOOP, "doubled", "two"))
    kinds = ("lost", "doubled", "adopted")
    assert [told.read("repairs_total", kind=kind) for kind in kinds] == [2, 1, 0]
    told(TicksSkipped(*about(), 3, "late"), TicksSkipped(*about(), 1, "overrun"))
    reasons = ("late", "overrun")
    assert [told.read("ticks_skipped_total", reason=reason) for reason in reasons] == [3, 1]
    told(MessageParked(token_key(LoopId("a", "b"), NO_WAIT.key), "id", "undecodable", "no"))
    assert read(told.registry, "parked_messages_total", task="a", reason="undecodable") == 1
    told(MessageConfirmed("x", 0.25 * SECOND))
    assert read(told.registry, "publish_confirm_seconds_sum") == 0.25
    told(*(EpochHeard(LOOP, 7, lag) for lag in (0.5 * SECOND, -SECOND)))  # clocks differ
    assert read(told.registry, "roster_lag_seconds_sum") == 0.5
    told(EventLoopBlocked("run report #7", "jobs.py:12 (report)", 12 * SECOND))
    held_up = (f"event_loop_blocked_seconds_{what}" for what in ("count", "sum"))
    assert [read(told.registry, name) for name in held_up] == [1, 12]


def test_a_first_connection_is_no_reconnect(told: Told):
    told(Connected("broker", "4.3", SECOND))
    assert read(told.registry, "reconnects_total") == 0
    for _ in range(2):
        told(ConnectionLost("broker", "gone"), Connected("broker", "4.3", SECOND))
    assert read(told.registry, "reconnects_total") == 2


def test_stored_messages_are_counted_and_so_are_those_of_all_processes(tmp_path: Path):
    told = Told(Scheduler("test", fallback=f"sqlite:///{tmp_path}/unsent.db"))
    told(MessageStored("a", "sms", "the broker is away"))
    assert read(told.registry, "stored_messages_total") == 1
    assert read(told.registry, "unsent_messages") == 0
    store = told.app.fallback
    assert store is not None
    store.keep(Unsent(None, "sms", Message(message_id="of another process"), START, START))
    assert read(told.registry, "unsent_messages") == 1
    broken = Told(Scheduler("test", fallback="sqlite:////nowhere/unsent.db"))
    assert math.isnan(read(broken.registry, "unsent_messages"))
    assert read(broken.registry, "reconnects_total") == 0


def test_all_series_exist_from_the_start_of_a_processor(app: Scheduler):
    @app.periodic(cron="0 9 * * *")
    async def report() -> None: ...

    @app.task()
    async def sms() -> None: ...

    @app.task()
    async def other() -> None: ...

    registry = instrument(app)
    app.events.emit(ProcessorStarted("test", "broker", ("report", "sms"), 10))
    loop = {"task": "report", "loop": "report"}
    for name in ("attempts_total", "running", "escalations_total", "hatch_delay_seconds_count"):
        assert read(registry, name, **loop) == 0
        assert read(registry, name, task="sms", loop="") == 0
        assert read(registry, name, task="other", loop="") is None
    assert read(registry, "runs_total", **loop, outcome="escalated") == 0
    assert read(registry, "repairs_total", **loop, kind="lost") == 0
    assert read(registry, "repairs_total", task="sms", loop="", kind="lost") is None
    assert read(registry, "ticks_skipped_total", **loop, reason="late") == 0
    assert read(registry, "period_seconds", **loop) == 86400
    for name in ("last_success", "next_due", "paused"):
        name += "_timestamp_seconds"
        assert read(registry, name, **loop) is None


async def test_the_metrics_of_a_day_of_a_processor(stage: Stage, caplog: pytest.LogCaptureFixture):
    @stage.app.periodic(every="1h", mode="fixed_rate", retry=Retry(1, delays=["1m"], jitter=0))
    async def report(ctx: Context) -> None:
        await asyncio.sleep(30)
        if ctx.seq == 3 or (ctx.seq == 2 and ctx.attempt == 1):
            raise ValueError
        if ctx.seq == 20:
            raise StopLoop("enough")

    @stage.app.task(concurrency=1)
    async def sms(n: int) -> None:
        await asyncio.sleep(10)
        if n == 2:
            raise Reject("no")

    await stage.seed()
    registry = instrument(stage.app, stage.clock)
    async with stage.processor():
        for n in range(3):
            await sms.send(n)
        await stage.publish(Message(b"what?"), task_key("sms"))
        await asyncio.sleep(86400)
    loop, task = {"task": "report", "loop": "report"}, {"task": "sms", "loop": ""}
    for outcome, count in ("succeeded", 19), ("retried", 2), ("escalated", 1), ("stopped", 1):
        assert read(registry, "runs_total", **loop, outcome=outcome) == count
    assert read(registry, "attempts_total", **loop) == 23
    assert read(registry, "run_duration_seconds_sum", **loop) == pytest.approx(23 * 30)
    assert read(registry, "escalations_total", **loop) == 1
    for name in ("paused_timestamp_seconds", "next_due_timestamp_seconds"):
        stopped_at = START + timedelta(hours=21, seconds=30)
        assert read(registry, name, **loop) == pytest.approx(stopped_at.timestamp(), abs=0.01)
    assert read(registry, "running", **loop) == 0
    succeeded_at = START + timedelta(hours=20, seconds=30)
    last_success = read(registry, "last_success_timestamp_seconds", **loop)
    assert last_success == pytest.approx(succeeded_at.timestamp(), abs=0.01)
    assert read(registry, "runs_total", **task, outcome="succeeded") == 2
    assert read(registry, "runs_total", **task, outcome="escalated") == 1
    assert read(registry, "hatch_delay_seconds_count", **task) == 0  # they were due at once
    # One at a time is delivered: the others wait in the queue.
    assert read(registry, "ready_delay_seconds_sum", **task) == pytest.approx(30, abs=0.01)
    for reason in "rejected", "undecodable":
        assert read(registry, "parked_messages_total", task="sms", reason=reason) == 1
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("hatched", "hatch", "ready"),
    [
        (None, None, 8),  # the broker does not tell
        (-1, 0, 8),  # in the second in which it was due
        (5, 5, 3),
    ],
)
async def test_the_hatch_delay_is_from_the_timestamp_of_the_broker(
    stage: Stage, hatched: int | None, hatch: int | None, ready: int
):
    @stage.app.task()
    async def sms() -> None: ...

    await stage.seed()
    due_at = stage.clock.now()
    message = new_call("test", "sms", {}, message_id="m", sent_at=due_at, due_at=due_at)
    if hatched is not None:
        death = {"reason": "expired", "time": due_at + hatched * SECOND, "count": 1}
        message = replace(message, headers={**message.headers, "x-death": [death]})
    await stage.publish(message, task_key("sms"))
    await asyncio.sleep(8)
    async with stage.processor():
        await asyncio.sleep(1)
    (run,) = of(RunStarted, stage.events)
    assert run.hatch_delay == (None if hatch is None else hatch * SECOND)
    assert ready_delays(stage) == [ready]


def ready_delays(stage: Stage) -> list[float | None]:
    delays = [run.ready_delay for run in of(RunStarted, stage.events)]
    return [None if delay is None else round(delay / SECOND, 1) for delay in delays]


async def test_the_ready_delay_is_the_time_in_the_queue_as_far_as_it_is_known(stage: Stage):
    @stage.app.task(rate="6/m", retry=Retry(0))
    async def sms() -> None:
        raise ValueError

    @stage.app.task(subscribe=[("orders", "order.paid", "topic")])
    async def ship(order: bytes) -> None: ...

    await stage.seed()
    async with stage.processor():
        for _ in range(3):
            await sms.send()
        await asyncio.sleep(60)
    assert ready_delays(stage) == [0, 10, 20]
    assert [round(run.start_delay / SECOND) for run in of(RunStarted, stage.events)] == [0, 0, 0]
    parked, *_ = await stage.parked()
    await stage.failed.replay(stage.app.tasks, Selection(ids=frozenset([parked.id])))
    await asyncio.sleep(7)
    stage.events.clear()
    async with stage.processor():
        await asyncio.sleep(1)
        assert ready_delays(stage) == [7]  # since the replay
        await stage.publish(Message(b"1", message_id="o"), "order.paid", exchange="orders")
        await asyncio.sleep(1)
        assert ready_delays(stage) == [7, None]  # nobody knows since when


async def test_a_message_held_by_another_consumer_has_no_ready_delay(stage: Stage):
    @stage.app.task()
    async def sms() -> None:
        await asyncio.sleep(10)

    await stage.seed()
    async with stage.processor(grace=0):
        await sms.send()
        await asyncio.sleep(5)
    async with stage.processor():
        await asyncio.sleep(20)
    assert ready_delays(stage) == [0, None]
