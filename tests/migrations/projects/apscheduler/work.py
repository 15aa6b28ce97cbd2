"""What the shop's jobs do: here they note for which time they ran. Moving does not change it."""

from datetime import datetime
from typing import Protocol

from record import note


class Executed(Protocol):
    """What APScheduler 3 tells a listener, and not the job."""

    job_id: str
    scheduled_run_time: datetime


def report(moment: datetime | None = None) -> None:
    _ran("report", moment)


def tidy(folder: str, moment: datetime | None = None) -> None:
    _ran("tidy", moment)


def backup(moment: datetime | None = None) -> None:
    _ran("backup", moment)


def log(event: Executed) -> None:
    _ran(event.job_id, event.scheduled_run_time)


def _ran(job: str, moment: datetime | None) -> None:
    if moment is not None:
        note(job, due=moment.timestamp())
