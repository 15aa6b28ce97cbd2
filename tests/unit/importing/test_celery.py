"""Celery's modules, and the database of its beat."""

import json
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Cron, Every, Retry
from scheduler.errors import UsageError
from scheduler.importing.celery import read_celery
from scheduler.importing.writing import CeleryCall, Found, ImportedJob, Parameter, Unknown
from tests.imported import KINDS, form, job_of, notes_of


def read(text: str, file: str = "shop/tasks.py") -> Found:
    return read_celery({file: text})


def beat(schedule: str, **entry: str) -> Found:
    more = "".join(f", {name!r}: {value}" for name, value in entry.items())
    head = "from celery.schedules import crontab\nfrom datetime import timedelta\n"
    return read(f"{head}beat_schedule = {{'x': {{'task': 'a.b', 'schedule': {schedule}{more}}}}}\n")


def task(
    decorator: str, signature: str = "()", body: str = "pass", kind: str = "def"
) -> ImportedJob:
    (job,) = read(f"{decorator}\n{kind} work{signature}:\n    {body}\n").jobs
    return job


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ("rrule('DAILY')", "rrule(...) is an unknown schedule"),
        ("int(os.environ['EVERY'])", "cannot be known without running it"),
        ("crontab(0, 0, '1')", "the third argument differs between releases of Celery"),
        ("crontab(hours=1)", "crontab takes no hours"),
        ("crontab(day_of_week=7)", "the day of week field is not understood: '7'"),
        ("crontab(minute='5/15')", "the minute field is not understood: '5/15'"),
        ("crontab(day_of_month=30, month_of_year=2)", "never fires"),
        ("0", "expected at least 100ms"),
        ("True", "not a schedule: True"),
        ("'hourly'", "not a schedule: 'hourly'"),
        ("2 ** 99", "cannot be known"),
        ("1e300", "not a number of seconds: 1e+300"),
    ],
)
def test_a_schedule_without_an_equivalent_is_reported_with_its_line(
    schedule: str, told: str
) -> None:
    found = beat(schedule)
    assert found.jobs == []
    (note,) = notes_of(found)
    assert note.startswith("shop/tasks.py:3: left out, 'x': ")
    assert told in note


@pytest.mark.parametrize(
    "text",
    [
        "CELERYBEAT_SCHEDULE = {ENTRY}",
        "CELERY_BEAT_SCHEDULE: dict = {ENTRY}",
        "class Settings(Base):\n    CELERY_BEAT_SCHEDULE = dict(**{ENTRY})",
        "app.config.from_mapping(CELERY=dict(beat_schedule={ENTRY}))",
        "CELERY = {'beat_schedule': {ENTRY}}",
        "def add(sender, **kwargs):\n    sender.add_periodic_task(60, signature('a.b'), name='x')",
        "from a import b\ndef add(sender):\n    sender.add_periodic_task(60.0, b.s(), name='x')",
        "from a import b\napp.add_periodic_task(schedule=60, sig=b, name='x')",
        "import a\napp.add_periodic_task(60, a.b.si(), name='x')",
        "app = Celery('a')\napp.add_periodic_task(60, app.tasks['a.b'].s(), name='x')",
        "from .. import a\napp.add_periodic_task(60, a.b.signature(), name='x')",
    ],
)
def test_beat_schedules_are_read_in_all_styles(text: str) -> None:
    found = read(text.replace("ENTRY", "'x': {'task': 'a.b', 'schedule': 60}"))
    (job,) = found.jobs
    assert (job.name, job.action) == ("x", CeleryCall("a.b"))
    assert job.schedule == Every("1m", mode="fixed_rate")


