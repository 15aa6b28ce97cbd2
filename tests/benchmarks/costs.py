"""What a run of a loop costs, and a delayed message, and how late: ours, the bare driver, others.

    python tests/benchmarks/costs.py [--url amqp://...] [--seconds 20] [--rounds 3]
        [--messages 10000] [--history]

One system after the other keeps loops of 1 s going that do nothing. Then one program sends messages
of random delays, and two processors run them. With BENCH_PEERS, the path of a virtual environment
that has them, Celery and taskiq (with taskiq-aio-pika) are measured beside.

- cpu: seconds for 1,000 runs, of all processes of a system, and of the broker, each with its ratio
  to the bare driver's of the same round.
- late: after the earliest phase in which a loop was seen, as not all know when a run is due; of
  messages, after their moment.
- runs: of those that were due; of messages, how many are confirmed in a second.
"""

import argparse
import math
import os
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
from typing import BinaryIO, NamedTuple, TypeAlias

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.broker_cpu import BrokerCpu, cpu_of, spending
from tests.benchmarks.fleets.messages import BEGIN, LONGEST, SENT
from tests.benchmarks.fleets.record import Ran, runs_in
from tests.rabbitmq import shared_broker

FLEETS = Path(__file__).parent / "fleets"
PACKAGE = "tests.benchmarks.fleets"
WARMING = 6.0
PATIENCE = 60.0
PROCESSORS = 2


class Load(NamedTuple):
    """Attributes: messages, how many are sent; then there are no loops."""

    name: str
    loops: int = 0
    spread: bool = False
    every: float = 1.0
    messages: int = 0


LOADS = (
    Load("100 x 1 s", 100),
    Load("100 x 1 s, spread", 100, spread=True),
    Load("1000 x 1 s", 1000),
)
Command: TypeAlias = Sequence[str]


@dataclass(frozen=True)
class System:
    """Attributes: before and after are run to their end; during, all the while."""

    name: str
    before: Sequence[Command]
    during: Sequence[Command]
    after: Sequence[Command]


def python(module: str, *arguments: str) -> Command:
    return (sys.executable, "-m", f"{PACKAGE}.{module}", *arguments)


RUN: Command = (sys.executable, "-m", "scheduler", "run", f"{PACKAGE}.ours:app")
SEED, SWEEP = python("ours", "seed"), python("ours", "sweep")


def ours(processors: int) -> System:
    return System("ours", [SEED], [RUN] * processors, [SWEEP])


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


def sending(system: System, *send: str) -> System:
    """The system, with a program that sends messages."""
    return replace(system, during=[*system.during, python(*send)])


SENDING = sending(OURS, "ours", "send")
WITH_HISTORY = replace(
    SENDING,
    name="history",
    during=[("env", "FLEET_HISTORY=1", *command) for command in SENDING.during],
)
BARE_SENDING = sending(bare("bare driver", "messages"), "bare", "messages", "send")


def peers(environment: Path) -> list[System]:
    """Those that this virtual environment has; their fleets import only what is beside them."""
    found, bins = list[System](), environment / "bin"
    beside, workers = ("env", f"PYTHONPATH={FLEETS}"), str(PROCESSORS)
    if (celery := bins / "celery").exists():
        words = (*beside, str(celery), "-q", "-A", "celery_fleet")
        beat = (*words, "beat", "-s", "/dev/shm/fleet-beat", "--loglevel", "ERROR")
        found.append(
            System(
                "celery", [], [beat, (*words, "worker", "-c", workers, "--loglevel", "ERROR")], []
            )
        )
    if (taskiq := bins / "taskiq").exists():
        words, quiet = (*beside, str(taskiq)), ("--log-level", "ERROR")
        clock = (*words, "scheduler", "taskiq_fleet:scheduler", *quiet)
        worker = (*words, "worker", "taskiq_fleet:broker", "--workers", workers, *quiet)
        found.append(System("taskiq", [], [worker, clock], []))
    return found


@dataclass(frozen=True)
class Measured:
    """Attributes: own and brokers CPU are seconds for 1,000 runs; late is in milliseconds."""

    own: float
    brokers: float
    late: Sequence[float]
    done: float


def at_quantile(values: Sequence[float], quantile: float) -> float:
    if len(values) < 2:
        return math.nan
    return statistics.quantiles(values, n=1000, method="inclusive")[round(quantile * 1000) - 1]


