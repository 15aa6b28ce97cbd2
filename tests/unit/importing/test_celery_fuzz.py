"""Random tables of beat's: Celery evaluates the source, `scheduler import` reads it, both agree."""

import importlib
import os
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from scheduler import Cron, Every
from scheduler.errors import ScheduleError
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


class Writer:
    """Writes a module in one of many styles."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._names = 0

    def module(self) -> str:
        table = self._table([f"job-{number}" for number in range(PER_FILE)])
        self._change(table)
        place = self._pick(
            "app.conf.beat_schedule = {}",
            "app.conf.update(beat_schedule={})",
            "app.conf.update({{'beat_schedule': {}}})",
            "app.conf['beat_schedule'] = {}",
            "app.conf.beat_schedule.update({})",
            "setattr(app.conf, 'beat_schedule', {})",
            "getattr(app, 'conf').update(dict(beat_schedule={}))",
            "(lambda table: app.conf.update(beat_schedule=table))({})",
            "class Config:\n    beat_schedule = {}\napp.config_from_object(Config)",
        )
        self._lines.append(place.format(table))
        zone = self._pick(*ZONES)
        self._lines += self._pick(
            [f"app.conf.timezone = {zone!r}"],
            [f"app.conf.update(timezone={zone!r}, enable_utc={self._pick(True, False)})"],
            [f"TIME_ZONE = {zone!r}", "app.conf.timezone = TIME_ZONE"],
            [f"app.add_defaults({{'timezone': {zone!r}}})"],
            [f"setattr(app.conf, 'timezone', {zone!r})"],
            [],
        )
        return HEAD + "\n".join(self._lines) + "\n"

    def _pick(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def _named(self, text: str) -> str:
        self._names += 1
        name = f"NAME_{self._names}"
        self._lines.append(f"{name} = {text}")
        return name

    def _table(self, keys: list[str]) -> str:
        """Write entries, and return the name of their table."""
        style = self._pick(
            "literal", "union", "self", "keys", "function", "loop", "if", "try", "match", "early"
        )
        entries = {key: self._entry() for key in keys}
        pairs = [f"{key!r}: {entry}" for key, entry in entries.items()]
        half = len(pairs) // 2
        one, other = (f"{{{', '.join(part)}}}" for part in (pairs[:half], pairs[half:]))
        whole = f"{{{', '.join(pairs)}}}"
        match style:
            case "union":
                return self._named(self._pick(f"{one} | {other}", f"{{**{one}, **{other}}}"))
            case "self":
                name = self._named(one)
                self._lines.append(f"{name} = {{**{name}, **{other}}}")
                return name
            case "keys":
                name = self._named("{}")
                self._lines += [f"{name}[{key!r}] = {each}" for key, each in entries.items()]
                return name
            case "function":
                self._lines.append(f"def table(first={one}):\n    return {{**first, **{other}}}")
                return self._named("table()")
            case "loop":
                first = next(iter(entries.values()))
                kind = f"{{f'job-{{n}}': {first} for n in range({len(keys)})}}"
                return self._named(kind)
            case "match":
                name = self._named("{}")
                subject = self._pick("'one'", "'two'")
                self._lines += [
                    f"match {subject}:",
                    f"    case 'one':\n        {name} = {one}",
                    f"    case _:\n        {name} = copy.deepcopy({other})",
                ]
                return name
            case "early":
                self._lines.append(f"def table(a):\n    if a > 1:\n        return {one}")
                self._lines.append(f"    for key, each in {other}.items():\n        return {whole}")
                return self._named(f"table({self._pick(1, 2)})")
            case "if":
                name = self._named(one)
                test = self._pick("1 < 2", "'a' in 'abc'", "not os.environ.get('NOT_THERE')")
                self._lines.append(f"if {test}:\n    {name}.update({other})")
                return name
            case "try":
                self._lines.append(f"try:\n    T = {whole}\nexcept ValueError:\n    T = {{}}")
                return self._named("T")
            case _:
                return self._named(whole)

    def _change(self, name: str) -> None:
        key = f"job-{self._random.randrange(PER_FILE)}"
        self._lines += self._pick(
            [],
            [f"{name} |= {{'more': {self._entry()}}}"],
            [f"{name}.update(more={self._entry()})"],
            [f"{name}.setdefault({key!r}, {self._entry()})"],
            [f"{name}.setdefault('more', {self._entry()})"],
            [f"if {key!r} in {name}:\n    del {name}[{key!r}]"],
            [f"{name}.pop({key!r}, None)"],
            [f"if {name}.get({key!r}):\n    {name}[{key!r}]['schedule'] = {self._schedule()}"],
            [f"if {key!r} in {name}:\n    {name}[{key!r}].update(schedule={self._schedule()})"],
            [f"for key in {name}:\n    {name}[key]['args'] = (1, 'two')"],
            [f"{name} = dict({name}, more={self._entry()})"],
            [f"{name} = {{key: each for key, each in {name}.items() if key != {key!r}}}"],
            [f"def more(entry={self._entry()}):\n    {name}['more'] = entry\nmore()"],
            [f"@app.task\ndef later():\n    {name}['more'] = {self._entry()}"],
            [f"def later():\n    {name}.pop({key!r}, None)"],
            [f"@lambda f: {name}.update(more=f())\ndef more():\n    return {self._entry()}"],
            [f"copied = {name}.copy()", f"copied['more'] = {self._entry()}"],
            [f"for each in {name}.values():\n    each['schedule'] = {self._schedule()}\n    break"],
        )

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


def of_celery(source: str) -> tuple[Mapping[str, Any], Any]:
    """Return the entries that Celery has, and its app."""
    entry: Any = importlib.import_module("celery.beat").ScheduleEntry
    names: dict[str, Any] = {}
    exec(source, names)
    app = names["app"]
    table = dict(app.conf.beat_schedule or {})
    return {key: entry(name=key, app=app, **each) for key, each in table.items()}, app


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
    theirs, _ = of_celery(source)
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
def test_a_random_table_means_the_same_to_celery_and_to_us(part: int) -> None:
    for seed in range(part, SCHEDULES // PER_FILE, 4):
        source = Writer(seed).module()
        try:
            silent = differences(source)
        except ScheduleError as error:  # pragma: no cover
            silent = [str(error)]
        assert silent == [], f"seed {seed}:\n{source}"
