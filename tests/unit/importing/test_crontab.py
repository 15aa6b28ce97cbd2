"""Crontabs."""

import pytest

from scheduler import Cron
from scheduler.errors import UsageError
from scheduler.importing.crontab import SIX, read_crontab
from scheduler.importing.writing import BY_HAND, NO_FOLDER, NO_LIMIT, Command, ImportedJob
from tests.imported import KINDS, notes_of

LONG = "9" * 5000  # more digits than `int` takes


def only_job(text: str) -> ImportedJob:
    (job,) = read_crontab(text, "crontab").jobs
    return job


def command_of(job: ImportedJob) -> Command:
    assert isinstance(job.action, Command)
    return job.action


@pytest.mark.parametrize(
    ("line", "cron"),
    [
        ("*/10 7-19 * * mon-fri x", "*/10 7-19 * * mon-fri"),
        ("@daily x", "0 0 * * *"),
        ("@weekly x", "0 0 * * 0"),
        ("-*/5 * * * * x", "*/5 * * * *"),
        ("0 0 * * 5-7 x", "0 0 * * 5-7"),
        ("5\t4 *   * sun x", "5 4 * * sun"),
    ],
)
def test_a_line_has_its_schedule(line: str, cron: str) -> None:
    assert only_job(line).schedule == Cron(cron, catch_up="skip")


@pytest.mark.parametrize(
    ("command", "runs", "reads"),
    [
        ("date +\\%F", "date +%F", ""),
        ("mail root%Dear root,%%yours%", "mail root", "Dear root,\n\nyours\n\n"),
        ("cat %a\\%b", "cat", "a%b\n"),
        ("echo '#' # it", "echo '#' # it", ""),
        ("echo a\fb\u2028c\r", "echo a\fb\u2028c", ""),
    ],
)
def test_text_after_a_percent_sign_is_the_input(command: str, runs: str, reads: str) -> None:
    found = command_of(only_job(f"* * * * * {command}"))
    assert (found.words, found.stdin) == (("/bin/sh", "-c", runs), reads)


def test_settings_hold_for_the_lines_below() -> None:
    first, second = read_crontab(
        "PATH=/bin\n* * * * * a\nSHELL = '/bin/bash'\nCRON_TZ=Asia/Tokyo\nX = \"a b\"\n@daily b\n",
        "crontab",
    ).jobs
    assert command_of(first).environment == {"PATH": "/bin"}
    assert command_of(first).words[0] == "/bin/sh"
    assert command_of(second).environment == {"PATH": "/bin", "X": "a b"}
    assert command_of(second).words[0] == "/bin/bash"
    found = read_crontab("HOME=/srv\n0 * * * * bin/x\n", "crontab", tz="UTC", users=False)
    assert command_of(found.jobs[0]).folder == "/srv"
    assert [note.text for note in found.left] == [NO_LIMIT]
    found = read_crontab("0 * * * * bin/x\nHOME=/srv\n", "crontab", tz="UTC", users=False)
    assert [note.text for note in found.left] == [NO_FOLDER, NO_LIMIT]
    assert second.schedule == Cron("0 0 * * *", tz="Asia/Tokyo", catch_up="skip")


def test_a_crontab_of_the_system_names_users() -> None:
    found = KINDS["crontab of the system"]()
    assert [command_of(job).words[2] for job in found.jobs][2] == "/srv/weekly"
    assert notes_of(found)[1:] == [
        "etc/crontab:6: it ran as root: it runs as the user of the processor",
        *(
            f"etc/crontab:{line}: it ran as {user}: it runs as the user of the processor"
            for line, user in ((7, "www-data"), (8, "deploy"))
        ),
    ]


