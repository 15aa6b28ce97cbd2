"""Serve pages as data: the values of their templates, as JSON.

Loops, runs, entries of the journal and parked messages are as the commands print them with --json:
moments in ISO 8601, durations in seconds. Tokens and messages are left out: their arguments are
shown by the pages that show them, redacted.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from pydantic_core import to_jsonable_python

from scheduler.control.rows import (
    Row,
    row_of_entry,
    row_of_last,
    row_of_parked,
    row_of_run,
    row_of_status,
)
from scheduler.dashboard.operations import OperationRecord
from scheduler.dashboard.site import Site
from scheduler.dashboard.standings import Standing
from scheduler.dashboard.verdict import Failure, Trouble
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LastRun, LoopId
from scheduler.queues.failed import ParkedMessage
from scheduler.queues.journal import JournalEntry
from scheduler.queues.running import RunningRun
from scheduler.tasks.loops import queues_of
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.schedules import Cron, Every, Once, options_of

MOST_OF_VERDICT = 50
"""Loops of each failure and trouble in the verdict; the page Loops has all."""
ROWS: Mapping[type[Any], Callable[[Any], Any]] = {
    LastRun: row_of_last,
    RunningRun: row_of_run,
    JournalEntry: row_of_entry,
    ParkedMessage: row_of_parked,
}
"""Returns what a command prints of a value, by its type."""


class PageData:
    def __init__(self, site: Site) -> None:
        self._site = site

    def plain(self, value: Any) -> Any:
        """Return a value as JSON can hold it."""
        row_of = ROWS.get(cast("type[Any]", type(value)))
        match value:
            case None | bool() | int() | float():
                return value
            case str() | LoopId():
                return str(value)
            case datetime() | timedelta():
                return to_jsonable_python(value, timedelta_mode="float")
            case Every() | Cron() | Once():
                return options_of(value)
            case TaskSpec():
                return self.plain(
                    {"name": value.name, "called": value.called, "timeout": value.timeout}
                )
            case Message():
                return None
            case OperationRecord():
                values = {each.name: getattr(value, each.name) for each in fields(OperationRecord)}
                return self.plain(values | {"state": value.state})
            case Mapping():
                items = cast("Mapping[Any, Any]", value).items()
                return {str(name): self.plain(each) for name, each in items}
            case Standing():
                return self.plain(self._row_of_standing(value))
            case _ if row_of is not None:
                return self.plain(row_of(value))
            case tuple() if (named := getattr(cast("Any", value), "_asdict", None)) is not None:
                return self.plain(named())
            case (RunningRun() as run, timedelta() | None as usual):
                return self.plain(row_of_run(run) | {"usual": usual})
            case list() | tuple() | Set():
                return [self.plain(each) for each in cast("list[Any]", value)]
            case Failure() | Trouble():
                values = {each.name: getattr(value, each.name) for each in fields(value)}
                loops = {"loops": value.loops[:MOST_OF_VERDICT], "count": len(value.loops)}
                return self.plain(values | loops)
            case _ if is_dataclass(value):
                names = [each.name for each in fields(value) if not each.name.startswith("_")]
                return {name: self.plain(getattr(value, name)) for name in names}
            case _:
                return str(value)

    def _row_of_standing(self, standing: Standing) -> Row:
        site, loop = self._site, standing.loop
        depth = site.picture.depth_of(queues_of(site.app, loop.id.task))
        return row_of_status(standing.status) | {
            "processors": depth.consumers if depth else 0,
            "is_paused": standing.is_paused,
            "succeeded_at": loop.succeeded_at,
            "runs": loop.runs,
            "acts": loop.acts,
            "in_code": standing.in_code,
            "is_failing": standing.is_failing,
            "failed_attempts": standing.failed_attempts,
        }


def failure(error: str, message: str) -> Row:
    """Return an error as a command prints it."""
    return {"error": error, "message": message}
