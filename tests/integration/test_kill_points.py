"""Loops, cancelled runs and named one-offs whose processor is killed at each step."""

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import Scheduler
from scheduler.brokers.contract import Broker
from scheduler.control.reports import Effect
from scheduler.protocol.tokens import LoopId
from scheduler.sending import PeriodicTask
from tests.contract.wire import eventually
from tests.integration.conftest import Field
from tests.stage import SYSTEM_CLOCK
from tests.tokens import count

SLOW = {"EVERY": "1h", "SCHEDULER_SUPERVISION_INTERVAL": "1s"}
NAMED = LoopId("loop0", "order-7")
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
    await field_.until_killed("run", KILL_AT=f"{moment}@{VICTIM}", **every)
    field_.start("run", **every)
    await field_.until(lambda: any(note["seq"] >= VICTIM + 3 for note in field_.notes("end")))
    field_.stop()

    seqs = [note["seq"] for note in field_.notes("start")]
    begun = seqs.count(VICTIM) + (1 if moment == "RunStarted" else 0)  # died before its note
    assert begun == runs_of_victim
    assert sorted(set(seqs) - {VICTIM}) == sorted(s for s in seqs if s != VICTIM)
    assert await field_.tokens(broker, 1) == {"loop0": 1}


async def test_another_processor_continues_before_supervision_acts(field_: Field, broker: Broker):
    every = {"EVERY": "500ms", "TAKES": "0.3"}
    field_.call("seed", **every)
    field_.start("run", **every)
    await field_.until(lambda: bool(field_.notes("start")))
    await field_.until_killed("run", KILL_AT="RunFinished", **every)  # in its first run
    (killed,) = field_.notes("killed")

    def since() -> list[dict[str, Any]]:
        return [note for note in field_.notes("start") if note["at"] > killed["at"]]

    await field_.until(lambda: bool(since()))
    again = since()[0]
    # A token that supervision puts is not redelivered.
    assert (again["seq"], again["redelivered"]) == (killed["seq"], True)
    field_.stop()
    assert await field_.tokens(broker, 1) == {"loop0": 1}


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
    long, short = {"EVERY": "300ms", "TAKES": "60"}, {"EVERY": "300ms"}
    field_.call("seed", **long)
    doomed = field_.start("run", KILL_AT=f"{moment}@0", **long)
    await field_.until(lambda: bool(field_.notes("start")))
    cancel = field_.start("cancel", "loop0", "--json")
    assert doomed.wait(timeout=30) == -signal.SIGKILL
    field_.start("run", **short)
    await field_.until(lambda: any(note["seq"] >= 2 for note in field_.notes("end")))
    report = json.loads(field_.output_of(cancel))
    assert (report["ending"], report["as_asked"]) == ("lost", False)
    field_.stop()
    seqs = [note["seq"] for note in field_.notes("start")]
    assert seqs.count(0) == 1 + runs_again
    assert await field_.tokens(broker, 1) == {"loop0": 1}


def task_of(field: Field) -> tuple[Scheduler, PeriodicTask[..., Any]]:
    """What the recorder has, for a program that sends."""
    app = Scheduler(field.namespace)

    @app.periodic(every="1h", name="loop0")
    async def loop0() -> None: ...

    return app, loop0


async def until_none_is_scheduled(task: PeriodicTask[..., Any]) -> None:
    async def is_removed() -> bool:
        return await task.scheduled() == []

    await eventually(is_removed, 60)


@pytest.mark.parametrize(
    ("moment", "begun"),
    [
        ("RunFinished", 2),  # killed before it was noted that it is done
        ("SuccessorConfirmed", 1),  # killed between publish and ack: done, so not run again
        ("RunSettled", 1),  # killed after the ack, before it was removed
    ],
)
async def test_a_named_one_off_survives_its_processor_and_is_done_once(
    field_: Field, broker: Broker, moment: str, begun: int
) -> None:
    field_.call("seed", **SLOW)
    app, task = task_of(field_)
    with app.lending(broker, SYSTEM_CLOCK):
        at = datetime.now(UTC) + timedelta(seconds=1)
        assert await task.once("order-7", at=at) is Effect.CREATED
        await field_.until_killed("run", KILL_AT=moment, **SLOW)
        assert await task.once("order-7", at=at) is Effect.UNCHANGED
        field_.start("run", **SLOW)

        await until_none_is_scheduled(task)
        assert await task.once("order-7", at=at) is Effect.UNCHANGED
        assert await task.scheduled() == []
    field_.stop()
    runs = [note for note in field_.notes("start") if note["loop"] == str(NAMED)]
    assert len(runs) == begun
    assert all(run["started_at"] >= at.timestamp() for run in runs)
    assert not (await count(broker, app.names, [NAMED])).total()


async def test_one_of_many_programs_creates_a_requested_one_off(field_: Field, broker: Broker):
    field_.call("seed", **SLOW)
    apps = [task_of(field_) for _ in range(8)]
    names = [f"order-{number}" for number in range(5)]
    at = datetime.now(UTC) + timedelta(seconds=3)

    async def ask(app: Scheduler, task: PeriodicTask[..., Any]) -> list[Effect]:
        with app.lending(broker, SYSTEM_CLOCK):
            return [await task.once(name, at=at) for name in names]

    asked = await asyncio.gather(*(ask(*each) for each in apps))
    made = [did for dids in asked for did in dids if did is not Effect.UNCHANGED]
    assert made == [Effect.CREATED] * len(names)
    field_.start("run", **SLOW)
    field_.start("run", **SLOW)
    await field_.until(lambda: len(field_.notes("end")) >= len(names))
    app, task = apps[0]
    with app.lending(broker, SYSTEM_CLOCK):
        await until_none_is_scheduled(task)
    field_.stop()
    assert sorted(note["loop"] for note in field_.notes("start")) == [
        f"loop0.{name}" for name in names
    ]
