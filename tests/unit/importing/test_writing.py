"""The code that is written: formatted, typed, imported, seeded; and what its commands do."""

import ast
import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import Cron, Every, Retry
from scheduler.importing.writing import (
    CeleryCall,
    Command,
    Found,
    ImportedJob,
    Note,
    SourceLine,
    code_of,
    comment,
    name_of,
)
from scheduler.testing import Kit, run_virtually
from tests.imported import KINDS, app_of, module_of


def test_code_is_typed(tmp_path: Path) -> None:
    for number, read in enumerate(KINDS.values()):
        (tmp_path / f"generated_{number}.py").write_text(code_of(read()), encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    pyright = Path(sys.executable).with_name("pyright")
    command = [pyright, "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_written_code_seeds_with_schedules_and_limits(kind: str, tmp_path: Path) -> None:
    found = KINDS[kind]()
    app = app_of(found, tmp_path)
    expected = [job.schedule for job in found.jobs if job.schedule is not None]
    assert [loop.schedule for loop in app.loops.values()] == expected
    assert [(spec.policy.retry, spec.timeout) for spec in app.tasks.values()] == [
        (job.retry, job.timeout or timedelta(minutes=10)) for job in found.jobs
    ]

    async def seeded() -> None:
        async with Kit(app):
            pass

    run_virtually(seeded())


@pytest.mark.parametrize("kind", KINDS)
def test_the_written_code_lists_everything_left_out(kind: str) -> None:
    found = KINDS[kind]()
    comments = " ".join(
        line.lstrip("# ") for line in code_of(found).splitlines() if line.startswith("#")
    )
    assert found.left
    left = [" ".join(note.text.split()) for note in found.left]
    assert [text for text in left if text not in comments] == []


@given(st.text())
def test_a_comment_stays_a_comment(text: str) -> None:
    lines = comment(text, bullet="- ")
    assert all(line.startswith("# ") for line in lines)
    ast.parse("\n".join(lines))


@given(st.text())
def test_names_are_valid_identifiers(text: str) -> None:
    assert name_of(text).isidentifier()
    ast.parse(f"def {name_of(text)}() -> None: ...")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("send-daily-report", "send_daily_report"),
        ("Check low stock, every 5 minutes", "check_low_stock_every_5_minutes"),
        ("5-minutes", "job_5_minutes"),
        ("Täglich um 9", "taglich_um_9"),
        ("import", "import_job"),
        ("print", "print_job"),
        ("日本", "job"),
        ("sendEmail", "sendEmail"),
        ("one two " * 20, "one_two_one_two_one_two_one_two_one_two_one_two"),
    ],
)
def test_functions_are_named_as_in_the_file(text: str, name: str) -> None:
    assert name_of(text) == name


def test_names_are_unique(tmp_path: Path) -> None:
    place, call = SourceLine("a.py", 1), CeleryCall("a.b")
    jobs = [
        ImportedJob(place, "send", "", call, Every("1m")),
        ImportedJob(place, "send", "", call),
        ImportedJob(place, "send", "", call, Cron("@daily")),
    ]
    app = app_of(Found("celery", "shop", jobs), tmp_path)
    assert list(app.tasks) == ["send_loop", "send", "send_loop_2"]


def test_a_secret_of_several_commands_is_written_once() -> None:
    jobs = [
        ImportedJob(
            SourceLine("crontab", 1), name, "", Command(["true"], environment={"TOKEN": "hush"})
        )
        for name in ("one", "two")
    ]
    assert code_of(Found("crontab", "shop", jobs)).count("hush") == 1


def test_a_retry_policy_is_written_whole(tmp_path: Path) -> None:
    retry = Retry(
        7,
        initial="500ms",
        multiplier=2,
        maximum="5m",
        jitter=1,
        retry_on=(ConnectionError, TimeoutError),
        give_up_on=(ConnectionResetError,),
    )
    job = ImportedJob(
        SourceLine("a.py", 1), "send", "", CeleryCall("a.b"), retry=retry, rate="10/m"
    )
    (spec,) = app_of(Found("celery", "shop", [job]), tmp_path).tasks.values()
    assert spec.policy.retry == retry
    assert str(spec.rate) == "10/m"


def test_text_left_out_cannot_end_a_comment() -> None:
    note = Note(SourceLine("a\nimport os", 1), "x\n\rimport sys\x0cimport abc")
    job = ImportedJob(note.place, "a", "b\nc", CeleryCall("a.b"), notes=[note])
    tree = ast.parse(code_of(Found("celery", "shop", [job], [note])))
    imported = {ast.unparse(node) for node in tree.body if isinstance(node, ast.Import)}
    assert imported == {"import pkgutil"}


def test_a_command_gets_its_words_input_and_environment_and_may_fail(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = Command(
        ["/bin/sh", "-c", f'cat > {out}; echo "$GREETING it\'s $PWD" >> {out}'],
        stdin="one\ntwo\n",
        environment={"GREETING": "hello"},
        folder=str(tmp_path),
    )
    place = SourceLine("crontab", 1)
    jobs = [
        ImportedJob(place, "greet", "", command, Cron("@daily")),
        ImportedJob(place, "fail", "", Command(["/bin/sh", "-c", "exit 3"])),
    ]
    module = module_of(Found("crontab", "shop", jobs), tmp_path)
    asyncio.run(module.greet())
    assert out.read_text() == f"one\ntwo\nhello it's {tmp_path}\n"
    with pytest.raises(RuntimeError, match="exit code 3"):
        asyncio.run(module.fail())


@pytest.mark.parametrize(
    ("script", "grace"),
    [
        ("echo started >&9; sleep 600", 10),
        ("sleep 600 & echo started >&9; sleep 600", 10),
        ("trap '' TERM; echo started >&9; sleep 600; sleep 600", 1),
    ],
)
def test_a_command_and_its_children_end_with_the_run(
    tmp_path: Path, script: str, grace: int
) -> None:
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    # All of them have it open, until they end.
    words = ["/bin/sh", "-c", f"exec 9> {alive}; {script}"]
    command = Command(words, grace=timedelta(seconds=grace))
    job = ImportedJob(SourceLine("crontab", 1), "wait", "", command)
    module = module_of(Found("crontab", "shop", [job]), tmp_path)

    async def cancelled() -> None:
        run = asyncio.create_task(module.wait())
        with await asyncio.to_thread(alive.open) as file:
            assert await asyncio.to_thread(file.readline) == "started\n"
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert await asyncio.to_thread(file.read) == ""

    asyncio.run(cancelled())
