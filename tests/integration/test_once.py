"""Named one-offs, whose processor is killed with SIGKILL at each step, on a real broker."""

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import Scheduler, Settings
from scheduler.brokers.contract import Broker
from scheduler.control.reports import Effect
from scheduler.protocol.tokens import LoopId
from scheduler.sending import PeriodicTask
from scheduler.timing.moments import SystemClock
from tests.contract.wire import eventually
from tests.integration.conftest import Field
from tests.tokens import count

SLOW = {"EVERY": "1h", "SCHEDULER_SUPERVISION_INTERVAL": "1s"}
NAMED = LoopId("loop0", "order-7")


def task_of(field: Field) -> tuple[Scheduler, PeriodicTask[..., Any]]:
    """What the recorder has, for a program that sends."""
    app = Scheduler(field.namespace, Settings(queue_type=field.queue_type))

    @app.periodic(every="1h", name="loop0")
    async def loop0() -> None: ...

    return app, loop0


@pytest.mark.parametrize(
    ("moment", "begun"),
    [
        ("RunFinished", 2),  # killed before it was noted that it is done
        ("SuccessorConfirmed", 1),  # killed between publish and ack: done, so not run again
        ("RunSettled", 1),  # killed after the ack, before it was removed
    ],
)
async def test_one_survives_its_processor_and_is_done_once(
    field_: Field, broker: Broker, moment: str, begun: int
) -> None:
    field_.call("seed", **SLOW)
    app, task = task_of(field_)
    with app.lending(broker, SystemClock()):
        at = datetime.now(UTC) + timedelta(seconds=1)
        assert await task.once("order-7", at=at) is Effect.CREATED
        doomed = field_.start("run", KILL_AT=moment, **SLOW)
        await field_.until(lambda: bool(field_.notes("killed")))
        assert doomed.wait(timeout=30) == -signal.SIGKILL
        assert await task.once("order-7", at=at) is Effect.UNCHANGED
        field_.start("run", **SLOW)

        async def is_removed() -> bool:
            return await task.scheduled() == []

        await eventually(is_removed, 60)
        assert await task.once("order-7", at=at) is Effect.UNCHANGED
        assert await task.scheduled() == []
    field_.stop()
    runs = [note for note in field_.notes("start") if note["loop"] == str(NAMED)]
    assert len(runs) == begun
    assert {run["seq"] for run in runs} == {0}
    assert all(run["started_at"] >= at.timestamp() for run in runs)
    assert not (await count(broker, app.names, [NAMED])).total()


async def test_of_many_who_ask_for_it_at_once_one_has_it_made(
    field_: Field, broker: Broker
) -> None:
    field_.call("seed", **SLOW)
    apps = [task_of(field_) for _ in range(8)]
    names = [f"order-{number}" for number in range(5)]
    at = datetime.now(UTC) + timedelta(seconds=3)

    async def ask(app: Scheduler, task: PeriodicTask[..., Any]) -> list[Effect]:
        with app.lending(broker, SystemClock()):
            return [await task.once(name, at=at) for name in names]

    asked = await asyncio.gather(*(ask(*each) for each in apps))
    made = [did for dids in asked for did in dids if did is not Effect.UNCHANGED]
    assert made == [Effect.CREATED] * len(names)
    field_.start("run", **SLOW)
    field_.start("run", **SLOW)
    await field_.until(lambda: len(field_.notes("end")) >= len(names))
    app, task = apps[0]

    async def all_removed() -> bool:
        with app.lending(broker, SystemClock()):
            return await task.scheduled() == []

    await eventually(all_removed, 60)
    field_.stop()
    assert sorted(note["loop"] for note in field_.notes("start")) == [
        f"loop0.{name}" for name in names
    ]
