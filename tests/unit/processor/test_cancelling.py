"""Ending runs on demand, on the embedded broker."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from scheduler import Context, NotRunning, Reject, Retry, RetryLater, StopLoop
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.control.loops import Where
from scheduler.control.reports import operator_here
from scheduler.errors import UsageError
from scheduler.events import Escalated, RunFinished
from scheduler.protocol.tokens import Ending, LoopId, State
from tests.stage import Stage, of

ME = operator_here()
IGNORES = "timed out or was cancelled 5 s ago, but ignores its cancellation"


async def report(ctx: Context) -> None:
    ctx.carry("next")
    await asyncio.sleep(1000)


@asynccontextmanager
async def running(stage: Stage, report: Callable[..., Any], **options: Any) -> AsyncGenerator[None]:
    """A loop of this function runs, and has nothing to do but that."""
    stage.app.periodic(every="1h", name="report", **options)(report)
    await stage.seed()
    async with stage.processor():
        await stage.verbs.trigger(stage.app.loop("report"))
        await asyncio.sleep(1)
        yield


def endings(stage: Stage) -> list[Ending]:
    return [event.ending for event in of(RunFinished, stage.events)]


# Loops


async def test_a_cancelled_run_is_not_retried_and_its_loop_continues(stage: Stage) -> None:
    seen = list[str]()

    async def note_its_end(ctx: Context) -> None:
        try:
            await report(ctx)
        except asyncio.CancelledError as error:
            seen.append(str(error))
            raise

    async with running(stage, note_its_end, retry=Retry(3)):
        told = await stage.app.cancel("report")
        token = await stage.token(LoopId("report"))
        assert (told.run.id, told.ending, told.as_asked) == ("report#0", "cancelled", True)
        assert (token.seq, token.attempt, token.state) == (1, 0, State.ARMED)
        assert token.carry is None  # what it had carried goes with it
        assert token.last is not None
        assert (token.last.ending, token.last.error) == (Ending.CANCELLED, f"cancelled by {ME}")
    (finished,) = of(RunFinished, stage.events)
    assert (finished.ending, str(finished.error)) == (Ending.CANCELLED, f"cancelled by {ME}")
    assert seen == [f"cancelled by {ME}"]
    assert await stage.parked() == []
    assert await stage.history("report") == ["seeded", "triggered", "cancelled"]


@pytest.mark.parametrize(
    ("after_failure", "where"), [("continue", Where.WAITING), ("pause", Where.PAUSED)]
)
async def test_an_escalated_run_is_parked_and_reported(
    stage: Stage, after_failure: Any, where: Where
) -> None:
    async with running(stage, report, after_failure=after_failure):
        told = await stage.app.cancel("report", escalate=True)
        assert (told.ending, told.as_asked) == ("escalated", True)
        assert await stage.where(LoopId("report")) is where
    (escalated,) = of(Escalated, stage.events)
    (parked,) = await stage.parked()
    assert (parked.reason, parked.error) == ("cancelled", f"RunCancelled: cancelled by {ME}")
    assert escalated.paused is (where is Where.PAUSED)
    assert str(escalated.error) == f"cancelled by {ME}"


# Calls


@pytest.mark.parametrize("escalate", [False, True])
async def test_a_cancelled_call_is_acked_or_parked(stage: Stage, escalate: bool) -> None:
    stage.task("send_sms", takes=1000, retry=Retry(3))
    await stage.seed()
    await stage.send("send_sms", "aaaa-1")
    async with stage.processor():
        await asyncio.sleep(1)
        assert (await stage.app.cancel("aaaa", escalate=escalate)).as_asked
    assert endings(stage) == [Ending.ESCALATED if escalate else Ending.CANCELLED]
    assert [each.reason for each in await stage.parked()] == ["cancelled"] * escalate
    assert await stage.waiting() == escalate


# How a run may answer


async def swallow(ctx: Context) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(1000)


def raising(error: Exception) -> Callable[[Context], Any]:
    async def instead(ctx: Context) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            raise error from None

    return instead


@pytest.mark.parametrize(
    ("function", "ending"),
    [
        (swallow, "succeeded"),
        (raising(ValueError("in the way")), "cancelled"),
        (raising(StopLoop("enough")), "stopped"),
        (raising(Reject("bad")), "escalated"),
        (raising(RetryLater("1m")), "retried"),
    ],
)
async def test_a_cancelled_run_may_choose_its_own_outcome(
    stage: Stage, function: Any, ending: str
) -> None:
    async with running(stage, function):
        told = await stage.app.cancel("report")
    assert (told.ending, told.as_asked) == (ending, ending == "cancelled")


async def test_a_run_that_ignores_its_timeout_is_reported(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    @stage.app.task(timeout="2s")
    async def work(ctx: Context) -> None:
        await swallow(ctx)
        await asyncio.sleep(30)

    await stage.seed()
    await stage.send("work", "m")
    async with stage.processor():
        await asyncio.sleep(6)
        assert IGNORES not in caplog.text
        await asyncio.sleep(2)
        assert f"run work #m {IGNORES}" in caplog.text
        await asyncio.sleep(30)
    assert endings(stage) == [Ending.SUCCEEDED]


async def test_cancelling_waits_some_seconds_for_a_run_to_end(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    free = asyncio.Event()

    async def ignore_it() -> None:
        while not free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await free.wait()

    async with running(stage, ignore_it):
        before = stage.clock.now()
        assert (await stage.app.cancel("report")).ending is None
        assert (stage.clock.now() - before).total_seconds() == pytest.approx(10, abs=0.1)
        (run,) = (await stage.app.running()).runs
        assert run.cancelled_by == ME
        assert f"run report #0 {IGNORES}" in caplog.text
        free.set()


async def test_a_run_may_time_out_while_it_is_cancelled(stage: Stage) -> None:
    """It is cancelled then, not timed out: it is not tried again."""

    async def clean_up_for_long() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1000)

    async with running(stage, clean_up_for_long, timeout="10s"):
        await asyncio.sleep(4)
        assert (await stage.app.cancel("report")).ending == "cancelled"


# Which run


async def test_a_run_is_named_by_id_or_loop_and_a_call_by_how_its_id_begins(stage: Stage) -> None:
    stage.task("send_sms", takes=1000)
    async with running(stage, report):
        for message_id in ("aaaa-1", "aaaa-2", "b"):
            await stage.send("send_sms", message_id)
        await asyncio.sleep(1)
        for wrong in ("", "c", "report#", "report#1", "rep", "send_sms"):
            with pytest.raises(NotRunning, match="is running"):
                await stage.app.cancel(wrong)
        with pytest.raises(UsageError, match=r"ambiguous \(2 runs\): use one of aaaa-1, aaaa-2"):
            await stage.app.cancel("aaaa")
        for right in ("report", "aaaa-1", "b"):
            assert (await stage.app.cancel(right)).as_asked
        assert [run.id for run in (await stage.app.running()).runs] == ["aaaa-2"]


async def test_cancelling_reports_silent_processors_if_no_other_has_the_run(
    stage: Stage,
) -> None:
    await stage.seed()
    async with MemoryBroker(stage.server) as mute:  # an older release, which does not know
        await mute.consume(stage.app.names.presence, lambda _: None, prefetch=1)
        with pytest.raises(NotRunning, match=r"no answer from an unknown processor \(1\)\. "):
            await stage.app.cancel("report")
        assert (await stage.app.running()).unheard == ["an unknown processor (1)"]
