"""What a common run costs, counted in the frames between a processor and RabbitMQ."""

from collections import Counter, defaultdict
from urllib.parse import urlsplit

import pytest
from pamqp import frame
from pamqp.base import Frame

from scheduler import Scheduler
from scheduler.events import RunStarted
from tests.contract.proxy import Proxy, Way
from tests.contract.wire import eventually
from tests.integration.witness import Witness

SHORTEST_FRAME = 8  # bytes
UNCOMMON, RUNS = 3, 10  # the first ones come after a roll call


class Meter:
    """Counts the methods that are called over one connection."""

    def __init__(self) -> None:
        self.methods = Counter[tuple[Way, str]]()
        self._rest = defaultdict[Way, bytes](bytes)

    def hear(self, way: Way, data: bytes) -> None:
        rest, size = self._rest[way] + data, 1
        while size and len(rest) >= SHORTEST_FRAME:
            size, _, value = frame.unmarshal(rest)
            rest = rest[size:]
            if isinstance(value, Frame):
                self.methods[way, value.name] += 1
        self._rest[way] = rest


@pytest.mark.usefixtures("swept")
async def test_a_common_run_is_a_publish_its_confirm_a_delivery_and_an_ack(
    app: Scheduler, broker_url: str
) -> None:
    witness, meter, place = Witness(app), Meter(), urlsplit(broker_url)
    counted: list[Counter[tuple[Way, str]]] = []

    async def is_acked() -> bool:
        """Whether the ack of the run before is on record, too."""
        ack = Way.UP, "Basic.Ack"
        return not counted or meter.methods[ack] > counted[-1][ack]

    @app.periodic(every="200ms")
    async def beat() -> None:
        await eventually(is_acked)
        counted.append(meter.methods.copy())

    await witness.seed(broker_url)
    async with Proxy(str(place.hostname), place.port or 0, tap=meter.hear) as proxy:
        url = place._replace(netloc=f"{place.username}:{place.password}@127.0.0.1:{proxy.port}")
        async with witness.at_work(url.geturl(), supervises=False):
            await witness.heard(RunStarted, UNCOMMON + RUNS + 2)
    assert counted[UNCOMMON + RUNS] - counted[UNCOMMON] == {
        (Way.UP, "Basic.Publish"): RUNS,
        (Way.DOWN, "Basic.Ack"): RUNS,
        (Way.DOWN, "Basic.Deliver"): RUNS,
        (Way.UP, "Basic.Ack"): RUNS,
    }
