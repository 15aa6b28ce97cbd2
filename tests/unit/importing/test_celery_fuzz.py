"""Random tables of beat's: Celery evaluates the source, `scheduler import` reads it, both agree."""

import importlib
import os
import random
import re
from collections.abc import Iterator, Mapping
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


# In capitals: what is written in their place.
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
OPEN = re.compile(r"\b(ONE|OTHER|WHOLE|ENTRY|SCHEDULE|TEST|SIDE|ZONE|TRUTH)\b")


class Writer:
    """Writes a module in one of many styles."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._names = 0
        pairs = [f"'job-{number}': {self._entry()}" for number in range(PER_FILE)]
        parts = {"ONE": pairs[:2], "OTHER": pairs[2:], "WHOLE": pairs}
        self._tables = {name: f"{{{', '.join(part)}}}" for name, part in parts.items()}

    def module(self) -> str:
        for templates in (TABLES, CHANGES, PLACES, OF_ZONES):
            text = OPEN.sub(self._filled, self._pick(*templates))
            self._lines.append(text)
        return HEAD + "\n".join(self._lines) + "\n"

    def _filled(self, found: re.Match[str]) -> str:
        match found[0]:
            case "ONE" | "OTHER" | "WHOLE" as name:
                return self._tables[name]
            case "ENTRY":
                return self._entry()
            case "SCHEDULE":
                return self._schedule()
            case "TEST":
                return self._pick("1 < 2", "'a' in 'abc'", "not os.environ.get('NOT_THERE')")
            case "SIDE":
                return self._pick("'one'", "'two'")
            case "ZONE":
                return repr(self._pick(*ZONES))
            case _:
                return self._pick("True", "False")

    def _pick(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def _named(self, text: str) -> str:
        self._names += 1
        name = f"NAME_{self._names}"
        self._lines.append(f"{name} = {text}")
        return name

    def _entry(self) -> str:
        more = self._pick(
            "",
            ", 'args': (1, 'two')",
            ", 'kwargs': {'deep': True}",
            ", 'kwargs': dict(n=3)",
            ", 'options': {'queue': 'slow'}",
        )
        task = self._pick(
            "'t.work'", "f't.{\"work\"}'", "'t.%s' % 'work'", "'.'.join(['t', 'work'])"
        )
        if self._pick(True, False):
            return f"{{'task': {task}, 'schedule': {self._schedule()}{more}}}"
        return f"dict({{'task': {task}{more}}}, schedule={self._schedule()})"

    def _schedule(self) -> str:
        number = self._random.randrange(1, 90)
        written = self._pick(
            f"{number}",
            f"{number}.0",
            f"{number} * 60",
            "Pace.SLOW.value",
            "Config.EVERY",
            f"[n * 2 for n in range(1, {number + 1})][-1]",
            f"max({number}, 30) if Pace['FAST'].value == 15 else 1",
            f"timedelta(minutes={number})",
            f"schedule(timedelta(hours={number}))",
            f"int(os.getenv('NOT_THERE', '{number}'))",
            f"{number} if {number} > 45 else 60 * {number}",
            *[self._crontab()] * 6,
        )
        return self._named(written) if self._random.random() < 0.2 else written

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
        return (
            f"crontab({', '.join(f'{key}={self._written(each)}' for key, each in given.items())})"
        )

    def _field(self, low: int, high: int, *names: str) -> str:
        first, last = sorted(self._random.sample(range(low, high + 1), 2))
        choices = ["*", f"{first}", f"{first},{last}", f"{first}-{last}", f"*/{last or 1}"]
        choices += [f"{first}-{last}/2", f"{last}-{first}", *names]
        return self._pick(*choices)

    def _written(self, field: str) -> str:
        if field.isdecimal():
            return self._pick(field, repr(field))
        parts = field.split(",")
        if len(parts) > 1 and all(part.isdecimal() for part in parts):
            return self._pick(
                repr(field), f"[{field}]", f"'{{}},{{}}'.format({field})", f"({field})"
            )
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
