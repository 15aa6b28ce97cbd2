"""A short run on a real broker."""

import pytest

from tests.fuzz.field import Taken, ploughed
from tests.fuzz.run import Fuzz
from tests.rabbitmq import Users

MESSAGES = 300


@pytest.mark.timeout(240)
async def test_each_published_message_is_run_or_parked(
    broker_url: str, namespace: str, users: Users
) -> None:
    async with ploughed(broker_url, namespace, "quorum", users) as field:
        tally = await Fuzz(field, seed=2).run(MESSAGES, per_round=MESSAGES)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.published == MESSAGES
    # The rest is refused, most of it for keys that are no delay.
    assert tally.taken[Taken.ACCEPTED] > MESSAGES * 0.8
    for kind in ("business RUN", "business PARKED", "call RUN", "later RUN", "token RUN"):
        assert tally.ended[kind] > 0
