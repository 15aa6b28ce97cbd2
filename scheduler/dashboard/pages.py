"""What each page shows: the words and numbers that its template is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduler.dashboard import strips, wording
from scheduler.dashboard.filters import PAGE, Filter
from scheduler.dashboard.operations import LOOP_VERBS, arguments_in
from scheduler.dashboard.parked import heard_of
from scheduler.dashboard.picture import LoopPicture
from scheduler.dashboard.site import Site
from scheduler.dashboard.standing import MARKS, MEANINGS, State
from scheduler.queues.failed import REASONS

Query = Mapping[str, str]
Context = dict[str, Any]
HOUR = 60
TICKS = 10
TAIL = 200
WORST = 5


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and where it is found.

    Attributes:
        path: without what is before it where the dashboard is mounted.
        is_live: whether it changes while somebody looks.
    """

    path: str
    title: str
    template: str
    context: Callable[[Site, Query], Context | None]
    in_menu: bool = True
    is_live: bool = True


def overview(site: Site, _: Query) -> Context:
    now = site.clock.now()
    minutes = list(site.picture.minutes.last(HOUR, now))
    runs = sum(minute.runs for _, minute in minutes)
    worst = max((minute.latest for _, minute in minutes), default=timedelta(0))
    return {
        "verdict": site.verdict(),
        "worst": WORST,
        "runs": runs,
        "failed": sum(minute.failed for _, minute in minutes),
        "per_second": runs / (HOUR * 60),
        "latest": worst,
        "parked": site.parked,
        "processors": site.processors,
        "charts": [
            ("Runs", strips.bars([(at, float(m.runs)) for at, m in minutes], "runs in a minute")),
            (
                "Lateness",
                strips.bars(
                    [(at, m.mean_late / timedelta(milliseconds=1)) for at, m in minutes],
                    "ms late on average",
                ),
            ),
            (
                "Failures",
                strips.bars(
                    [(at, float(m.failed)) for at, m in minutes], "failures in a minute", "bad"
                ),
            ),
        ],
    }


