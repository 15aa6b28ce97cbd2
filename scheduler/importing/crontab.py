"""Read crontabs, of users or of the system, and CronJobs of Kubernetes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import PurePath
from typing import Any, cast

from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.calendars import COLUMNS, Dialect, NeverFires
from scheduler.importing.writing import (
    BY_HAND,
    Action,
    Command,
    Found,
    ImportedJob,
    Note,
    SourceLine,
    Unknown,
    noting,
)
from scheduler.tasks.retries import Retry
from scheduler.timing.crontab import NICKNAMES
from scheduler.timing.durations import parse_duration
from scheduler.timing.schedules import Cron, Every, Recurring

CRON = Dialect(seven=True)
OF_CRON = {**NICKNAMES, "@every_minute": "* * * * *"}
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
_ENTRY = re.compile(r"(?P<when>@\w+|\S+(?:\s+\S+){4})\s+(?P<rest>\S.*)")


@dataclass(frozen=True, slots=True)
class _Line:
    place: SourceLine
    text: str
    above: str


@dataclass(slots=True)
class _Setting:
    """Hold the settings in the lines above an entry.

    Attributes:
        tz: None: unknown.
    """

    tz: str | None
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
    setting, jobs, notes = _Setting(tz), list[ImportedJob](), list[Note]()
    without_zone = list[ImportedJob]()
    with_user = users
    if with_user is None:
        with_user, guesses = _has_users(lines, text, file)
        notes += guesses
    for line in lines:
        if match := _SETTING.fullmatch(line.text):
            notes += _set(setting, line, match["name"], match["value"])
        else:
            with noting(notes, line.place, f"left out, {line.text!r}"):
                jobs.append(_job(line, setting, with_user))
                without_zone += [] if setting.tz else jobs[-1:]
    if without_zone:
        said = "cron goes by the zone of its machine, which is not in the file: UTC is taken (--tz)"
        notes.append(Note(without_zone[0].place, said))
    if not any(map(_entry, lines)):
        raise UsageError(f"{file} has no jobs: a line has five fields of times, and a command.")
    return Found("crontab", PurePath(file).stem or "crontab", jobs, notes)


def _lines(text: str, file: str) -> Iterator[_Line]:
    above: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):  # a form feed ends no line of a crontab
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
    if path.parent.name == "cron.d" or path.parts[-2:] == ("etc", "crontab"):
        return True, []
    entries = [(line, each["rest"].split()) for line in lines if (each := _entry(line))]
    of_users = sum(words[0] in USERS and len(words) > 1 for _, words in entries)
    if not entries:
        return False, []
    if has_users := bool(_HEADER.search(text)) or of_users * 2 >= len(entries):
        said = "the first word after the times is taken as a user (--no-users)"
    else:
        said = "the words after the times are taken as a command, without a user (--users)"
    return has_users, [Note(entries[0][0].place, said)]


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
    notes = [Note(line.place, detail) for detail in _misread(line, user, command)]
    command, stdin = _split(command)
    if stdin:
        said = "what follows a `%` is read by the command, as cronie has it; others pass it on"
        notes.append(Note(line.place, said))
    schedule = None
    try:
        schedule = _schedule(match["when"], setting.tz or "UTC")
    except NeverFires:
        notes.append(Note(line.place, BY_HAND))
    words, folder = (setting.shell, "-c", command), setting.environment.get("HOME")
    return ImportedJob(
        line.place,
        _name(command),
        f"{line.text}{f'  # {line.above}' if line.above else ''}",
        Command(words, stdin, setting.environment, folder),
        schedule,
        notes=notes,
    )


def _misread(line: _Line, user: str, command: str) -> Iterator[str]:
    """Note the changes that a job may depend on."""
    if user:
        yield f"it ran as {user}: it runs as the user of the processor"
    if command.startswith("-"):
        yield "the command begins with a flag, which some crons read"
    if "?" in line.text.removesuffix(command):
        yield "`?` is taken as `*`, as programs do that know it"


def _schedule(when: str, tz: str) -> Cron:
    if when == "@reboot":
        raise ScheduleError("there is no equivalent: run it when the machine starts")
    if when.startswith("@") and when not in OF_CRON:
        raise ScheduleError(f"{when} is not known")
    text = OF_CRON.get(when, when).removeprefix("-")  # keeps cronie from logging it
    fields = ["*" if each == "?" else each for each in text.split()]
    both = fields[2].startswith("*") or fields[4].startswith("*")
    return Cron(CRON.expression(fields, both=both), tz=tz, catch_up="skip")


def _split(command: str) -> tuple[str, str]:
    """Split a command from its input: the text after a `%`, each further one a newline."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", command)]
    return parts[0].rstrip(), "".join(f"{part}\n" for part in parts[1:])


