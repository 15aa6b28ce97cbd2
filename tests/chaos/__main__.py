"""`python -m tests.chaos`: faults of every kind against real processes on real brokers.

Three processors, one of them of an older release, a sender and an operator write down what they do
(`storm`). One fault after another (`faults`) strikes them. The notes are judged (`verdict`).
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from tests.chaos import faults
from tests.chaos.arena import raised
from tests.chaos.faults import BY_NAME, Fault, schedule_of
from tests.chaos.report import line_of, show
from tests.chaos.run import storm
from tests.chaos.verdict import Strike, Verdict


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--faults", type=int, default=50, help="how many strike")
    parser.add_argument("--seed", type=int, help="repeats the schedule of an earlier storm")
    parser.add_argument("--queue-type", choices=("quorum", "classic"), default="quorum")
    parser.add_argument("--cluster", action="store_true", help="three nodes instead of one")
    parser.add_argument("--only", nargs="+", choices=BY_NAME, metavar="KIND", help="of these kinds")
    parser.add_argument("--keep", type=Path, help="where to leave the record and the logs")
    return parser.parse_args()


def kinds_of(options: argparse.Namespace) -> Mapping[type[Fault], int]:
    """Which kinds of fault may strike, and how often."""
    if options.only:
        return {BY_NAME[name]: 1 for name in options.only}
    return {
        **faults.OF_PROCESSORS,
        **faults.OF_BROKERS,
        **(faults.OF_CLUSTERS if options.cluster else {}),
        **faults.OF_TOKENS,
    }


async def rage(options: argparse.Namespace, console: Console) -> Verdict:
    seed = random.randrange(2**32) if options.seed is None else options.seed
    directory = options.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    schedule = schedule_of(seed, options.faults, kinds_of(options))
    console.print(f"seed {seed}, {options.queue_type} queues, record and logs in {directory}")

    def tell(number: int, strike: Strike) -> None:
        console.print(f"{number}/{len(schedule)} {line_of(strike)}")

    where = raised(directory, queue_type=options.queue_type, in_cluster=options.cluster)
    async with where as arena:
        verdict = await storm(arena, schedule, tell)
    show(verdict, console)
    console.print(f"seed {seed}")
    if not verdict.violations and options.keep is None:
        shutil.rmtree(directory)
    return verdict


def main() -> int:
    options, console = arguments(), Console(highlight=False)
    verdict = asyncio.run(rage(options, console))
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
