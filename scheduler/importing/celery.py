"""Celery's modules: what its beat runs becomes loops, and its tasks become tasks."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.beat_database import is_dump, jobs_in_dump
from scheduler.importing.celery_beat import Entry, EntryReader
from scheduler.importing.celery_schedules import Beat
from scheduler.importing.celery_settings import Setting, settings_in
from scheduler.importing.celery_tasks import Definition, Limits, definitions_in, rate_of
from scheduler.importing.findings import (
    Action,
    CeleryCall,
    Found,
    Job,
    Note,
    Place,
    Unknown,
)
from scheduler.importing.source import Source, Unreadable, dotted, source_of

TOLD = {
    "task_routes": "each task has a queue of its own: give tasks to processors by run --tasks",
    "task_annotations": "write them at each task",
    "task_default_queue": "each task has a queue of its own",
    "task_queues": "each task has a queue of its own",
    "result_expires": "what a task returns is not stored",
}
DJANGO = "tasks of Django need django.setup() at the top, with DJANGO_SETTINGS_MODULE"
DATABASE = (
    "the schedules are in a database: give a file of `manage.py dumpdata django_celery_beat`, too"
)
READ = {
    *("beat_schedule", "timezone", "enable_utc", "task_time_limit", "task_soft_time_limit"),
    *("beat_cron_starting_deadline", "task_default_rate_limit", "task_acks_late"),
    *("task_reject_on_worker_lost", "task_ignore_result"),
}


def read_celery(texts: Mapping[str, str], *, tz: str | None = None) -> Found:
    """The jobs of modules of Celery's, and of dumps of the database of its beat.

    Args:
        texts: what is in each file, by its name.
        tz: the zone of crontabs, where the files do not tell it; None: UTC, as Celery has it.

    Raises:
        UsageError: a file cannot be read, or there is no job in any.
    """
    dumps = {file: text for file, text in texts.items() if is_dump(file, text)}
    sources = [source_of(text, file) for file, text in texts.items() if file not in dumps]
    project = _Project(sources, tz, in_database=not dumps)
    jobs = project.jobs()
    for file, text in dumps.items():
        jobs += project.with_definitions(jobs_in_dump(text, file, project.notes))
    project.tell_undefined()
    if dumps or any("DJANGO_SETTINGS_MODULE" in text for text in texts.values()):
        project.notes.append(Note(Place(next(iter(texts)), 1), DJANGO))
    for source in sources:
        project.notes += [
            Note(replace(source.place(source.tree), line=line), f"the default is taken of `{said}`")
            for line, said in dict.fromkeys(source.defaults)
        ]
    if not jobs and not project.notes:
        raise UsageError(f"{', '.join(texts)}: there are no tasks, and nothing that beat runs.")
    return Found("celery", _namespace(sources, texts), jobs, project.notes)


class _Project:
    """Modules that belong together."""

    def __init__(self, sources: Sequence[Source], tz: str | None, *, in_database: bool) -> None:
        self._sources = sources
        self._in_database = in_database
        self.notes: list[Note] = []
        self._settings: dict[str, tuple[Source, Setting]] = {}
        self._tables: list[tuple[Source, Setting]] = []
        for source in sources:
            self._take(source)
        self._beat = Beat(self._zone(tz), self._span("beat_cron_starting_deadline"))
        self._limits = Limits(self._timeout(), self._rate())
        self._definitions = [*self._defined()]
        self._undefined: dict[str, Place] = {}

    def _take(self, source: Source) -> None:
        others: list[str] = []
        for setting in settings_in(source):
            where = source.place(setting.value)
            if setting.name == "beat_schedule":
                self._tables.append((source, setting))
            elif setting.name in READ:
                self._settings[setting.name] = source, setting
            elif setting.name in TOLD:
                self.notes.append(Note(where, f"{setting.name}: {TOLD[setting.name]}"))
            elif setting.name == "beat_scheduler" and "atabase" in ast.unparse(setting.value):
                self.notes += [Note(where, DATABASE)] if self._in_database else []
            else:
                others.append(setting.name)
        if others:
            said = f"settings of Celery's that are of no use here: {', '.join(sorted({*others}))}"
            self.notes.append(Note(source.place(source.tree), said))

    def _setting(self, name: str) -> Any:
        if name not in self._settings:
            return None
        source, setting = self._settings[name]
        try:
            return source.value(setting.value)
        except Unreadable as error:
            self.notes.append(Note(source.place(setting.value), f"{name}: {error}"))
            return None

    def _zone(self, tz: str | None) -> str:
        zone = self._setting("timezone")
        if isinstance(zone, str):
            return zone
        if self._setting("enable_utc") is False and tz is None:
            where = self._settings["enable_utc"]
            said = "beat goes by the zone of its machine, which is not in the file: UTC (--tz)"
            self.notes.append(Note(where[0].place(where[1].value), said))
        return tz or "UTC"

    def _span(self, name: str) -> timedelta | None:
        value = self._setting(name)
        return timedelta(seconds=value) if isinstance(value, int | float) and value else None

    def _timeout(self) -> timedelta | None:
        return self._span("task_soft_time_limit") or self._span("task_time_limit")

    def _rate(self) -> str | None:
        try:
            return rate_of(self._setting("task_default_rate_limit"))
        except UsageError:
            return None

    def _defined(self) -> Iterator[Definition]:
        for source in self._sources:
            for each in definitions_in(source, self._limits):
                if isinstance(each, Note):
                    self.notes.append(each)
                else:
                    yield each

    def jobs(self) -> list[Job]:
        """What becomes of it: tasks, and loops."""
        loops: list[Job] = []
        for source in self._sources:
            reader = EntryReader(source)
            for entry in (*self._listed(source, reader), *reader.of_calls()):
                if isinstance(entry, Note):
                    self.notes.append(entry)
                elif (job := self._loop(source, entry)) is not None:
                    loops.append(job)
        periodic = [*self._periodic()]
        tasks = [each.job for each in self._definitions if each.run_every is None]
        return [*tasks, *periodic, *self.with_definitions(loops)]

    def _listed(self, source: Source, reader: EntryReader) -> Iterator[Entry | Note]:
        for where, setting in self._tables:
            if where is not source:
                continue
            if setting.key is None:
                yield from reader.of_table(setting.value)
                continue
            try:
                yield reader.of_pair(source.value(setting.key), setting.value)
            except Unreadable as error:
                told = f"left out, an entry of beat_schedule: {error}"
                yield Note(source.place(setting.key), told)

    def _loop(self, source: Source, entry: Entry) -> Job | None:
        expires = _seconds(entry.options.get("expires"))
        place = source.place(entry.node)
        named = entry.key or entry.task
        try:
            schedule, weekdays = self._beat.schedule(source.value(entry.schedule), expires)
        except (ScheduleError, Unreadable) as error:
            self.notes.append(Note(place, f"left out, {named!r}: {error}"))
            return None
        limits = [_seconds(entry.options.get(name)) for name in ("soft_time_limit", "time_limit")]
        action: Action = CeleryCall(entry.task, entry.args, entry.kwargs)
        notes = [*entry.notes]
        if entry.unread:
            action = Unknown(f"Call {entry.task} here, with {entry.unread}.")
            notes.append(Note(place, f"the arguments of {named!r}: {entry.unread}"))
        said = f"{named!r} runs {entry.task}" if entry.key else f"beat runs {entry.task}"
        name = entry.key or entry.task.rpartition(".")[2]
        timeout = next((each for each in limits if each), None)
        return Job(place, name, said, action, schedule, weekdays, timeout=timeout, notes=notes)

    def _periodic(self) -> Iterator[Job]:
        """Tasks whose decorator says when they run, as releases before 5 had them."""
        for each in self._definitions:
            if each.run_every is None:
                continue
            (source,) = (one for one in self._sources if one.file == each.job.place.file)
            try:
                schedule, weekdays = self._beat.schedule(source.value(each.run_every))
            except (ScheduleError, Unreadable) as error:
                self.notes.append(Note(each.job.place, f"left out, {each.name}: {error}"))
            else:
                yield replace(each.job, schedule=schedule, weekdays=weekdays, rate=None)

    def with_definitions(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """Loops with what the decorators of their tasks say."""
        for job in jobs:
            if not isinstance(call := job.action, CeleryCall):
                yield job
                continue
            if (found := self._definition(call.path)) is None:
                yield self._without_definition(job, call.path)
                continue
            of_task = found.job
            known = of_task.action
            action = replace(call, path=found.path)
            if isinstance(known, CeleryCall):
                action = replace(action, awaited=known.awaited)
            timeout = job.timeout or of_task.timeout
            yield replace(job, action=action, retry=of_task.retry, timeout=timeout)

    def _without_definition(self, job: Job, path: str) -> Job:
        timeout = job.timeout or self._limits.timeout
        if "." in path:
            self._undefined.setdefault(path, job.place)
            return replace(job, timeout=timeout)
        said = f"which function {path} is, is not in these files: give the one that has it, too"
        action = Unknown(f"Call the function of Celery's task {path} here.")
        notes = [*job.notes, Note(job.place, said)]
        return replace(job, timeout=timeout, action=action, notes=notes)

    def tell_undefined(self) -> None:
        """Of which tasks the decorators are not there."""
        if self._undefined:
            said = "retries and limits are not in these files, so it has none: give the modules of"
            place = next(iter(self._undefined.values()))
            self.notes.append(Note(place, f"{said} {', '.join(self._undefined)}, too"))

    def _definition(self, name: str) -> Definition | None:
        """By its name, or by the end of its path: files may lie in a folder of sources."""
        for each in self._definitions:
            if each.name == name or each.path == name:
                return each
        ends = [each for each in self._definitions if each.path.endswith(f".{name}")]
        return ends[0] if len(ends) == 1 else None


def _seconds(value: Any) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    return timedelta(seconds=value) if isinstance(value, int | float) else None


def _namespace(sources: Iterable[Source], texts: Iterable[str]) -> str:
    """What Celery's app is called; else, the first file."""
    for source in sources:
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(func=func, args=[ast.Constant(str(name)), *_]) if (
                    dotted(func).rpartition(".")[2] == "Celery"
                ):
                    return name
                case _:
                    pass
    return PurePath(next(iter(texts))).stem
