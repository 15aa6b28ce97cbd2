"""`python -m tests.migrations [GUIDE ...]`: each way over to scheduler, followed to the letter.

A small project of the other kind notes its runs while its guide in `docs/how-to` is followed, there
and back. Exits with 1 where a run is missing or doubled, or the page does not do as it says.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from types import FrameType

from rich.console import Console
from rich.table import Table

from tests.migrations.guides import GUIDES, ROOT
from tests.migrations.trial import Trial
from tests.migrations.verdict import Judged, judged, wrongs_of
from tests.rabbitmq import PrivateNode
from tests.reader import NotAsWritten

FOLDER = ROOT / "build/migrations"
APART = "SCHEDULER_MIGRATIONS_APART"  # set within such namespaces
UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.migrations", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("guides", nargs="*", metavar="GUIDE", help=f"of {', '.join(GUIDES)}")
    chosen = parser.parse_args().guides or list(GUIDES)
    if unknown := set(chosen) - set(GUIDES):
        parser.error(f"there is no guide {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, _end)
    return max([follow(name) for name in chosen])


def _end(number: int, frame: FrameType | None) -> None:
    """What is at work is ended, too."""
    sys.exit(1)


def follow(name: str) -> int:
    """Follow a guide, in namespaces of its own if it takes them."""
    if not GUIDES[name].apart or APART in os.environ:
        return follow_here(name)
    within = [*UNSHARE, sys.executable, "-m", "tests.migrations", name]
    return subprocess.run(within, env={**os.environ, APART: "1"}).returncode


def follow_here(name: str) -> int:
    """Follow a guide, on a broker of its own, and print what became of its jobs."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    guide = GUIDES[name]
    console.rule(name)
    with PrivateNode(management=False) as node:
        trial = Trial(guide, FOLDER / name, node.url)
        trial.prepare()
        try:
            for told in trial.follow():
                console.print(f"{datetime.now(UTC):%H:%M:%S} {told}")
        except NotAsWritten as error:
            console.print(f"The page does not do as it says. {error}")
            return 1
    lines = trial.lines()
    since, until = lines[0].at + guide.starting, lines[-1].at - guide.settling
    jobs = [judged(job, kind, lines, since=since, until=until) for job, kind in guide.jobs.items()]
    console.print(table_of(jobs))
    wrongs = list(wrongs_of(jobs))
    for wrong in wrongs:
        console.print(wrong)
    console.print(f"{name}: {'WRONG' if wrongs else 'no run is missing, none doubled'}")
    return 1 if wrongs else 0


def table_of(jobs: Sequence[Judged]) -> Table:
    """How many runs each side had, and what is wrong with them."""
    sides = list(dict.fromkeys(side for each in jobs for side in each.runs))
    table = Table("job", *sides, "missing", "doubled", "early", "made up for by another")
    for each in jobs:
        wrong = map(len, (each.missing, each.doubled, each.early))
        counts = (*(each.runs.get(side, 0) for side in sides), *wrong, each.made_up_for)
        table.add_row(each.job, *map(str, counts))
    return table


if __name__ == "__main__":
    sys.exit(main())
