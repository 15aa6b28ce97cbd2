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
        apart: whether it takes root, and namespaces of its own: what is mounted and started in
            them, nobody else sees, and it is gone at the end.
        settling: seconds before the end, of which a run may not be through yet.
    """

    page: Path
    project: Path
    jobs: Mapping[str, Kind]
    shared: Path | None = None
    apart: bool = False
    settling: int = 25


def guide(
    name: str, page: str, *, apart: bool = False, shared: Path | None = None, **jobs: Kind
) -> tuple[str, Guide]:
    """A guide whose jobs note each run once, as it begins."""
    followed = ROOT / "docs/how-to" / page
    return name, Guide(followed, PROJECTS / name, jobs, shared, apart, settling=0)


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
        guide(
            "cron",
            "moving-from-cron.md",
            apart=True,
            report=EachMinute(),
            stock=EachMinute(),
        ),
        guide("cronjob", "moving-from-cronjob.md", apart=True, report=EachMinute()),
    ]
)
