"""Prepare the words and numbers for each page's template."""

import asyncio
import inspect
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from inspect import isawaitable
from itertools import dropwhile, islice
from typing import Any, cast

from scheduler.control.installation import with_failed_queues
from scheduler.control.loops import Where
from scheduler.control.rows import arguments_in
from scheduler.dashboard import wording
from scheduler.dashboard.charts import Chart, ChartSeries, Mark, timeline
from scheduler.dashboard.forms import (
    LABELS,
    SORTS,
    TASK_SORTS,
    Filter,
    Query,
    pages_of,
)
from scheduler.dashboard.picture import LoopPicture, Minute, Picture
from scheduler.dashboard.site import Site
from scheduler.dashboard.standings import Standing, Workload
from scheduler.dashboard.ticks import past_ticks
from scheduler.dashboard.watch import FAILED, AnswerGroup, Rollout
from scheduler.errors import NotAllSeen
from scheduler.protocol.epochs import Verb
from scheduler.protocol.hatchery import timers
from scheduler.protocol.tokens import Ending, LoopId
from scheduler.queues.failed import REASONS, ParkedMessage, Selection, kind_of
from scheduler.queues.journal import JournalEntry
from scheduler.queues.running import RunningRun
from scheduler.spelling import counted, nearest
from scheduler.tasks.loops import queues_of
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.durations import MILLISECOND
from scheduler.timing.schedules import Once, options_of, zone_of

Context = dict[str, Any]
HOUR = 60
A_DAY = 24, HOUR // 3  # spans, and slots of three minutes in each
SPANS = {"1h": (60, 1), "24h": (96, 15), "7d": (84, 120)}
"""The numbers of columns, and the minutes of each, in a chart."""
STACK = (
    *(Ending.ESCALATED, Ending.STOPPED, Ending.RETRIED),
    *(Ending.CANCELLED, Ending.SUCCEEDED),
)
MOST_MARKS = 50
TICKS = 10
TAIL = 100
LATELY = 10
MOST_SEARCHED = 200  # characters
MOST_FOUND = 10
MOST_COMPARED = 1_000  # names
PAUSES_S = (0.3, 1.0)
WORST, MOST_TROUBLES = 5, 7
MOST_ON_WALL, MOST_PODS = 5, 12
SHORTLY = timedelta(minutes=30)
IDLE = Workload("")


@dataclass(frozen=True, slots=True)
class Page:
    """Define a page, its path without the prefix of the dashboard, and its values.

    Attributes:
        icon: its icon in the menu; empty: it is not in the menu.
        form: the action of its form, if it has one: such a page is not updated.
    """

    path: str
    title: str
    template: str
    context: Callable[[Site, Query], Context | None | Awaitable[Context | None]]
    icon: str = ""
    form: str = ""

    async def seen(self, site: Site, query: Query) -> Context | None:
        """Return the values for its template; None: there is no such page."""
        context = self.context(site, query)
        return await context if isawaitable(context) else context


def overview(site: Site, query: Query) -> Context:
    now = site.clock.now()
    minutes = [minute for _, minute in site.picture.minutes.last(HOUR, now)]
    span = query["span"] if query["span"] in SPANS else next(iter(SPANS))
    verdict = site.judged.verdict
    unknown = [each for each in verdict.failures if not each.acknowledged]
    known = [each for each in unknown if each.first_at is not None]
    newest = max(known, key=lambda each: each.first_at or now, default=None)
    return {
        "verdict": verdict,
        "newest": newest,
        "after": _rollout_before(site, newest.first_at if newest else None),
        "most": MOST_TROUBLES,
        "worst": WORST,
        "coming": site.agenda().upcoming[:LATELY],
        "runs": sum(minute.runs for minute in minutes),
        "failed": sum(minute.failed for minute in minutes),
        "per_second": _per_second(minutes),
        "lately": _lately(site.picture.entries.notable),
        "latest": max((minute.latest for minute in minutes), default=timedelta(0)),
        "charts": _charts(site, span, now),
        "span": span,
        "spans": [*SPANS],
    }


def wall(site: Site, query: Query) -> Context:
    """Return the values for the overview on a screen that is read from afar."""
    roll = site.watch.roll
    return overview(site, query) | {
        "most": MOST_ON_WALL,
        "roll": roll,
        "answering": sum(pod.has_answered for pod in roll.pods) if roll else 0,
        "most_pods": MOST_PODS,
    }


def _rollout_before(site: Site, moment: datetime | None) -> Rollout | None:
    """Return the start of processors shortly before a moment."""
    before = [each for each in site.watch.rollouts if moment and each.at <= moment]
    return before[-1] if moment and before and moment - before[-1].at < SHORTLY else None