@pytest.mark.parametrize(
    ("text", "file", "users", "command"),
    [
        ("* * * * * root x", "crontab", None, "x"),
        ("* * * * * php x", "/etc/cron.d/php", None, "x"),
        ("* * * * * php x", "crontab", True, "x"),
        ("* * * * * root x", "crontab", False, "root x"),
        ("# m h dom mon dow user  command\n* * * * * shop x", "crontab", None, "x"),
        ("0 * * * * shop /x", "srv/etc/crontab", None, "/x"),
        ("0 * * * * root x\n0 * * * * root y\n0 * * * * shop z", "crontab", None, "z"),
    ],
)
def test_a_user_column_is_guessed(text: str, file: str, users: bool | None, command: str) -> None:
    found = read_crontab(text, file, tz="UTC", users=users)
    assert command_of(found.jobs[-1]).words[2] == command
    is_guess = users is None and "etc" not in file
    assert any("-users)" in note.text for note in found.left) is is_guess


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("@reboot x", "there is no equivalent"),
        ("@hourly", "expected five fields of times, and a command"),
        ("@fortnightly x", "@fortnightly is not known"),
        ("61 * * * * x", "the minute field is not understood: '61'"),
        pytest.param(f"{LONG} * * * * x", "the minute field is not understood: '9", id="long"),
        pytest.param(f"*/{LONG} * * * * x", "the minute field is not understood: '*/9", id="step"),
        ("0 22-4 * * * x", "the hour field is not understood: '22-4'"),
        ("0 0 30 2 * x", BY_HAND),
        ("0 0 ? * MON x", "`?` is taken as `*`"),
        ("*/9 * * * * * * ls", SIX),
        ("45 12 * * TUE,THU * x", SIX),
        ("0 0 12 1 1 ? 2030 x", SIX),
        ("TZ=Asia/Tokyo", "TZ is of commands alone"),
        ("0 * * * * date +%F", "what follows a `%` is read by the command"),
        ("0 * * * * -q x", "the command begins with a flag"),
        ("MAILTO=root", "MAILTO: nothing is mailed"),
        ("RANDOM_DELAY=6", "give each loop a jitter="),
    ],
)
def test_lines_left_out_are_reported_with_their_number(text: str, told: str) -> None:
    found = read_crontab(f"CRON_TZ=UTC\n{text}\n* * * * * y", "crontab", users=False)
    (note,) = notes_of(found)
    assert note.startswith(f"crontab:{1 + len(text.splitlines())}: ")
    assert told in note


def test_an_unknown_zone_is_reported_and_stops_the_import() -> None:
    (note,) = notes_of(read_crontab("@daily x", "crontab", users=False))
    assert "UTC is taken (--tz)" in note
    text = "CRON_TZ=Asia/Tokyo\n@daily x"
    assert notes_of(read_crontab(text, "crontab", users=False)) == []
    (note,) = notes_of(read_crontab(f"\n@daily y\n{text}", "crontab", users=False))
    assert note.startswith("crontab:2: cron goes by the zone of its machine")
    found = read_crontab("CRON_TZ=Mars/Dome\n@daily x", "crontab", users=False)
    assert found.jobs == []
    (note,) = notes_of(found)
    assert note.startswith("crontab:2: left out, '@daily x': ")
    assert "Mars/Dome" in note
    found = read_crontab("@daily x", "crontab", tz="Europe/Berlin", users=False)
    assert notes_of(found) == []
    assert found.jobs[0].schedule == Cron("0 0 * * *", tz="Europe/Berlin", catch_up="skip")


def test_a_file_without_jobs_is_refused() -> None:
    with pytest.raises(UsageError, match="crontab has no jobs"):
        read_crontab("# nothing\nCRON_TZ=UTC\n", "crontab")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/srv/backup.sh --full >> /var/log/x 2>&1", "backup"),
        (
            "cd /srv/shop && php artisan schedule:run | logger",
            "cd shop && php artisan schedule:run",
        ),
        ("LC_ALL=C find /tmp -delete", "find tmp"),
        ("--odd", "--odd"),
    ],
)
def test_a_job_is_named_after_its_command(command: str, name: str) -> None:
    assert only_job(f"* * * * * {command}").name == name
