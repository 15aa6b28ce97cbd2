"""Modules of Celery's are followed: in their order, with their conditions, tables and functions."""

import pytest

from scheduler import Cron, Every
from scheduler.importing.celery import read_celery
from scheduler.importing.writing import CeleryCall, Found, ImportedJob, Unknown
from tests.imported import form, notes_of

A = "{'task': 't.a', 'schedule': 60}"
B = "{'task': 't.b', 'schedule': 90}"
BEAT = "app.conf.beat_schedule"
HOURLY = "beat_schedule = {'x': {'task': 't.a', 'schedule': crontab(minute=0)}}"
LINES = [line for line in form("following.txt").splitlines() if line and line[:1] != "#"]


def read(text: str, **others: str) -> Found:
    text = text.replace("<A>", A).replace("<B>", B)
    return read_celery({"shop/beat.py": text} | {f"shop/{k}.py": v for k, v in others.items()})


def loops_of(found: Found) -> dict[str, str]:
    """Return each loop with its period, or its expression and zone."""
    return {job.name: _schedule(job) for job in found.jobs if job.schedule is not None}


def _schedule(job: ImportedJob) -> str:
    if isinstance(job.schedule, Every):
        return f"{job.schedule.period.total_seconds():g}"
    assert isinstance(job.schedule, Cron)
    return f"{job.schedule.expression} {job.schedule.tz}".removesuffix(" UTC")


def told_of(found: Found) -> list[str]:
    """Return the notes, but for that of the modules of the tasks."""
    return [note for note in notes_of(found) if "retries and limits are not" not in note]


@pytest.mark.parametrize(("text", "expected"), [*zip(LINES[::2], LINES[1::2], strict=True)])
def test_a_module_is_evaluated_and_gaps_are_reported_with_their_line(
    text: str, expected: str
) -> None:
    text = text.replace("\\n", "\n").replace("<HOURLY>", HOURLY).replace("<BEAT>", BEAT)
    found = read(text)
    loops, *told = expected.strip().split(" | ")
    wanted = [each.partition("=") for each in loops.split(", ") if each != "-"]
    assert [job.name for job in found.jobs] == [name for name, _, _ in wanted]
    for name, _, schedule in wanted:
        assert schedule in ("", loops_of(found).get(name))
    notes = [note.removeprefix("shop/beat.py:") for note in told_of(found)]
    assert [note[: len(start)] for note, start in zip(notes, told, strict=True)] == told


def test_given_modules_are_imported() -> None:
    base = f"CELERY_TIMEZONE = 'Asia/Tokyo'\nCELERY_BEAT_SCHEDULE = {{'a': {A}}}\n"
    found = read("from .base import *\nCELERY_BEAT_SCHEDULE['b'] = <B>", base=base)
    assert loops_of(found) == {"a": "60", "b": "90"}
    found = read(
        f"from shop import base\n{BEAT} = base.CELERY_BEAT_SCHEDULE | {{'b': <B>}}", base=base
    )
    assert loops_of(found) == {"a": "60", "b": "90"}
    assert told_of(found) == []


def test_exported_names_are_respected() -> None:
    tables = f"T = {{'a': {A}}}\n__all__ = ['T']"
    found = read(f"from .tables import *\n{BEAT} = T", tables=tables)
    told = "all public names of shop.tables are taken: its `__all__` is not followed"
    assert (loops_of(found), told_of(found)) == ({"a": "60"}, [f"shop/beat.py:1: {told}"])


def test_modules_run_in_the_order_of_their_imports() -> None:
    jobs, plug = "JOBS = ['a']", "from .jobs import JOBS\nJOBS.append('b')"
    text = f"from .jobs import JOBS\nfrom . import plug\n{BEAT} = {{n: <A> for n in JOBS}}"
    assert loops_of(read(text, jobs=jobs, plug=plug)) == {"a": "60", "b": "60"}
    base, no_jobs = f"CELERY_BEAT_SCHEDULE = {{'a': {A}}}", "CELERY_BEAT_SCHEDULE = {}"
    (told,) = told_of(read("from .base import *", base=base, dev=no_jobs))
    assert told.startswith("shop/dev.py:1: beat_schedule: shop/base.py:1 is in another table")


@pytest.mark.parametrize("file", ["stdin", "shop/its-tasks.py"])
def test_a_task_of_a_file_that_is_no_module_is_left_to_its_reader(file: str) -> None:
    text = f"@app.task\ndef t(): ...\n{BEAT} = {{'a': {{'task': t.name, 'schedule': 60}}}}"
    found = read_celery({file: text})
    assert {type(job.action) for job in found.jobs} == {Unknown}
    assert f"{file}:2: t is in a file that no module is called like" in told_of(found)


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


def test_disabled_entries_become_paused_loops() -> None:
    found = read(f"{BEAT} = {{'off': dict(<A>, enabled=False), 'on': dict(<B>, enabled=True)}}")
    assert [job.paused for job in found.jobs] == [True, False]
    assert told_of(found) == ["shop/beat.py:1: enabled=False of 'off': pause its loop"]
