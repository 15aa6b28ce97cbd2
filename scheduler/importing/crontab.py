"""Crontabs: those of users, and those of the system, which name a user in each line."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.calendars import COLUMNS, Calendar, Dialect
from scheduler.importing.findings import Command, Found, Job, Note, Place
from scheduler.timing import crontab
from scheduler.timing.schedules import Cron

CRON = Dialect(seven=True)
NICKNAMES = {
    **crontab.NICKNAMES,
    "@every_minute": "* * * * *",
}
SHELL = "/bin/sh"
# Users of most machines, that no command is called like.
USERS = {"root", "www-data", "nobody", "daemon", "postgres", "apache", "ubuntu", "smmsp", "munin"}
_SETTING = re.compile(r"""(['"]?)(?P<name>[A-Za-z_]\w*)\1\s*=\s*(?P<value>.*)""")
_ENTRY = re.compile(r"(?P<when>@\w+|\S+(?:\s+\S+){4})\s+(?P<rest>\S.*)")


@dataclass(frozen=True, slots=True)
class _Line:
    place: Place
    text: str
    above: str


@dataclass(slots=True)
class _Setting:
    """What the lines above an entry have set."""

    tz: str
    shell: str = SHELL
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


def read_crontab(
    text: str, file: str, *, tz: str | None = None, users: bool | None = None
) -> Found:
    """The jobs of a crontab.

    Args:
        tz: the zone of the machine it is for; None: not known, so UTC.
        users: whether each line names a user after the times; None: as it looks.

    Raises:
        UsageError: there is no job in it.
    """
    lines = list(_lines(text, file))
    with_user = _has_users(lines, text, file) if users is None else users
    setting, jobs, notes = _Setting(tz or "UTC"), list[Job](), list[Note]()
    for line in lines:
        if match := _SETTING.fullmatch(line.text):
            notes += _set(setting, line, match["name"], match["value"])
        else:
            try:
                jobs.append(_job(line, setting, with_user))
            except ScheduleError as error:
                notes.append(Note(line.place, f"left out, {line.text!r}: {error}"))
    if jobs and tz is None and not any(line.text.startswith("CRON_TZ") for line in lines):
        said = "cron goes by the zone of its machine, which is not in the file: UTC is taken (--tz)"
        notes.append(Note(Place(file, 1), said))
    if not jobs and not notes:
        raise UsageError(f"{file} has no jobs: a line has five fields of times, and a command.")
    return Found("crontab", PurePath(file).stem or "crontab", jobs, notes)


def _lines(text: str, file: str) -> Iterator[_Line]:
    above: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#"):
            above.append(stripped.lstrip("# "))
        elif stripped:
            yield _Line(Place(file, number), stripped, " ".join(above))
            above = []
        else:
            above = []


def _has_users(lines: list[_Line], text: str, file: str) -> bool:
    """Whether it looks like a crontab of the system."""
    path = PurePath(file)
    if path.parent.name == "cron.d" or path.as_posix() == "/etc/crontab":
        return True
    if re.search(r"^#.*\bdow\s+user(-?name)?\s+command", text, re.MULTILINE):
        return True
    entries = [match for line in lines if (match := _ENTRY.fullmatch(line.text))]
    entries = [each for each in entries if not _SETTING.fullmatch(each.string)]
    return bool(entries) and all(each["rest"].split()[0] in USERS for each in entries)


def _set(setting: _Setting, line: _Line, name: str, value: str) -> Iterator[Note]:
    if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
        value = value[1:-1]
    match name:
        case "SHELL":
            setting.shell = value or SHELL
        case "CRON_TZ":
            setting.tz = value
        case "MAILTO" | "MAILFROM" | "CONTENT_TYPE" | "CONTENT_TRANSFER_ENCODING":
            if value:
                yield Note(line.place, f"{name}: nothing is mailed; alerts tell of failures")
        case "RANDOM_DELAY" | "START_HOURS_RANGE":
            yield Note(line.place, f"{name}: give each loop a jitter= instead")
        case _:
            setting.environment = {**setting.environment, name: value}


def _job(line: _Line, setting: _Setting, with_user: bool) -> Job:
    match = _ENTRY.fullmatch(line.text)
    if match is None:
        raise ScheduleError("expected five fields of times, and a command")
    schedule, weekdays = _schedule(match["when"], setting.tz)
    user, command = "", match["rest"]
    if with_user:
        user, command = [*command.split(None, 1), ""][:2]
    if not command:
        raise ScheduleError("there is no command after the user")
    command, stdin = _split(command)
    notes = [Note(line.place, f"it ran as {user}: it runs as the user of the processor")]
    return Job(
        line.place,
        _name(command),
        f"{line.text}{f'  # {line.above}' if line.above else ''}",
        Command((setting.shell, "-c", command), stdin, setting.environment),
        schedule,
        weekdays,
        notes=notes if user else (),
    )


def _schedule(when: str, tz: str) -> tuple[Cron, frozenset[int] | None]:
    if when == "@reboot":
        raise ScheduleError("there is no start of a machine: run it where the machine is set up")
    if when.startswith("@") and when not in NICKNAMES:
        raise ScheduleError(f"{when} is not known")
    text = NICKNAMES.get(when, when).removeprefix("-")  # which keeps cronie from logging it
    fields = text.split()
    numbers = [CRON.read(column, each) for column, each in zip(COLUMNS, fields, strict=True)]
    both = fields[2].startswith("*") or fields[4].startswith("*")
    expression, weekdays = Calendar(*numbers, both=both).expression(" ".join(fields))
    return Cron(expression, tz=tz, catch_up="skip"), weekdays


def _split(command: str) -> tuple[str, str]:
    """The command, and what it reads: what stands after a `%`, each further one a line's end."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", command)]
    return parts[0].rstrip(), "".join(f"{part}\n" for part in parts[1:])


def _name(command: str) -> str:
    """The words of a command that tell it from others: no folders, redirections, options."""
    words = re.split(r"\s+(?:>|2>|&>|\d?>>?&?|\|)", command)[0].split()
    words = [PurePath(word).stem if "/" in word else word for word in words if "=" not in word]
    return " ".join(word for word in words if not word.startswith("-")) or command
