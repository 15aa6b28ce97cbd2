"""What a run costs, how late it starts, what memory it takes: as loops, processors, rates grow.

    python tests/benchmarks/growth.py [--url amqp://...] [--seconds 15] [--out growth.json]
        [--only processors|rate|loops] [--most 10000]
    python tests/benchmarks/growth.py --draw growth.json DIR

All loops are spread over their period. Counting begins when each has run twice: what was late at
the first run was put at the same moment, and comes together once more. It lasts until each could
run once more: of 10,000 loops, that is 100 s. Each point is written to the file at once.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.broker_cpu import BrokerCpu, memory_of, spending, until_idle
from tests.benchmarks.costs import (
    BARE,
    OURS,
    SLOTS,
    WARMING,
    Fleet,
    Load,
    System,
    at_quantile,
    fleet,
    lateness,
    ours,
)
from tests.rabbitmq import shared_broker

PATIENCE = 60.0
CATCHING_UP = 180.0
RECENT = 2.0
ON_TIME = 50.0
"""Milliseconds."""


def spread(loops: int, every: float = 1.0) -> Load:
    return Load(f"{loops} x {every:g} s", loops, spread=True, every=every)


PARTS: Mapping[str, Sequence[tuple[Load, System]]] = {
    "processors": [(spread(300), ours(count)) for count in (1, 2, 4)],
    "rate": [
        (spread(rate), system)
        for rate in (10, 100, 300, 1_000, 1_500, 2_000)
        for system in ((OURS, BARE, SLOTS) if rate in (100, 1_000) else (OURS,))
    ],
    "loops": [(spread(loops, loops / 100), OURS) for loops in (10, 100, 1_000, 10_000)],
}


@dataclass(frozen=True)
class Point:
    """What one fleet cost.

    Attributes:
        every: seconds.
        worker_ms: CPU of all processors for a run; broker_ms: of the broker.
        late_p50: milliseconds after its nominal time at which a run began.
        share: of the runs that were due in this time.
        processor_mb: in memory, the mean of all processors; broker_mb: of the broker.
        broker_mb_before: before the loops were seeded, with what points before have left.
    """

    part: str
    system: str
    loops: int
    every: float
    processors: int
    worker_ms: float
    broker_ms: float
    late_p50: float
    late_p99: float
    share: float
    processor_mb: float
    broker_mb: float
    broker_mb_before: float
    seeding_s: float

    @property
    def rate(self) -> float:
        """Runs that are due in a second."""
        return self.loops / self.every

    def __str__(self) -> str:
        return (
            f"{self.part:11}{self.system:12}{self.processors} x "
            f"{f'{self.loops} x {self.every:g} s':16}"
            f"worker {self.worker_ms:6.2f} ms  broker {self.broker_ms:6.2f} ms"
            f"  late {self.late_p50:6.1f} {self.late_p99:8.1f} ms  runs {self.share:7.1%}"
            f"  {self.processor_mb:5.0f} MB, broker {self.broker_mb:5.0f} MB"
        )


def measure(part: str, load: Load, system: System, url: str, seconds: float) -> Point:
    broker = BrokerCpu(url)
    until_idle(broker)
    before, asked = broker.memory(), time.monotonic()
    with fleet(system, load, url) as working:
        seeding = time.monotonic() - asked
        warm_up(working, load)
        began = time.time()  # noqa: TID251
        with spending(broker, working.cpu) as spent:
            time.sleep(max(seconds, load.every))
        processors = statistics.mean(map(memory_of, working.pids))
        brokers_mb, runs = broker.memory(), working.runs(began, began + spent.seconds)
    late = lateness(runs)
    return Point(
        part=part,
        system=system.name,
        loops=load.loops,
        every=load.every,
        processors=len(system.during),
        worker_ms=round(spent.own / len(runs) * 1000, 3),
        broker_ms=round(spent.broker / len(runs) * 1000, 3),
        late_p50=round(at_quantile(late, 0.5), 1),
        late_p99=round(at_quantile(late, 0.99), 1),
        share=round(len(runs) / (load.loops / load.every * spent.seconds), 4),
        processor_mb=round(processors, 1),
        broker_mb=round(brokers_mb, 1),
        broker_mb_before=round(before, 1),
        seeding_s=round(seeding, 1),
    )


def warm_up(working: Fleet, load: Load) -> None:
    """Wait until each loop has run twice, and until what came late of that is caught up."""
    began, ran = time.time(), 0  # noqa: TID251
    twice_by = began + PATIENCE + 4 * load.every
    time.sleep(WARMING)
    while (now := time.time()) < twice_by + CATCHING_UP:  # noqa: TID251
        runs = working.runs(began, now)
        ran = sum(count > 1 for count in Counter(run.loop for run in runs).values())
        late = lateness(run for run in runs if run.at > now - RECENT)
        if ran >= load.loops and statistics.median(late) < ON_TIME:
            return
        if ran < load.loops and now > twice_by:
            raise TimeoutError(f"Only {ran} of {load.loops} loops have run twice")
        time.sleep(1)


def measure_all(options: argparse.Namespace) -> None:
    url, points = options.url or shared_broker(str(os.getpid())), list[Point]()
    for part in [options.only] if options.only else PARTS:
        for load, system in PARTS[part]:
            if load.loops <= options.most:
                points.append(point := measure(part, load, system, url, options.seconds))
                options.out.write_text(json.dumps([*map(asdict, points)], indent=1) + "\n")
                sys.stdout.write(f"{point}\n")
                sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", help="a RabbitMQ; else the one that the tests would use")
    parser.add_argument("--seconds", type=float, default=15, help="for each point")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--most", type=int, default=10_000, help="leave out more loops than that")
    parser.add_argument("--out", type=Path, default=Path("growth.json"))
    parser.add_argument("--draw", nargs=2, type=Path, metavar=("RESULTS", "DIR"))
    options = parser.parse_args()
    if options.draw:
        from tests.benchmarks.plots import draw

        measured, directory = options.draw
        draw([Point(**each) for each in json.loads(measured.read_text())], directory)
    else:
        measure_all(options)


if __name__ == "__main__":
    main()
