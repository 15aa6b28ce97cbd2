"""Runs that are told of and ended, by real processes on a real broker."""

import json
import signal

import pytest

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field

LONG = {"EVERY": "300ms", "TAKES": "60"}
SHORT = {"EVERY": "300ms", "TAKES": "0.01"}


def begun(field_: Field) -> list[int]:
    return [note["seq"] for note in field_.notes("start")]


@pytest.mark.parametrize(
    ("moment", "runs_again"),
    [
        ("RunFinished", True),  # cancelled, and killed before what comes next was published
        ("SuccessorConfirmed", False),  # killed between publish and ack: the loop has gone on
    ],
)
async def test_a_run_whose_processor_is_killed_after_it_was_cancelled(
    field_: Field, broker: Broker, moment: str, runs_again: bool
) -> None:
    field_.call("seed", **LONG)
    doomed = field_.start("run", KILL_AT=f"{moment}@0", **LONG)
    await field_.until(lambda: begun(field_) == [0])
    cancel = field_.start("cancel", "loop0", "--json")
    assert doomed.wait(timeout=30) == -signal.SIGKILL
    field_.start("run", **SHORT)
    await field_.until(lambda: any(note["seq"] >= 2 for note in field_.notes("end")))
    report = json.loads(field_.output_of(cancel))
    assert (report["ending"], report["as_asked"]) == ("lost", False)
    field_.stop()
    assert begun(field_).count(0) == 1 + runs_again
    assert await field_.tokens(broker, 1) == {"loop0": 1}
