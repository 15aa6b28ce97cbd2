"""Processes that open what their runs share, and close it."""

from pathlib import Path

import pytest

from scheduler.brokers.amqp.broker import AmqpBroker
from tests.integration.conftest import Field

APP = f"{Path(__file__).parent / 'apps' / 'sharing.py'}:app"


@pytest.fixture
def sharing(field_: Field) -> Field:
    field_.app = APP
    return field_


async def test_a_signal_closes_it_after_the_run_in_hand_is_settled(sharing: Field) -> None:
    sharing.call("seed")
    process = sharing.start("run", TAKES="1.5")
    await sharing.until(lambda: bool(sharing.notes("start")))
    process.terminate()
    assert "Traceback" not in sharing.output_of(process)
    assert process.returncode == 0
    said = [note["what"] for note in sharing.notes()]
    assert said == ["opening", "open", "start", "end", "settled", "closed"]


async def test_where_it_cannot_be_opened_the_process_ends_and_consumes_nothing(
    sharing: Field,
) -> None:
    sharing.call("seed")
    process = sharing.start("run", BROKEN="1")
    output = sharing.output_of(process)
    assert process.returncode == 1
    *_, first, where, _, raised_at, code = output.splitlines()
    assert first == (
        "scheduler: The lifespan open_pool could not be opened, and no run was begun: "
        "ConnectionRefusedError: no database"
    )
    assert where.startswith('  File "')
    assert where.endswith("in open_pool")
    assert raised_at.endswith("in connect")
    assert code.strip() == 'raise ConnectionRefusedError("no database")'
    assert "Traceback" not in output
    assert [note["what"] for note in sharing.notes()] == ["opening"]
    async with AmqpBroker(sharing.url) as broker:
        assert await sharing.tokens(broker, 1) == {"loop0": 1}
