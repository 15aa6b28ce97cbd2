"""The guides that are followed, and what the jobs of their projects are due for.

A project is a folder of `projects/`: what a guide finds there before it begins, with the
`requirements.txt` of its environment, and a `prepare.sh` if the machine needs more than that. What
else there is stands on the page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.migrations.verdict import Calls, EachMinute, Every, Kind

ROOT = Path(__file__).parents[2]
PROJECTS = Path(__file__).parent / "projects"


@dataclass(frozen=True, slots=True)
class Guide:
    """A way over.

    Attributes:
        page: that is followed.
        project: the folder of what is there before.
        jobs: by the names under which they note their runs.
        shared: a folder of what is there before in other projects, too.
    """

    page: Path
    project: Path
    jobs: Mapping[str, Kind]
    shared: Path | None = None


def guide(name: str, page: str, **jobs: Kind) -> tuple[str, Guide]:
    return name, Guide(ROOT / "docs/how-to" / page, PROJECTS / name, jobs)


def shop(name: str, page: str, side: str) -> tuple[str, Guide]:
    """A guide that is tried with a shop: of what reminds its customers, and what its jobs do."""
    jobs = {
        "poll": Every(2, once_for_all=side),
        "refresh": Every(5, once_for_all=side),
        "collect": Every(7, once_for_all=side),
        "close_minute": EachMinute(),
        "remind": Calls(),
    }
    return name, Guide(ROOT / "docs/how-to" / page, PROJECTS / name, jobs, PROJECTS / "shop")


GUIDES = dict(
    [
        shop("celery", "moving-from-celery.md", "celery"),
    ]
)
