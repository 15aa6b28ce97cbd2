"""Modules of Celery's are followed: in their order, with their conditions, tables and functions."""

import pytest

from scheduler import Cron, Every
from scheduler.importing.celery import read_celery
from scheduler.importing.findings import CeleryCall, Found, Job
from tests.imported import notes_of

A = "{'task': 't.a', 'schedule': 60}"
B = "{'task': 't.b', 'schedule': 90}"
BEAT = "app.conf.beat_schedule"
ENTRY = "def entry(task, *, every=5, **more):\n    return dict(more, task=task, schedule=every)"
DEV = "class Dev:\n    beat_schedule = {'a': <A>}"
EITHER = "def table():\n    if X:\n        return {'a': <A>}\n    return {'b': <B>}"
MATCH = "match MODE:\n    case 'a':\n        beat_schedule = {'a': <A>}\n    case _:\n        pass"
LONG = "n = 0\nfor a in range(9999):\n    for b in range(9999):\n        n += 1"
LOCAL = "try:\n    from local import beat_schedule\nexcept ImportError:\n"
HOURLY = "beat_schedule = {'x': {'task': 't.a', 'schedule': crontab(minute=0)}}\n"


def read(text: str, **others: str) -> Found:
    text = text.replace("<A>", A).replace("<B>", B)
    return read_celery({"shop/beat.py": text} | {f"shop/{k}.py": v for k, v in others.items()})


def loops_of(found: Found) -> dict[str, str]:
    """Return each loop with its period, or its expression."""
    return {job.name: _schedule(job) for job in found.jobs if job.schedule is not None}


def _schedule(job: Job) -> str:
    if isinstance(job.schedule, Every):
        return f"{job.schedule.period.total_seconds():g}"
    assert isinstance(job.schedule, Cron)
    return job.schedule.expression


def told_of(found: Found) -> list[str]:
    """Return the notes, but for that of the modules of the tasks."""
    return [note for note in notes_of(found) if "retries and limits are not" not in note]


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        # A name has the value that it was given last, before it is read.
        (
            "T = {'x': <B>}\nbeat_schedule = {'a': <A>}\nbeat_schedule = {**beat_schedule, **T}",
            "a x",
        ),
        (f"N = 5\n{BEAT} = {{'five': {{'task': 't.a', 'schedule': N}}}}\nN = 6", "five=5"),
        (f"{BEAT} = {{'a': <A>}}\n{BEAT} = {{'b': <B>}}", "b"),
        (f"T = {BEAT} = {{'a': <A>}}\nT['b'] = <B>", "a b"),
        (f"T = {{'a': <A>}}\n{BEAT} = T.copy()\nT['b'] = <B>", "a"),
        (f"T = {{}}\ndef fill():\n    global T\n    T = {{'a': <A>}}\nfill()\n{BEAT} = T", "a"),
        (f"beat_schedule = {{'a': <A>}}\n{BEAT} = beat_schedule", "a"),
        # Tables are changed.
        (f"T = {{'a': <A>}}\nT['b'] = <B>\n{BEAT} = T", "a b"),
        (f"T = {{'a': <A>}}\nT |= {{'b': <B>}}\n{BEAT} = T", "a b"),
        (f"T = {{'a': <A>}}\nT.update({{'b': <B>}}, c=<B>)\n{BEAT} = T", "a b c"),
        (f"T = {{'a': <A>}}\nT.setdefault('b', <B>)\nT.setdefault('a', <B>)\n{BEAT} = T", "a=60 b"),
        (f"T = {{'a': <A>, 'b': <B>}}\nT.pop('b', None)\n{BEAT} = T", "a"),
        (f"{BEAT} = {{'a': <A>, 'b': <B>}}\ndel {BEAT}['a']", "b"),
        (f"{BEAT} = {{'a': <A>}}\n{BEAT}.clear()\n{BEAT}['b'] = <B>", "b"),
        ("CELERY_BEAT_SCHEDULE = {'a': <A>}\nCELERY_BEAT_SCHEDULE['a']['schedule'] = 5", "a=5"),
        (
            f"{BEAT} = {{'a': <A>}}\n{BEAT}['a'].update({{'schedule': crontab(minute=7)}})",
            "a=7 * * * *",
        ),
        ("setattr(app.conf, 'beat_schedule', {'a': <A>})", "a"),
        # Constants are computed.
        (f"{BEAT} = {{'a': <A>}} | {{'b': <B>}}", "a b"),
        (f"{BEAT} = {{'a': <A>}} if 2 > 1 else {{'b': <B>}}", "a"),
        (f"N = 'x'\n{BEAT} = {{f'{{N}}-{{3:02}}': <A>}}", "x-03"),
        (f"{BEAT} = {{'{{}}'.format('a'): <A>, '%s' % 'b': <B>}}", "a b"),
        (f"{BEAT} = {{str(n): <A> for n in range(4) if n % 2}}", "1 3"),
        (f"T = {{'b': <A>, 'a': <B>}}\n{BEAT} = dict(sorted(T.items()))", "a b"),
        (f"{BEAT} = {{''.join(map(str, range(3))): <A>}}", "012"),
        ("Celery('x', changes={'beat_schedule': {'a': <A>}})", "a"),
        ("class S:\n    @property\n    def beat_schedule(self):\n        return {'a': <A>}", "a"),
        (f"for n in ('x', 'y'):\n    {BEAT}[n] = <A>", "x y"),
        (f"T = []\nT.append(('a', <A>))\nT += [('b', <B>)]\n{BEAT} = dict(T)", "a b"),
        (
            f"{BEAT} = {{'a': {{'task': 't.a', 'schedule': crontab.from_string('5 4 * * mon')}}}}",
            "a=5 4 * * mon",
        ),
        (
            f"match 'a':\n    case 'b':\n        pass\n    case _:\n        {BEAT} = {{'a': <A>}}",
            "a",
        ),
        # Functions and classes are followed.
        (f"def table():\n    return {{'a': <A>}}\n{BEAT} = table()", "a"),
        (
            f"{ENTRY}\n{BEAT} = {{'a': entry('t.a'), 'b': entry('t.b', every=7, args=(1,))}}",
            "a=5 b=7",
        ),
        (
            f"{DEV}\nclass Prod(Dev):\n    beat_schedule = {{**Dev.beat_schedule, 'b': <B>}}",
            "a b",
        ),
        ("app.config_from_object({'beat_schedule': {'a': <A>}})", "a"),
    ],
)
def test_all_that_is_constant_is_followed(text: str, loops: str) -> None:
    found = read(text)
    wanted = [each.partition("=") for each in loops.replace(" * ", "_* ").split(" ")]
    if "* *" in loops or "4 *" in loops:
        wanted = [loops.partition("=")]
    assert [*loops_of(found)] == [name for name, _, _ in wanted]
    assert [loops_of(found)[name] for name, equals, _ in wanted if equals] == [
        value for _, equals, value in wanted if equals
    ]
    assert [note for note in told_of(found) if "may change" in note or "left out" in note] == []


