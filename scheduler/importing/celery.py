"""Read Celery's modules: beat's entries become loops, and task definitions become tasks."""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import PurePath
from typing import Any, cast

from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.celery_beat import (
    QUEUE,
    Beat,
    Options,
    is_dump,
    loop_added,
    loops_in_dump,
    loops_of,
    span_of,
)
from scheduler.importing.expressions import Evaluator
from scheduler.importing.project import Project
from scheduler.importing.values import (
    DECORATORS,
    READ,
    Bound,
    Made,
    Ref,
    Source,
    TableValue,
    Unread,
    Unreadable,
    defaults_of,
    dotted,
    is_same,
    items_of,
    last,
    named,
    plain,
    shown_source,
    shown_value,
    source_of,
)
from scheduler.importing.writing import (
    NO_RETRY,
    Action,
    CeleryCall,
    Found,
    ImportedJob,
    Note,
    Parameter,
    SourceLine,
    Unknown,
    noting,
)
from scheduler.tasks.retries import ErrorTypes, Retry
from scheduler.timing.durations import shown
from scheduler.timing.pacing import parse_rate

RETRIES = 3  # Celery's defaults
RETRY_DELAY = timedelta(minutes=3)
BACKOFF_MAXIMUM = timedelta(seconds=600)
FOR_EVER = 1_000_000
# Carried over, or irrelevant here. All other options are noted.
TAKEN = {
    *("name", "bind", "autoretry_for", "retry_kwargs", "retry_backoff", "max_retries"),
    *("retry_backoff_max", "retry_jitter", "default_retry_delay", "dont_autoretry_for"),
    *("rate_limit", "time_limit", "soft_time_limit", "expires", "acks_late", "ignore_result"),
    *("reject_on_worker_lost", "acks_on_failure_or_timeout", "track_started", "trail", "typing"),
    *("send_events", "shared", "store_errors_even_if_ignored", "throws"),
}
WHY = {
    "queue": QUEUE,
    "priority": "give it to each message: options(priority=...)",
    "serializer": "messages are JSON",
    "base": "what a class of tasks does is for a middleware, or the task itself",
    "run_every": "give the schedule to @app.periodic",
    "pydantic": "annotate the parameters: arguments are checked in any case",
}
SCHEDULING = re.compile(r"period|schedul|cron|interval|every|beat", re.IGNORECASE)
METHOD = ("self", "cls")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Limits:
    timeout: timedelta | None = None
    rate: str | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """Describe a task that a module defines.

    Attributes:
        path: of its function.
    """

    name: str
    path: str
    job: ImportedJob


