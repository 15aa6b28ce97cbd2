"""Describe values for programs, in the output of commands and on pages of the dashboard."""

import base64
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, cast

from scheduler.control.reports import Report
from scheduler.control.status import Status
from scheduler.control.verbs import CancelReport
from scheduler.errors import Undecodable
from scheduler.protocol.messages import Message, parsed_json
from scheduler.protocol.tokens import LastRun
from scheduler.queues.failed import ParkedMessage
from scheduler.queues.journal import JournalEntry
from scheduler.queues.running import Running, RunningRun
from scheduler.tasks.loops import Loop
from scheduler.timing.schedules import describe

Row = dict[str, Any]
"""The JSON form of a value."""

OF_PARKED = (
    *("id", "task", "loop", "queue", "routing_key", "reason", "error", "attempts"),
    *("first_failed_at", "parked_at", "traceback"),
)


def row_of_loop(loop: Loop) -> Row:
    override = loop.override and {
        "by": loop.override.by,
        "at": loop.override.at,
        "code": describe(loop.of_code) if loop.of_code else None,
    }
    return {"loop": str(loop), "schedule": describe(loop.schedule), "override": override}


def row_of_report(report: Report) -> Row:
    if report.loop.id.is_whole:
        return {"task": str(report.loop), "did": report.did.value}
    return row_of_loop(report.loop) | {"did": report.did.value, "due_at": report.due_at}


def row_of_effect(report: Report) -> Row:
    return {"did": report.did.value, "not_confirmed_by": list(report.silent)}


def whole_row_of_report(report: Report) -> Row:
    """Return what a command prints of its operation on a loop."""
    return row_of_report(report) | row_of_effect(report)


def row_of_status(status: Status) -> Row:
    row = asdict(status) | row_of_loop(status.loop)
    return row | {"where": status.where.value, "last": row_of_last(status.last)}


def row_of_last(run: LastRun | None) -> Row | None:
    return run and asdict(run) | {"ending": run.ending.value, "late": run.late}


def row_of_run(run: RunningRun) -> Row:
    return {k: v for k, v in asdict(run).items() if k != "stack" or v is not None}


def row_of_running(running: Running, runs: Iterable[RunningRun]) -> Row:
    """Return the answers of processors, with some of the runs."""
    silent = {"not_answered_by": running.unheard, "alarm": running.alarm}
    return {"runs": [row_of_run(run) for run in runs], "more": running.more, **silent}


def row_of_cancelled(report: CancelReport) -> Row:
    run = row_of_run(report.run)
    return {"run": run, "ending": report.ending, "as_asked": report.as_asked}


def row_of_entry(entry: JournalEntry) -> Row:
    return asdict(entry) | {"run": row_of_last(entry.run)}


def row_of_parked(parked: ParkedMessage) -> Row:
    """Return a message without its headers and body, which may be private."""
    return {name: getattr(parked, name) for name in OF_PARKED}


def arguments_in(message: Message) -> dict[str, Any] | None:
    """Return the arguments that a message has, of whatever form; None: it has none."""
    try:
        body = parsed_json(message.body)
    except Undecodable:
        return None
    arguments = cast("dict[str, Any]", body).get("args") if isinstance(body, dict) else None
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else None


def whole_row_of_parked(parked: ParkedMessage) -> Row:
    row = row_of_parked(parked) | {"headers": dict(parked.headers)}
    try:
        return row | {"body": parked.message.body.decode()}
    except UnicodeDecodeError:
        return row | {"body_base64": base64.b64encode(parked.message.body).decode()}