@pytest.mark.parametrize(
    ("text", "loops", "told"),
    [
        # A table is changed by what is not known.
        (
            f"T = {{'a': <A>}}\nT.update(load())\n{BEAT} = T",
            "a",
            ["2: beat_schedule: what `load()` is"],
        ),
        (f"T = {{'a': <A>}}\nT |= load()\n{BEAT} = T", "a", ["2: beat_schedule: what `load()` is"]),
        (
            f"T = {{'a': <A>}}\nT.pop(name)\n{BEAT} = T",
            "a",
            ["2: beat_schedule: what `T.pop(name)`"],
        ),
        (
            f"T = {{'a': <A>}}\ndel T[name]\n{BEAT} = T",
            "a",
            ["2: beat_schedule: `del T[name]` is not"],
        ),
        (
            f"T = {{'a': <A>}}\nT[name] = <B>\n{BEAT} = T",
            "a",
            ["2: beat_schedule: an entry is left"],
        ),
        (
            f"T = {{'a': <A>}}\nfill(T)\n{BEAT} = T",
            "a",
            ["2: beat_schedule: `fill(T)` may change it"],
        ),
        (f"{BEAT} = {{**load(), 'a': <A>}}", "a", ["1: beat_schedule: what `load()` is"]),
        (
            f"{BEAT} = {{'a': <A>}}\ngrow(app.conf)",
            "a",
            ["2: `grow(app.conf)` may change settings"],
        ),
        ("App(beat_schedule={'a': <A>})", "", ["1: `App(beat_schedule={'a': {'task': 't.a'"]),
        (
            "PeriodicTask.objects.create(name='a')",
            "",
            ["1: left out, `PeriodicTask.objects.create("],
        ),
        ("f = lambda: app.conf.update(beat_schedule={})", "", ["1: `lambda: app.conf.update("]),
        (
            "globals()['CELERY_BEAT_SCHEDULE'] = {}",
            "",
            ["1: `globals()['CELERY_BEAT_SCHEDULE']` may"],
        ),
        (
            f"for n in load():\n    {BEAT}[n] = <A>",
            "",
            ["2: beat_schedule: an entry is left out: what `n` is"],
        ),
        # Only one of two branches runs.
        (
            f"{BEAT} = {{}} if OFF else {{'a': <A>}}",
            "a",
            ["1: 'a': it is under `if not OFF` there"],
        ),
        (
            f"if PROD:\n    {BEAT} = {{'a': <A>, 'b': <B>}}\nelse:\n    {BEAT} = {{'b': <A>}}",
            "a b=90",
            [
                "2: 'a': it is under `if PROD`",
                "4: 'b': `{'task': 't.a', 'schedule': 60}` is left out",
            ],
        ),
        (
            f"if os.environ.get('X', '') == '1':\n    {BEAT}['a'] = <A>",
            "a",
            ["2: 'a': it is under `if os.environ.get('X', '') == '1'`"],
        ),
        (
            f"DEBUG = True\nif DEBUG:\n    {BEAT} = {{'a': <A>}}\nelse:\n    {BEAT} = {{'b': <B>}}",
            "a",
            ["5: left out, under `else of if DEBUG`, which does not hold here"],
        ),
        (
            f"{LOCAL}    beat_schedule = {{'a': <A>}}",
            "a",
            [
                "2: beat_schedule: what `beat_schedule` is cannot be told without",
                "4: 'a': it is under",
            ],
        ),
        (
            MATCH,
            "a",
            ["3: 'a': it is under `case 'a' of match MODE` there"],
        ),
        (
            f"while busy():\n    {BEAT} = {{'a': <A>}}",
            "a",
            ["2: 'a': it is under `while busy()` there"],
        ),
        (
            f"{EITHER}\n{BEAT} = table()",
            "a b",
            ["3: 'a': it is under `if X`", "4: 'b': it is under `if not X`"],
        ),
        (
            f"def dev():\n    {BEAT} = {{'a': <A>}}\ndef prod():\n    {BEAT} = {{'a': <B>}}",
            "a=90",
            ["2: 'a': `{'task': 't.a', 'schedule': 60}` is left out: the value under `def prod`"],
        ),
        (
            f"{DEV}\nclass Prod:\n    beat_schedule = {{'a': <B>}}",
            "a a",
            ["4: 'a' is in two tables: shop/beat.py:2 has it, too"],
        ),
        # Guesses, options and keys.
        (
            f"{BEAT} = {{'a': {{'task': 't.a', 'schedule': env('N', default=7)}}}}",
            "a=7",
            ["1: 'a': the default is taken of `env('N', default=7)`"],
        ),
        (
            f"{BEAT} = {{'a': {{'task': 't.a', 'schedule': int(os.getenv('N') or 7)}}}}",
            "a=7",
            ["1: 'a': the default is taken of `os.getenv('N')`"],
        ),
        (
            f"{BEAT} = {{'a': {{'task': 't.a', 'schedule': get_int(name='N', default=7)}}}}",
            "a=7",
            ["1: 'a': the default is taken of `get_int(name='N', default=7)`"],
        ),
        (
            f"def f(message=None):\n    if message is not None:\n        {BEAT} = {{'a': <A>}}",
            "a",
            ["3: 'a': it is under `if message is not None` there"],
        ),
        (
            f"from .tables import make_beat_schedule\n{BEAT} = make_beat_schedule()",
            "",
            ["2: beat_schedule: what `make_beat_schedule()` is cannot be told without running it:"],
        ),
        (f"{BEAT} = {{'a': dict(<A>, relative=True)}}", "a", ["1: relative of 'a': periods are"]),
        (
            f"{BEAT} = {{'a': dict(<A>, enabled=ON)}}",
            "a",
            ["1: enabled of 'a': what `ON` is cannot"],
        ),
        (f"{BEAT} = {{'a': dict(<A>, total_run_count=3)}}", "a", ["1: total_run_count of 'a'"]),
        (
            f"{BEAT} = {{'a': dict(<A>, options=load())}}",
            "a",
            ["1: options of 'a': what `load()` is"],
        ),
        (
            "app.add_periodic_task(60, t.s(), name='a', **more)",
            "a",
            ["1: options of 'a': what `more`"],
        ),
        (
            f"{BEAT} = {{'a': {{'task': 't.a', 'schedule': crontab(nowfun=now)}}}}",
            "",
            ["1: left out, 'a': crontab: nowfun= may set a zone of its own"],
        ),
        # Files that are missing are named.
        (
            "from .base import *\nbeat_schedule = {'a': <A>}",
            "a",
            ["1: the names of shop.base are not known: add shop/base.py"],
        ),
        (
            f"from jobs import tables\n{BEAT} = {{'a': <A>, **tables.MORE}}",
            "a",
            ["2: beat_schedule: what `tables.MORE` is cannot be told without running it: add jobs"],
        ),
        # It takes no longer than it may.
        (f"while True:\n    pass\n{BEAT} = {{'a': <A>}}", "a", []),
        (
            f"{BEAT} = {{'a' * 10 ** 9: <A>, 'a': <A>}}",
            "a",
            ["1: beat_schedule: an entry is left out"],
        ),
        (
            f"{BEAT} = {{f'{{1:>99999999}}': <A>, 'a': <A>}}",
            "a",
            ["1: beat_schedule: an entry is left"],
        ),
        (
            f"{LONG}\n{BEAT} = {{}}",
            "",
            [
                "1: it computes for too long to be followed",
                "5: left out: it is in code that is not",
            ],
        ),
        (
            f"def f():\n    return f()\n{BEAT} = f()",
            "",
            ["2: beat_schedule: what `f(...)` is cannot"],
        ),
    ],
)
def test_all_that_is_not_is_told_with_its_line(text: str, loops: str, told: list[str]) -> None:
    found = read(text)
    wanted = [each.partition("=") for each in loops.split()]
    assert [job.name for job in found.jobs] == [name for name, _, _ in wanted]
    assert [loops_of(found)[name] for name, equals, _ in wanted if equals] == [
        value for _, equals, value in wanted if equals
    ]
    notes = [note.removeprefix("shop/beat.py:") for note in told_of(found)]
    assert [note[: len(start)] for note, start in zip(notes, told, strict=True)] == told


