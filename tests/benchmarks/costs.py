"""What a run of a loop costs, and how late it starts: ours, the bare driver, and other libraries.

    python tests/benchmarks/costs.py [--url amqp://...] [--seconds 20] [--rounds 3]

Each system keeps so many loops of 1 s going that do nothing, in processes of its own, on one
broker, one system after the other. The bare driver (`fleets/bare.py`) is aiormq by hand with the
broker operations of ours, and nothing else; with slots, each loop has a queue of its own. Ours is
measured once more with metrics. With BENCH_PEERS, the path of a virtual environment that has them,
Celery and taskiq (with taskiq-aio-pika) are measured beside.

- cpu: seconds of CPU for 1,000 runs, of all the processes of a system, and of the broker, each with
  its ratio to the bare driver's of the same round.
- late: how long after the earliest phase in which a loop was seen its runs began, so that it can be
  told of all alike: what drifts is late.
- runs: of those that were due.

Nobody else should use the broker, or the machine.
"""

import argparse
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.broker_cpu import BrokerCpu, fields_of
from tests.benchmarks.fleets.record import Ran, runs_in
from tests.rabbitmq import free_ports, shared_broker

FLEETS = Path(__file__).parent / "fleets"
PACKAGE = "tests.benchmarks.fleets"
WARMING = 6.0
PROCESSORS = 2


class Load(NamedTuple):
    name: str
    loops: int
    spread: bool
    every: float = 1.0


LOADS = (
    Load("100 x 1 s", 100, False),
    Load("100 x 1 s, spread", 100, True),
    Load("1000 x 1 s", 1000, False),
)


class Command(NamedTuple):
    """Attributes: words are what is run; there, whether among the files of the fleets."""

    words: Sequence[str]
    there: bool = False


@dataclass(frozen=True)
class System:
    """Attributes: before and after are run to their end; during, all the while."""

    name: str
    before: Sequence[Command]
    during: Sequence[Command]
    after: Sequence[Command]


def python(module: str, *arguments: str) -> Command:
    return Command((sys.executable, "-m", f"{PACKAGE}.{module}", *arguments))


def ours(processors: int) -> System:
    run = Command((sys.executable, "-m", "scheduler", "run", f"{PACKAGE}.ours:app"))
    return System("ours", [python("ours", "seed")], [run] * processors, [python("ours", "sweep")])


def bare(name: str, waits_in: str) -> System:
    """The bare driver."""
    return System(
        name,
        [python("bare", waits_in, "seed")],
        [python("bare", waits_in, "work")] * PROCESSORS,
        [python("bare", waits_in, "sweep")],
    )


OURS = ours(PROCESSORS)
SLOTS = bare("bare, slots", "slots")
BARE = bare("bare driver", "timers")
"""What everything is compared with: the broker operations of ours, and nothing else."""


def watched() -> System:
    """Ours, with metrics that can be scraped."""
    run = OURS.during[0].words
    ports = [f"SCHEDULER_METRICS_PORT={port}" for port in free_ports(PROCESSORS)]
    return replace(
        OURS, name="with metrics", during=[Command(("env", port, *run)) for port in ports]
    )


def peers(environment: Path) -> list[System]:
    """Those that this virtual environment has."""
    found = list[System]()
    bins = environment / "bin"
    if (celery := bins / "celery").exists():
        words = (str(celery), "-q", "-A", "celery_fleet")
        beat = (*words, "beat", "-s", "/dev/shm/fleet-beat", "--loglevel", "ERROR")
        worker = (*words, "worker", "-c", str(PROCESSORS), "--loglevel", "ERROR")
        found.append(System("celery", [], [Command(beat, True), Command(worker, True)], []))
    if (taskiq := bins / "taskiq").exists():
        quiet = ("--log-level", "ERROR")
        worker = (str(taskiq), "worker", "taskiq_fleet:broker", "--workers", str(PROCESSORS))
        clock = (str(taskiq), "scheduler", "taskiq_fleet:scheduler")
        both = [Command((*worker, *quiet), True), Command((*clock, *quiet), True)]
        found.append(System("taskiq", [], both, []))
    return found


@dataclass(frozen=True)
class Measured:
    """Attributes: own and brokers CPU are seconds for 1,000 runs; late is in milliseconds."""

    own: float
    brokers: float
    late: Sequence[float]
    share: float

    def late_at(self, quantile: float) -> float:
        return at_quantile(self.late, quantile)


def at_quantile(values: Sequence[float], quantile: float) -> float:
    if len(values) < 2:
        return math.nan
    return statistics.quantiles(values, n=1000, method="inclusive")[round(quantile * 1000) - 1]


@dataclass(frozen=True)
class Fleet:
    """A system at work.

    Attributes:
        cpu: seconds of CPU of all its processes, so far.
        pids: of the processes that were started.
        environment: of all of them.
    """

    cpu: Callable[[], float]
    pids: Sequence[int]
    records: Path
    environment: Mapping[str, str]

    def runs(self, began: float, ended: float) -> list[Ran]:
        """Those that began in this time."""
        if not (runs := [each for each in runs_in(self.records) if began <= each.at < ended]):
            raise RuntimeError(f"Nothing ran: {log_beside(self.records).read_text()[-2000:]}")
        return runs


