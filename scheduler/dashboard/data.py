"""Serve pages as data: the values of their templates, as JSON.

Moments are in ISO 8601, durations in seconds. Tokens and messages are left out: their arguments are
shown by the pages that show them, redacted.
"""

from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from scheduler.dashboard.charts import Chart
from scheduler.dashboard.picture import LoopPicture
from scheduler.dashboard.standing import Standing
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.schedules import Cron, Every, Once, options_of

LEFT_OUT = ("zones",)  # of a form


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return str(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case LoopId():
            return str(value)
        case Every() | Cron() | Once():
            return options_of(value)
        case Standing():
            return _standing(value)
        case LoopPicture():
            return _loop(value)
        case TaskSpec():
            return {"name": value.name, "called": value.called, "timeout": plain(value.timeout)}
        case Message():
            return None
        case Chart():
            series = {each.name: [*each.values] for each in value.series}
            return {
                "title": value.title,
                "unit": value.unit,
                "from": plain(value.moments),
                "series": series,
            }
        case Mapping():
            items = cast("Mapping[Any, Any]", value).items()
            return {str(name): plain(each) for name, each in items if name not in LEFT_OUT}
        case tuple() if (named := getattr(cast("Any", value), "_asdict", None)) is not None:
            return plain(named())
        case list() | tuple() | Set():
            return [plain(each) for each in cast("list[Any]", value)]
        case _ if is_dataclass(value):
            named = {each.name: getattr(value, each.name) for each in fields(value)}
            return {name: plain(each) for name, each in named.items() if not name.startswith("_")}
        case _:
            return str(value)


def _standing(standing: Standing) -> dict[str, Any]:
    return {
        "name": standing.name,
        "state": standing.state.value,
        "in_code": standing.in_code,
        "schedule": plain(standing.schedule),
        "is_failing": standing.is_failing,
        "failed_attempts": standing.failed_attempts,
        "was_late": plain(standing.was_late),
        **_loop(standing.loop),
    }


def _loop(loop: LoopPicture) -> dict[str, Any]:
    return {
        "due_at": plain(loop.due_at),
        "is_paused": loop.is_paused,
        "reason": loop.reason,
        "succeeded_at": plain(loop.succeeded_at),
        "runs": plain(loop.runs),
        "acts": plain(loop.acts),
    }
