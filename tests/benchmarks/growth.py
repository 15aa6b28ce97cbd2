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

Each point is written to the file as soon as it was measured, and leaves nothing behind, also when
the program is told to end. A point that fails is told, and left out. Nobody else should use the
broker, or the machine. The broker's figures are known only where it runs on this machine.

`--draw` needs the dependency group `bench`, which `make growth` installs.
"""

import argparse
import asyncio
import os
import platform
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, get_args

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
    fleet,
    ours,
)
from tests.benchmarks.fleets.record import Ran
from tests.benchmarks.results import Part, Point, Results, costs_of, known, lateness, read
from tests.rabbitmq import shared_broker

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
        memory: Mapping[str, Any] = {
            "processor_mb": known(statistics.mean(map(memory_of, working.pids)), 1),
            "broker_mb": known(broker.memory(), 1),
            "broker_mb_before": known(before, 1),
        }
        runs = working.runs(began, ended)
    due = load.loops / load.every * (ended - began)
    costs: Mapping[str, Any] = costs_of(runs, due, worker, brokers)
    return Point(
        part=case.part,
        system=case.system.name,
        loops=load.loops,
        every=load.every,
        processors=case.processors,
        seeding_s=round(seeding, 1),
        **costs,
        **memory,
    )


def warm_up(working: Fleet, load: Load) -> None:
    """Wait until each loop has run twice, and until what came late of that is caught up."""
    began = time.time()  # noqa: TID251
    end = began + PATIENCE + 4 * load.every
    time.sleep(WARMING)
    while (ran := ran_twice(working.runs(began, end))) < load.loops:
        if time.time() > end:  # noqa: TID251
            raise TimeoutError(f"Only {ran} of {load.loops} loops have run twice")
        time.sleep(1)
    end = time.time() + CATCHING_UP  # noqa: TID251
    while (now := time.time()) < end:  # noqa: TID251
        late = lateness(working.runs(now - RECENT, now))
        if statistics.median(late) < ON_TIME:
            return
        time.sleep(1)


def ran_twice(runs: Iterable[Ran]) -> int:
    return sum(count > 1 for count in Counter(run.loop for run in runs).values())


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


def measure_all(options: argparse.Namespace) -> bool:
    """Whether all points could be measured."""
    url = options.url or shared_broker(str(os.getpid()))
    results = Results(asyncio.run(about(url, options.seconds)))
    chosen = [options.only] if options.only else PARTS
    failed = False
    for case in (
        case for part in chosen for case in cases(part) if case.load.loops <= options.most
    ):
        what = f"{case.part:11}{case.system.name:12}{case.processors} x {case.load.name:16}"
        try:
            point = measure(case, url, options.seconds)
        except (OSError, RuntimeError) as error:
            failed = True
            sys.stderr.write(f"{what} failed: {error}\n")
            continue
        results.points.append(point)
        results.save(options.out)
        sys.stdout.write(f"{what}{line_of(point)}\n")
        sys.stdout.flush()
    return not failed


def line_of(point: Point) -> str:
    return (
        f"worker {point.worker_ms:6.2f} ms  broker {point.broker_ms or 0:6.2f} ms"
        f"  late {point.late_p50 or 0:6.1f} {point.late_p99 or 0:8.1f} ms  runs {point.share:7.1%}"
        f"  {point.processor_mb:5.0f} MB, broker {point.broker_mb or 0:5.0f} MB"
    )


def end(*_: object) -> None:
    """By the way of all errors, so that all is put away; who asks twice changes nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit("Told to end: the points that were measured are in the file.")


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

        draw(read(options.draw[0]), options.draw[1])
        return
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    sys.exit(not measure_all(options))


if __name__ == "__main__":
    main()
