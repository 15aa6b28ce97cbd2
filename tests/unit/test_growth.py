"""What is told of how loops grow: the pure parts of the benchmark."""

import math

from tests.benchmarks.fleets.record import Ran
from tests.benchmarks.results import costs_of


def test_runs_are_summarised():
    runs = [Ran(number, 100 + number + 0.002, 100 + number) for number in range(10)]
    costs = costs_of(runs, due=20, worker=0.03, broker=math.nan)
    assert costs == {
        "worker_ms": 3.0,
        "broker_ms": None,
        "late_p50": 2.0,
        "late_p99": 2.0,
        "share": 0.5,
    }
    assert costs_of(runs[:1], due=1, worker=0.001, broker=0.001)["late_p50"] is None
