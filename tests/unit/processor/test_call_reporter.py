"""What processors report of calls to the history, on the embedded broker and in virtual time."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Context, Retry, Scheduler
from scheduler.control.doctor import Finding
from scheduler.dashboard.picture import Picture
from scheduler.dashboard.verdict import delays_in_words
from scheduler.errors import TooLarge, Unconfirmed
from scheduler.processor import call_reporter
from scheduler.protocol.messages import Message
from scheduler.queues.history import MOST_TOLD, Attempt, CallTotals, Summary, totals_of
from tests.faulty import Call
from tests.stage import START, Stage, new_app, program_of

DOWN = "ConnectionError: the mail server is down"


@pytest.fixture
async def app(stage: Stage) -> Scheduler:
    app = new_app()

    @app.task(retry=Retry(1, delays=["1s"], jitter=0))
    async def mail(to: str) -> None:
        if to == "nobody":
            raise ConnectionError("the mail server is down")
        await asyncio.sleep(0.2)

    @app.task(history=True)
    async def bill(ctx: Context, order: int) -> None: ...

    @app.periodic(every="1s")
    async def tick() -> None: ...

    await stage.seed(app)
    return app


async def told(stage: Stage, **which: Any) -> list[Summary | Attempt]:
    history = program_of(stage.app, stage.broker, stage.clock).history
    return [each async for each in history.read(**which)]


async def attempts(stage: Stage, **which: Any) -> list[Attempt]:
    return [each for each in await told(stage, **which) if isinstance(each, Attempt)]


async def totals(stage: Stage, task: str) -> CallTotals:
    return totals_of([each for each in await told(stage) if isinstance(each, Summary)])[task]


async def mail(stage: Stage, *names: str) -> list[str]:
    return [await stage.send("mail", to=name) for name in names]


async def test_a_summary_counts_the_outcomes_of_a_tasks_calls(stage: Stage, app: Scheduler) -> None:
    async with stage.processor():
        ids = await mail(stage, "ada", "nobody", "bob")
        await stage.publish(Message(b"?", message_id="odd"), "task.mail", app.names.calls)
        await asyncio.sleep(12)
        (summary,) = [each for each in await told(stage) if isinstance(each, Summary)]
    assert (summary.task, summary.until - START) == ("mail", timedelta(seconds=10))
    counts = summary.started, summary.on_time, summary.succeeded, summary.retried, summary.failed
    assert counts == (4, 4, 2, 1, 1)
    assert summary.parked == 2  # the other one could not be run
    assert summary.took_p99_ms == pytest.approx(200)
    assert [(each.error, each.count) for each in summary.errors][:1] == [(DOWN, 2)]
    assert summary.errors[0].id == ids[1]
    assert summary.errors[1].id == "odd"


@pytest.mark.usefixtures("app")
async def test_an_attempt_is_reported_if_it_failed_or_its_task_keeps_history(stage: Stage) -> None:
    async with stage.processor():
        failed, _ = await mail(stage, "nobody", "ada")
        billed = await stage.app.senders["bill"].send_later("2s", 7)
        await asyncio.sleep(5)
    found = await attempts(stage)
    assert [(each.id, each.attempt, each.outcome, each.error) for each in found] == [
        (failed, 1, "retried", DOWN),
        (failed, 2, "escalated", DOWN),
        (billed, 1, "succeeded", ""),
    ]
    assert (found[2].sent_at, found[2].due_at) == (START, START + timedelta(seconds=2))
    assert await told(stage, containing=billed) == found[2:]


@pytest.mark.usefixtures("app")
async def test_a_loop_alone_reports_no_calls(stage: Stage) -> None:
    await stage.work(30)
    assert await told(stage) == []


async def test_reports_wait_for_the_broker_and_are_not_repeated_once_confirmed(
    stage: Stage, app: Scheduler
) -> None:
    reports = stage.faulty.on("publish", key=app.names.history)

    async def refuse(call: Call) -> None:
        if len(reports.met) % 2:
            raise Unconfirmed("It went.")

    reports.first(refuse)
    async with stage.processor(over=stage.faulty):
        await stage.broker.delete(app.names.history)
        await mail(stage, *["nobody"] * 3 * MOST_TOLD)
        await asyncio.sleep(14)
        await stage.broker.declare(app.topology().only([app.names.history]))
        await mail(stage, "ada")
        await asyncio.sleep(12)
    assert (await totals(stage, "mail")).failed == 3 * MOST_TOLD
    assert len(await attempts(stage)) == 2 * 3 * MOST_TOLD


async def test_the_oldest_of_too_many_reports_are_dropped(
    stage: Stage, app: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = list[str]()
    monkeypatch.setattr(call_reporter, "MOST_ATTEMPTS", 3)
    failing = stage.faulty.on("publish", key=app.names.history).hangs(0.9)
    async with stage.processor(over=stage.faulty):
        for order in range(10):
            ids.append(await stage.send("bill", order=order))
            await asyncio.sleep(0.7)
        await failing.cease()
        await asyncio.sleep(5)
    assert failing.met
    assert [each.id for each in await attempts(stage)] == ids[-3:]


async def test_reports_are_split_for_a_broker_that_accepts_little(
    stage: Stage, app: Scheduler
) -> None:
    stage.faulty.on(
        "publish", key=app.names.history, where=lambda call: len(call.message.body) > 600
    ).fails(TooLarge(limit=600))
    async with stage.processor(over=stage.faulty):
        await mail(stage, *["nobody"] * 5)
        await asyncio.sleep(25)
        await mail(stage, "ada")
        await asyncio.sleep(1)
    assert (await totals(stage, "mail")).succeeded == 1
    assert len(await attempts(stage)) == 10


async def test_a_task_with_old_waiting_calls_is_behind_until_paused_or_empty(
    stage: Stage, app: Scheduler
) -> None:
    program, picture = program_of(app, stage.broker, stage.clock), Picture(app.namespace)

    async def shown() -> tuple[timedelta | None, bool, str, list[str]]:
        (found,) = [each for each in await program.survey.backlogs() if each.task == "mail"]
        examined = await program.doctor.examine()
        doctors = [each.detail for each in examined if each.about == "calls of mail"]
        queue = app.names.processor_queue("mail")
        picture.depths[queue] = await stage.broker.depth(queue)
        async for message in stage.broker.read(app.names.history):
            picture.hear_of_calls(message)
        now = stage.clock.now()
        dashboards = [*delays_in_words(app, picture, picture.calls(now), now)]
        return found.oldest, found.is_fine, "".join(doctors), dashboards

    await mail(stage, *["ada"] * 200)
    await asyncio.sleep(400)
    async with stage.processor(concurrency=1):
        await asyncio.sleep(12)
        oldest, is_fine, doctors, dashboards = await shown()
        assert oldest is not None
        assert (oldest > timedelta(seconds=400), is_fine) == (True, False)
        assert doctors == "139 messages ready, the oldest for 6m50s"
        assert dashboards == [doctors.replace("messages ready", "calls of mail waiting") + "."]
        await asyncio.sleep(60)
        assert await shown() == (None, True, "", [])


async def test_backlog_and_doctor_report_a_task_whose_calls_fail(
    stage: Stage, app: Scheduler
) -> None:
    program = program_of(app, stage.broker, stage.clock)

    async def findings() -> list[Finding]:
        found = await program.doctor.examine()
        return [each for each in found if each.about in ("calls", "task mail")]

    async with stage.processor():
        assert [each.verdict for each in await findings()] == ["ok"]
        await mail(stage, "nobody", "nobody", "nobody", "ada")
        await asyncio.sleep(12)
        (finding,) = await findings()
        recent = (await program.survey.recent_calls())["mail"]
    assert (recent.lost, recent.is_failing) == (3, True)
    assert finding.verdict == "problem"
    told = "3 calls failed in the last 15 minutes, 1 succeeded; 6 x ConnectionError"
    assert told in finding.detail


@pytest.mark.parametrize(
    "body",
    [b"?", b"[]", b'{"summaries": 1}', b'{"summaries": [{"task": 1}], "attempts": [{}, "x"]}'],
)
async def test_other_messages_are_not_read_as_reports(
    stage: Stage, app: Scheduler, body: bytes
) -> None:
    await stage.publish(Message(body), app.names.history, app.names.control)
    assert await told(stage) == []
