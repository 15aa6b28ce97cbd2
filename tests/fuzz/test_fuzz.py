"""A short run: what somebody may publish, on the embedded broker and on a real one."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from scheduler.testing import VirtualTimeLoop
from tests.fuzz.field import Taken
from tests.fuzz.ground import embedded, on_rabbitmq
from tests.fuzz.operator import Operator
from tests.fuzz.run import Fuzz, Tally
from tests.rabbitmq import Users


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The embedded broker's is virtual time."""
    if "broker_url" in getattr(item, "fixturenames", ()):
        return {"real": asyncio.new_event_loop}
    return {"virtual": VirtualTimeLoop}


def check(tally: Tally, messages: int) -> None:
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.published == messages
    # The rest is refused, most of it for keys that are no delay.
    assert tally.taken[Taken.ACCEPTED] > messages * 0.8
    for kind in ("business RUN", "business PARKED", "call RUN", "later RUN", "token RUN"):
        assert tally.ended[kind] > 0


async def test_whatever_is_published_is_run_or_parked_in_memory() -> None:
    async with embedded("classic") as field:
        tally = await Fuzz(field, Operator(field), seed=1).run(300, per_round=300)
    check(tally, 300)


@pytest.mark.timeout(240)
async def test_whatever_is_published_is_run_or_parked(
    broker_url: str, namespace: str, users: Users
) -> None:
    async with on_rabbitmq(broker_url, namespace, "quorum", users) as field:
        tally = await Fuzz(field, Operator(field, broker_url), seed=2).run(300, per_round=300)
    check(tally, 300)
