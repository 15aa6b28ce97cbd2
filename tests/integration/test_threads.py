"""Functions that block, in processes that are stopped and killed beside them."""

from pathlib import Path

import pytest

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field

APP = f"{Path(__file__).parent / 'apps' / 'blocking.py'}:app"


@pytest.fixture
def blocking(field_: Field) -> Field:
    field_.app = APP
    return field_


async def test_a_run_that_outlasts_its_time_is_tried_again_after_it(blocking: Field) -> None:
    blocking.call("seed")
    processes = [blocking.start("run", TAKES="1"), blocking.start("run", TAKES="1")]
    await blocking.until(lambda: len(blocking.notes("end")) >= 2)
    blocking.stop()
    outputs = [blocking.output_of(process) for process in processes]
    steps = [(note["what"], note["attempt"]) for note in blocking.notes()]
    assert steps[:4] == [("start", 1), ("end", 1), ("start", 2), ("end", 2)]
    assert any("its thread cannot be interrupted" in output for output in outputs)
    assert any("it ran longer than its timeout of 0.3 s" in output for output in outputs)


async def test_a_process_that_is_stopped_waits_for_its_threads(
    blocking: Field, broker: Broker
) -> None:
    blocking.call("seed")
    process = blocking.start("run", TAKES="0.2")
    await blocking.until(lambda: bool(blocking.notes("start")))
    process.terminate()
    output = blocking.output_of(process)
    assert process.returncode == 0
    assert len(blocking.notes("start")) == len(blocking.notes("end"))
    assert "succeeded in" in output
    assert await blocking.tokens(broker, 1) == {"loop0": 1}


async def test_a_process_ends_without_a_thread_that_outlasts_its_grace(
    blocking: Field, broker: Broker
) -> None:
    blocking.call("seed")
    doomed = blocking.start("run", TAKES="600", SCHEDULER_SHUTDOWN_GRACE="500ms")
    await blocking.until(lambda: bool(blocking.notes("start")))
    doomed.terminate()
    output = blocking.output_of(doomed)
    assert doomed.returncode == 0
    assert "abandoned: the thread outlived" in output
    blocking.start("run")
    await blocking.until(lambda: bool(blocking.notes("end")))
    first, again = blocking.notes("start")[:2]
    assert (first["seq"], first["attempt"]) == (again["seq"], again["attempt"])
    assert again["pid"] != first["pid"]
    blocking.stop()
    assert await blocking.tokens(broker, 1) == {"loop0": 1}
