import pytest

from scheduler.tasks.loops import absent, loop_of
from scheduler.tasks.retries import Policy, Retry
from scheduler.tasks.tasks import Arguments, TaskSpec
from scheduler.timing.schedules import Every


async def report(city: str = "Bonn") -> None: ...


REPORT = TaskSpec("report", report, Arguments(report), Policy(Retry()))


def test_a_loop_is_called_like_its_task_and_key():
    assert str(loop_of(REPORT, Every("1h"), None)) == "report"
    assert str(loop_of(REPORT, Every("1h"), {"city": "Kiel"}, "kiel")) == "report.kiel"


async def test_a_task_that_is_not_in_this_code_cannot_run_and_is_not_tried_again():
    task = absent("gone")
    assert (task.name, task.policy.retry) == ("gone", Retry(0))
    assert (task.called, task.ordered, task.builtin) == (False, False, False)
    with pytest.raises(NotImplementedError, match="'gone' is not in this code"):
        await task.function()
