"""Tables of what `scheduler import` carries over: it is run on each construct, at each build."""

import ast
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from docs.tables import table
from scheduler.importing.celery import read_celery
from scheduler.importing.crontab import read_cronjobs, read_crontab
from scheduler.importing.writing import NO_FOLDER, NO_LIMIT, Found, code_of

ALWAYS = ("cron goes by", "the words after the times are")
LINES = (
    "*/10 7-19 * * mon-fri work",
    "0 9 13 * fri work",
    "0 9 */2 * mon work",
    "@daily work",
    "@reboot work",
    "0 0 ? * MON work",
    "0 */5 * * * * work",
    "0 0 30 2 * work",
    "* * * * * root work",
    "* * * * * mail ops%Dear all,%bye",
    "SHELL=/bin/bash",
    "HOME=/srv",
    "CRON_TZ=Europe/Berlin",
    "PATH=/usr/bin",
    "MAILTO=ops@example.com",
    "RANDOM_DELAY=10",
)
SPEC: Mapping[str, Any] = {
    "schedule": "0 9 */10 * mon",
    "timeZone": "Europe/Berlin",
    "startingDeadlineSeconds": 120,
    "concurrencyPolicy": "Replace",
    "suspend": True,
    "successfulJobsHistoryLimit": 3,
}
JOB: Mapping[str, Any] = {
    "backoffLimit": 2,
    "activeDeadlineSeconds": 300,
    "parallelism": 2,
    "completions": 4,
    "podFailurePolicy": {"rules": []},
}
POD: Mapping[str, Any] = {
    "terminationGracePeriodSeconds": 60,
    "restartPolicy": "OnFailure",
    "initContainers": [{"name": "first"}],
    "serviceAccountName": "worker",
    "volumes": [{"name": "data"}],
    "nodeSelector": {"disk": "ssd"},
}
CONTAINER: Mapping[str, Any] = {
    "args": ["--all"],
    "command": [],
    "workingDir": "/srv",
    "env": [{"name": "MODE", "value": "fast"}],
    "envFrom": [{"configMapRef": {"name": "modes"}}],
    "resources": {"limits": {"memory": "1Gi"}},
}
SCHEDULES = (
    "30.0",
    "timedelta(hours=2)",
    "crontab(minute=0, hour='7-19/3')",
    "crontab(minute=0, hour=9, day_of_month=13, day_of_week='fri')",
    "crontab(minute=0, hour=9, day_of_month='1-7', day_of_week='mon')",
    "int(os.getenv('EVERY', '60'))",
    "settings.EVERY",
    "solar('sunset', 52.5, 13.4)",
)
ENTRIES = (
    "'args': (16, 16)",
    "'kwargs': {'deep': True}",
    "'options': {'expires': 15}",
    "'options': {'queue': 'slow'}",
    "'options': {'priority': 5}",
    "'enabled': False",
    "'relative': True",
)
OPTIONS = (
    "name='shop.work'",
    "bind=True",
    "autoretry_for=(ConnectionError,), retry_kwargs={'max_retries': 5}",
    "autoretry_for=(Exception,), retry_backoff=True",
    "autoretry_for=(Exception,), default_retry_delay=60",
    "autoretry_for=(requests.HTTPError,)",
    "rate_limit='10/m'",
    "soft_time_limit=60",
    "expires=3600",
    "acks_late=True",
    "ignore_result=True",
    "queue='slow'",
    "base=MyTask",
)
SETTINGS = (
    "timezone = 'Europe/Berlin'",
    "enable_utc = False",
    "task_time_limit = 300",
    "beat_cron_starting_deadline = 120",
    "task_routes = {'shop.*': 'slow'}",
    "beat_scheduler = 'django_celery_beat.schedulers:DatabaseScheduler'",
    "worker_prefetch_multiplier = 1",
)
FIELDS: Mapping[str, Any] = {
    "crontab": 1,
    "clocked": 1,
    "solar": 1,
    "args": "[16]",
    "kwargs": '{"deep": true}',
    "enabled": False,
    "expire_seconds": 15,
    "expires": "2027-01-01T00:00:00Z",
    "start_time": "2027-01-01T00:00:00Z",
    "one_off": True,
    "queue": "slow",
    "priority": 5,
}


class Work(NamedTuple):
    """What the code has for a job: its options, and what it does."""

    options: Mapping[str, str]
    body: str


def imports_page() -> str:
    parts = [
        ("Crontabs", "line", _lines()),
        ("CronJobs: `spec`", "field", _fields(SPEC, ())),
        ("`jobTemplate.spec`", "field", _fields(JOB, ("jobTemplate", "spec"))),
        ("The pod's `spec`", "field", _fields(POD, _TO_POD)),
        ("The container", "field", _fields(CONTAINER, (*_TO_POD, "containers"))),
        ("Celery: schedules", "schedule", _rows(_beat, SCHEDULES, "60", whole=True)),
        ("Entries of `beat_schedule`, and `add_periodic_task`", "entry", _entries()),
        ("Decorators of tasks", "option", _rows(_task, OPTIONS, "")),
        ("Settings", "setting", _settings()),
        ("The database of django-celery-beat", "field of PeriodicTask", _database()),
    ]
    heads = [f"## {name}\n\n{table([there, 'here'], rows)}" for name, there, rows in parts]
    return "\n\n".join(heads) + "\n"


def _rows(
    read: Callable[[str], Found], constructs: Iterable[str], plain: str, *, whole: bool = False
) -> list[list[str]]:
    usual = None if whole else _work(read(plain))
    return [[f"`{each}`", _here(read(each), usual)] for each in constructs]


