"""Read crontabs: those of users, and those of the system, which name a user in each line."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.calendars import Dialect, NeverFires
from scheduler.importing.findings import (
    BY_HAND,
    Command,
    Found,
    ImportedJob,
    Note,
    SourceLine,
    relative_path,
)
from scheduler.timing import crontab
from scheduler.timing.schedules import Cron

CRON = Dialect(seven=True)
NICKNAMES = {
    **crontab.NICKNAMES,
    "@every_minute": "* * * * *",
}
SHELL = "/bin/sh"
SIX = (
    "expected five fields of times, got six or seven: programs differ in whether the first is of "
    "seconds or the last of years; write the five fields that it means"
)
# Users of most machines, which are no names of commands.
USERS = {
    *("apache", "backup", "centos", "daemon", "debian", "deploy", "ec2-user", "jenkins", "munin"),
    *("nginx", "nobody", "operator", "postgres", "root", "smmsp", "ubuntu", "vagrant", "www-data"),
}
# Commands that a path often follows: any other word before a path may be a user.
COMMANDS = {
    *("awk", "bash", "borg", "bundle", "cat", "cd", "chmod", "chown", "chronic", "command", "cp"),
    *("cronic", "dash", "df", "diff", "docker", "du", "env", "eval", "exec", "export", "find"),
    *("flock", "git", "grep", "gzip", "head", "if", "ionice", "java", "ln", "logrotate", "ls"),
    *("make", "mkdir", "mv", "nice", "node", "npm", "perl", "php", "poetry", "python", "python3"),
    *("rclone", "restic", "rm", "rsync", "ruby", "run-parts", "sed", "setlock", "sh", "source"),
    *("sqlite3", "sudo", "tail", "tar", "test", "time", "timeout", "tmpreaper", "touch", "uv"),
    *("wc", "zsh"),
}
_SETTING = re.compile(r"""(['"]?)(?P<name>[A-Za-z_]\w*)\1\s*=\s*(?P<value>.*)""")
_NAMES = "mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_FIELD = re.compile(
    rf"(?:[*?]|\d+)(?i:[-,/#](?:\d+|\*|{_NAMES}))*[LW]?"
    rf"|(?i:(?:{_NAMES})(?:[-,/#](?:\d+|{_NAMES}))+)|L|{_NAMES.upper()}"
)
_HEADER = re.compile(
    r"^#.*\b(user(-?name)?|who|login|owner|account)\b[\s|:]+(to run\s+)?(command|cmd|what)\b",
    re.MULTILINE | re.IGNORECASE,
)
_COMMAND = re.compile(r"[/.(\[{\"']|\w+=")  # the beginning of a command that is not a plain word
_ENTRY = re.compile(r"(?P<when>@\w+|\S+(?:\s+\S+){4})\s+(?P<rest>\S.*)")


@dataclass(frozen=True, slots=True)
class _Line:
    place: SourceLine
    text: str
    above: str


@dataclass(slots=True)
class _Setting:
    """Hold the settings in the lines above an entry."""

    tz: str
    shell: str = SHELL
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


def read_crontab(
    text: str, file: str, *, tz: str | None = None, users: bool | None = None
) -> Found:
    """Return the jobs of a crontab.

    Args:
        tz: the zone of its machine; None: unknown, so UTC.
        users: whether each line names a user after the times; None: guess.

    Raises:
        UsageError: there is no job in it.
    """
    lines = list(_lines(text, file))
    setting, jobs, notes = _Setting(tz or "UTC"), list[ImportedJob](), list[Note]()
    with_user = users
    if with_user is None:
        with_user, guesses = _has_users(lines, text, file)
        notes += guesses
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
        notes.append(Note(SourceLine(file, 1), said))
    if not any(map(_entry, lines)):
        raise UsageError(f"{file} has no jobs: a line has five fields of times, and a command.")
    return Found("crontab", PurePath(file).stem or "crontab", jobs, notes)


def _lines(text: str, file: str) -> Iterator[_Line]:
    above: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#"):
            above.append(stripped.lstrip("# "))
        elif stripped:
            yield _Line(SourceLine(file, number), stripped, " ".join(above))
            above = []
        else:
            above = []


def _has_users(lines: list[_Line], text: str, file: str) -> tuple[bool, list[Note]]:
    """Return whether each line names a user, and the notes of a guess."""
    path = PurePath(file)
    if path.parent.name == "cron.d" or path.as_posix() == "/etc/crontab":
        return True, []
    entries = [(line, each["rest"].split()) for line in lines if (each := _entry(line))]
    of_users = [line for line, words in entries if words[0] in USERS and len(words) > 1]
    is_hinted = bool(of_users) or path.parts[-2:] == ("etc", "crontab")
    alike = [line for line, words in entries if line in of_users or _may_be_user(words)]
    if entries and (
        _HEADER.search(text)
        or len(of_users) * 2 >= len(entries)
        or (is_hinted and len(alike) == len(entries))
    ):
        said = "the first word after the times is taken as a user (--no-users)"
        return True, [Note(entries[0][0].place, said)]
    return False, [
        Note(line.place, f"{words[0]!r} is taken as a command, not as a user (--users)")
        for line, words in entries
        if line in alike
    ]


def _may_be_user(words: list[str]) -> bool:
    return (
        len(words) > 1
        and (_COMMAND.match(words[1]) is not None or words[1] in COMMANDS)
        and re.fullmatch(r"[a-z_][a-z0-9_-]*", words[0]) is not None
        and words[0] not in COMMANDS
    )


def _entry(line: _Line) -> re.Match[str] | None:
    return None if _SETTING.fullmatch(line.text) else _ENTRY.fullmatch(line.text)


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
                yield Note(line.place, f"{name}: nothing is mailed; alerts report failures")
        case "TZ":
            setting.environment = {**setting.environment, name: value}
            yield Note(line.place, "TZ is of commands alone: cron goes by the zone of its machine")
        case "RANDOM_DELAY" | "START_HOURS_RANGE":
            yield Note(line.place, f"{name}: give each loop a jitter= instead")
        case _:
            setting.environment = {**setting.environment, name: value}


def _job(line: _Line, setting: _Setting, with_user: bool) -> ImportedJob:
    match = _ENTRY.fullmatch(line.text)
    if match is None:
        raise ScheduleError("expected five fields of times, and a command")
    if _FIELD.fullmatch(match["rest"].split()[0]):
        raise ScheduleError(SIX)
    user, command = "", match["rest"]
    if with_user and len(command.split()) == 1:
        raise ScheduleError("there is no command after the user")
    if with_user:
        user, command = [*command.split(None, 1), ""][:2]
    notes = [Note(line.place, detail) for detail in _misread(line, setting, user, command)]
    command, stdin = _split(command)
    if stdin:
        said = "what follows a `%` is read by the command, as cronie has it; others pass it on"
        notes.append(Note(line.place, said))
    try:
        schedule, weekdays = _schedule(match["when"], setting.tz)
    except NeverFires:
        schedule, weekdays = None, None
        notes.append(Note(line.place, BY_HAND))
    words, folder = (setting.shell, "-c", command), setting.environment.get("HOME")
    return ImportedJob(
        line.place,
        _name(command),
        f"{line.text}{f'  # {line.above}' if line.above else ''}",
        Command(words, stdin, setting.environment, folder),
        schedule,
        weekdays,
        notes=notes,
    )


def _misread(line: _Line, setting: _Setting, user: str, command: str) -> Iterator[str]:
    """Note the changes that a job may depend on."""
    if user:
        yield f"it ran as {user}: it runs as the user of the processor"
    if command.startswith("-"):
        yield "the command begins with a flag, which some crons read"
    if "?" in line.text.removesuffix(command):
        yield "`?` is taken as `*`, as programs do that know it"
    if "HOME" not in setting.environment and (path := relative_path(command)):
        said = "starts at the processor's folder, not at the user's home: set cwd="
        yield f"the path {path!r} {said}"


def _schedule(when: str, tz: str) -> tuple[Cron, frozenset[int] | None]:
    if when == "@reboot":
        raise ScheduleError("there is no equivalent: run it when the machine starts")
    if when.startswith("@") and when not in NICKNAMES:
        raise ScheduleError(f"{when} is not known")
    text = NICKNAMES.get(when, when).removeprefix("-")  # keeps cronie from logging it
    fields = ["*" if each == "?" else each for each in text.split()]
    both = fields[2].startswith("*") or fields[4].startswith("*")
    expression, weekdays = CRON.expression(fields, both=both)
    return Cron(expression, tz=tz, catch_up="skip"), weekdays


def _split(command: str) -> tuple[str, str]:
    """Split a command from its input: the text after a `%`, each further one a newline."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", command)]
    return parts[0].rstrip(), "".join(f"{part}\n" for part in parts[1:])


def _name(command: str) -> str:
    """Return the words that identify a command: no folders, redirections, options."""
    words = re.split(r"\s+(?:>|2>|&>|\d?>>?&?|\|)", command)[0].split()
    words = [PurePath(word).stem if "/" in word else word for word in words if "=" not in word]
    return " ".join(word for word in words if not word.startswith("-")) or command
