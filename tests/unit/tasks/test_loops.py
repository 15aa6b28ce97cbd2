from datetime import timedelta

import pytest

from scheduler.protocol.tokens import LoopId
from scheduler.tasks.loops import absent, loop_of, supervision
from scheduler.tasks.retries import Policy, Retry
from scheduler.tasks.tasks import Arguments, TaskSpec
from scheduler.timing.schedules import Every


async def report(city: str = "Bonn") -> None: ...


REPORT = TaskSpec("report", report, Arguments(report), Policy(Retry()))


def test_a_loop_is_named_by_task_and_key():
    assert str(loop_of(REPORT, Every("1h"), None)) == "report"
    assert str(loop_of(REPORT, Every("1h"), {"city": "Kiel"}, "kiel")) == "report.kiel"


async def test_a_task_missing_in_the_code_fails_without_retry():
    task = absent("gone")
    assert (task.name, task.policy.retry) == ("gone", Retry(0))
    assert (task.called, task.ordered, task.builtin) == (False, False, False)
    with pytest.raises(NotImplementedError, match="'gone' is not in this code"):
        await task.function()


def test_supervision_runs_alone_with_time_for_a_busy_journal():
    loop = supervision(timedelta(seconds=15))
    assert (loop.id, loop.schedule, loop.args) == (LoopId("_supervision"), Every("15s"), {})
    assert (loop.task.name, loop.task.concurrency) == ("_supervision", 1)
    assert loop.task.timeout == timedelta(minutes=3)
    assert loop.task.builtin
