"""The guides that are followed, and what the jobs of their projects are due for.

A project is a folder of `projects/`, as a guide finds it, with the `requirements.txt` of its
environment, and a `prepare.sh` if the machine needs more than that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.migrations.verdict import Calls, Every, Kind, OnGrid

ROOT = Path(__file__).parents[2]
PROJECTS = Path(__file__).parent / "projects"


@dataclass(frozen=True, slots=True)
class Guide:
    """A way over.

    Attributes:
        name: of what is moved from.
        page: that is followed.
        project: the folder of what is there before.
        jobs: by the names under which they note their runs.
        shared: a folder of what is there before in other projects, too.
        apart: whether it takes root, and namespaces of its own: what is mounted and started in
            them, nobody else sees, and it is gone at the end.
        starting: seconds at the begin, in which a run may be held up as all of it starts.
        settling: seconds before the end, of which a run may not be through yet.
    """

    name: str
    page: Path
    project: Path
    jobs: Mapping[str, Kind]
    shared: Path | None = None
    apart: bool = False
    starting: int = 5
    settling: int = 25


def guide(
    name: str, page: str, *, apart: bool = False, shared: Path | None = None, **jobs: Kind
) -> tuple[str, Guide]:
    """A guide whose jobs note each run once, as it begins."""
    followed = ROOT / "docs/how-to" / page
    return name, Guide(name, followed, PROJECTS / name, jobs, shared, apart, starting=0, settling=0)


def shop(name: str, page: str) -> tuple[str, Guide]:
    """A guide that is tried with a shop: of what reminds its customers, and what its jobs do."""
    jobs = {
        "poll": Every(2, once_for_all=name),
        "refresh": Every(5, once_for_all=name, after_each=True),
        "collect": Every(7, once_for_all=name),
        "close_minute": OnGrid(60),
        "remind": Calls(),
    }
    return name, Guide(name, ROOT / "docs/how-to" / page, PROJECTS / name, jobs, PROJECTS / "shop")


GUIDES = dict(
    [
        shop("celery", "moving-from-celery.md"),
        shop("django-celery-beat", "moving-from-django-celery-beat.md"),
        shop("taskiq", "moving-from-taskiq.md"),
        guide("cron", "moving-from-cron.md", apart=True, report=OnGrid(60), stock=OnGrid(60)),
        guide("cronjob", "moving-from-cronjob.md", apart=True, report=OnGrid(60)),
        guide(
            "apscheduler-3",
            "moving-from-apscheduler.md",
            shared=PROJECTS / "apscheduler",
            report=OnGrid(5),
            tidy=OnGrid(8, offset=5),
        ),
        guide(
            "apscheduler-4",
            "moving-from-apscheduler-4.md",
            shared=PROJECTS / "apscheduler",
            report=OnGrid(5),
            tidy=Every(8),
        ),
    ]
)