def _name(command: str) -> str:
    """Return the words that identify a command: no folders, redirections, options."""
    words = re.split(r"\s+(?:>|2>|&>|\d?>>?&?|\|)", command)[0].split()
    words = [PurePath(word).stem if "/" in word else word for word in words if "=" not in word]
    return " ".join(word for word in words if not word.startswith("-")) or command


@dataclass(frozen=True, slots=True)
class Value:
    """Hold a scalar, a mapping or a list of a document.

    Attributes:
        line: where it begins; for the value of a key, the line of the key.
    """

    line: int
    plain: Any = None
    keys: Mapping[str, "Value"] = field(default_factory=dict[str, "Value"])
    items: Sequence["Value"] = ()

    def __getitem__(self, key: str) -> "Value":
        return self.keys.get(key, Value(self.line))

    @property
    def text(self) -> str:
        """Return a scalar as it would appear in a document; else, nothing."""
        if self.plain is None:
            return ""
        return str(self.plain).lower() if isinstance(self.plain, bool) else str(self.plain)

    @property
    def number(self) -> int | None:
        return self.plain if type(self.plain) is int else None


def documents_in(text: str, file: str) -> list[Value]:
    """Return the documents of a YAML file, which may be JSON."""
    try:
        import yaml
    except ImportError:
        raise UsageError(
            "Reading YAML needs PyYAML, which the extra `import` has: "
            "pip install 'rabbit-scheduler[import]'."
        ) from None

    loader, made = yaml.SafeLoader(""), dict[int, Value]()

    def value(node: yaml.Node, line: int) -> Value:
        if id(node) not in made:  # a repeated reference is converted once
            made[id(node)] = converted(node)
        return replace(made[id(node)], line=line)

    def converted(node: yaml.Node) -> Value:
        if isinstance(node, yaml.MappingNode):
            loader.flatten_mapping(node)  # the effect of `<<`
            if any(not isinstance(key, yaml.ScalarNode) for key, _ in node.value):
                raise yaml.MarkedYAMLError(problem="a key is no text", problem_mark=node.start_mark)
            pairs = ((key, value(each, key.start_mark.line + 1)) for key, each in node.value)
            return Value(0, keys={str(key.value): each for key, each in pairs})
        if isinstance(node, yaml.SequenceNode):
            return Value(0, items=[value(each, each.start_mark.line + 1) for each in node.value])
        return Value(0, cast("Any", loader).construct_object(node))

    try:
        nodes: list[yaml.Node] = [
            *filter(None, cast("Any", yaml).compose_all(text, yaml.SafeLoader))
        ]
        return [value(node, node.start_mark.line + 1) for node in nodes]
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: 2026-13-01
        detail, line = str(error), ""
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            detail, line = error.problem or "", f", line {error.problem_mark.line + 1},"
        hint = " A template is rendered first: helm template." if "{{" in text else ""
        raise UsageError(f"{file}{line} is not YAML: {detail}.{hint}") from None


ROBFIG = Dialect(open_steps=True, question=True)  # the library that Kubernetes reads schedules with
BACKOFF_LIMIT = 6