def loops(site: Site, query: Query) -> Context:
    chosen = (chosen_by := Filter.of(query)).choose(site.standings())
    pages = max((len(chosen) + PAGE - 1) // PAGE, 1)
    verdict = site.verdict()
    return {
        "filter": chosen_by,
        "rows": chosen_by.cut(chosen),
        "count": len(chosen),
        "total": len(site.standings()),
        "pages": pages,
        "counts": verdict.counts,
        "failing": sum(each.is_failing for each in site.standings()),
        "states": list(State),
        "tasks": sorted({each.loop.id.task for each in site.standings()}),
        "verbs": LOOP_VERBS,
    }


def loop(site: Site, query: Query) -> Context | None:
    name = query.get("name", "")
    found = next((each for each in site.standings() if each.name == name), None)
    if found is None:
        return None
    now, picture = site.clock.now(), found.loop
    task = site.app.tasks.get(picture.id.task)
    after = max(now, picture.due_at or now)
    return {
        "standing": found,
        "zone": wording.zone_name(found.schedule),
        "ticks": [] if picture.is_paused else wording.ticks(found.schedule, after, TICKS),
        "task": task,
        "verbs": LOOP_VERBS,
        "args": picture.listed.args if picture.listed else {},
        "show_args": bool(query.get("args")),
        "timeline": strips.timeline(picture.runs, now),
        "events": _events(picture),
    }


def _events(loop: LoopPicture) -> list[tuple[datetime, str, str, str]]:
    """What happened to a loop, the latest first: when, what, and how it came to be."""
    runs = [
        (
            run.started_at,
            run.last.ending.value,
            f"#{run.seq}"
            + (f", attempt {run.attempt + 1}" if run.attempt else "")
            + f": {wording.span(run.last.late)} late, took {wording.span(run.last.duration)}",
            run.last.error or "",
        )
        for run in loop.runs
    ]
    acts = [(act.at, act.what, act.by, act.note) for act in loop.acts if act.at is not None]
    return sorted([*runs, *acts], key=lambda each: each[0], reverse=True)


def tasks(site: Site, _: Query) -> Context:
    names, depths, standings = site.app.names, site.picture.depths, site.standings()
    counted: dict[str, int] = {}
    for standing in standings:
        counted[standing.loop.id.task] = counted.get(standing.loop.id.task, 0) + 1
    rows = [
        {
            "name": task.name,
            "spec": task,
            "loops": counted.get(task.name, 0),
            "queue": depths.get(names.processor_queue(task.name)),
            "parked": depths.get(names.failed_queue(task.name)),
            "retry": task.policy.retry,
        }
        for task in site.app.tasks.values()
    ]
    return {"rows": rows}


def failed(site: Site, query: Query) -> Context:
    names, depths = site.app.names, site.picture.depths
    task = query.get("task", "") if query.get("task", "") in site.app.tasks else ""
    look = site.looks.get(task)
    return {
        "task": task,
        "look": look,
        "tasks": [
            (name, depth.ready if (depth := depths.get(names.failed_queue(name))) else 0)
            for name in site.app.tasks
        ],
        "unknown": depth.ready if (depth := depths.get(names.failed)) else 0,
        "parked": site.parked,
        "heard": heard_of(site.picture.entries).most_common(20) if look is None else [],
        "reasons": REASONS,
    }


def message(site: Site, query: Query) -> Context | None:
    looks = site.looks.values()
    found = next((each for look in looks if (each := look.find(query.get("id", "")))), None)
    if found is None:
        return None
    return {
        "parked": found,
        "args": arguments_in(found),
        "show": bool(query.get("show")),
        "body": found.message.body.decode(errors="replace"),
    }


def calendar(site: Site, _: Query) -> Context:
    planned = site.agenda()
    return {"agenda": planned, "chart": strips.bars(planned.columns, "runs in 15 minutes")}


def processors(site: Site, _: Query) -> Context:
    names, depths = site.app.names, site.picture.depths
    return {
        "processors": site.processors,
        "answers": site.answers,
        "tasks": [
            (task.name, depths.get(names.processor_queue(task.name)), task.concurrency)
            for task in site.app.tasks.values()
        ],
    }


def running(site: Site, _: Query) -> Context:
    due = [each for each in site.standings() if each.state is State.RUNNING]
    return {"running": site.running, "due": due}


def journal(site: Site, query: Query) -> Context:
    only, what = query.get("q", "").strip().lower(), query.get("what", "")
    entries = [
        entry
        for entry in reversed(site.picture.entries)
        if only in entry.loop.lower() and what in ("", entry.what)
    ]
    kinds = sorted({entry.what for entry in site.picture.entries} | ({what} - {""}))
    return {"entries": entries[:TAIL], "q": only, "what": what, "kinds": kinds}


def doctor(site: Site, _: Query) -> Context:
    if site.findings is None:
        return {"findings": None}
    at, found = site.findings
    worst_first = ("problem", "warning", "ok")
    return {"findings": (at, sorted(found, key=lambda each: worst_first.index(each.verdict)))}


PAGES = (
    Page("/", "Overview", "overview.html", overview),
    Page("/loops", "Loops", "loops.html", loops),
    Page("/loop", "Loop", "loop.html", loop, in_menu=False),
    Page("/running", "Running", "running.html", running),
    Page("/tasks", "Tasks", "tasks.html", tasks),
    Page("/failed", "Failed", "failed.html", failed),
    Page(
        "/failed/message", "Parked message", "message.html", message, in_menu=False, is_live=False
    ),
    Page("/calendar", "Calendar", "calendar.html", calendar),
    Page("/processors", "Processors", "processors.html", processors),
    Page("/journal", "Journal", "journal.html", journal),
    Page("/doctor", "Doctor", "doctor.html", doctor, is_live=False),
)


def common(site: Site) -> Context:
    """What each page is given besides."""
    return {
        "namespace": site.app.namespace,
        "picture": site.picture,
        "marks": MARKS,
        "meanings": MEANINGS,
    }
