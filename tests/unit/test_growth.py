"""What is told of how loops grow: the pure parts of the benchmark."""

import math
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.fleets.record import Ran
from tests.benchmarks.results import Point, Results, costs_of, read

ABOUT = {
    "date": "2026-06-01",
    "machine": "a machine",
    "cores": 2,
    "memory_gb": 4,
    "rabbitmq": "4.3.6",
    "python": "3.11.7",
    "uvloop": False,
    "package": "0.1.0",
    "seconds": 15.0,
}


POINT = Point(
    part="rate",
    system="ours",
    loops=10,
    every=1.0,
    processors=2,
    worker_ms=2.0,
    broker_ms=4.0,
    late_p50=1.5,
    late_p99=3.25,
    share=1.0,
    processor_mb=50.0,
    broker_mb=300.0,
    broker_mb_before=290.0,
    seeding_s=0.05,
)


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


def test_one_run_has_no_quantiles():
    costs = costs_of([Ran(0, 1.5, 1.0)], due=1, worker=0.001, broker=0.001)
    assert costs["late_p50"] is None


def test_results_are_read_as_they_were_written(tmp_path: Path):
    results = Results(ABOUT, [POINT, replace(POINT, part="loops", broker_ms=None)])
    results.save(path := tmp_path / "growth.json")
    assert read(path) == results
    assert list(tmp_path.iterdir()) == [path]