# Carried over, or irrelevant here, by path. All other fields are noted.
TAKEN = {
    "": {"apiVersion", "kind", "metadata", "spec", "status"},
    "spec": {
        *("schedule", "timeZone", "concurrencyPolicy", "startingDeadlineSeconds", "suspend"),
        *("jobTemplate", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"),
    },
    "job": {"backoffLimit", "activeDeadlineSeconds", "template", "ttlSecondsAfterFinished"},
    "pod": {
        *("containers", "restartPolicy", "activeDeadlineSeconds", "terminationGracePeriodSeconds"),
        *("dnsPolicy", "schedulerName"),
    },
    "container": {
        *("name", "image", "command", "args", "env", "workingDir", "imagePullPolicy"),
        *("terminationMessagePath", "terminationMessagePolicy"),
    },
}
WHY = {
    "initContainers": "run what they do in the task, before its command",
    "parallelism": "one run at a time; send messages to a task to have work done side by side",
    "completions": "one run at a time; send messages to a task to have work done side by side",
    "envFrom": "give the processor's Deployment the same",
    "volumes": "give the processor's Deployment the same",
    "volumeMounts": "give the processor's Deployment the same",
    "resources": "of the processor's Deployment, for all runs together",
    "podFailurePolicy": "raise Reject where no retry helps",
    "lifecycle": "do it in the task",
}
NUMBERS = {
    *("startingDeadlineSeconds", "backoffLimit", "activeDeadlineSeconds"),
    "terminationGracePeriodSeconds",
}
REPLACE = "Replace ended the old run: here, the next one waits; give it a timeout="
ELSE = "of the processor's Deployment, if it is needed"


def read_cronjobs(text: str, file: str, *, tz: str | None = None) -> Found:
    """Return the jobs of a file of Kubernetes manifests.

    Args:
        tz: the zone of the cluster's controller, for jobs without one; None: UTC.

    Raises:
        UsageError: it cannot be read, or has no CronJob.
    """
    jobs, notes = list[ImportedJob](), list[Note]()
    for manifest in _manifests(documents_in(text, file)):
        place, name = SourceLine(file, manifest.line), manifest["metadata"]["name"].text
        if (kind := manifest["kind"].text) == "CronJob":
            with noting(notes, place, f"left out, CronJob {name}"):
                jobs.append(_CronJob(manifest, file, tz).job())
        else:
            named = f"{kind or 'a document'} {name}".strip()
            notes.append(Note(place, f"left out, as it is no CronJob: {named}"))
    if not jobs and all("as it is no CronJob" in note.text for note in notes):
        raise UsageError(f"{file} has no CronJob.")
    return Found("cronjob", PurePath(file).stem or "cronjobs", jobs, notes)


def _manifests(documents: Iterable[Value]) -> Iterator[Value]:
    for document in documents:
        if document["kind"].text.endswith("List") or (document.items and not document.keys):
            yield from _manifests(document["items"].items or document.items)
        elif document.keys:
            yield document


class _CronJob:
    def __init__(self, manifest: Value, file: str, tz: str | None) -> None:
        self._file = file
        self._manifest = manifest
        self._spec = manifest["spec"]
        self._job = self._spec["jobTemplate"]["spec"]
        self._pod = self._job["template"]["spec"]
        containers = self._pod["containers"].items
        self._container = containers[0] if containers else Value(self._pod.line)
        self._tz = tz
        self._notes: list[Note] = []

    def job(self) -> ImportedJob:
        """Convert it to a job, or raise a ScheduleError if its schedule has no equivalent."""
        schedule = None
        try:
            schedule = self._schedule()
        except NeverFires:
            self._note(self._spec["schedule"], BY_HAND)
        name = self._manifest["metadata"]["name"]
        action = self._action()
        self._report_the_rest()
        image = self._container["image"].text
        said = f"CronJob {name.text}, {self._spec['schedule'].text!r}" + (image and f" of {image}")
        return ImportedJob(
            SourceLine(self._file, self._manifest.line),
            name.text or "cronjob",
            said,
            action,
            schedule,
            retry=self._retry(),
            timeout=self._timeout(),
            paused=self._is_suspended(),
            notes=sorted(self._notes),
        )

    def _is_suspended(self) -> bool:
        suspend = self._spec["suspend"]
        if suspend.plain not in (None, True, False):
            self._note(suspend, f"suspend: expected true or false, got {suspend.text!r}")
        return suspend.plain is True

    def _note(self, value: Value, text: str) -> None:
        self._notes.append(Note(SourceLine(self._file, value.line), text))

    def _schedule(self) -> Recurring:
        text = self._spec["schedule"].text.strip()
        tz = self._spec["timeZone"].text or self._tz
        if match := re.match(r"(?:CRON_)?TZ=(\S+)\s+(.*)", text):
            tz, text = match[1], match[2]
        late = self._lateness()
        if text.startswith("@every "):
            self._note(self._spec["schedule"], "@every counts from 1970 here: offset= moves it")
            period = parse_duration(text.removeprefix("@every ").strip())
            return Every(period, mode="fixed_rate", **late)
        if tz is None:
            said = "goes by the zone of the cluster's controller, mostly UTC, which is taken (--tz)"
            self._note(self._spec["schedule"], said)
        return Cron(_expression(text), tz=tz or "UTC", **late)

    def _lateness(self) -> dict[str, Any]:
        deadline = self._spec["startingDeadlineSeconds"]
        if deadline.number is None:
            return {}
        return {"catch_up": "skip", "grace": _seconds(deadline, "startingDeadlineSeconds")}

    def _retry(self) -> Retry:
        limit = self._job["backoffLimit"]
        retries = BACKOFF_LIMIT if limit.number is None else limit.number
        if not retries:
            return Retry(0)
        return Retry(retries, initial="10s", multiplier=2, maximum="6m", jitter=0)

    def _timeout(self) -> timedelta | None:
        of_pod, of_job = self._pod["activeDeadlineSeconds"], self._job["activeDeadlineSeconds"]
        if of_job.number is not None and self._retry().retries:
            said = "activeDeadlineSeconds was for all tries together: here, each may take so long"
            self._note(of_job, said)
        limits = [each for each in (of_pod, of_job) if each.number]
        return min((_seconds(each, "activeDeadlineSeconds") for each in limits), default=None)

    def _action(self) -> Action:
        container = self._container
        words = [each.text for key in ("command", "args") for each in container[key].items]
        environment = dict(self._environment())
        words = [_expanded(word, environment) for word in words]
        if not container["command"].items:
            image = container["image"].text or "the image"
            self._note(container, f"the command is the entrypoint of {image}, which is not in here")
            given = {"arguments": words, "env": environment, "cwd": container["workingDir"].text}
            given["grace"] = self._pod["terminationGracePeriodSeconds"].text
            needs = [f"{name} {each!r}" for name, each in given.items() if each]
            needed = f", with {', '.join(needs)}" if needs else ""
            return Unknown(f"Write the entrypoint of {image} here{needed}.")
        grace, name = timedelta(seconds=10), "terminationGracePeriodSeconds"
        if (given := self._pod[name]).number is not None:
            grace = _seconds(given, name)
        return Command(
            words,
            environment=environment,
            folder=container["workingDir"].text or None,
            grace=grace,
        )

    def _environment(self) -> Iterator[tuple[str, str]]:
        known: dict[str, str] = {}
        for variable in self._container["env"].items:
            name = variable["name"].text
            if variable["valueFrom"].keys:
                kind = next(iter(variable["valueFrom"].keys))
                self._note(variable, f"{name} is from a {kind}: the processor needs it")
                continue
            known[name] = _expanded(variable["value"].text, known)
            yield name, known[name]

    def _report_the_rest(self) -> None:
        levels = (
            (self._manifest, "", ""),
            (self._spec, "spec", "spec."),
            (self._job, "job", "jobTemplate.spec."),
            (self._pod, "pod", "template.spec."),
            (self._container, "container", "container."),
        )
        for value, level, before in levels:
            for key, each in value.keys.items():
                if key not in TAKEN[level]:
                    self._note(each, f"{before}{key}: {WHY.get(key, ELSE)}")
                elif key in NUMBERS and each.number is None:
                    self._note(each, f"{before}{key}: expected a number, got {each.text!r}")
        if (policy := self._spec["concurrencyPolicy"]).text == "Replace":
            self._note(policy, REPLACE)
        for other in self._pod["containers"].items[1:]:
            self._note(other, f"left out, a further container: {other['name'].text}")


def _seconds(value: Value, name: str) -> timedelta:
    return parse_duration(f"{value.number}s", name)


def _expression(text: str) -> str:
    fields = NICKNAMES.get(text, text).split()
    if len(fields) != len(COLUMNS):
        raise ScheduleError(f"the schedule is not understood: {text!r}")
    # A field counts as open without a step.
    days = ",".join((fields[2], fields[4])).split(",")
    return ROBFIG.expression(fields, both=any(re.fullmatch(r"[*?](/1)?", day) for day in days))


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """Expand `$(NAME)` as Kubernetes does; `$$` escapes it."""

    def filled(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        return environment.get(match[1], match[0])

    return re.sub(r"\$?\$\((\w[\w.-]*)\)", filled, text)
