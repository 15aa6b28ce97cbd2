"""What was measured of how loops grow: points, summarised, written and read again."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tests.benchmarks.costs import at_quantile
from tests.benchmarks.fleets.record import Ran

Part: TypeAlias = Literal["processors", "rate", "loops"]


@dataclass(frozen=True)
class Point:
    """What one fleet cost; None: cannot be known here.

    Attributes:
        every: seconds.
        worker_ms: CPU of all processors for a run; broker_ms: of the broker.
        late_p50: milliseconds after its nominal time at which a run began.
        share: of the runs that were due in this time.
        processor_mb: in memory, the mean of all processors; broker_mb: of the broker.
        broker_mb_before: before the loops were seeded, with what points before have left.
    """

    part: Part
    system: str
    loops: int
    every: float
    processors: int
    worker_ms: float
    broker_ms: float | None
    late_p50: float | None
    late_p99: float | None
    share: float
    processor_mb: float
    broker_mb: float | None
    broker_mb_before: float | None
    seeding_s: float

    @property
    def rate(self) -> float:
        """Runs that are due in a second."""
        return self.loops / self.every


@dataclass
class Results:
    """All points so far, and where they were measured."""

    about: Mapping[str, Any]
    points: list[Point] = field(default_factory=list[Point])

    def of(self, part: Part, system: str = "ours") -> Sequence[Point]:
        return [point for point in self.points if (point.part, point.system) == (part, system)]

    def save(self, path: Path) -> None:
        """At once or not at all, so that who is killed keeps what was there."""
        whole = {"about": dict(self.about), "points": [asdict(point) for point in self.points]}
        beside = path.with_name(f"{path.name}.new")
        beside.write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n")
        beside.replace(path)


def read(path: Path) -> Results:
    whole = json.loads(path.read_text())
    return Results(whole["about"], [Point(**point) for point in whole["points"]])


def costs_of(
    runs: Sequence[Ran], due: float, worker: float, broker: float
) -> Mapping[str, float | None]:
    """Seconds of CPU and single runs, as they stand in a point; due: how many runs should be."""
    late = lateness(runs)
    return {
        "worker_ms": known(worker / len(runs) * 1000),
        "broker_ms": known(broker / len(runs) * 1000),
        "late_p50": known(at_quantile(late, 0.5), 1),
        "late_p99": known(at_quantile(late, 0.99), 1),
        "share": known(len(runs) / due, 4),
    }


def lateness(runs: Iterable[Ran]) -> list[float]:
    """In milliseconds, after the nominal times."""
    return [(run.at - run.due) * 1000 for run in runs]


def known(value: float, digits: int = 3) -> float | None:
    """JSON has no word for what is not a number."""
    return None if math.isnan(value) else round(value, digits)