def definitions_in(evaluator: Evaluator, limits: Limits, notes: list[Note]) -> Iterator[Definition]:
    """Return the tasks of a module, and note lookalikes."""
    source = evaluator.source
    for node in ast.walk(source.tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    if last(dotted(decorator)) in DECORATORS and not _is_ours(evaluator, decorator):
                        found = _Decorated(evaluator, node, decorator, limits).definition()
                        if any(each.name in METHOD for each in found.job.parameters):
                            said = f"left out, {node.name}: it is a method; write a function"
                            notes.append(Note(source.place(node), said))
                        else:
                            notes += _scheduling(source, node)
                            yield found
            case ast.ClassDef(bases=bases) if any(
                last(dotted(base)) in ("Task", "PeriodicTask") for base in bases
            ):
                said = f"left out, a task that is a class: write {node.name}.run as a function"
                if any(isinstance(each, FUNCTION) and each.name == "run" for each in node.body):
                    notes.append(Note(source.place(node), said))
            case _:
                pass


def _is_ours(evaluator: Evaluator, decorator: ast.expr) -> bool:
    match decorator:
        case ast.Call(ast.Attribute(owner)) | ast.Attribute(owner):
            app = evaluator.value(owner)
            return isinstance(app, Made) and app.of == "scheduler.Scheduler"
        case _:
            return False


def _scheduling(source: Source, function: FunctionNode) -> Iterator[Note]:
    """Note foreign decorators that may schedule a task."""
    for each in function.decorator_list:
        name = last(dotted(each))
        if name not in DECORATORS and SCHEDULING.search(shown_source(each)):
            detail = f"`@{shown_source(each)}` may say when it runs, and is not followed"
            yield Note(source.place(each), f"{function.name}: {detail}")


class _Decorated:
    """Read a function, and the options of its decorator."""

    def __init__(
        self, evaluator: Evaluator, function: FunctionNode, decorator: ast.expr, limits: Limits
    ) -> None:
        self._source = evaluator.source
        self._function = function
        self._limits = limits
        table = TableValue({}, [])
        if isinstance(decorator, ast.Call):
            _, table = evaluator.arguments(decorator)
        maker = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(evaluator.value(maker), Made):
            unknown = f"those that `{shown_source(maker)}` gives it are not read"
            table.missing.append(Note(self._source.place(maker), unknown))
        self._given = table.entries
        self._options = Options(function.name, self._given, self._source.place(function))
        self._options.add(table.missing, "options of ")

    def definition(self) -> Definition:
        function = self._function
        path = f"{self._source.module}.{function.name}"
        name = self._options.value("name", path)
        parameters = list(self._parameters())
        self._options.report(self._given, TAKEN, WHY)
        awaited = isinstance(function, ast.AsyncFunctionDef)
        action: Action = CeleryCall(path, awaited=awaited)
        if not self._source.module:
            action = Unknown(f"Call {function.name} of {self._source.file} here.")
            self._note(function, f"{function.name} is in a file that no module is called like")
        job = ImportedJob(
            self._source.place(function),
            function.name,
            f"Celery's task {name}",
            action,
            parameters=parameters,
            retry=self._retry(),
            timeout=self._timeout(),
            rate=self._rate(),
            expires=self._options.span("expires"),
            notes=self._options.notes,
        )
        return Definition(str(name), path, job)

    def _note(self, at: ast.AST | Bound, text: str) -> None:
        self._options.note(at.place if isinstance(at, Bound) else self._source.place(at), text)

    def _timeout(self) -> timedelta | None:
        soft, hard = self._options.span("soft_time_limit"), self._options.span("time_limit")
        if soft and hard:
            said = "is for plain functions not to be had: executor='process' can be killed"
            self._note(self._given["time_limit"], f"time_limit, next to soft_time_limit, {said}")
        return soft or hard or self._limits.timeout

    def _rate(self) -> str | None:
        rate = self._options.value("rate_limit", self._limits.rate)
        try:
            return rate_of(rate)
        except UsageError as error:
            self._note(self._given.get("rate_limit", self._function), f"rate_limit: {error}")
            return None

    def _retry(self) -> Retry:
        calls = (each for each in ast.walk(self._function) if isinstance(each, ast.Call))
        by_hand = [each for each in calls if re.fullmatch(r"\w+\.retry", dotted(each))]
        for call in by_hand:
            for each in call.keywords:
                if each.arg in ("countdown", "eta", "max_retries"):
                    said = f"{each.arg} of retry() of {self._function.name}: raise RetryLater"
                    self._note(each, f'{said}("10m") for a delay of its own')
        by_itself = "autoretry_for" in self._given
        if not by_hand and not by_itself:
            return NO_RETRY
        if not by_itself:
            said = "tries again what it called retry() for: here, any error is tried again"
            self._note(self._function, f"{self._function.name} {said}")
        given: Any = self._options.value("retry_kwargs", {}) or {}
        if not isinstance(given, Mapping):
            self._note(self._given["retry_kwargs"], f"retry_kwargs: not a table: {shown(given)}")
            given = {}
        kwargs = cast("Mapping[str, Any]", given)
        most = kwargs.get("max_retries", self._options.value("max_retries", RETRIES))
        if most is None:
            self._note(self._function, f"retries without end: here, {FOR_EVER:,} times")
        retries = most if type(most) is int else FOR_EVER if most is None else RETRIES
        place = self._source.place(self._function)
        with noting(self._options.notes, place, f"retries of {self._function.name}"):
            return self._retry_of(max(retries, 0), kwargs)
        return Retry(max(retries, 0))

    def _retry_of(self, retries: int, kwargs: Mapping[str, Any]) -> Retry:
        types: dict[str, Any] = {"retry_on": self._errors("autoretry_for", (Exception,))}
        if (never := self._errors("dont_autoretry_for", ())) != ():
            types["give_up_on"] = never
        backoff = self._options.value("retry_backoff", False)
        if not backoff or "autoretry_for" not in self._given:
            first = span_of(kwargs.get("countdown")) or self._options.span("default_retry_delay")
            return Retry(retries, delays=[first or RETRY_DELAY], jitter=0, **types)
        # Celery's jitter is any wait from none to the whole: half of it, plus or minus all.
        part = 0.5 if self._options.value("retry_jitter", True) else 1
        last = (self._options.span("retry_backoff_max") or BACKOFF_MAXIMUM) * part
        first = timedelta(seconds=1) if backoff is True else span_of(backoff)
        if first is None:
            raise ScheduleError(f"retry_backoff: not a number of seconds: {shown(backoff)}")
        return Retry(
            retries,
            initial=min(first * part, last),
            multiplier=2,
            maximum=last,
            jitter=1 if part < 1 else 0,
            **types,
        )

    def _errors(self, option: str, else_: ErrorTypes) -> ErrorTypes:
        """Return the builtin exceptions; if there are others, all."""
        node = self._given.get(option)
        if node is None:
            return else_
        value = node.value
        names = [shown_value(each) for each in items_of(value) or [value]]
        types = [getattr(builtins, name, None) for name in names]
        if all(isinstance(each, type) and issubclass(each, Exception) for each in types):
            return tuple(cast("list[type[Exception]]", types))
        wider = "any error is tried again" if else_ else "they are tried again"
        self._note(node, f"{option}={', '.join(names)} of {self._function.name}: here, {wider}")
        return else_

    def _parameters(self) -> Iterator[Parameter]:
        given = self._function.args
        defaults = defaults_of(given)
        positional = [*given.posonlyargs, *given.args][1 if self._options.value("bind") else 0 :]
        for each in (*positional, *given.kwonlyargs):
            default, by_name = defaults.get(each.arg), each in given.kwonlyargs
            said = f"the parameter {each.arg} of {self._function.name} keeps its default"
            with noting(self._options.notes, self._source.place(each), said):
                yield Parameter(each.arg, default and _constant(default), by_name)
        for star, each in (("*", given.vararg), ("**", given.kwarg)):
            if each is not None:
                said = "arguments travel by name: write out those that there are"
                self._note(each, f"{star}{each.arg} of {self._function.name}: {said}")


def _constant(default: ast.expr) -> str:
    """Return a default as code, or raise Unreadable if it is no constant."""
    value = default.operand if isinstance(default, ast.UnaryOp) else default
    if isinstance(value, ast.Constant) and not isinstance(value.value, bytes | complex):
        return ast.unparse(default)
    raise Unreadable(Unread(SourceLine("", 0), shown_source(default)))


def rate_of(value: Any) -> str | None:
    """Translate a rate of Celery: `10/m`, or a number per second."""
    if value is None:
        return None
    text = f"{value}" if "/" in f"{value}" else f"{value}/s"
    number, _, unit = text.partition("/")
    if re.fullmatch(r"\d*\.\d*", number) and number != ".":
        # A number per hour is more often a whole number.
        per_hour = float(number) * {"s": 3600, "m": 60, "h": 1}.get(unit, 1)
        number, unit = f"{per_hour:g}", "h"
    return str(parse_rate(f"{number}/{unit}"))


DJANGO = "tasks of Django need django.setup() at the top, with DJANGO_SETTINGS_MODULE"


def read_celery(texts: Mapping[str, str], *, tz: str | None = None) -> Found:
    """Return the jobs of Celery modules, and of dumps of beat's database, by file.

    Args:
        tz: the zone of crontabs, if the files do not say; None: UTC, as in Celery.

    Raises:
        UsageError: a file cannot be read, or there is no job in any.
    """
    dumps = {file: text for file, text in texts.items() if is_dump(file, text)}
    sources = [source_of(text, file) for file, text in texts.items() if file not in dumps]
    is_django = any("DJANGO_SETTINGS_MODULE" in text for text in texts.values())
    app = _App(sources, dumps, tz, is_django=is_django)
    jobs = app.jobs()
    if dumps or is_django:
        app.notes.append(Note(SourceLine(next(iter(texts)), 1), DJANGO))
    if not jobs and not app.notes:
        raise UsageError(f"{', '.join(texts)}: found no tasks and no schedule of beat.")
    notes = list(dict.fromkeys(app.notes))
    return Found("celery", _namespace(sources, texts), jobs, notes)


class _App:
    """Combine the beat and the tasks of modules that belong together."""

    def __init__(
        self,
        sources: Sequence[Source],
        dumps: Mapping[str, str],
        tz: str | None,
        *,
        is_django: bool,
    ) -> None:
        project = Project(sources)
        self._dumps = dumps
        self._added = project.state.added
        self.notes = project.state.notes
        self._settings = CelerySettings(project, tz, in_database=not dumps, is_django=is_django)
        self._definitions = [
            each
            for source in sources
            for each in definitions_in(project.evaluator(source), self._settings.limits, self.notes)
        ]

    def jobs(self) -> list[ImportedJob]:
        tasks = [each.job for each in self._definitions]
        loops = [*map(self._with_definition, self._loops())]
        undefined: dict[str, SourceLine] = {}
        for job in loops:
            if isinstance(call := job.action, CeleryCall) and self._definition(call.path) is None:
                undefined.setdefault(call.path, job.place)
        if undefined:
            said = "retries and limits are not in these files, so it has none: give the modules of"
            place = next(iter(undefined.values()))
            self.notes.append(Note(place, f"{said} {', '.join(undefined)}, too"))
        return [*tasks, *loops]

    def _loops(self) -> Iterator[ImportedJob]:
        beat = self._settings.beat
        seen: dict[Any, Bound] = {}
        for table in {id(each.value): each for each in self._settings.tables}.values():
            if isinstance(table.value, TableValue):
                entries = table.value.entries
                both = [
                    key
                    for key, each in seen.items()
                    if key in entries and is_same(entries[key].value, each.value)
                ]
                if len(both) < len(seen):
                    first = next(iter(seen.values())).place
                    detail = f"beat_schedule: {first} is in another table: Celery reads one of them"
                    self.notes.append(Note(table.place, detail))
                own = {key: each for key, each in entries.items() if key not in both}
                seen |= own
                table = Bound(TableValue(own, table.value.missing), table.place, table.notes)
            yield from loops_of(table, beat, self.notes)
        for added in self._added:
            with noting(self.notes, added.place, "left out, a call of add_periodic_task"):
                yield loop_added(added, beat)
        for file, text in self._dumps.items():
            yield from loops_in_dump(text, file, beat, self.notes)

    def _with_definition(self, job: ImportedJob) -> ImportedJob:
        """Add the options of its task's decorator to a loop."""
        if not isinstance(call := job.action, CeleryCall):
            return job
        found, path = self._definition(call.path), call.path
        if found is not None:
            action = found.job.action
            if isinstance(action, CeleryCall):
                action = replace(action, args=call.args, kwargs=call.kwargs)
            timeout = job.timeout or found.job.timeout
            return replace(job, action=action, retry=found.job.retry, timeout=timeout)
        job = replace(job, timeout=job.timeout or self._settings.limits.timeout)
        if "." in path:
            return job
        said = f"which function {path} is, is not in these files: give the one that has it, too"
        action = Unknown(f"Call the function of Celery's task {path} here.")
        return replace(job, action=action, notes=[*job.notes, Note(job.place, said)])

    def _definition(self, name: str) -> Definition | None:
        """Return the task of a path or of the end of one: files may lie in a folder of sources."""
        for each in self._definitions:
            if name in (each.name, each.path):
                return each
        ends = [each for each in self._definitions if each.path.endswith(f".{name}")]
        return ends[0] if len(ends) == 1 else None


def _namespace(sources: Iterable[Source], texts: Iterable[str]) -> str:
    """Return the name of Celery's app; else, of the first file."""
    for source in sources:
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(args=[ast.Constant(str(name)), *_]) if last(dotted(node)) == "Celery":
                    return name
                case _:
                    pass
    return PurePath(next(iter(texts))).stem


TOLD = {
    "task_routes": "each task has a queue of its own: give tasks to processors by run --tasks",
    "task_annotations": "write them at each task",
    "task_default_queue": "each task has a queue of its own",
    "task_queues": "each task has a queue of its own",
    "result_expires": "what a task returns is not stored",
}
DATABASE = (
    "the schedules are in a database: give a file of `manage.py dumpdata django_celery_beat`, too"
)


class CelerySettings:
    """Hold the settings of an app, and its tables of beat."""

    def __init__(
        self, project: Project, tz: str | None, *, in_database: bool, is_django: bool
    ) -> None:
        self._in_database = in_database
        self._project = project
        self._settings: dict[str, Bound] = {}
        self.tables: list[Bound] = []
        self._take()
        configured = project.state.configured
        self._is_django = is_django or any(each.startswith("django") for each in configured)
        self.beat = Beat(self._zone(tz), self._span("beat_cron_starting_deadline"))
        timeout = self._span("task_soft_time_limit"), self._span("task_time_limit")
        self.limits = Limits(next(filter(None, timeout), None), self._rate())

    def _note(self, place: SourceLine, detail: str) -> None:
        self._project.state.notes.append(Note(place, detail))

    def _take(self) -> None:
        others: dict[str, dict[str, int]] = {}
        asked = {each.place for each in self._project.state.asked}
        for name, bound in self._project.settings():
            if name == "beat_schedule":
                table = bound.value
                is_empty = isinstance(table, TableValue) and table.is_whole and not table.entries
                if not is_empty or bound.place not in asked:
                    self.tables.append(bound)
            elif name in READ:
                self._set(name, bound)
            elif name in TOLD:
                self._note(bound.place, f"{name}: {TOLD[name]}")
            elif name == "beat_scheduler" and "atabase" in shown_value(bound.value):
                if self._in_database:
                    self._note(bound.place, DATABASE)
            elif not (isinstance(bound.value, Ref) and last(bound.value.path) == name):
                others.setdefault(bound.place.file, {})[name] = bound.place.line
        for file, lines in others.items():
            names = ", ".join(f"{name} (line {line})" for name, line in sorted(lines.items()))
            detail = f"Celery settings without effect here: {names}"
            self._note(SourceLine(file, min(lines.values())), detail)
        for _, made in self._project.state.classes:
            if {named(str(name)) for name in made.attributes} & READ:
                for base in made.bases:
                    if isinstance(base, Ref) and base.hint:
                        detail = f"the settings that {made.name} has of {base.text} are not known"
                        self._note(base.place, f"{detail}{base.hint}")
        values = [bound.value for bound in self.tables]
        if not any(each.entries or each.missing for each in values if isinstance(each, TableValue)):
            self._project.state.notes += self._project.state.asked
        for each in self._project.state.conf.missing:
            self._note(each.place, f"settings of Celery's: {each.text}")

    def _set(self, name: str, bound: Bound) -> None:
        old = self._settings.get(name)
        if old is not None and not is_same(old.value, bound.value):
            detail = f"{name}: `{shown_value(old.value)}` is left out: {bound.place} is used"
            self._note(old.place, detail)
        self._settings[name] = bound

    def _setting(self, name: str, guess: str = "") -> Any:
        if name not in self._settings:
            return None
        bound = self._settings[name]
        try:
            value = _zone_of(bound) or plain(bound.value, bound.place)
        except Unreadable as error:
            return self._note(bound.place, f"{name}: {error}{guess}")
        for each in bound.notes:
            self._note(each.place, f"{name}: {each.text}")
        return value

    def _zone(self, tz: str | None) -> str:
        taken = tz or "UTC"
        detail = f"{taken} is taken (--tz)"
        zone = self._setting("timezone", f": {detail}")
        if isinstance(zone, str):
            return zone
        of_django = self._settings.get("TIME_ZONE")
        if of_django is not None and (self._is_configured(of_django) or tz is None):
            if isinstance(zone := self._setting("TIME_ZONE", f": {detail}"), str):
                if not self._is_configured(of_django):
                    said = "beat goes by TIME_ZONE if its app is configured by this module (--tz)"
                    self._note(of_django.place, said)
                return zone
        elif of_django is None and self._is_django and tz is None:
            said = (
                f"timezone: beat goes by Django's TIME_ZONE, which is not in these files: {detail}"
            )
            self._note(SourceLine(self._project.sources[0].file, 1), said)
        elif self._setting("enable_utc", f": {detail}") is False and tz is None:
            said = f"beat goes by the zone of its machine, which is not in the file: {detail}"
            self._note(self._settings["enable_utc"].place, said)
        return taken

    def _is_configured(self, bound: Bound) -> bool:
        """Return whether an app certainly takes its settings from the module of this one."""
        return self._is_django or self._project.has_settings(bound.place.file)

    def _span(self, name: str) -> timedelta | None:
        return span_of(self._setting(name))

    def _rate(self) -> str | None:
        try:
            return rate_of(self._setting("task_default_rate_limit"))
        except UsageError:
            return None


def _zone_of(bound: Bound) -> str | None:
    match bound.value:
        case Made("ZoneInfo" | "timezone" | "gettz", (str(name),)):
            return name
        case Ref(path) if path.lower().endswith(("timezone.utc", "pytz.utc", "datetime.utc")):
            return "UTC"
        case _:
            return None