def log_beside(records: Path) -> Path:
    return records.with_name("log")


@contextmanager
def fleet(system: System, load: Load, url: str) -> Generator[Fleet]:
    """Have it at work until the block ends; whatever happens, nothing is left of it."""
    directory = Path(tempfile.mkdtemp())
    (records := directory / "records").mkdir()
    environment = {
        **os.environ,
        "FLEET_URL": url,
        "FLEET_LOOPS": str(load.loops),
        "FLEET_EVERY": str(load.every),
        "FLEET_SPREAD": str(int(load.spread)),
        "FLEET_NAME": f"fleet{uuid.uuid4().hex[:6]}",
        "FLEET_RECORDS": str(records),
    }
    try:
        with log_beside(records).open("wb") as log:
            try:
                run_all(system.before, environment)
                with processes(system.during, environment, log) as (cpu, pids):
                    yield Fleet(cpu, pids, records, environment)
            finally:
                run_all(system.after, environment)
    finally:
        shutil.rmtree(directory)


def measure(system: System, load: Load, url: str, seconds: float) -> Measured:
    broker_cpu = BrokerCpu(url)
    with fleet(system, load, url) as working:
        time.sleep(WARMING)
        began, own, brokers = time.time(), working.cpu(), broker_cpu()  # noqa: TID251
        time.sleep(seconds)
        ended, own, brokers = time.time(), working.cpu() - own, broker_cpu() - brokers  # noqa: TID251
        runs = working.runs(began, ended)
    due, count = load.loops * (ended - began), len(runs)
    return Measured(own / count * 1000, brokers / count * 1000, late_of(runs), count / due)


def late_of(runs: Iterable[Ran]) -> list[float]:
    """How many milliseconds after the earliest phase of its loop each run began."""
    by_loop = defaultdict[int, list[float]](list)
    for loop, at, _ in runs:
        by_loop[loop].append(at)
    late = list[float]()
    for moments in by_loop.values():
        first = min(moments)
        phases = [math.remainder(at - first, 1.0) for at in moments]
        late += [(phase - min(phases)) * 1000 for phase in phases]
    return late


def run_all(commands: Iterable[Command], environment: dict[str, str]) -> None:
    for command in commands:
        done = subprocess.run(command.words, env=environment, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command.words)}: {done.stderr[-2000:]}")


@contextmanager
def processes(
    commands: Sequence[Command], environment: dict[str, str], log: BinaryIO
) -> Generator[tuple[Callable[[], float], Sequence[int]]]:
    """Run them until the block ends; what it gets tells the CPU seconds of all, so far; who."""
    running = list[subprocess.Popen[bytes]]()
    pids = list[int]()
    try:
        for command in commands:
            where = FLEETS if command.there else None
            started = subprocess.Popen(
                command.words,
                env=environment,
                cwd=where,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            running.append(started)
            pids.append(started.pid)
        yield lambda: cpu_of(set(pids)), pids
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def cpu_of(sessions: set[int]) -> float:
    """Seconds of CPU of all processes of these sessions, ended children included."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = fields_of(stat)
        except OSError:
            continue
        if int(fields[3]) in sessions:  # field 6; times are fields 14 to 17
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def row(load: Load, system: System, rounds: Sequence[Measured], bare: Sequence[Measured]) -> str:
    def middle(value: Callable[[Measured], float]) -> float:
        return statistics.median(map(value, rounds))

    def ratio(value: Callable[[Measured], float]) -> float:
        pairs = zip(rounds, bare, strict=True)
        return statistics.median(value(us) / value(them) for us, them in pairs)

    return (
        f"{load.name:18} {system.name:12}"
        f"{middle(lambda m: m.own):7.2f}{ratio(lambda m: m.own):6.2f}x"
        f"{middle(lambda m: m.brokers):8.2f}{ratio(lambda m: m.brokers):6.2f}x"
        f"{middle(lambda m: m.late_at(0.5)):8.1f}{middle(lambda m: m.late_at(0.99)):8.1f}"
        f"{middle(lambda m: m.share):8.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run costs, and how late it starts.")
    parser.add_argument("--url", help="a RabbitMQ; else the one that the tests would use")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    url = options.url or shared_broker(str(os.getpid()))
    systems = [BARE, SLOTS, OURS, watched()]
    if environment := os.environ.get("BENCH_PEERS"):
        systems += peers(Path(environment))
    head = f"{'cpu':>7}{'':7}{'broker':>8}{'':7}{'late p50':>8}{'p99 ms':>8}{'runs':>8}"
    sys.stdout.write(f"{'':31}{head}\n")
    for load in LOADS:
        found = defaultdict[str, list[Measured]](list)
        for _ in range(options.rounds):
            for system in systems:
                found[system.name].append(measure(system, load, url, options.seconds))
        for system in systems:
            line = row(load, system, found[system.name], found[BARE.name])
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