def _here(found: Found, usual: Work | None) -> str:
    """How it differs from what is usual."""
    left = [note.text for note in found.left if note.text not in (NO_LIMIT, NO_FOLDER)]
    told = [f"*{text}*" for text in left if not text.startswith(ALWAYS)]
    if not found.jobs or any("left out" in note.text for note in found.notes):
        return "; ".join(told)
    work = _work(found)
    before = usual or work._replace(options={})
    parts = [
        f"`{name}={value}`"
        for name, value in work.options.items()
        if before.options.get(name) != value and (usual or name not in ("retry", "timeout"))
    ]
    if parts and usual is None:
        parts = [f"`{', '.join(part.strip('`') for part in parts)}`"]
    if work.body != before.body:
        parts.append(f"`{work.body}`")
    if any(job.paused for job in found.jobs):
        parts.append("what to pause is told at the head of the code")
    return "; ".join([*parts, *told]) or "is so in any case"


def _work(found: Found) -> Work:
    """What the code has for the last job that was found."""
    functions = [
        node
        for node in ast.parse(code_of(found)).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list
    ]
    (decorator,) = functions[-1].decorator_list
    assert isinstance(decorator, ast.Call)
    options = {f"{each.arg}": _text(each.value) for each in decorator.keywords}
    body = "; ".join(_text(each) for each in functions[-1].body)
    return Work(options, " ".join(body.split()))


def _text(node: ast.AST) -> str:
    return ast.unparse(node).replace("'", '"')


def _lines() -> list[list[str]]:
    usual = _work(_crontab("* * * * * work"))
    found: list[list[str]] = []
    for line in LINES:
        text = (
            line if line.startswith(("@", "*")) or line[0].isdigit() else f"{line}\n* * * * * work"
        )
        found.append([f"`{line}`", _here(_crontab(text), usual)])
    return found


def _crontab(text: str) -> Found:
    return read_crontab(text, "crontab", tz=None)


_TO_POD = ("jobTemplate", "spec", "template", "spec")


def _fields(values: Mapping[str, Any], path: tuple[str, ...]) -> list[list[str]]:
    usual = _work(_cronjob((), {}))
    rows = [
        (name, value, _here(_cronjob(path, {name: value}), usual)) for name, value in values.items()
    ]
    return [[f"`{name}: {json.dumps(value)}`", here] for name, value, here in rows]


def _cronjob(path: tuple[str, ...], values: Mapping[str, Any]) -> Found:
    container = {"name": "it", "image": "shop:1", "command": ["work"]}
    spec: dict[str, Any] = {
        "schedule": "* * * * *",
        "timeZone": "UTC",
        "jobTemplate": {"spec": {"template": {"spec": {"containers": [container]}}}},
    }
    place: Any = spec
    for key in path:
        place = place[key][0] if key == "containers" else place[key]
    place.update(values)
    manifest = {"kind": "CronJob", "metadata": {"name": "work"}, "spec": spec}
    return read_cronjobs(json.dumps(manifest), "jobs.yaml")


HEAD = "@app.task\ndef work(*, deep: bool = False) -> None: ...\n"


def _beat(schedule: str) -> Found:
    return _entry(f"'schedule': {schedule}")


def _entry(values: str) -> Found:
    entry = f"{{'task': 'shop.work', {values}}}"
    return read_celery({"shop.py": f"{HEAD}beat_schedule = {{'often': {entry}}}\n"})


def _entries() -> list[list[str]]:
    usual = _work(_entry("'schedule': 60"))
    return [[f"`{each}`", _here(_entry(f"'schedule': 60, {each}"), usual)] for each in ENTRIES]


def _task(options: str) -> Found:
    parameters = "self, order: int" if "bind" in options else "order: int"
    return read_celery({"shop.py": f"@app.task({options})\ndef work({parameters}): ...\n"})


def _settings() -> list[list[str]]:
    entry = "{'task': 'shop.work', 'schedule': crontab(minute=0)}"
    beat = f"{HEAD}app.conf.beat_schedule = {{'often': {entry}}}\n"
    usual = _work(read_celery({"shop.py": beat}))
    return [
        [f"`{each}`", _here(read_celery({"shop.py": f"{beat}app.conf.{each}\n"}), usual)]
        for each in SETTINGS
    ]


def _database() -> list[list[str]]:
    usual = _work(_dump({}))
    rows = [(name, value, _here(_dump({name: value}), usual)) for name, value in FIELDS.items()]
    return [[f"`{name}: {json.dumps(value)}`", here] for name, value, here in rows]


def _dump(fields: Mapping[str, Any]) -> Found:
    schedules = {
        "interval": {"every": 1, "period": "minutes"},
        "crontab": {"minute": "0", "hour": "9", "timezone": "Europe/Berlin"},
        "clocked": {"clocked_time": "2026-12-24T17:00:00Z"},
        "solar": {"event": "sunset"},
    }
    rows: list[Mapping[str, Any]] = [
        {"model": f"django_celery_beat.{kind}schedule", "pk": 1, "fields": each}
        for kind, each in schedules.items()
    ]
    other = any(name in schedules for name in fields)
    of_task = {"name": "often", "task": "shop.work", "interval": None if other else 1, **fields}
    rows.append({"model": "django_celery_beat.periodictask", "pk": 1, "fields": of_task})
    found = read_celery({"shop.py": HEAD, "dump.json": json.dumps(rows)})
    notes = [note for note in found.notes if "django.setup" not in note.text]
    return Found(found.kind, found.namespace, found.jobs, notes)
