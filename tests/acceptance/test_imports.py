"""`scheduler import`: code on stdout or in a file, all that is left on stderr."""

import ast
from pathlib import Path

import pytest

from scheduler.importing.writing import NO_FOLDER, NO_LIMIT
from tests.acceptance.conftest import MISUSE, WRONG, CommandLine
from tests.imported import form

LINE = "30 2 * * * /srv/backup.sh\n"
GUESS = "the words after the times are taken as a command, without a user (--users)"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A project of each kind."""
    (tmp_path / "parish").mkdir()
    for name, path in (
        ("parish_celery.txt", "parish/celery.py"),
        ("parish_tasks.txt", "parish/tasks.py"),
        ("dump.json", "dump.json"),
        ("user.crontab", "user.crontab"),
        ("jobs.yaml", "jobs.yaml"),
    ):
        (tmp_path / path).write_text(form(name), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "head", "place"),
    [
        (
            ["celery", "parish/celery.py", "parish/tasks.py"],
            "14 loops and 5 tasks;",
            "tasks.py:26: ",
        ),
        (["celery", "dump.json"], "2 loops;", "dump.json:12: left out, 'Lights'"),
        (["crontab", "user.crontab"], "8 loops and 1 task;", "user.crontab:13: left out, '@reboot"),
        (["cronjob", "jobs.yaml"], "4 loops;", "jobs.yaml:92: the command is the entrypoint"),
    ],
)
def test_code_is_printed_and_the_rest_reported_on_stderr(
    offline: CommandLine, files: Path, arguments: list[str], head: str, place: str
) -> None:
    before = sorted(files.rglob("*"))
    done = offline("import", *arguments)
    ast.parse(done.out)
    assert done.code == 0
    assert done.err.startswith(head)
    assert place in done.err
    assert done.err.endswith("\nNothing was written: --out FILE does that.\n")
    assert sorted(files.rglob("*")) == before

    written = offline("import", *arguments, "--out", "jobs.py")
    assert (files / "jobs.py").read_text(encoding="utf-8") == done.out
    assert written.out == ""
    assert "Written: jobs.py. `scheduler next jobs.py` shows when its loops run.\n" in written.err
    assert offline("next", "jobs.py", "-n", "1").code == 0


def test_a_file_is_overwritten_only_with_force(offline: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "jobs.py"
    path.write_text("mine = 1\n")
    refused = offline("import", "crontab", "-", "--out", "jobs.py", answer=LINE)
    assert (refused.code, refused.out) == (MISUSE, "")
    assert "jobs.py is there already: nothing was written. --force" in refused.err
    assert path.read_text() == "mine = 1\n"
    useless = offline("import", "crontab", "-", "--force", answer=LINE)
    assert (useless.code, useless.out) == (MISUSE, "")
    assert "--force is for --out" in useless.err
    assert offline("import", "crontab", "-", "--out", "jobs.py", "--force", answer=LINE).code == 0
    assert "backup" in path.read_text()


def test_several_files_are_one_app(offline: CommandLine, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(LINE)
    done = offline("import", "crontab", "one", "two", "--namespace", "night", "--tz", "Asia/Tokyo")
    assert done.err.splitlines() == [
        "2 loops; not carried over, or not as it was:",
        f"  one:1: {NO_FOLDER}",
        f"  one:1: {GUESS}",
        f"  one:1: {NO_LIMIT}",
        f"  two:1: {GUESS}",
        "Nothing was written: --out FILE does that.",
    ]
    assert "app = Scheduler('night')" in done.out
    assert "def backup()" in done.out
    assert "def backup_2()" in done.out
    assert done.out.count("tz='Asia/Tokyo'") == 2


def test_json_has_the_code_and_the_rest(offline: CommandLine) -> None:
    found = offline("import", "crontab", "-", "--json", answer=f"{LINE}@reboot x\n").json
    ast.parse(found["code"])
    assert (found["loops"], found["tasks"], found["written"]) == (1, 0, None)
    assert [(each["file"], each["line"]) for each in found["left"]] == [
        *[("stdin", 1)] * 4,
        ("stdin", 2),
    ]


@pytest.mark.parametrize(
    ("arguments", "text", "code", "told"),
    [
        (["celery", "/"], "", MISUSE, "/ is a folder: name its files"),
        (["crontab", "-"], "@reboot x\n", WRONG, "Nothing in the files can be carried"),
        (["crontab", "-", "--namespace", "a b"], LINE, MISUSE, "--namespace has 1 to 64 letters"),
        (["crontab", "-", "--tz", "Mars"], LINE, MISUSE, "--tz: expected an IANA time zone, such"),
        (["crontab", "-", "--tz", ""], LINE, MISUSE, "--tz: expected an IANA time zone, such"),
        (["crontab", "-", "--out", "jobs"], LINE, MISUSE, "--out: expected a Python file"),
        (["crontab", "-", "--out", "no/such.py"], LINE, MISUSE, "no/such.py cannot be written"),
    ],
)
def test_misuse_is_answered_in_a_line(
    offline: CommandLine, arguments: list[str], text: str, code: int, told: str
) -> None:
    done = offline("import", *arguments, answer=text)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert "Traceback" not in done.err
