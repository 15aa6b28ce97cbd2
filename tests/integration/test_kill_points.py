"""A processor killed with SIGKILL at each step of a settlement."""

import signal
from typing import Any

import pytest

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field

VICTIM = 2  # the seq at which the processor dies


@pytest.mark.parametrize(
    ("moment", "runs_of_victim"),
    [
        ("RunStarted", 2),  # killed in mid run: at least once means again
        ("RunFinished", 2),  # killed before the successor was published
        ("SuccessorConfirmed", 1),  # killed between publish and ack: settled, so not run again
        ("RunSettled", 1),  # killed after the ack
    ],
)
async def test_a_loop_survives_its_processor(
    field_: Field, broker: Broker, moment: str, runs_of_victim: int
) -> None:
    every = {"EVERY": "200ms"}
    field_.call("seed", **every)
    doomed = field_.start("run", KILL_AT=f"{moment}@{VICTIM}", **every)
    await field_.until(lambda: bool(field_.notes("killed")))
    assert doomed.wait(timeout=30) == -signal.SIGKILL
    field_.start("run", **every)
    await field_.until(lambda: any(note["seq"] >= VICTIM + 3 for note in field_.notes("end")))
    field_.stop()

    seqs = [note["seq"] for note in field_.notes("start")]
    begun = seqs.count(VICTIM) + (1 if moment == "RunStarted" else 0)  # died before its note
    assert begun == runs_of_victim
    assert sorted(set(seqs) - {VICTIM}) == sorted(s for s in seqs if s != VICTIM)
    assert await field_.tokens(broker, 1) == {"loop0": 1}


async def test_another_processor_goes_on_before_supervision_could_help(
    field_: Field, broker: Broker
) -> None:
    every = {"EVERY": "500ms", "TAKES": "0.3"}
    field_.call("seed", **every)
    field_.start("run", **every)
    await field_.until(lambda: bool(field_.notes("start")))
    doomed = field_.start("run", KILL_AT="RunFinished", **every)  # of the first that it is given
    await field_.until(lambda: bool(field_.notes("killed")))
    assert doomed.wait(timeout=30) == -signal.SIGKILL
    (killed,) = field_.notes("killed")

    def since() -> list[dict[str, Any]]:
        return [note for note in field_.notes("start") if note["at"] > killed["at"]]

    await field_.until(lambda: bool(since()))
    again = since()[0]
    # A token that supervision puts is not redelivered.
    assert (again["seq"], again["redelivered"]) == (killed["seq"], True)
    field_.stop()
    assert await field_.tokens(broker, 1) == {"loop0": 1}
