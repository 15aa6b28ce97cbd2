"""Functions that run in processes of their own, whose processors are stopped and killed."""

import os
from pathlib import Path

import pytest

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field

APP = f"{Path(__file__).parent / 'apps' / 'blocking.py'}:app"
LONG = {"PROCESS": "1", "TAKES": "600", "TIMEOUT": "1h"}


@pytest.fixture
def working(field_: Field) -> Field:
    field_.app = APP
    return field_


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_what_is_longer_than_its_time_is_killed_and_tried_again(working: Field) -> None:
    working.call("seed", PROCESS="1")
    process = working.start("run", PROCESS="1", TAKES="600", TIMEOUT="10s")
    await working.until(lambda: len(working.notes("start")) >= 3)
    working.stop()
    first, second, third = working.notes("start")[:3]
    assert [each["attempt"] for each in (first, second, third)] == [0, 1, 2]
    assert not any(is_there(each["pid"]) for each in (first, second))
    assert "it ran longer than its timeout of 10 s" in working.output_of(process)
    assert not working.notes("end")


@pytest.mark.parametrize("way", ["terminate", "kill"])
async def test_no_process_outlives_its_processor(working: Field, broker: Broker, way: str) -> None:
    working.call("seed", PROCESS="1")
    doomed = working.start("run", **LONG, SCHEDULER_SHUTDOWN_GRACE="200ms")
    await working.until(lambda: bool(working.notes("start")))
    (note,) = working.notes("start")
    assert note["pid"] != doomed.pid
    getattr(doomed, way)()
    doomed.wait(timeout=30)
    await working.until(lambda: not is_there(note["pid"]))
    working.start("run", PROCESS="1", TIMEOUT="1h")
    await working.until(lambda: bool(working.notes("end")))
    again = working.notes("start")[1]
    assert (again["seq"], again["attempt"]) == (note["seq"], note["attempt"])
    working.stop()
    assert await working.tokens(broker, 1) == {"loop0": 1}


async def test_a_process_that_is_killed_is_a_failed_attempt(working: Field) -> None:
    working.call("seed", PROCESS="1")
    process = working.start("run", **LONG)
    await working.until(lambda: bool(working.notes("start")))
    os.kill(working.notes("start")[0]["pid"], 9)
    await working.until(lambda: len(working.notes("start")) == 2)
    os.kill(working.notes("start")[1]["pid"], 9)
    await working.until(lambda: len(working.notes("start")) == 3)
    process.kill()
    assert [note["attempt"] for note in working.notes("start")] == [0, 1, 2]
    assert "its process was ended by SIGKILL" in working.output_of(process)
