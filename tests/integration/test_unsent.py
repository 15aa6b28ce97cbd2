"""Messages that are sent while their broker is away, by programs that are killed."""

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from scheduler.protocol.topology import topology
from scheduler.queues.unsent import SqliteStore
from tests.integration.conftest import Field, sweep
from tests.rabbitmq import PrivateNode
from tests.sweep import new_namespace

APP = f"{Path(__file__).parent / 'apps' / 'posting.py'}:app"
COUNT = 300
SIDE_BY_SIDE = 200
SECONDS = 6  # of the outage


class Sender:
    """A program that sends all its messages, however often it is killed."""

    def __init__(self, field: Field, name: str, **environment: str) -> None:
        self._field, self._name = field, name
        self._log = field.record.with_name(f"{name}.log")
        self._environment = {
            **os.environ,
            **environment,
            "SCHEDULER_BROKER_URL": field.url,
            "NAMESPACE": field.namespace,
            "RECORD": str(field.record),
            "OUTAGE": str(field.record.with_name("outage")),
            "PAUSE": str(SIDE_BY_SIDE * SECONDS / COUNT),
            "SIDE_BY_SIDE": str(SIDE_BY_SIDE),
        }
        self.process = self._started()

    def replace(self) -> None:
        """Kill the program, and start it again."""
        self.process.kill()
        self.process.wait()
        self.process = self._started()

    @property
    def became(self) -> dict[str, str]:
        """What became of each message: confirmed, stored or raised."""
        notes = [each for each in self._field.notes("sent") if each["name"].startswith(self._name)]
        return {each["name"]: each["became"] for each in notes}

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.integration.apps.posting", self._name, str(COUNT)]
        with self._log.open("a") as log:
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)


@pytest.mark.timeout(300)
async def test_calls_sent_over_an_outage_run_or_raise_though_their_sender_is_killed(
    node: PrivateNode, tmp_path: Path
) -> None:
    field = Field(node.url, new_namespace(), "quorum", tmp_path / "record", app=APP)
    field.declares = topology(field.namespace, ["work"], called=["work"])
    database = str(tmp_path / "unsent.db")
    fallback = {"FALLBACK": f"sqlite:///{database}"}

    def problems() -> list[str]:
        ran, store = field.notes("ran"), SqliteStore(database, field.namespace)
        became = keeps.became | raises.became
        accepted = {name for name in became if became[name] != "raised"}
        return [
            *(f"under another id: {each}" for each in ran if each["name"] != each["message_id"]),
            *(f"{name} has not run" for name in accepted - {each["name"] for each in ran}),
            *(f"{name} raised" for name in keeps.became.keys() - accepted),
            *(f"{each} is stored still" for each in store.read()),
        ]

    field.call("seed")
    field.start("run", **fallback)
    senders = keeps, raises = Sender(field, "keeps", **fallback), Sender(field, "raises")
    try:
        await field.until(lambda: all(len(each.became) >= COUNT / 4 for each in senders), 120)
        await asyncio.sleep(1)  # RabbitMQ 3.10 loses a quorum queue that is not yet a second old
        await asyncio.to_thread(node.kill)
        field.record.with_name("outage").touch()
        await asyncio.sleep(SECONDS / 3)
        for each in senders:
            each.replace()
        await asyncio.sleep(SECONDS * 2 / 3)
        await asyncio.to_thread(node.start)
        await asyncio.sleep(SECONDS / 10)
        for each in senders:
            each.replace()
        for each in senders:
            assert await asyncio.to_thread(each.process.wait) == 0
            assert len(each.became) == COUNT
        with suppress(TimeoutError):  # `problems` says what is missing
            await field.until(lambda: not problems(), 120)
    finally:
        for each in senders:
            each.process.kill()
        field.kill()
    assert problems() == []
    assert "stored" in keeps.became.values()
    assert "raised" in raises.became.values()
    await sweep(field)