@dataclass(frozen=True)
class Fleet:
    """A system at work.

    Attributes:
        pids: of the processes that were started.
        environment: of all of them.
    """

    pids: Sequence[int]
    records: Path
    environment: Mapping[str, str]

    def cpu(self) -> float:
        """Seconds of CPU of all its processes, so far."""
        return cpu_of(self.pids)

    def runs(self, began: float, ended: float) -> list[Ran]:
        """Those that began in this time."""
        if not (runs := [each for each in runs_in(self.records) if began <= each.at < ended]):
            raise RuntimeError(f"Nothing ran: {log_beside(self.records).read_text()[-2000:]}")
        return runs

    def send(self, messages: int) -> None:
        """Have messages sent, and wait until each was run."""
        self.records.with_name(BEGIN).touch()
        known, end = 0, time.monotonic() + LONGEST + PATIENCE
        while (count := sum(1 for _ in runs_in(self.records))) < messages:
            if count > known:
                known, end = count, time.monotonic() + LONGEST + PATIENCE
            if time.monotonic() > end:
                log = log_beside(self.records).read_text()[-2000:]
                raise RuntimeError(f"Only {count} of {messages} messages were run. {log}")
            time.sleep(0.5)


def log_beside(records: Path) -> Path:
    return records.with_name("log")


@contextmanager
def fleet(system: System, load: Load, url: str) -> Generator[Fleet]:
    """Have it at work until the block ends; whatever happens, nothing is left of it."""
    with tempfile.TemporaryDirectory() as directory:
        (records := Path(directory) / "records").mkdir()
        environment = {
            **os.environ,
            "FLEET_URL": url,
            "FLEET_LOOPS": str(load.loops),
            "FLEET_EVERY": str(load.every),
            "FLEET_SPREAD": str(int(load.spread)),
            "FLEET_MESSAGES": str(load.messages),
            "FLEET_NAME": f"fleet{uuid.uuid4().hex[:6]}",
            "FLEET_RECORDS": str(records),
        }
        with log_beside(records).open("wb") as log:
            try:
                run_all(system.before, environment)
                with processes(system.during, environment, log) as pids:
                    yield Fleet(pids, records, environment)
            finally:
                run_all(system.after, environment)


def measure(system: System, load: Load, url: str, seconds: float) -> Measured:
    broker = BrokerCpu(url)
    with fleet(system, load, url) as working:
        time.sleep(WARMING)
        began = time.time()  # noqa: TID251
        with spending(broker, working.cpu) as spent:
            if load.messages:
                working.send(load.messages)
            else:
                time.sleep(seconds)
        runs = working.runs(began, began + spent.seconds)
        if load.messages:
            late = lateness(runs)
            done = load.messages / float(working.records.with_name(SENT).read_text())
        else:
            late = late_of(runs)
            done = len(runs) / load.loops / spent.seconds
    return Measured(spent.own / len(runs) * 1000, spent.broker / len(runs) * 1000, late, done)


def lateness(runs: Iterable[Ran]) -> list[float]:
    """How many milliseconds after its moment each run began."""
    return [(run.at - run.due) * 1000 for run in runs]


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
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")


@contextmanager
def processes(
    commands: Sequence[Command], environment: dict[str, str], log: BinaryIO
) -> Generator[Sequence[int]]:
    """Run them until the block ends."""
    running = list[subprocess.Popen[bytes]]()
    try:
        for command in commands:
            running.append(
                subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def row(load: Load, system: System, rounds: Sequence[Measured], base: Sequence[Measured]) -> str:
    def middle(value: Callable[[Measured], float]) -> float:
        return statistics.median(map(value, rounds))

    def ratio(value: Callable[[Measured], float]) -> float:
        pairs = zip(rounds, base, strict=True)
        return statistics.median(value(us) / value(them) for us, them in pairs)

    done = middle(lambda m: m.done)
    return (
        f"{load.name:18} {system.name:12}"
        f"{middle(lambda m: m.own):7.2f}{ratio(lambda m: m.own):6.2f}x"
        f"{middle(lambda m: m.brokers):8.2f}{ratio(lambda m: m.brokers):6.2f}x"
        f"{middle(lambda m: at_quantile(m.late, 0.5)):8.1f}"
        f"{middle(lambda m: at_quantile(m.late, 0.99)):8.1f}"
        f"{f'{done:.0f}/s' if load.messages else f'{done:.1%}':>8}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run costs, and how late it starts.")
    parser.add_argument("--url", help="a RabbitMQ; else the one that the tests would use")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--history", action="store_true", help="only what history=True costs")
    options = parser.parse_args()
    url = options.url or shared_broker(str(os.getpid()))
    systems = [BARE, SLOTS, OURS, *peers(Path(os.environ.get("BENCH_PEERS", os.devnull)))]
    messages = Load("messages", messages=options.messages)
    measured = [*((load, systems) for load in LOADS), (messages, [BARE_SENDING, SENDING])]
    if options.history:
        measured = [(messages, [SENDING, WITH_HISTORY])]
    head = f"{'cpu':>7}{'':7}{'broker':>8}{'':7}{'late p50':>8}{'p99 ms':>8}{'runs':>8}"
    sys.stdout.write(f"{'':31}{head}\n")
    for load, beside in measured:
        rounds = [
            [measure(system, load, url, options.seconds) for system in beside]
            for _ in range(options.rounds)
        ]
        base, *_ = by_system = [*zip(*rounds, strict=True)]
        for system, found in zip(beside, by_system, strict=True):
            sys.stdout.write(f"{row(load, system, found, base)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
