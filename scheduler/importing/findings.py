"""Hold the findings in a foreign file: jobs, and their parts that cannot be carried over."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from scheduler.tasks.retries import Retry
from scheduler.timing.schedules import Recurring

NO_RETRY = Retry(0)
BY_HAND = "the schedule never fires, so this is a task: send a message to start it"
NO_LIMIT = "these files set no time limit: here, TIMEOUT ends a run after 10 minutes"
# `cd` to an absolute folder, and words that are relative paths.
_AT_HOME = re.compile(r"""[(\s]*cd\s+["']?[/~$]""")
_RELATIVE = re.compile(
    r"(?!-)\.{0,2}[\w-][\w.-]*/[\w./-]*|\.{1,2}/[\w./-]+|[\w-]+\.(?:py|sh|php|rb|pl|js)"
)
_TARGET = re.compile(
    r"""(?:^|[^>&])>{1,2}\s*(?![/~$"'&>])([^\s;&|>)]+)|\bcd\s+(?![/~$"'-])([^\s;&|)]+)"""
)


@dataclass(frozen=True, slots=True, order=True)
class SourceLine:
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """Note something that is not carried over unchanged, and its place."""

    place: SourceLine
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass(frozen=True, slots=True)
class Command:
    """Describe a command to run.

    Attributes:
        environment: its variables besides those of the processor.
        folder: where it runs; None: where the processor does.
        grace: how long it may take to end after a signal.
    """

    words: Sequence[str]
    stdin: str = ""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: str | None = None
    grace: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class CeleryCall:
    """Describe a call of a Celery task, by the path of its function; a coroutine is awaited."""

    path: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    why: str


Action = Command | CeleryCall | Unknown


@dataclass(frozen=True, slots=True)
class Parameter:
    """Describe a parameter of a task that is called; its annotation and default are code."""

    name: str
    annotation: str = "Any"
    default: str | None = None
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """Describe one function of the generated code.

    Attributes:
        said: the original, in a line.
        schedule: when it runs; None: when it is called.
        weekdays: the only ones on which it runs; Sunday is 0.
        once: the moments of its one-offs, by name.
        expires: how old a call may get to be run.
    """

    place: SourceLine
    name: str
    said: str
    action: Action
    schedule: Recurring | None = None
    weekdays: frozenset[int] | None = None
    once: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    parameters: Sequence[Parameter] = ()
    retry: Retry = NO_RETRY
    timeout: timedelta | None = None
    rate: str | None = None
    expires: timedelta | None = None
    paused: bool = False
    notes: Sequence[Note] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Hold the contents of the files, and the notes that belong to no job."""

    kind: str
    namespace: str
    jobs: Sequence[ImportedJob]
    notes: Sequence[Note] = ()

    @property
    def left(self) -> list[Note]:
        """Return everything that is not carried over unchanged."""
        unlimited = [Note(job.place, NO_LIMIT) for job in self.jobs if job.timeout is None][:1]
        of_jobs = (note for job in self.jobs for note in job.notes)
        return sorted([*self.notes, *unlimited, *of_jobs])


def relative_path(command: str) -> str:
    """Return the first path of a command that depends on its working folder; else, ""."""
    if _AT_HOME.match(command):
        return ""
    pairs = pairwise(["", *command.split()])
    words = (word.strip("\"'();") for before, word in pairs if not before.endswith(":"))
    targets = ("".join(filter(None, match)) for match in _TARGET.findall(command))
    found = [*targets, *(word for word in words if _RELATIVE.fullmatch(word))]
    return found[0] if found else ""
