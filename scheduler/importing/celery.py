"""Read Celery's modules: beat's entries become loops, and tasks become tasks."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import PurePath
from typing import Any, TypeVar

from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.celery_beat import (
    Beat,
    BeatEntry,
    entries_in_dump,
    entries_of,
    entry_added,
    is_dump,
    span_of,
)
from scheduler.importing.celery_tasks import Definition, Limits, definitions_in, rate_of
from scheduler.importing.findings import (
    Action,
    CeleryCall,
    Found,
    ImportedJob,
    Note,
    SourceLine,
    Unknown,
)
from scheduler.importing.project import Project
from scheduler.importing.values import (
    READ,
    Bound,
    Made,
    Ref,
    Source,
    TableValue,
    Unreadable,
    dotted,
    is_same,
    last,
    named,
    plain,
    shown_value,
    source_of,
)

DJANGO = "tasks of Django need django.setup() at the top, with DJANGO_SETTINGS_MODULE"
T = TypeVar("T")


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
            for each in self._noted(
                definitions_in(project.evaluator(source), self._settings.limits)
            )
        ]

    def _noted(self, found: Iterable[T | Note]) -> Iterator[T]:
        for each in found:
            if isinstance(each, Note):
                self.notes.append(each)
            else:
                yield each

    def jobs(self) -> list[ImportedJob]:
        tasks = [each.job for each in self._definitions if each.run_every is None]
        periodic = self._noted(map(self._periodic, self._definitions))
        loops = [*self._noted(map(self._loop, self._noted(self._entries())))]
        undefined: dict[str, SourceLine] = {}
        for job in loops:
            if isinstance(call := job.action, CeleryCall) and self._definition(call.path) is None:
                undefined.setdefault(call.path, job.place)
        if undefined:
            said = "retries and limits are not in these files, so it has none: give the modules of"
            place = next(iter(undefined.values()))
            self.notes.append(Note(place, f"{said} {', '.join(undefined)}, too"))
        return [*tasks, *(each for each in periodic if each is not None), *loops]

    def _entries(self) -> Iterator[BeatEntry | Note]:
        seen: dict[Any, Bound] = {}
        for table in {id(each.value): each for each in self._settings.tables}.values():
            if isinstance(table.value, TableValue):
                own = dict(table.value.entries)
                for key in [key for key in own if key in seen]:
                    if is_same(seen[key].value, own[key].value):
                        del own[key]
                    else:
                        detail = f"{key!r} is in two tables: {seen[key].place} has it, too"
                        yield Note(own[key].place, detail)
                apart = own.keys() - seen.keys()
                if seen and len(apart) == len(table.value.entries) and apart:
                    first = next(iter(seen.values())).place
                    detail = f"beat_schedule: {first} is in another table: Celery reads one of them"
                    yield Note(table.place, detail)
                if seen and not table.value.entries and table.value.is_whole:
                    detail = (
                        "beat_schedule: it is empty here, and entries of other tables are taken"
                    )
                    yield Note(table.place, detail)
                seen |= own
                table = Bound(TableValue(own, table.value.missing), table.place, table.notes)
            yield from entries_of(table)
        yield from map(entry_added, self._added)
        for file, text in self._dumps.items():
            yield from entries_in_dump(text, file)

    def _loop(self, entry: BeatEntry) -> ImportedJob | Note:
        place, spans = entry.place, entry.spans
        name, about = entry.key or entry.task, entry.about and f": {entry.about}"
        said = f"{name!r} runs {entry.task}{about}" if entry.key else f"beat runs {entry.task}"
        notes, schedule, weekdays = [*entry.notes], None, None
        try:
            if not entry.once:
                beat = Beat(entry.tz) if entry.tz else self._settings.beat
                schedule, weekdays = beat.schedule(entry.schedule, spans.get("expires"))
        except (ScheduleError, Unreadable) as error:
            return Note(place, f"left out, {name!r}: {error}")
        action: Action = CeleryCall(entry.task, entry.args, entry.kwargs)
        if entry.unread:
            action = Unknown(f"Call {entry.task} here, with {entry.unread}.")
            notes.append(Note(place, f"the arguments of {name!r}: {entry.unread}"))
        job = ImportedJob(
            place,
            entry.key or last(entry.task),
            said,
            action,
            schedule,
            weekdays,
            once=entry.once,
            timeout=spans.get("soft_time_limit") or spans.get("time_limit"),
            paused=entry.paused,
            notes=notes,
        )
        return job if entry.unread else self._with_definition(job, entry.task)

    def _periodic(self, definition: Definition) -> ImportedJob | Note | None:
        """Return a task whose decorator has a schedule, as in releases before 5."""
        if definition.run_every is None:
            return None
        try:
            schedule, weekdays = self._settings.beat.schedule(definition.run_every.value)
        except (ScheduleError, Unreadable) as error:
            return Note(definition.job.place, f"left out, {definition.name}: {error}")
        return replace(definition.job, schedule=schedule, weekdays=weekdays, rate=None)

    def _with_definition(self, job: ImportedJob, path: str) -> ImportedJob:
        """Add the options of its task's decorator to a loop."""
        found = self._definition(path)
        if found is not None and isinstance(job.action, CeleryCall):
            action = found.job.action
            if isinstance(action, CeleryCall):
                action = replace(action, args=job.action.args, kwargs=job.action.kwargs)
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
