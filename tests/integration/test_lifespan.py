"""A process whose lifespan cannot be opened."""

from pathlib import Path

from scheduler.brokers.contract import Broker
from tests.integration.conftest import Field


async def test_where_it_cannot_be_opened_the_process_ends_and_consumes_nothing(
    field_: Field, broker: Broker
) -> None:
    field_.app = f"{Path(__file__).parent / 'apps' / 'sharing.py'}:app"
    field_.call("seed")
    process = field_.start("run")
    output = field_.output_of(process)
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
    assert await field_.tokens(broker, 1) == {"loop0": 1}