def test_arguments_and_options_go_with_a_loop() -> None:
    found = KINDS["celery"]()
    poll = job_of(found, "poll-the-font")
    assert poll.action == CeleryCall("parish.tasks.poll", (16, "north"))
    assert poll.schedule == Every("30s", mode="fixed_rate", catch_up="skip", grace="15s")
    assert poll.timeout == timedelta(minutes=25)  # of all tasks
    ring = job_of(found, "ring-on-weekdays")
    assert ring.action == CeleryCall("parish.tasks.ring", (), {"bell": "small", "times": 3})
    assert ring.schedule == Cron("0 7-19/3 * * mon-fri", tz="Europe/Berlin")
    added = job_of(found, "poll every 10 seconds")
    assert added.action == CeleryCall("parish.tasks.poll", (3,), {"side": "east"})
    assert added.schedule == Every("10s", mode="fixed_rate", catch_up="skip", grace="5s")


@pytest.mark.parametrize("given", ["'args': 5", "'args': 'ab'", "'kwargs': 'x'", "'kwargs': [1]"])
def test_arguments_of_a_wrong_kind_are_reported(given: str) -> None:
    found = read(f"beat_schedule = {{'x': {{'task': 'a', 'schedule': 60, {given}}}}}")
    assert isinstance(job_of(found, "x").action, Unknown)
    assert any("is no arguments" in note for note in notes_of(found))


def test_limits_of_an_entry_are_those_of_its_loop() -> None:
    head = "@app.task(time_limit=90)\ndef b(): ...\n"
    options = "'schedule': 60, 'options': {'soft_time_limit': 5}"
    text = f"{head}beat_schedule = {{'x': {{'task': 'shop.tasks.b', {options}}}}}"
    assert job_of(read(text), "x").timeout == timedelta(seconds=5)


def test_a_loop_has_the_options_of_its_task() -> None:
    ring = job_of(KINDS["celery"](), "ring-on-weekdays")
    # As Celery's full jitter: from no wait to the whole, which doubles.
    assert ring.retry == Retry(
        5,
        initial="500ms",
        multiplier=2,
        maximum="150s",
        jitter=1,
        retry_on=(ConnectionError, TimeoutError),
    )
    report = job_of(KINDS["celery"](), "first-monday")
    assert report.retry == Retry(4, delays=["1m"], jitter=0)
    assert report.timeout == timedelta(seconds=90)


@pytest.mark.parametrize(
    ("decorator", "retry"),
    [
        ("@app.task", Retry(0)),
        ("@app.task(autoretry_for=(Exception,))", Retry(3, delays=["3m"], jitter=0)),
        (
            "@app.task(autoretry_for=[OSError], dont_autoretry_for=(ValueError,), max_retries=0)",
            Retry(0, delays=["3m"], jitter=0, retry_on=(OSError,), give_up_on=(ValueError,)),
        ),
        (
            "@app.task(autoretry_for=(Exception,), retry_kwargs={'countdown': 5})",
            Retry(3, delays=["5s"], jitter=0),
        ),
        (
            "@app.task(autoretry_for=(Exception,), retry_backoff=4, retry_jitter=False)",
            Retry(3, initial="4s", multiplier=2, maximum="10m", jitter=0),
        ),
    ],
)
def test_retries_are_those_of_the_decorator(decorator: str, retry: Retry) -> None:
    assert task(decorator).retry == retry


