"""`python -m tests.fuzz`: whatever bytes a client may publish, against all that reads messages.

From a seed come messages of every form that RabbitMQ takes: calls, tokens, and what other programs
publish, whole and broken, by every exchange and queue that leads to a task. Each has to be run or
parked, once, as the rules say, while a loop and delayed messages run and an operator lists, shows,
replays and purges what was parked.
"""

import argparse
import asyncio
import random
import sys
import uuid
from pathlib import Path

from scheduler.protocol.messages import printable
from tests.fuzz.field import ploughed
from tests.fuzz.run import Fuzz, Tally
from tests.rabbitmq import NoBroker, Users, administrator, shared_broker

SHOWN = 20
PER_ROUND = 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--messages", type=int, default=10_000, help="how many are published")
    parser.add_argument("--seed", type=int, help="repeats the messages of an earlier run")
    parser.add_argument("--queue-type", choices=("quorum", "classic"), default="quorum")
    return parser.parse_args()


async def fuzz(options: argparse.Namespace, seed: int, run: str) -> Tally:
    url = shared_broker(run)
    users = Users(administrator(run, url), url)
    try:
        async with ploughed(url, f"fuzz{run[:8]}", options.queue_type, users) as field:
            fuzz = Fuzz(field, seed)
            return await fuzz.run(options.messages, per_round=PER_ROUND, tell=tell)
    finally:
        users.delete_all()


def main() -> int:
    options = arguments()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    write(f"seed {seed}")
    try:
        tally = asyncio.run(fuzz(options, seed, uuid.uuid4().hex))
    except NoBroker as error:
        sys.exit(str(error))
    tell(tally)
    for counts in (tally.taken, tally.ended, tally.reasons, tally.refused):
        write(str(dict(counts.most_common(SHOWN))))
    write(f"{tally.delayed} delayed messages of its own; seed {seed}")
    return 1 if tally.wrong else 0


def tell(tally: Tally) -> None:
    """Print a line for a round, and what went wrong in it: a long run may not come to its end."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = f"{pages * 4096 // 2**20} MB"
    write(f"{tally.published} in {tally.seconds:.0f} s, {memory}, {len(tally.wrong)} wrong")
    for line in tally.wrong[tally.told :][:SHOWN]:
        write(f"WRONG {line}")
    tally.told = len(tally.wrong)


def write(text: str) -> None:
    sys.stdout.write(f"{printable(text)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