def test_modules_that_are_given_are_imported() -> None:
    base = f"CELERY_TIMEZONE = 'Asia/Tokyo'\nCELERY_BEAT_SCHEDULE = {{'a': {A}}}\n"
    found = read("from .base import *\nCELERY_BEAT_SCHEDULE['b'] = <B>", base=base)
    assert loops_of(found) == {"a": "60", "b": "90"}
    found = read(
        f"from shop import base\n{BEAT} = base.CELERY_BEAT_SCHEDULE | {{'b': <B>}}", base=base
    )
    assert loops_of(found) == {"a": "60", "b": "90"}
    assert told_of(found) == []


def test_an_enum_is_a_value() -> None:
    text = """class Span(Enum):
    DAILY = "daily"
class Side(str, Enum):
    LEFT = "left"
@app.task
def feeds(span): ...
def setup(sender, **kwargs):
    sender.add_periodic_task(60, feeds.s(Span.DAILY.value, side=Side.LEFT), name="daily")
"""
    (loop,) = [job for job in read(text).jobs if job.schedule is not None]
    assert loop.action == CeleryCall("shop.beat.feeds", ("daily",), {"side": "left"})


def test_what_is_disabled_is_paused() -> None:
    found = read(f"{BEAT} = {{'off': dict(<A>, enabled=False), 'on': dict(<B>, enabled=True)}}")
    assert [job.paused for job in found.jobs] == [True, False]
    assert told_of(found) == ["shop/beat.py:1: enabled=False of 'off': pause its loop"]


