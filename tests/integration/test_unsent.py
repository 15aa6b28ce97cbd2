"""Messages that are sent while their broker is away, by a program that is killed."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.integration.outage import Outage
from tests.rabbitmq import PrivateNode


@pytest.mark.timeout(300)
def test_what_is_sent_over_an_outage_is_run_or_raised_though_its_sender_is_killed(
    node: PrivateNode, tmp_path: Path
) -> None:
    def stop() -> None:
        time.sleep(1)  # RabbitMQ 3.10 loses a quorum queue that is not yet a second old
        node.kill()

    stopping, starting = Barrier(2, stop, 100), Barrier(2, node.start, 100)
    outages = list[Outage]()
    for has_fallback in (True, False):
        (directory := tmp_path / str(has_fallback)).mkdir()
        counts = 300, 6, stopping.wait, starting.wait
        outages.append(Outage(node.url, directory, *counts, has_fallback))
    with ThreadPoolExecutor(len(outages)) as side_by_side:
        list(side_by_side.map(Outage.happen, outages))
    for outage, became in zip(outages, ("stored", "raised"), strict=True):
        assert outage.problems() == []
        assert became in outage.became.values()
        outage.sweep()
