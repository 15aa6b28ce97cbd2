"""What a run costs, how late it starts, what memory it takes: as loops, processors, rates grow.

    python tests/benchmarks/growth.py [--url amqp://...] [--seconds 15] [--out growth.json]
        [--only processors|rate|loops] [--most 10000]
    python tests/benchmarks/growth.py --draw growth.json DIR

- processors: 1, 2 and 4, of 300 loops of 1 s.
- rate: 10 to 2,000 loops of 1 s, and at some rates the bare driver beside (`fleets/bare.py`).
- loops: 10 to 10,000 of them, at 100 runs a second in all.

All loops are spread over their period. Counting begins when each has run twice: what was late at
the first run was put at the same moment, and comes together once more. It lasts until each could
run once more: of 10,000 loops, that is 100 s.

Each point is written to the file as soon as it was measured, and leaves nothing behind, also on
Ctrl-C. Nobody else should use the broker, or the machine. The broker's figures are known only where
it runs on this machine; else they are not numbers.

`--draw` needs the dependency group `bench`, which `make growth` installs.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.cli.processing import fastest_loop
from scheduler.queues.about import DISTRIBUTION
from tests.benchmarks.broker_cpu import BrokerCpu, memory_of, until_idle
from tests.benchmarks.costs import (
    BARE,
    PROCESSORS,
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

Part: TypeAlias = Literal["processors", "rate", "loops"]
PARTS: tuple[Part, ...] = get_args(Part)
LOOPS = (10, 100, 1_000, 10_000)
COUNTS = (1, 2, 4)
RATES = (10, 100, 300, 1_000, 1_500, 2_000)
BESIDE = (100, 1_000)
"""At these rates the bare driver is measured as well."""

PATIENCE = 60.0
CATCHING_UP = 180.0
RECENT = 2.0
ON_TIME = 50.0
"""Milliseconds."""


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

    part: Part
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


class Case(NamedTuple):
    """What is to be measured."""

    part: Part
    load: Load
    processors: int = PROCESSORS
    bare: System | None = None

    @property
    def system(self) -> System:
        return self.bare or ours(self.processors)


def cases(part: Part) -> Iterator[Case]:
    match part:
        case "loops":
            for loops in LOOPS:
                yield Case(part, spread(loops, loops / 100))
        case "processors":
            for count in COUNTS:
                yield Case(part, spread(300), count)
        case "rate":
            for rate in RATES:
                yield Case(part, spread(rate))
                if rate in BESIDE:
                    yield Case(part, spread(rate), bare=BARE)
                    yield Case(part, spread(rate), bare=SLOTS)


def spread(loops: int, every: float = 1.0) -> Load:
    return Load(f"{loops} x {every:g} s", loops, spread=True, every=every)


def measure(case: Case, url: str, seconds: float) -> Point:
    load, broker = case.load, BrokerCpu(url)
    until_idle(broker)
    before, asked = broker.memory(), time.monotonic()
    with fleet(case.system, load, url) as working:
        seeding = time.monotonic() - asked
        warm_up(working, load)
        began, worker, brokers = time.time(), working.cpu(), broker()  # noqa: TID251
        time.sleep(max(seconds, load.every))
        ended, worker, brokers = time.time(), working.cpu() - worker, broker() - brokers  # noqa: TID251
        processors = statistics.mean(map(memory_of, working.pids))
        brokers_mb, runs = broker.memory(), working.runs(began, ended)
    late = lateness(runs)
    return Point(
        part=case.part,
        system=case.system.name,
        loops=load.loops,
        every=load.every,
        processors=case.processors,
        worker_ms=round(worker / len(runs) * 1000, 3),
        broker_ms=round(brokers / len(runs) * 1000, 3),
        late_p50=round(at_quantile(late, 0.5), 1),
        late_p99=round(at_quantile(late, 0.99), 1),
        share=round(len(runs) / (load.loops / load.every * (ended - began)), 4),
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


def model() -> str:
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.partition(":")[2].strip() for line in cpus if line.startswith("model name")]
    return named[0] if named else platform.machine()


async def about(url: str, seconds: float) -> Mapping[str, Any]:
    """Where, when and with what it is measured."""
    async with AmqpBroker(url) as broker:
        rabbitmq = broker.info.version
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "rabbitmq": rabbitmq,
        "python": platform.python_version(),
        "uvloop": fastest_loop() is not None,
        "package": version(DISTRIBUTION),
        "seconds": seconds,
    }


def measure_all(options: argparse.Namespace) -> None:
    url = options.url or shared_broker(str(os.getpid()))
    where, points = asyncio.run(about(url, options.seconds)), list[Point]()
    for part in [options.only] if options.only else PARTS:
        for case in cases(part):
            if case.load.loops > options.most:
                continue
            points.append(point := measure(case, url, options.seconds))
            whole = {"about": where, "points": [asdict(each) for each in points]}
            options.out.write_text(json.dumps(whole, indent=1) + "\n")
            what = f"{part:11}{case.system.name:12}{case.processors} x {case.load.name:16}"
            sys.stdout.write(f"{what}{line_of(point)}\n")
            sys.stdout.flush()


def line_of(point: Point) -> str:
    return (
        f"worker {point.worker_ms:6.2f} ms  broker {point.broker_ms:6.2f} ms"
        f"  late {point.late_p50:6.1f} {point.late_p99:8.1f} ms  runs {point.share:7.1%}"
        f"  {point.processor_mb:5.0f} MB, broker {point.broker_mb:5.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What a run costs as loops, processors and rates grow."
    )
    parser.add_argument("--url", help="a RabbitMQ; else the one that the tests would use")
    parser.add_argument("--seconds", type=float, default=15, help="for each point")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument(
        "--most", type=int, default=max(LOOPS), help="leave out more loops than that"
    )
    parser.add_argument("--out", type=Path, default=Path("growth.json"))
    parser.add_argument("--draw", nargs=2, type=Path, metavar=("RESULTS", "DIR"))
    options = parser.parse_args()
    if options.draw:
        from tests.benchmarks.plots import draw

        measured, directory = options.draw
        draw([Point(**each) for each in json.loads(measured.read_text())["points"]], directory)
    else:
        measure_all(options)


if __name__ == "__main__":
    main()
