"""What a processor sees to before it starts, with few rights or with none."""

import pytest

from scheduler.errors import AccessRefused, BrokerError, QueueNotFound
from tests.faulty import FaultyBroker, Operation
from tests.stage import Stage, at_work, new_app, processor_of


@pytest.mark.parametrize(
    ("refused", "error", "said"),
    [
        ("depth", AccessRefused, "^ACCESS_REFUSED$"),
        ("declare", QueueNotFound, "presence' is not in .*, and this user may not declare it"),
    ],
)
async def test_who_may_not_look_is_not_told_that_something_is_missing(
    stage: Stage, refused: Operation, error: type[BrokerError], said: str
) -> None:
    await stage.seed(app := new_app())
    await stage.broker.delete(app.names.presence)
    async with FaultyBroker(stage.server) as broker:
        broker.on(refused).fails(AccessRefused("ACCESS_REFUSED"))
        with pytest.raises(error, match=said):
            async with at_work(processor_of(app, broker, stage.clock)):
                pass
