"""Messages that are sent while their broker is away, by a program that is killed."""

import time
from pathlib import Path

import pytest

from tests.integration.outage import Outage
from tests.rabbitmq import PrivateNode


@pytest.mark.timeout(300)
@pytest.mark.parametrize("has_fallback", [True, False], ids=["fallback", "no fallback"])
def test_what_is_sent_over_an_outage_is_run_or_raised_though_its_sender_is_killed(
    tmp_path: Path, has_fallback: bool
) -> None:
    """At full size, this is run by hand: see `tests/integration/outage.py`."""
    with PrivateNode(management=False) as node:

        def stop() -> None:
            time.sleep(1)  # RabbitMQ 3.10 loses a quorum queue that is not yet a second old
            node.kill()

        outage = Outage(node.url, tmp_path, 300, 6, stop, node.start, has_fallback)
        outage.happen()
    assert outage.problems() == []
    assert ("stored" if has_fallback else "raised") in outage.became.values(), str(outage)
