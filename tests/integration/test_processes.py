"""Functions that block, in threads and in processes, whose processors are stopped and killed."""

import os
import signal
from pathlib import Path

import pytest

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field
from tests.unit.processor.test_processes import is_there


@pytest.fixture
def forking(field_: Field) -> Field:
    field_.app = f"{Path(__file__).parent / 'apps' / 'forking.py'}:app"
    return field_


def processes_of(field: Field) -> set[int]:
    """The processes of runs, what they have forked, and the fork servers."""
    notes = field.notes()
    servers = {note["server"] for note in field.notes("start")}
    return {note["pid"] for note in notes} | servers - {1}


@pytest.mark.parametrize("executor", ["process", "thread"])
async def test_a_function_that_outlasts_the_grace_runs_again_elsewhere(
    field_: Field, broker: Broker, executor: str
) -> None:
    loop = {"EXECUTOR": executor, "EVERY": "100ms"}
    field_.call("seed", **loop)
    doomed = field_.start("run", TAKES="600", SCHEDULER_SHUTDOWN_GRACE="500ms", **loop)
    await field_.until(lambda: bool(field_.notes("start")))
    (first,) = field_.notes("start")
    doomed.terminate()
    output = field_.output_of(doomed)
    assert doomed.returncode == 0
    assert ("abandoned: the thread outlived" in output) is (executor == "thread")
    assert (first["pid"] == doomed.pid) is (executor == "thread")
    await field_.until(lambda: not is_there(first["pid"]))
    field_.start("run", **loop)
    await field_.until(lambda: bool(field_.notes("end")))
    again = field_.notes("start")[1]
    assert (again["seq"], again["attempt"]) == (first["seq"], first["attempt"])
    field_.stop()
    assert await field_.tokens(broker, 1) == {"loop0": 1}


STRIKES = (
    "forked processor",
    "begun child grandchild server processor",
    "begun group",
    "reporting processor",
    "after processor",
    "reported group",
)
"""At which moment of a run what is killed, in one run after the other.

Where the others are killed, it does not matter how far a run is; of a child, units show it. What
becomes of a reported run does not depend on where it ran: `test_kill_points.py` shows it.
"""


@pytest.mark.parametrize("strikes", STRIKES)
async def test_a_loop_continues_after_any_of_its_processes_is_killed(
    forking: Field, broker: Broker, strikes: str
) -> None:
    async def until_all_are_gone() -> None:
        await forking.until(lambda: not any(map(is_there, processes_of(forking))))

    moment, *victims = strikes.split()
    forking.call("seed")
    strike = {"STRIKE": strikes, "OWN_GROUP": "1", "SCHEDULER_SHUTDOWN_GRACE": "8s"}
    # So that the fork server finds the app, and imports it.
    strike["PYTHONPATH"] = f"{Path(forking.app).parent}:{Path.cwd()}"
    struck = forking.start("run", **strike)
    await forking.until(lambda: len(forking.notes("struck")) == len(victims))
    if victims[-1] == "processor":
        assert struck.wait(timeout=30) == -signal.SIGKILL
        await until_all_are_gone()
        again = forking.start("run", **strike)
        seen = len(forking.notes("end"))
        await forking.until(lambda: len(forking.notes("end")) >= seen + 3)
        forking.stop()
        assert again.returncode == 0
    else:
        assert struck.wait(timeout=30) == 0
    await until_all_are_gone()

    starts = [note["seq"] for note in forking.notes("start")]
    ends = [note["seq"] for note in forking.notes("end")]
    assert set(starts) == set(ends) == set(range(ends[-1] + 1))
    # A run whose process, or processor, did not live to report it is run again.
    lost = [each for each in victims if each in ("child", "processor")]
    assert len(starts) - len(ends) == (len(lost) if moment in ("begun", "reporting") else 0)
    is_unsettled = strikes == "after processor"
    assert len(ends) - len(set(ends)) == is_unsettled
    assert await forking.tokens(broker, 1) == {"loop0": 1}


async def test_a_stopped_fork_server_does_not_delay_the_answers_of_its_processor(forking: Field):
    forking.call("seed")
    forking.start("run")
    await forking.until(lambda: len(forking.notes("end")) > 2)
    server = forking.notes("start")[0]["server"]
    os.kill(server, signal.SIGSTOP)
    try:
        for _ in range(3):
            assert forking.call("ps")["not_answered_by"] == []
    finally:
        os.kill(server, signal.SIGCONT)
    seen = len(forking.notes("end"))
    await forking.until(lambda: len(forking.notes("end")) > seen + 1)
    forking.stop()
