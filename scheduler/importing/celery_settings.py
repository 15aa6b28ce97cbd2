"""The settings of Celery's that modules have."""

from datetime import timedelta
from typing import Any

from scheduler.errors import UsageError
from scheduler.importing.celery_schedules import Beat, span_of
from scheduler.importing.celery_tasks import Limits, rate_of
from scheduler.importing.findings import Note, Place
from scheduler.importing.project import Project
from scheduler.importing.values import Bound, Made, Ref, Unreadable, is_same, plain, shown_value

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
READ = {
    *("beat_schedule", "timezone", "enable_utc", "task_time_limit", "task_soft_time_limit"),
    *("beat_cron_starting_deadline", "task_default_rate_limit", "task_acks_late"),
    *("task_reject_on_worker_lost", "task_ignore_result", "TIME_ZONE"),
}


class Settings:
    """The settings of an app, and its tables of what beat runs."""

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

    def _note(self, place: Place, told: str) -> None:
        self._project.state.notes.append(Note(place, told))

    def _take(self) -> None:
        others: dict[str, set[str]] = {}
        for name, bound in self._project.settings():
            if name == "beat_schedule":
                self.tables.append(bound)
            elif name in READ:
                self._set(name, bound)
            elif name in TOLD:
                self._note(bound.place, f"{name}: {TOLD[name]}")
            elif name == "beat_scheduler" and "atabase" in shown_value(bound.value):
                if self._in_database:
                    self._note(bound.place, DATABASE)
            else:
                others.setdefault(bound.place.file, set()).add(name)
        for file, names in others.items():
            said = f"settings of Celery's that are of no use here: {', '.join(sorted(names))}"
            self._note(Place(file, 1), said)
        for each in self._project.state.conf.missing:
            self._note(each.place, f"settings of Celery's: {each.text}")

    def _set(self, name: str, bound: Bound) -> None:
        old = self._settings.get(name)
        if old is not None and not is_same(old.value, bound.value):
            told = f"{name}: `{shown_value(old.value)}` is left out: {bound.place} is used"
            self._note(old.place, told)
        self._settings[name] = bound

    def _setting(self, name: str, guess: str = "") -> Any:
        if name not in self._settings:
            return None
        bound = self._settings[name]
        try:
            value = plain(bound.value, bound.place)
        except Unreadable as error:
            return self._note(bound.place, f"{name}: {error}{guess}")
        for each in bound.notes:
            self._note(each.place, f"{name}: {each.text}")
        return value

    def _zone(self, tz: str | None) -> str:
        taken = tz or "UTC"
        told = f"{taken} is taken (--tz)"
        zone = _zone_of(self._settings.get("timezone")) or self._setting("timezone", f": {told}")
        if isinstance(zone, str):
            return zone
        of_django = self._settings.get("TIME_ZONE")
        if of_django is not None and (self._is_configured(of_django) or tz is None):
            if isinstance(zone := self._setting("TIME_ZONE", f": {told}"), str):
                if not self._is_configured(of_django):
                    said = "beat goes by TIME_ZONE if its app is configured by this module (--tz)"
                    self._note(of_django.place, said)
                return zone
        elif of_django is None and self._is_django and tz is None:
            said = f"timezone: beat goes by Django's TIME_ZONE, which is not in these files: {told}"
            self._note(Place(self._project.sources[0].file, 1), said)
        elif self._setting("enable_utc", f": {told}") is False and tz is None:
            said = f"beat goes by the zone of its machine, which is not in the file: {told}"
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


def _zone_of(bound: Bound | None) -> str | None:
    """Return the name of a zone that is an object."""
    match bound and bound.value:
        case Made("ZoneInfo" | "timezone" | "gettz", (str(name),)):
            return name
        case Ref(path) if path.lower().endswith(("timezone.utc", "pytz.utc", "datetime.utc")):
            return "UTC"
        case _:
            return None