def _charts(site: Site, span: str, now: datetime) -> Sequence[Chart]:
    """Return the charts, drawn once in a minute unless more is known."""
    marks, minute = _marks(site), now.replace(second=0, microsecond=0)
    key = minute, site.picture.heard_back_to, marks
    drawn_of, charts = site.charts.get(span, (None, ()))
    if drawn_of == key:
        return charts
    count, width = SPANS[span]
    moments, each = zip(*site.picture.minutes.last(count, now, width), strict=True)
    step = "minute" if width == 1 else wording.span(timedelta(minutes=width))
    outcomes = [
        ChartSeries(ending.value, [minute.outcomes[ending] for minute in each])
        for ending in STACK
        if ending is Ending.SUCCEEDED or any(minute.outcomes[ending] for minute in each)
    ]
    late = [
        ChartSeries(
            name,
            [late / MILLISECOND if (late := m.late_at(share)) is not None else None for m in each],
        )
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
    backlog = [ChartSeries("", [minute.backlog for minute in each])]
    charts = [
        Chart(f"Runs of loops in each {step}", "runs", moments, outcomes, marks=marks),
        Chart(f"Lateness in each {step}", "ms", moments, late, are_lines=True, marks=marks),
        Chart(
            "Ready messages, asked while a page is open", "messages", moments, backlog, marks=marks
        ),
    ]
    site.charts[span] = key, charts
    return charts


def _marks(site: Site) -> Sequence[Mark]:
    """Return the pauses of operators, and the starts of processors."""
    pauses = [
        Mark(entry.at, "pause", f"{entry.loop} paused by {entry.by}")
        for entry in site.picture.entries.actions
        if entry.what == Verb.PAUSE and entry.at is not None
    ]
    rollouts = [
        Mark(
            each.at,
            "deployment",
            f"{counted(each.count, 'processor')} started"
            + (f", the first of version {each.version}" if each.version else ""),
        )
        for each in site.watch.rollouts
    ]
    return [*pauses[-MOST_MARKS:], *rollouts[-MOST_MARKS:]]


def _per_second(minutes: Sequence[Minute]) -> float:
    """Return the runs per second, since the first of them."""
    known = [*dropwhile(lambda minute: not minute.runs, minutes)]
    return sum(minute.runs for minute in known) / (len(known) * 60) if known else 0.0


def _lately(entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    """Return the latest operations and problems, one of each loop."""
    found: dict[tuple[str, str], JournalEntry] = {}
    for entry in reversed(entries):
        found.setdefault((entry.loop, entry.what), entry)
        if len(found) >= LATELY:
            break
    return [*found.values()]


def loops(site: Site, query: Query) -> Context:
    judged, chosen_by = site.judged, Filter.of(query)
    chosen = chosen_by.choose(judged.standings)
    of_tasks = None
    if chosen_by.groups(judged.total):
        of_tasks = chosen_by.choose_tasks(judged.workloads, judged.standings)
    sorts = SORTS if of_tasks is None else TASK_SORTS
    return {
        "filter": chosen_by,
        "loops": chosen_by.cut(chosen),
        "by_task": None if of_tasks is None else chosen_by.cut(of_tasks),
        "orders": {name: words for name, (words, _) in sorts.items()},
        "count": len(chosen if of_tasks is None else of_tasks),
        "total": judged.total,
        "judged": len(judged.standings),
        "pages": pages_of(chosen if of_tasks is None else of_tasks),
        "verdict": judged.verdict,
        "failing": sum(each.is_failing for each in judged.standings),
        "states": list(Where),
        "tasks": judged.tasks,
    }


def loop(site: Site, query: Query) -> Context | None:
    if (found := site.standing(query["name"])) is None:
        return None
    now, picture = site.clock.now(), found.loop
    task = site.app.tasks.get(picture.id.task)
    token = picture.token
    after = token.scheduled_at - MILLISECOND if token and token.scheduled_at > now else now
    error = picture.last.error if found.is_failing and picture.last else None
    failure = site.judged.failure(picture.id.task, kind_of(error)) if error else None
    return {
        "standing": found,
        "acknowledged": failure.acknowledged if failure else None,
        "zone": zone_of(found.schedule),
        "ticks": [] if found.is_paused else wording.ticks(found.schedule, after, TICKS),
        "task": task,
        "of_code": of_code.schedule if (of_code := site.app.loops.get(picture.id)) else None,
        "can_reschedule": task is not None and not isinstance(found.schedule, Once),
        "values": _values(site, picture) if query["args"] and query.sees_arguments else None,
        "past": past_ticks(
            found,
            now,
            site.picture.heard_back_to,
            pauses_itself=task is not None and task.policy.after_failure == "pause",
        ),
        "timeline": timeline(picture.runs, now),
        "events": _events(picture),
    }


def _values(site: Site, loop: LoopPicture) -> Context:
    args = dict(loop.listed.args) if loop.listed else {}
    carry = loop.token.carry if loop.token else None
    return {
        name: site.redact(loop.id.task, value) for name, value in (("args", args), ("carry", carry))
    }


def _events(loop: LoopPicture) -> list[tuple[datetime, str, str, str, bool]]:
    """Return the history of a loop, the latest first: when, what, how, and why or its error."""
    runs = [
        (
            run.started_at,
            run.last.ending.value,
            f"#{run.seq}"
            + (f", attempt {run.attempt}" if run.attempt > 1 else "")
            + f": {wording.span(run.last.late)} late, took {wording.span(run.last.duration)}",
            run.last.error or "",
            True,
        )
        for run in loop.runs
    ]
    acts = [
        (act.at, act.what, act.by, act.note, not act.by) for act in loop.acts if act.at is not None
    ]
    return sorted([*runs, *acts], key=lambda each: each[0], reverse=True)


def schedule(site: Site, query: Query) -> Context | None:
    found = site.standing(query["loop"])
    if found is None or isinstance(found.schedule, Once):
        return None
    is_typed = not query.keys().isdisjoint(LABELS)
    values = query if is_typed else defaultdict(str, options_of(found.schedule))
    of_code = site.app.loops.get(found.loop.id)
    return {
        "standing": found,
        "values": values,
        "of_code": of_code.schedule if of_code else None,
    }


def start(site: Site, query: Query) -> Context | None:
    task = site.app.tasks.get(query["task"])
    if task is None:
        return None
    arguments = dict.fromkeys(task.arguments.required)
    return {
        "task": task,
        "values": defaultdict(str, {"args": wording.readable_json(arguments), **query}),
        "parameters": {
            name: inspect.formatannotation(kind) for name, kind in task.arguments.parameters.items()
        },
    }


def send(site: Site, query: Query) -> Context | None:
    task = site.app.tasks.get(query["task"])
    if task is None or not task.called:
        return None
    return _call(task, query, {}) | {"loop": ""}


def run_once(site: Site, query: Query) -> Context | None:
    found = site.standing(query["loop"])
    task = site.app.tasks.get(found.loop.id.task) if found is not None else None
    if found is None or task is None:
        return None
    own = dict(found.loop.listed.args) if found.loop.listed else {}
    of_loop = dict.fromkeys(own, "default of the loop")
    if query.sees_arguments and isinstance(shown := site.redact(task.name, own), dict):
        for name, value in cast("dict[str, Any]", shown).items():
            of_loop[name] = f"default of the loop: {json.dumps(value, default=str)}"
    return _call(task, query, of_loop) | {"loop": found.name}


def _call(task: TaskSpec, query: Query, of_loop: Mapping[str, str]) -> Context:
    """Return the values for a form with the arguments of a task, and of a loop."""
    kinds, signature = task.arguments.parameters, inspect.signature(task.function).parameters
    optional = kinds.keys() - {*task.arguments.required}
    defaults = {name: f"default: {signature[name].default!r}" for name in optional}
    return {
        "task": task,
        "parameters": [
            (
                name,
                inspect.formatannotation(kind),
                kind is bool,
                of_loop.get(name, defaults.get(name)),
            )
            for name, kind in kinds.items()
        ],
        "values": query,
    }


def tasks(site: Site, query: Query) -> Context:
    names, depths, work = site.app.names, site.picture.depths, site.judged.workloads
    chosen = Filter.of(query)
    found = chosen.choose_names(site.app.tasks)
    later = [depths[queue] for queue in map(names.later_timer, timers()) if queue in depths]
    rows = [
        {
            "name": name,
            "spec": site.app.tasks[name],
            "work": work.get(name, IDLE),
            "queue": site.picture.depth_of(queues_of(site.app, name)),
            "pause": site.picture.listing.pause_of(name),
            "parked": depths.get(names.failed_queue(name)),
            "retry": site.app.tasks[name].policy.retry,
        }
        for name in chosen.cut(found)
    ]
    return {
        "tasks": rows,
        "filter": chosen,
        "count": len(found),
        "total": len(site.app.tasks),
        "pages": pages_of(found),
        "delayed": sum(depth.ready for depth in later if depth) if later else None,
        "has_calls": any(task.called for task in site.app.tasks.values()),
    }


def failed(site: Site, query: Query) -> Context:
    names, depths = site.app.names, site.picture.depths
    tasks = with_failed_queues(site.app, site.picture.leftovers)
    task = query["task"] if query["task"] in tasks else ""
    site.view(f"{FAILED}?{task}")
    look = site.watch.looks.get(task)
    return {
        "task": task,
        "look": look,
        "tasks": [
            (name, depth.ready if (depth := depths.get(names.failed_queue(name))) else 0)
            for name in tasks
        ],
        "unknown": depth.ready if (depth := depths.get(names.failed)) else 0,
        "parked": site.parked,
        "succeeded": site.picture.succeeded_at,
        "reasons": REASONS,
        "failures": [_failure_of(site, group) for group in (look.groups if look else ())],
    }


def _failure_of(site: Site, group: AnswerGroup) -> Context:
    """Return the failures of the last day like these, and whether they are acknowledged."""
    failure = site.judged.failure(group.task, group.kind)
    return {
        "recent": site.picture.failures(group.task, group.kind, site.clock.now(), *A_DAY),
        "is_current": failure is not None,
        "acknowledged": failure and failure.acknowledged,
    }


async def message(site: Site, query: Query) -> Context | None:
    if (found := await _parked(site, query["id"], query["task"])) is None:
        return None
    args = arguments_in(found.message)
    shown = None if args is None else site.redact(found.task, args)
    page: Context = {
        "parked": found,
        "task": found.task,
        "can_edit": args is not None and shown == args,
        "show": query.sees_arguments and bool(query["show"] or query["args"]),
    }
    if not page["show"]:
        return page
    return page | {
        "args": query["args"] or wording.readable_json(shown),
        "body": wording.body(site.redacted_body(found)),
        "headers": site.redact(found.task, dict(found.headers)),
    }


async def _parked(site: Site, id: str, task: str) -> ParkedMessage | None:
    """Read a parked message from the broker, waiting a while for other readers.

    What another reader holds is not counted as ready, so it looks as if it were gone.
    """
    which, tasks = Selection(ids=frozenset([id])), await site.with_failed_queues(task)
    for pause in (*PAUSES_S, None):
        async with aclosing(site.program.failed.look(tasks, which)) as found:
            try:
                if (parked := await anext(found, None)) is not None:
                    return parked
            except NotAllSeen:
                if pause is None:
                    raise
        if pause is not None:
            await asyncio.sleep(pause)
    return None


def calendar(site: Site, _: Query) -> Context:
    planned = site.agenda()
    moments, counts = zip(*planned.columns, strict=True)
    title = "Runs that are planned, in each quarter of the next 24 hours"
    return {
        "agenda": planned,
        "chart": Chart(title, "runs", moments, [ChartSeries("", counts)]),
    }


def processors(site: Site, _: Query) -> Context:
    return {
        "processors": site.processors,
        "roll": site.watch.roll,
        "gone": site.watch.gone,
        "refusal": site.watch.refusal,
    }


def running(site: Site, _: Query) -> Context:
    answered = site.watch.running
    reported = [*answered[1].runs] if answered else []
    now, loops = site.clock.now(), site.picture.loops
    runs = [
        (run, _usual(loops.get(LoopId(run.task, run.key))) if run.loop else None)
        for run in reported
        if not _has_ended(run, site.picture)
    ]
    runs.sort(key=lambda item: item[0].started_at + 2 * (item[1] or item[0].deadline - now))
    return {
        "running": answered,
        "refusal": site.watch.refusal,
        "runs": runs,
        "ended": len(reported) - len(runs),
        "due": site.judged.verdict.counts.get(Where.RUNNING, 0),
    }


def _has_ended(run: RunningRun, picture: Picture) -> bool:
    """Return whether the journal has its end since."""
    if run.seq is None:
        return False
    loop = picture.loops.get(LoopId(run.task, run.key))
    token = loop.token if loop else None
    return token is not None and (token.seq, token.attempt) >= (run.seq, run.attempt)


def _usual(loop: LoopPicture | None) -> timedelta | None:
    took = sorted(run.last.duration for run in loop.runs) if loop else []
    return took[len(took) // 2] if took else None


def journal(site: Site, query: Query) -> Context:
    only, what = query["q"].strip().lower(), query["what"]
    known = site.picture.entries.all
    entries = [
        entry
        for entry in reversed(known)
        if only in entry.loop.lower() and what in ("", entry.what)
    ]
    kinds = sorted({entry.what for entry in known} | ({what} - {""}))
    return {"entries": entries[:TAIL], "q": only, "what": what, "kinds": kinds}


def search(site: Site, query: Query) -> Context:
    """Return the best matches.

    Loops beyond those that the dashboard shows are found by their name or key, in an index.
    """
    words = query["q"].strip()[:MOST_SEARCHED]
    parts = words.lower().split()
    loops = _found_loops(site, words, parts)
    others = _found_others(site, words) if len(loops) < MOST_FOUND else []
    named = [name for name in sorted(site.app.tasks) if _has(name, parts)]
    tasks = [name for name in named if name not in site.judged.by_name]  # of one loop: it is that
    found: Context = {
        "loops": loops[:MOST_FOUND],
        "count": len(loops),
        "others": others,
        "tasks": tasks[:MOST_FOUND],
        "errors": _found_errors(site, parts)[:MOST_FOUND],
        "messages": [*islice(_found_messages(site, words), MOST_FOUND)] if words else [],
    }
    is_found = any(found.values())
    names = [*site.app.tasks, *islice(site.judged.by_name, MOST_COMPARED)]
    near = nearest(words, names) if words and not is_found else None
    return {"q": words, **found, "is_found": is_found, "nearest": near}


def _has(text: str, parts: Sequence[str]) -> bool:
    text = text.lower()
    return bool(parts) and all(part in text for part in parts)


def _found_loops(site: Site, words: str, parts: Sequence[str]) -> list[Standing]:
    """Return the loops whose names have the words, by name; those that begin so come first."""
    found = [each for each in site.judged.standings if _has(each.name, parts)]
    return sorted(found, key=lambda each: not each.name.startswith(words))


def _found_others(site: Site, words: str) -> list[str]:
    listing, known = site.picture.listing, site.picture.loops
    named = [each.loop for each in site.entries_of(words)]
    found = dict.fromkeys([*named, *listing.table.of_key(words, most=MOST_FOUND)])
    return [str(loop) for loop in found if loop not in known][:MOST_FOUND]


def _found_errors(site: Site, parts: Sequence[str]) -> list[Context]:
    """Return the last error of each kind of a task, and whether loops of it fail with it."""
    errors = {key: (each.error, False) for key, each in site.picture.parked.items()}
    errors |= {
        (each.task, each.kind): (each.error, bool(each.loops))
        for each in site.judged.verdict.failures
    }
    return [
        {"task": task, "error": error, "has_loops": has_loops}
        for (task, _), (error, has_loops) in errors.items()
        if _has(f"{task} {error}", parts)
    ]


def _found_messages(site: Site, words: str) -> Iterator[ParkedMessage]:
    known = {
        parked.id: parked
        for look in site.watch.looks.values()
        for group in look.groups
        for parked in group.messages
    }
    return (parked for id, parked in known.items() if id.startswith(words))


def doctor(site: Site, _: Query) -> Context:
    worst_first = ("problem", "warning", "ok")
    if site.watch.findings is None:
        return {"findings": None}
    at, findings = site.watch.findings
    return {"findings": (at, sorted(findings, key=lambda each: worst_first.index(each.verdict)))}


PAGES = (
    Page("/", "Overview", "overview.html", overview, "i-home"),
    Page("/wall", "Wall", "wall.html", wall),
    Page("/loops", "Loops", "loops.html", loops, "i-loop"),
    Page("/loop", "Loop", "loop.html", loop),
    Page("/loop/schedule", "Schedule", "schedule.html", schedule, form="schedule-set"),
    Page("/running", "Running", "running.html", running, "i-running"),
    Page("/failed", "Failed", "failed.html", failed, "i-fail"),
    Page("/calendar", "Calendar", "calendar.html", calendar, "i-cal"),
    Page("/tasks", "Tasks", "tasks.html", tasks, "i-task"),
    Page("/tasks/start", "Start a loop", "start.html", start, form="start"),
    Page("/tasks/send", "Send a call", "send.html", send, form="send"),
    Page("/loop/run", "Run once", "send.html", run_once, form="run"),
    Page("/failed/message", "Parked message", "message.html", message, form="edit"),
    Page("/processors", "Processors", "processors.html", processors, "i-work"),
    Page("/journal", "Journal", "journal.html", journal, "i-log"),
    Page("/search", "Search", "search.html", search),
    Page("/doctor", "Doctor", "doctor.html", doctor, "i-doctor"),
)
PAGE_OF_FORM = {page.form: page for page in PAGES if page.form}
"""The page with the form of an action, by the action."""