@pytest.mark.parametrize(
    ("option", "attribute", "value"),
    [
        ("rate_limit='10/m'", "rate", "10/m"),
        ("rate_limit='0.5/m'", "rate", "30/h"),
        ("soft_time_limit=60 * 30", "timeout", timedelta(minutes=30)),
        ("expires=3600", "expires", timedelta(hours=1)),
    ],
)
def test_limits_are_those_of_the_decorator(option: str, attribute: str, value: object) -> None:
    job = task(f"@app.task({option})")
    assert getattr(job, attribute) == value
    assert not job.notes


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("base=Mine", "base=Mine of work: what a class of tasks does"),
        ("whatever=1", "whatever=1 of work"),
        ("run_every=60", "run_every=60 of work: give the schedule to @app.periodic"),
        ("**OPTIONS", "options of work: what `OPTIONS` is cannot be known"),
        ("rate_limit=settings.RATE", "rate_limit of work: what `settings.RATE` is cannot be known"),
        ("rate_limit='often'", "rate_limit: A rate must be a number per s, m or h"),
        ("rate_limit='1.5.2/m'", "rate_limit: A rate must be a number per s, m or h"),
        ("autoretry_for=(Exception,), retry_kwargs=5", "retry_kwargs: not a table: 5"),
        (
            "autoretry_for=(Exception,), retry_backoff='2s'",
            "retries of work: retry_backoff: not a number of seconds: '2s'",
        ),
        ("soft_time_limit=60, time_limit=90", "time_limit, next to soft_time_limit"),
    ],
)
def test_other_options_of_a_decorator_are_reported(option: str, told: str) -> None:
    (note,) = task(f"@app.task({option})").notes
    assert told in note.text
    assert note.place.line in (1, 2)


@pytest.mark.parametrize(
    ("decorator", "signature", "parameters"),
    [
        ("@app.task", "(a, b=1)", [Parameter("a"), Parameter("b", default="1")]),
        ("@app.task(bind=True)", "(self, a: int)", [Parameter("a")]),
        ("@app.task", "(a: User, *, b: str)", [Parameter("a"), Parameter("b", None, True)]),
        ("@app.task", "(a='x', b=-1)", [Parameter("a", "'x'"), Parameter("b", "-1")]),
    ],
)
def test_parameters_are_those_of_the_function(
    decorator: str, signature: str, parameters: list[Parameter]
) -> None:
    job = task(decorator, signature, kind="async def")
    assert job.parameters == parameters
    assert job.action == CeleryCall("shop.tasks.work", awaited=True)


@pytest.mark.parametrize("default", ["[]", "settings.X"])
def test_a_default_that_cannot_travel_is_reported(default: str) -> None:
    job = task("@app.task", f"(a={default})")
    (note,) = job.notes
    assert "the parameter a of work keeps its default" in note.text
    assert job.parameters == []


def test_an_unknown_zone_is_reported() -> None:
    text = "app.conf.timezone = settings.TIME_ZONE\n"
    entry = "beat_schedule = {'x': {'task': 'a.b', 'schedule': crontab(minute=0)}}"
    found = read_celery({"tasks.py": text + entry}, tz="Asia/Tokyo")
    assert "tasks.py:1: timezone: what `settings.TIME_ZONE` is" in notes_of(found)[0]
    assert found.jobs[0].schedule == Cron("0 * * * *", tz="Asia/Tokyo")


def test_settings_of_beat_and_tasks_hold() -> None:
    found = KINDS["celery of Django"]()
    nightly = job_of(found, "nightly")
    assert nightly.schedule == Cron("00 00 * * *", tz="Asia/Kolkata", catch_up="skip", grace="1m")
    assert nightly.timeout == timedelta(minutes=30)
    assert isinstance(job_of(found, "cleanup").action, Unknown)
    told = "\n".join(notes_of(found))
    assert "settings.py:7: the schedules are in a database" in told
    assert "Celery settings without effect here: broker_url" in told
    assert "settings.py:15: which function cleanup is" in told


