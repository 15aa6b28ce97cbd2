"""Random tables of beat's: Celery evaluates the source, `scheduler import` reads it, both agree."""

import importlib
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from scheduler import Cron, Every
from scheduler.importing.celery import read_celery
from scheduler.importing.writing import CeleryCall, Found, ImportedJob

SCHEDULES = int(os.environ.get("SCHEDULER_TEST_IMPORTS", "200"))
PER_FILE = 4
RUNS = 50
START = datetime(2026, 1, 5, 10, 17, 30, tzinfo=UTC)
HEAD = """import copy
import os
from datetime import timedelta
from celery import Celery
from celery.schedules import crontab, schedule
from enum import Enum
class Pace(Enum):
    SLOW = 3600
    FAST = 15
class Config:
    EVERY = Pace.FAST.value * 2
app = Celery("fuzz", set_as_current=False)
"""
# Without summer time: there, Celery runs a time that clocks skip an hour late.
ZONES = ("UTC", "Asia/Tokyo", "Asia/Kolkata", "America/Bogota")


# In capitals: one of the choices below is written in their place.
TABLES = (
    "T = WHOLE",
    "T = ONE | OTHER",
    "T = {**ONE, **OTHER}",
    "T = ONE\nT = {**T, **OTHER}",
    "T = {}\nT['job-0'] = ENTRY\nT['job-1'] = ENTRY",
    "def table(first=ONE):\n    return {**first, **OTHER}\nT = table()",
    "T = {f'job-{n}': ENTRY for n in range(4)}",
    "T = ONE\nif TEST:\n    T.update(OTHER)",
    "try:\n    T = WHOLE\nexcept ValueError:\n    T = {}",
    "match SIDE:\n    case 'one':\n        T = ONE\n    case _:\n        T = copy.deepcopy(OTHER)",
    "def table(a):\n    if a == 'one':\n        return ONE\n    return OTHER\nT = table(SIDE)",
    "def table():\n    for key, each in OTHER.items():\n        return WHOLE\nT = table()",
)
CHANGES = (
    "",
    "T |= {'more': ENTRY}",
    "T.update(more=ENTRY)",
    "T.setdefault('job-1', ENTRY)",
    "T.setdefault('more', ENTRY)",
    "if 'job-1' in T:\n    del T['job-1']",
    "T.pop('job-1', None)",
    "if T.get('job-1'):\n    T['job-1']['schedule'] = SCHEDULE",
    "if 'job-1' in T:\n    T['job-1'].update(schedule=SCHEDULE)",
    "for key in T:\n    T[key]['args'] = (1, 'two')",
    "T = dict(T, more=ENTRY)",
    "T = {key: each for key, each in T.items() if key != 'job-1'}",
    "def more(entry=ENTRY):\n    T['more'] = entry\nmore()",
    "@app.task\ndef later():\n    T['more'] = ENTRY",
    "def later():\n    T.pop('job-1', None)",
    "@lambda f: T.update(more=f())\ndef more():\n    return ENTRY",
    "copied = T.copy()\ncopied['more'] = ENTRY",
    "for each in T.values():\n    each['schedule'] = SCHEDULE\n    break",
)
PLACES = (
    "app.conf.beat_schedule = T",
    "app.conf.update(beat_schedule=T)",
    "app.conf.update({'beat_schedule': T})",
    "app.conf['beat_schedule'] = T",
    "app.conf.beat_schedule.update(T)",
    "setattr(app.conf, 'beat_schedule', T)",
    "getattr(app, 'conf').update(dict(beat_schedule=T))",
    "(lambda table: app.conf.update(beat_schedule=table))(T)",
    "class Config:\n    beat_schedule = T\napp.config_from_object(Config)",
)
OF_ZONES = (
    "",
    "app.conf.timezone = ZONE",
    "app.conf.update(timezone=ZONE, enable_utc=TRUTH)",
    "TIME_ZONE = ZONE\napp.conf.timezone = TIME_ZONE",
    "app.add_defaults({'timezone': ZONE})",
    "setattr(app.conf, 'timezone', ZONE)",
)
CHOICES: Mapping[str, Sequence[str]] = {
    "ENTRY": (
        "{'task': TASK, 'schedule': SCHEDULE MORE}",
        "dict({'task': TASK MORE}, schedule=SCHEDULE)",
    ),
    "TASK": ("'t.work'", "f't.{\"work\"}'", "'t.%s' % 'work'", "'.'.join(['t', 'work'])"),
    "MORE": (
        "",
        ", 'args': (1, 'two')",
        ", 'kwargs': {'deep': True}",
        ", 'kwargs': dict(n=3)",
        ", 'options': {'queue': 'slow'}",
    ),
    "SCHEDULE": (
        "NUMBER",
        "NUMBER.0",
        "NUMBER * 60",
        "Pace.SLOW.value",
        "Config.EVERY",
        "[n * 2 for n in range(1, NUMBER + 1)][-1]",
        "max(NUMBER, 30) if Pace['FAST'].value == 15 else 1",
        "timedelta(minutes=NUMBER)",
        "schedule(timedelta(hours=NUMBER))",
        "int(os.getenv('NOT_THERE', 'NUMBER'))",
        "NUMBER if NUMBER > 45 else 60 * NUMBER",
        *["CRONTAB"] * 6,
    ),
    "TEST": ("1 < 2", "'a' in 'abc'", "not os.environ.get('NOT_THERE')"),
    "SIDE": ("'one'", "'two'"),
    "ZONE": tuple(map(repr, ZONES)),
    "TRUTH": ("True", "False"),
}
OPEN = re.compile(rf"\b(ONE|OTHER|WHOLE|NUMBER|CRONTAB|{'|'.join(CHOICES)})\b")


