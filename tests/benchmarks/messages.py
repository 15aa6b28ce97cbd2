"""What a delayed one-off message costs, and how late it runs, beside the bare driver.

    python tests/benchmarks/messages.py [--url amqp://...] [--messages 10000] [--longest 30]
        [--rounds 3] [--history]

One program sends messages of random delays, from 1 s to the longest, 100 at a time; two processors
run them. The bare driver (`fleets/bare_messages.py`) takes the same messages through the same timer
queues, and waits as ours does for what is left of a delay.

- send: messages confirmed in a second, by a program that does nothing else.
- cpu: seconds of CPU for 1,000 messages, of sender and processors, and of the broker, each with its
  ratio to the bare driver's of the same round.
- late: how long after its moment a message ran.

With --history, a task with `history=True` is measured beside the same one without, instead.

Nobody else should use the broker, or the machine.
"""

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.broker_cpu import BrokerCpu
from tests.benchmarks.costs import (
    PROCESSORS,
    Command,
    Load,
    System,
    at_quantile,
    fleet,
    log_beside,
    python,
)
from tests.benchmarks.fleets.messages import BEGIN, SENT
from tests.benchmarks.fleets.record import Ran, runs_in
from tests.rabbitmq import shared_broker

WARMING = 3.0
PATIENCE = 60.0
RUN = Command(
    (sys.executable, "-m", "scheduler", "run", "tests.benchmarks.fleets.ours_messages:app")
)
SEED, SWEEP = [python("ours_messages", "seed")], [python("ours_messages", "sweep")]
OURS = System("ours", SEED, [RUN] * PROCESSORS + [python("ours_messages", "send")], SWEEP)
BARE = System(
    "bare driver",
    SEED,
    [python("bare_messages", "work")] * PROCESSORS + [python("bare_messages", "send")],
    SWEEP,
)
TOLD = System(
    "history",
    SEED,
    [*[Command(("env", "FLEET_HISTORY=1", *RUN.words))] * PROCESSORS, *OURS.during[PROCESSORS:]],
    SWEEP,
)


@dataclass(frozen=True)
class Measured:
    """Attributes: rate is messages a second; CPU, seconds for 1,000; late, milliseconds."""

    rate: float
    own: float
    brokers: float
    late: Sequence[float]


def measure(system: System, messages: int, longest: float, url: str) -> Measured:
    broker_cpu = BrokerCpu(url)
    with fleet(system, Load("messages", 0, spread=False), url) as working:
        time.sleep(WARMING)
        own, brokers = working.cpu(), broker_cpu()
        working.records.with_name(BEGIN).touch()
        runs = all_of(working.records, messages, longest + PATIENCE)
        own, brokers = working.cpu() - own, broker_cpu() - brokers
        took = float(working.records.with_name(SENT).read_text())
    late = [(run.at - run.due) * 1000 for run in runs]
    return Measured(messages / took, own / messages * 1000, brokers / messages * 1000, late)


def all_of(records: Path, messages: int, patience: float) -> list[Ran]:
    """Return what was run, once each message was; fail if none is for so long."""
    count, end = 0, time.monotonic() + patience
    while len(runs := list(runs_in(records))) < messages:
        if len(runs) > count:
            count, end = len(runs), time.monotonic() + patience
        if time.monotonic() > end:
            log = log_beside(records).read_text()[-2000:]
            raise RuntimeError(f"Only {len(runs)} of {messages} messages were run. {log}")
        time.sleep(0.5)
    return runs


def row(system: System, rounds: Sequence[Measured], base: Sequence[Measured]) -> str:
    def middle(value: Callable[[Measured], float]) -> float:
        return statistics.median(map(value, rounds))

    def ratio(value: Callable[[Measured], float]) -> float:
        return statistics.median(value(us) / value(it) for us, it in zip(rounds, base, strict=True))

    return (
        f"{system.name:12}{middle(lambda m: m.rate):7.0f}/s"
        f"{middle(lambda m: m.own):7.2f}{ratio(lambda m: m.own):6.2f}x"
        f"{middle(lambda m: m.brokers):8.2f}{ratio(lambda m: m.brokers):6.2f}x"
        f"{middle(lambda m: at_quantile(m.late, 0.5)):9.1f}"
        f"{middle(lambda m: at_quantile(m.late, 0.99)):8.1f}"
        f"{min(min(each.late) for each in rounds):9.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a delayed message costs.")
    parser.add_argument("--url", help="a RabbitMQ; else the one that the tests would use")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--longest", type=float, default=30, help="seconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--history", action="store_true", help="measure what history=True costs")
    options = parser.parse_args()
    systems = (OURS, TOLD) if options.history else (BARE, OURS)
    url = options.url or shared_broker(str(os.getpid()))
    os.environ |= {
        "FLEET_MESSAGES": str(options.messages),
        "FLEET_LONGEST": str(options.longest),
    }
    head = f"{'send':>9}{'cpu':>7}{'':7}{'broker':>8}{'':7}{'late p50':>9}{'p99 ms':>8}{'least':>9}"
    sys.stdout.write(f"{'':12}{head}\n")
    found = defaultdict[str, list[Measured]](list)
    for _ in range(options.rounds):
        for system in systems:
            each = measure(system, options.messages, options.longest, url)
            found[system.name].append(each)
    for system in systems:
        sys.stdout.write(f"{row(system, found[system.name], found[systems[0].name])}\n")


if __name__ == "__main__":
    main()