@pytest.mark.parametrize(
    ("settings", "tz", "told"),
    [
        ("TIME_ZONE = 'Europe/Paris'\nCELERY_X = 1", "Europe/Paris", ""),
        ("TIME_ZONE = 'Europe/Paris'\nCELERY_ENABLE_UTC = False", "Europe/Paris", ""),
        ("TIME_ZONE = 'Europe/Paris'\nCELERY_TIMEZONE = 'Asia/Tokyo'", "Asia/Tokyo", ""),
        (
            "TIME_ZONE = 'Europe/Paris'",
            "Europe/Paris",
            "if its app is configured by this module (--tz)",
        ),
        (
            "app.config_from_object('django.conf:settings')",
            "UTC",
            "Django's TIME_ZONE, which is not in",
        ),
        ("app.conf.timezone = ZoneInfo('Asia/Tokyo')", "Asia/Tokyo", ""),
        ("app.conf.timezone = pytz.utc", "UTC", ""),
        (
            "app.conf.enable_utc = settings.X",
            "UTC",
            "enable_utc: what `settings.X` is cannot be told",
        ),
        (
            "app.conf.timezone = 'Asia/Tokyo' if X else 'UTC'",
            "Asia/Tokyo",
            "timezone: `'UTC'` is left out, under `if not X`",
        ),
        (
            "from django.conf import settings\napp.conf.timezone = settings.TIME_ZONE",
            "UTC",
            "add the module of Django's settings: UTC is taken (--tz)",
        ),
    ],
)
def test_the_zone_is_that_of_the_other_side(settings: str, tz: str, told: str) -> None:
    found = read(f"{settings}\n{HOURLY}")
    assert [job.schedule for job in found.jobs] == [Cron("0 * * * *", tz=tz)]
    notes = [note for note in told_of(found) if "of no use here" not in note]
    assert len(notes) == bool(told)
    assert told in "".join(notes)