def test_everything_left_out_is_reported_with_its_line() -> None:
    notes = [note.split(": ", 1) for note in notes_of(KINDS["celery"]())]
    told = [
        f"{place.removeprefix('parish/').replace('.py', '')} {text[:30]}" for place, text in notes
    ]
    assert told == [
        "celery:1 tasks of Django need django.se",
        "celery:11 the settings of django.conf:se",
        "celery:14 task_routes: each task has a q",
        "celery:28 queue='water' of 'poll-the-fon",
        "celery:35 left out, 'friday-the-thirteen",
        "celery:43 retries and limits are not in ",
        "celery:51 'clean': the default is taken ",
        "celery:53 left out, 'vespers': solar: no",
        "celery:54 left out, 'newsletter': what `",
        "celery:59 'heartbeat': it is under `if s",
        "tasks:26 autoretry_for=requests.Request",
        "tasks:27 **context of mail: arguments t",
        "tasks:27 retries without end: here, 1,0",
        "tasks:31 queue='slow' of report: each t",
        "tasks:32 report tries again what it cal",
        "tasks:36 countdown of retry() of report",
        "tasks:47 queue='loud' of 'parish.tasks.",
        "tasks:49 left out, a call of add_period",
    ]


def test_a_database_has_loops_and_pauses() -> None:
    found = KINDS["celery's database"]()
    prices = job_of(found, "Import prices")
    assert prices.schedule == Every("10m", mode="fixed_rate", catch_up="skip", grace="5m")
    assert prices.action == CeleryCall("shop.tasks.import_prices", [7, "eu"], {"full": False})
    office = job_of(found, "Report (office hours)")
    assert office.schedule == Cron("30 */4 * * 1-5", tz="America/New_York")
    assert office.paused
    notes = notes_of(found)
    assert "dump.json:8: left out, 'celery.backend_cleanup': it deletes results" in notes[1]
    told = "dump.json:9: queue=imports of 'Import prices': each task has a queue of its own"
    assert notes[2] == told
    assert "left out, 'Christmas greetings': it runs once, at 2026-12-24T17:00:00Z" in notes[-2]
    assert "dump.json:12: left out, 'Lights': solar" in notes[-1]


@pytest.mark.parametrize(
    ("period", "task", "told"),
    [
        ({"every": 10**30}, {}, f"not a period: {10**30} 'seconds'"),
        ({"period": "parsecs"}, {}, "not a period: 5 'parsecs'"),
        ({}, {"expire_seconds": 10**30}, f"not a period: {10**30} 'seconds'"),
        ({}, {"kwargs": "[" * 100_000}, "its kwargs cannot be read: '[[["),
    ],
)
def test_an_unreadable_row_of_a_dump_is_left_out(
    period: dict[str, Any], task: dict[str, Any], told: str
) -> None:
    fields = {
        "intervalschedule": {"every": 5, "period": "seconds"} | period,
        "periodictask": {"name": "poll", "task": "shop.poll", "interval": 1} | task,
    }
    rows = [
        {"model": f"django_celery_beat.{model}", "pk": 1, "fields": each}
        for model, each in fields.items()
    ]
    found = read_celery({"dump.json": json.dumps(rows)})
    assert found.jobs == []
    assert any(f"left out, 'poll': {told}" in note for note in notes_of(found))


def test_a_dump_and_modules_are_combined() -> None:
    tasks = "@shared_task(max_retries=1, autoretry_for=(OSError,))\ndef report():\n    pass\n"
    found = read_celery({"shop/tasks.py": tasks, "dump.json": form("dump.json")})
    loop = job_of(found, "Report (office hours)")
    assert loop.retry == Retry(1, delays=["3m"], jitter=0, retry_on=(OSError,))


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("a.py", "def", "a.py, line 1, is not Python"),
        ("a.py", "\0", "a.py is not Python: source code string cannot contain null bytes"),
        ("a.py", "x = 1", "a.py: found no tasks and no schedule of beat"),
        ("a.json", "[", "a.json has no django_celery_beat.periodictask"),
        ("a.json", "[{]", "a.json, line 1, is not JSON"),
        ("a.json", "[\n{}]", "a.json, line 2, is not a row of manage.py dumpdata"),
    ],
)
def test_an_unreadable_file_is_refused(file: str, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_celery({file: text})


def test_the_import_runs_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    read("print('run')\nbeat_schedule = {'x': {'task': print('run'), 'schedule': exit(1)}}\n")
    assert capsys.readouterr().out == ""
