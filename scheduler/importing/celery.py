"""Celery's modules: what its beat runs becomes loops, and its tasks become tasks."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.beat_database import is_dump, jobs_in_dump
from scheduler.importing.celery_beat import Entry, entries_of, entry_added
from scheduler.importing.celery_settings import Settings
from scheduler.importing.celery_tasks import Definition, definitions_in
from scheduler.importing.findings import (
    Action,
    CeleryCall,
    Found,
    Job,
    Note,
    Place,
    Unknown,
)
from scheduler.importing.project import Project
from scheduler.importing.source import Source, dotted, source_of
from scheduler.importing.values import Bound, Table, Unreadable, is_same

DJANGO = "tasks of Django need django.setup() at the top, with DJANGO_SETTINGS_MODULE"


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
    is_django = any("DJANGO_SETTINGS_MODULE" in text for text in texts.values())
    project = _App(sources, tz, in_database=not dumps, is_django=is_django)
    jobs = project.jobs()
    for file, text in dumps.items():
        jobs += project.with_definitions(jobs_in_dump(text, file, project.notes))
    project.tell_undefined()
    if dumps or is_django:
        project.notes.append(Note(Place(next(iter(texts)), 1), DJANGO))
    if not jobs and not project.notes:
        raise UsageError(f"{', '.join(texts)}: there are no tasks, and nothing that beat runs.")
    notes = list(dict.fromkeys(project.notes))
    return Found("celery", _namespace(sources, texts), jobs, notes)


class _App:
    """The beat and the tasks of modules that belong together."""

    def __init__(
        self, sources: Sequence[Source], tz: str | None, *, in_database: bool, is_django: bool
    ) -> None:
        self._sources = sources
        self._project = Project(sources)
        self.notes = self._project.state.notes
        self._settings = Settings(self._project, tz, in_database=in_database, is_django=is_django)
        self._definitions = [*self._defined()]
        self._undefined: dict[str, Place] = {}

    def _defined(self) -> Iterator[Definition]:
        for source in self._sources:
            for each in definitions_in(self._project.evaluator(source), self._settings.limits):
                if isinstance(each, Note):
                    self.notes.append(each)
                else:
                    yield each

    def jobs(self) -> list[Job]:
        """What becomes of it: tasks, and loops."""
        loops: list[Job] = []
        for entry in self._entries():
            if isinstance(entry, Note):
                self.notes.append(entry)
            elif (job := self._loop(entry)) is not None:
                loops.append(job)
        periodic = [*self._periodic()]
        tasks = [each.job for each in self._definitions if each.run_every is None]
        return [*tasks, *periodic, *self.with_definitions(loops)]

    def _entries(self) -> Iterator[Entry | Note]:
        seen: dict[Any, Bound] = {}
        for table in {id(each.value): each for each in self._settings.tables}.values():
            if isinstance(table.value, Table):
                own = table.value.entries
                twice = [key for key in own if key in seen]
                same = [key for key in twice if is_same(seen[key].value, own[key].value)]
                for key in twice:
                    if key not in same:
                        told = f"{key!r} is in two tables: {seen[key].place} has it, too"
                        yield Note(own[key].place, told)
                seen |= own
                left = {key: each for key, each in own.items() if key not in same}
                table = Bound(Table(left, table.value.missing), table.place, table.notes)
            yield from entries_of(table)
        yield from map(entry_added, self._project.state.added)

    def _loop(self, entry: Entry) -> Job | None:
        place = entry.place
        named = entry.key or entry.task
        try:
            late = entry.spans.get("expires")
            schedule, weekdays = self._settings.beat.schedule(entry.schedule, late)
        except (ScheduleError, Unreadable) as error:
            self.notes.append(Note(place, f"left out, {named!r}: {error}"))
            return None
        limits = entry.spans.get("soft_time_limit"), entry.spans.get("time_limit")
        action: Action = CeleryCall(entry.task, entry.args, entry.kwargs)
        notes = [*entry.notes]
        if entry.unread:
            action = Unknown(f"Call {entry.task} here, with {entry.unread}.")
            notes.append(Note(place, f"the arguments of {named!r}: {entry.unread}"))
        said = f"{named!r} runs {entry.task}" if entry.key else f"beat runs {entry.task}"
        return Job(
            place,
            entry.key or entry.task.rpartition(".")[2],
            said,
            action,
            schedule,
            weekdays,
            timeout=next(filter(None, limits), None),
            paused=entry.paused,
            notes=notes,
        )

    def _periodic(self) -> Iterator[Job]:
        """Tasks whose decorator says when they run, as releases before 5 had them."""
        for each in self._definitions:
            if each.run_every is None:
                continue
            try:
                schedule, weekdays = self._settings.beat.schedule(each.run_every.value)
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
        timeout = job.timeout or self._settings.limits.timeout
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
