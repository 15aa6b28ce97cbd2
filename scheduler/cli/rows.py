"""What programs are given for each thing: one JSON object."""

import base64
from dataclasses import asdict
from typing import Any

from scheduler.cli.overrides import row_of_override
from scheduler.control.reports import Report
from scheduler.control.status import Status
from scheduler.protocol.tokens import LastRun
from scheduler.queues.failed import Parked
from scheduler.queues.journal import JournalEntry
from scheduler.queues.running import RunningRun
from scheduler.timing.schedules import describe

Row = dict[str, Any]


def row_of_report(report: Report) -> Row:
    return {
        "loop": str(report.loop),
        "schedule": describe(report.loop.schedule),
        "override": row_of_override(report.loop),
        "did": report.did.value,
        "due_at": report.due_at,
    }


def row_of_status(status: Status) -> Row:
    return asdict(status) | {
        "loop": str(status.loop),
        "schedule": describe(status.loop.schedule),
        "override": row_of_override(status.loop),
        "where": status.where.value,
        "last": _row_of_run(status.last),
    }


def row_of_run(run: RunningRun) -> Row:
    row = asdict(run)
    return row if run.stack is not None else {k: v for k, v in row.items() if k != "stack"}


def row_of_entry(entry: JournalEntry) -> Row:
    return asdict(entry) | {"run": _row_of_run(entry.run)}


def row_of_parked(parked: Parked) -> Row:
    row: Row = {
        "id": parked.id,
        "task": parked.task,
        "loop": parked.loop,
        "queue": parked.queue,
        "routing_key": parked.routing_key,
        "reason": parked.reason,
        "error": parked.error,
        "attempts": parked.attempts,
        "first_failed_at": parked.first_failed_at,
        "parked_at": parked.parked_at,
        "traceback": parked.traceback,
        "headers": dict(parked.headers),
    }
    try:
        return row | {"body": parked.message.body.decode()}
    except UnicodeDecodeError:
        return row | {"body_base64": base64.b64encode(parked.message.body).decode()}


def _row_of_run(run: LastRun | None) -> Row | None:
    if run is None:
        return None
    return asdict(run) | {"ending": run.ending.value, "late": run.late}