class Writer:
    """Writes a module in one of many styles."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pick: Callable[[Sequence[str]], str] = self._random.choice
        self._lines: list[str] = []
        self._tables: dict[str, str] = {}
        pairs = [f"'job-{number}': {self._filled('ENTRY')}" for number in range(PER_FILE)]
        for name, part in ("ONE", pairs[:2]), ("OTHER", pairs[2:]), ("WHOLE", pairs):
            self._tables[name] = f"{{{', '.join(part)}}}"

    def module(self) -> str:
        for templates in (TABLES, CHANGES, PLACES, OF_ZONES):
            text = self._filled(self._pick(templates))
            self._lines.append(text)
        return HEAD + "\n".join(self._lines) + "\n"

    def _filled(self, template: str) -> str:
        return OPEN.sub(lambda found: self._written_for(found[0]), template)

    def _written_for(self, name: str) -> str:
        if name in self._tables:
            return self._tables[name]
        if name == "NUMBER":
            return str(self._random.randrange(1, 90))
        if name == "CRONTAB":
            return self._crontab()
        written = self._filled(self._pick(CHOICES[name]))
        if name == "SCHEDULE" and self._random.random() < 0.2:
            self._lines.append(f"NAME_{len(self._lines)} = {written}")
            return f"NAME_{len(self._lines) - 1}"
        return written

    def _crontab(self) -> str:
        fields = {
            "minute": self._field(0, 59),
            "hour": self._field(0, 23),
            "day_of_month": self._field(1, 31),
            "month_of_year": self._field(1, 12, "jan", "mar", "dec"),
            "day_of_week": self._field(0, 6, "mon", "fri", "sunday"),
        }
        if self._random.random() < 0.1:
            return f"crontab.from_string({' '.join(map(str, fields.values()))!r})"
        given = {key: each for key, each in fields.items() if self._random.random() < 0.6}
        written = [f"{key}={self._written(each)}" for key, each in given.items()]
        return f"crontab({', '.join(written)})"

    def _field(self, low: int, high: int, *names: str) -> str:
        first, last = sorted(self._random.sample(range(low, high + 1), 2))
        choices = ["*", f"{first}", f"{first},{last}", f"{first}-{last}", f"*/{last or 1}"]
        choices += [f"{first}-{last}/2", f"{last}-{first}", *names]
        return self._pick(choices)

    def _written(self, field: str) -> str:
        if field.isdecimal():
            return self._pick([field, repr(field)])
        parts = field.split(",")
        if len(parts) > 1 and all(part.isdecimal() for part in parts):
            formatted = f"'{{}},{{}}'.format({field})"
            return self._pick([repr(field), f"[{field}]", formatted, f"({field})"])
        return repr(field)


def of_celery(source: str) -> Mapping[str, Any]:
    """Return the entries that Celery has."""
    entry: Any = importlib.import_module("celery.beat").ScheduleEntry
    names: dict[str, Any] = {}
    exec(source, names)
    app = names["app"]
    table = dict(app.conf.beat_schedule or {})
    return {key: entry(name=key, app=app, **each) for key, each in table.items()}


def moments_of_celery(entry: Any) -> Iterator[datetime]:
    schedule, moment = entry.schedule, START
    while True:
        schedule.nowfun = lambda now=moment: now
        moment += schedule.remaining_estimate(moment)
        yield moment.astimezone(UTC)


def moments_of(job: ImportedJob) -> Iterator[datetime]:
    assert isinstance(job.schedule, Cron)
    moment = START
    while True:
        moment = job.schedule.next_after(moment).astimezone(UTC)
        yield moment


def differences(source: str) -> list[str]:
    """Return what neither is carried over nor told."""
    theirs = of_celery(source)
    found = read_celery({"fuzz.py": source})
    ours = {job.name: job for job in found.jobs}
    silent = [
        f"{key}: {difference}"
        for key, entry in theirs.items()
        if (difference := _difference(entry, ours.get(key))) and not _is_told(found, key)
    ]
    return silent + [
        f"{key}: there is none" for key in ours.keys() - theirs.keys() if not _is_told(found, key)
    ]


def _is_told(found: Found, key: str) -> bool:
    return any(repr(key) in note.text or "`def later`" in note.text for note in found.left)


def _difference(entry: Any, job: ImportedJob | None) -> str:
    if job is None:
        return "is missing"
    call = cast("CeleryCall", job.action)
    said = (entry.task, list(entry.args), dict(entry.kwargs))
    if said != (call.path, list(call.args), dict(call.kwargs)):
        return f"{said} is {call}"
    if isinstance(job.schedule, Every):
        period = cast("timedelta", entry.schedule.run_every)
        return "" if job.schedule.period == period else f"{period} is {job.schedule}"
    for _, theirs, ours in zip(
        range(RUNS), moments_of_celery(entry), moments_of(job), strict=False
    ):
        if theirs != ours:
            return f"{entry.schedule}: {theirs} is {ours}"
    return ""


@pytest.mark.parametrize("part", range(4))
def test_random_tables_mean_the_same_to_celery_and_the_import(part: int) -> None:
    for seed in range(part, SCHEDULES // PER_FILE, 4):
        source = Writer(seed).module()
        assert differences(source) == [], f"seed {seed}:\n{source}"
