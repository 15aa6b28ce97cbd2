"""Functions that block, in threads and in processes, whose processors are stopped and killed."""

import os
import signal
from pathlib import Path

import pytest

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field
from tests.unit.processor.test_processes import is_there

APP = f"{Path(__file__).parent / 'apps' / 'blocking.py'}:app"
LONG = {"PROCESS": "1", "TAKES": "600", "TIMEOUT": "1h"}


@pytest.fixture
def working(field_: Field) -> Field:
    field_.app = APP
    return field_


@pytest.fixture
def forking(field_: Field) -> Field:
    field_.app = f"{Path(__file__).parent / 'apps' / 'forking.py'}:app"
    return field_


def processes_of(field: Field) -> set[int]:
    """The processes of runs, what they have forked, and the fork servers."""
    notes = field.notes()
    servers = {note["server"] for note in field.notes("start")}
    return {note["pid"] for note in notes} | servers - {1}


async def test_no_process_outlives_its_processor(working: Field, broker: Broker) -> None:
    working.call("seed", PROCESS="1")
    doomed = working.start("run", **LONG, SCHEDULER_SHUTDOWN_GRACE="200ms")
    await working.until(lambda: bool(working.notes("start")))
    (note,) = working.notes("start")
    assert note["pid"] != doomed.pid
    doomed.terminate()
    doomed.wait(timeout=30)
    await working.until(lambda: not is_there(note["pid"]))
    working.start("run", PROCESS="1", TIMEOUT="1h")
    await working.until(lambda: bool(working.notes("end")))
    again = working.notes("start")[1]
    assert (again["seq"], again["attempt"]) == (note["seq"], note["attempt"])
    working.stop()
    assert await working.tokens(broker, 1) == {"loop0": 1}


MOMENTS = {
    "forked": ("processor",),
    "begun": ("child", "grandchild", "server", "processor", "group"),
    "reporting": ("processor",),
    "after": ("processor",),
    "reported": ("group",),
}
"""Where the others are killed, it does not matter how far a run is; of a child, units show it.

What becomes of a reported run does not depend on where it ran: `test_kill_points.py` shows it.
"""


@pytest.mark.parametrize(
    ("moment", "victim"), [(moment, victim) for moment in MOMENTS for victim in MOMENTS[moment]]
)
async def test_whatever_is_killed_at_whatever_moment(
    forking: Field, broker: Broker, moment: str, victim: str
) -> None:
    async def until_all_are_gone() -> None:
        await forking.until(lambda: not any(map(is_there, processes_of(forking))))

    forking.call("seed")
    strike = {"STRIKE": f"{moment} {victim}", "OWN_GROUP": "1", "SCHEDULER_SHUTDOWN_GRACE": "8s"}
    # So that the fork server finds the app, and imports it.
    strike["PYTHONPATH"] = f"{Path(forking.app).parent}:{Path.cwd()}"
    struck = forking.start("run", **strike)
    await forking.until(lambda: bool(forking.notes("struck")))
    if victim == "processor":
        assert struck.wait(timeout=30) == -signal.SIGKILL
        await until_all_are_gone()
        forking.start("run", **strike)
        seen = len(forking.notes("end"))
        await forking.until(lambda: len(forking.notes("end")) >= seen + 3)
        forking.stop()
    elif victim == "group":
        assert struck.wait(timeout=30) == 0
    else:
        seen = len(forking.notes("end"))
        await forking.until(lambda: len(forking.notes("end")) >= seen + 2)
        forking.stop()
        assert struck.returncode == 0
    await until_all_are_gone()

    starts = [note["seq"] for note in forking.notes("start")]
    ends = [note["seq"] for note in forking.notes("end")]
    assert set(starts) == set(ends) == set(range(ends[-1] + 1))
    # A run whose process, or processor, did not live to report it is run again.
    is_lost = victim in ("child", "processor")
    assert len(starts) - len(ends) == (is_lost and moment in ("begun", "reporting"))
    is_unsettled = victim == "processor" and moment == "after"
    assert len(ends) - len(set(ends)) == is_unsettled
    assert await forking.tokens(broker, 1) == {"loop0": 1}


async def test_a_fork_server_that_stands_still_keeps_nobody_from_asking(forking: Field) -> None:
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


async def test_a_process_ends_without_a_thread_that_outlasts_its_grace(
    working: Field, broker: Broker
) -> None:
    working.call("seed")
    doomed = working.start("run", TAKES="600", SCHEDULER_SHUTDOWN_GRACE="500ms")
    await working.until(lambda: bool(working.notes("start")))
    doomed.terminate()
    output = working.output_of(doomed)
    assert doomed.returncode == 0
    assert "abandoned: the thread outlived" in output
    working.start("run")
    await working.until(lambda: bool(working.notes("end")))
    first, again = working.notes("start")[:2]
    assert (first["seq"], first["attempt"]) == (again["seq"], again["attempt"])
    assert again["pid"] != first["pid"]
    working.stop()
    assert await working.tokens(broker, 1) == {"loop0": 1}
