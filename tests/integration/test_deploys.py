"""A new version beside the old one: nothing stands still, nothing runs twice, nothing is parked."""

from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.topology import Names, topology
from scheduler.queues.failed import EVERYTHING, FailedQueues
from scheduler.timing.moments import SystemClock
from tests.integration.conftest import Field, ready

APP = f"{Path(__file__).parent / 'apps' / 'versions.py'}:app"
LOOPS = ("kept", "quickened", "moved", "resized", "removed", "added")
OLD, NEW = {"VERSION": "old"}, {"VERSION": "new"}


@pytest.fixture
def deploy(field_: Field) -> Field:
    field_.app = APP
    field_.declares = topology(field_.namespace, [*LOOPS, "_supervision"])  # of both versions
    return field_


def runs(field: Field, loop: str, version: str) -> list[dict[str, Any]]:
    return [note for note in field.notes(loop) if note["version"] == version]


@pytest.mark.timeout(180)
async def test_two_versions_work_side_by_side_and_the_new_one_takes_over(deploy: Field) -> None:
    deploy.call("seed", **OLD)
    old = deploy.start("run", **OLD)
    await deploy.until(lambda: len(runs(deploy, "removed", "old")) >= 2)
    await deploy.until(lambda: len(runs(deploy, "resized", "old")) >= 2)

    did = {row["loop"]: row["did"] for row in deploy.call("seed", **NEW)["loops"]}
    assert did["added"] == "created"
    assert did["quickened"] == "rescheduled"
    assert did["moved"] == "rescheduled"
    # Only the old version runs: what is new waits, what was changed goes on with what fits it.
    await deploy.until(lambda: len(runs(deploy, "quickened", "old")) >= 2)
    assert runs(deploy, "added", "old") == []
    new = deploy.start("run", **NEW)
    await deploy.until(lambda: len(runs(deploy, "added", "new")) >= 2)
    await deploy.until(lambda: len(runs(deploy, "moved", "new")) >= 1)
    await deploy.until(lambda: len(runs(deploy, "resized", "new")) >= 1)
    before = len(runs(deploy, "removed", "old"))
    await deploy.until(lambda: len(runs(deploy, "removed", "old")) > before)
    old.terminate()
    deploy.output_of(old)

    await deploy.until(lambda: len(runs(deploy, "kept", "new")) >= 2)
    assert {note["size"] for note in runs(deploy, "resized", "old")} == {"small"}
    assert {note["size"] for note in runs(deploy, "resized", "new")} == {3}
    ticks = [(note["seq"], note["carried"]) for note in deploy.notes("kept")]
    assert [seq for seq, _ in ticks] == list(range(len(ticks)))
    assert [carried for _, carried in ticks] == [None, *range(1, len(ticks))]
    new.terminate()
    deploy.output_of(new)
    names = Names(deploy.namespace)
    async with AmqpBroker(deploy.url) as broker:
        assert await ready(broker, names.failed, *map(names.failed_queue, LOOPS)) == 0


@pytest.fixture
def renaming(field_: Field) -> Field:
    field_.app = f"{Path(__file__).parent / 'apps' / 'renamed.py'}:app"
    field_.declares = renamed_app(field_).topology()
    return field_


def renamed_app(field: Field) -> Scheduler:
    """The app with both names, to send to the old one and to clear up."""
    app = Scheduler(field.namespace, Settings(queue_type=field.queue_type))

    async def render(page: int) -> None: ...

    for name in "render_pdf", "render", "count", "counter":
        app.task(name=name)(render)
    return app


@pytest.mark.timeout(180)
async def test_a_renamed_task_takes_over_though_seeds_are_killed(
    renaming: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDULER_BROKER_URL", renaming.url)

    def of(task: str, what: str) -> list[Any]:
        return [note[what] for note in renaming.notes() if note["task"] == task and what in note]

    renaming.call("seed", **OLD)
    old = renaming.start("run", **OLD)
    async with renamed_app(renaming) as sender:
        send = sender.senders["render_pdf"]
        for page in -1, -2, -3:
            await send.send(page=page)
        await renaming.until(lambda: len(of("count", "seq")) >= 21)
        await renaming.until(lambda: len(of("render_pdf", "page")) == 3)
        old.terminate()
        renaming.output_of(old)
        done = len(of("count", "seq"))
        for page in range(10):
            await send.send(page=page)
        for page in range(10, 15):
            await send.send_later("3s", page=page)

        for after in 1, 3, 5:
            await renaming.until_killed("seed", KILL_AFTER=str(after), **NEW)
        (counter,) = renaming.call("seed", **NEW)["loops"]
        assert (counter["loop"], counter["did"]) == ("counter", "renamed")
        new = renaming.start("run", **NEW)
        await renaming.until(lambda: len(of("render", "page")) == 15)
        await send.send(page=15)
        await renaming.until(lambda: len(of("render", "page")) == 16)
        await renaming.until(lambda: len(of("counter", "seq")) >= 3)
    assert sorted(of("render", "page")) == [*range(16)]
    assert of("counter", "seq")[:3] == [done, done + 1, done + 2]
    assert of("counter", "carried")[:3] == [done, done + 1, done + 2]
    async with AmqpBroker(renaming.url) as broker:
        names, renamed = Names(renaming.namespace), {"render_pdf": "render"}
        failed = FailedQueues(broker, names, SystemClock(), renamed)
        assert [each.task for each in await failed.browse(["render"])] == ["render"] * 3
        assert await failed.replay(["render"], EVERYTHING) == 3
    await renaming.until(lambda: sorted(of("render", "page"))[:3] == [-3, -2, -1])
    new.terminate()
    renaming.output_of(new)
