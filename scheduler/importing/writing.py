"""Hold the findings in foreign files, and write the registration code for them."""

import builtins
import keyword
import re
import textwrap
import unicodedata
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from scheduler.errors import ScheduleError
from scheduler.protocol.messages import printable
from scheduler.tasks.retries import Retry
from scheduler.timing.durations import format_duration
from scheduler.timing.schedules import Cron, Recurring, options_of

NO_RETRY = Retry(0)
BY_HAND = "the schedule never fires, so this is a task: send a message to start it"
NO_LIMIT = "these files set no time limit: here, TIMEOUT ends a run after 10 minutes"
NO_FOLDER = "commands start in the folder of the processor: cwd= sets another one"


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


@contextmanager
def noting(notes: list[Note], place: SourceLine, what: str) -> Generator[None]:
    """Note why the block has no result, instead of raising a ScheduleError."""
    try:
        yield
    except ScheduleError as error:
        notes.append(Note(place, f"{what}: {error}"))


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
    """Describe a parameter of a task that is called; its default is code."""

    name: str
    default: str | None = None
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """Describe one function of the generated code.

    Attributes:
        said: the original, in a line.
        schedule: when it runs; None: when it is called.
        expires: how old a call may get to be run.
    """

    place: SourceLine
    name: str
    said: str
    action: Action
    schedule: Recurring | None = None
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
    def of_files(self) -> list[Note]:
        """Return the notes that belong to no job; what jobs lack is noted at the first of them."""
        unlimited = [Note(job.place, NO_LIMIT) for job in self.jobs if job.timeout is None]
        homeless = [
            Note(job.place, NO_FOLDER)
            for job in self.jobs
            if isinstance(job.action, Command) and job.action.folder is None
        ]
        return sorted([*self.notes, *unlimited[:1], *homeless[:1]])

    @property
    def left(self) -> list[Note]:
        """Return everything that is not carried over unchanged."""
        return sorted([*self.of_files, *(note for job in self.jobs for note in job.notes)])


LONGEST_NAME = 50
WIDTH = 100
INDENT = " " * 4
TIMEOUT = timedelta(minutes=10)
TAKEN = {
    *keyword.kwlist,
    *keyword.softkwlist,
    *dir(builtins),
    *("app", "asyncio", "contextlib", "os", "pkgutil", "signal"),
    *("run", "task_of", "command", "process"),
}

RUN = '''
async def run(
    *command: str,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    grace: float = 10,
) -> None:
    """Run a program, which has failed if its exit code is not 0.

    If the run is cancelled, it is asked to end, with all its children; those still running after
    the grace (in seconds) are killed.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        start_new_session=True,
    )
    try:
        await process.communicate(stdin.encode() if stdin else None)
    finally:
        if process.returncode is None:
            await end(process, grace)
    if process.returncode:
        raise RuntimeError(f"{command} ended with the exit code {process.returncode}")


async def end(process: asyncio.subprocess.Process, grace: float) -> None:
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGTERM)
        for _ in range(int(grace * 10)):
            await asyncio.sleep(0.1)
            os.killpg(process.pid, 0)
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
'''
TASK_OF = '''
def task_of(path: str) -> Callable[..., Any]:
    """Return a task of Celery, to call in place: neither its broker nor its workers are needed."""
    return pkgutil.resolve_name(path)
'''
REMARKS = {
    "crontab": (
        "Runs of a loop do not overlap: the next one waits, while cron starts it concurrently.",
        "What a command prints goes where the processor's output goes; nothing is mailed.",
        "A command that fails is parked: `scheduler failed list` shows it.",
        "Commands have the environment of the processor, not the small one of cron.",
    ),
    "cronjob": (
        "Commands run within the processor: they share its image, rights, volumes and memory.",
        "Runs of a loop do not overlap, whatever concurrencyPolicy is.",
        "What a command prints is the processor's output; that of a failed one is not kept.",
    ),
    "celery": (
        "Runs of a loop do not overlap, and each happens at least once, as with acks_late=True.",
        "What a task returns is not stored.",
        "Periods are counted from 1970 in UTC, not from the start of beat: offset= moves them.",
        "Tasks of Celery's are called in place, in threads: so it must stay installed.",
        "They are imported by the paths of the files that were given, from where Python starts.",
    ),
}


def code_of(found: Found) -> str:
    """Return a module that registers the jobs: typed, ready to be imported."""
    names = _names(found.jobs)
    shared = _shared_environments(found.jobs)
    body = [*_constants(found, shared), *_helpers(found.jobs)]
    for job in found.jobs:
        body += ["", "", *_function(job, names[id(job)], shared)]
    head = [*_head(found, names), *_imports("\n".join(body))]
    return "\n".join([*head, *body]) + "\n"


def name_of(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    plain = plain if text.isidentifier() else plain.lower()
    words = re.sub(r"[^0-9A-Za-z]+", "_", plain).strip("_")
    if len(words) > LONGEST_NAME:
        words = words[:LONGEST_NAME].rpartition("_")[0] or words[:LONGEST_NAME]
    name = f"job_{words}".rstrip("_") if not words[:1].isalpha() else words
    return f"{name}_job" if name in TAKEN else name


def _names(jobs: Iterable[ImportedJob]) -> dict[int, str]:
    """Return the function of each job: called ones keep their names."""
    taken: dict[str, ImportedJob] = {}
    for job in sorted(jobs, key=lambda job: job.schedule is not None):
        name = name_of(job.name)
        if name in taken and job.schedule and not taken[name].schedule:
            name = f"{name}_loop"
        others = (f"{name}_{number}" for number in range(2, len(taken) + 3))
        taken[next(each for each in (name, *others) if each not in taken)] = job
    return {id(job): name for name, job in taken.items()}


def _head(found: Found, names: Mapping[int, str]) -> Iterator[str]:
    files = ", ".join(sorted({job.place.file for job in found.jobs}))
    yield f'"""Written by `scheduler import {found.kind}`: read it, format it, then seed it."""'
    yield ""
    yield from comment(f"From {files}. Other than there:")
    for remark in REMARKS[found.kind]:
        yield from comment(remark, bullet="- ")
    if found.of_files:
        yield "#"
        yield from comment("Not carried over, besides the notes below:")
        for note in found.of_files:
            yield from comment(str(note), bullet="- ")
    if paused := [names[id(job)] for job in found.jobs if job.paused]:
        yield "#"
        yield from comment(
            "Paused there. Seed with --paused, or pause them before a processor runs:"
        )
        for name in paused:
            yield f"#   scheduler pause APP {name}"
    yield ""


def comment(text: str, bullet: str = "") -> list[str]:
    plain = printable(" ".join(text.split()))
    lines = textwrap.wrap(
        plain,
        WIDTH - 2,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet),
        break_on_hyphens=False,
    )
    return [f"# {line}" for line in lines]


def _imports(body: str) -> Iterator[str]:
    body = "\n".join(line for line in body.splitlines() if not line.startswith("#"))
    modules = ("asyncio", "contextlib", "os", "pkgutil", "signal")
    yield from (f"import {name}" for name in modules if re.search(rf"\b{name}\.", body))
    names = {
        "collections.abc": ("Callable", "Mapping"),
        "typing": ("Any",),
        "": ("Reject", "Retry", "Scheduler"),
    }
    for module, those in names.items():
        used = [name for name in those if re.search(rf"\b{name}[\[\].(,:=)]", body)]
        if not module:
            yield ""
        if used:
            yield f"from {module or 'scheduler'} import {', '.join(used)}"
    yield ""


def _shared_environments(jobs: Iterable[ImportedJob]) -> dict[str, Mapping[str, str]]:
    """Return the environments that several commands share, by the names of constants."""
    seen: list[Mapping[str, str]] = []
    shared: dict[str, Mapping[str, str]] = {}
    for job in jobs:
        if not isinstance(job.action, Command) or not (environment := job.action.environment):
            continue
        if environment in seen and environment not in shared.values():
            shared[f"ENVIRONMENT_{len(shared) + 1}" if shared else "ENVIRONMENT"] = environment
        seen.append(environment)
    return shared


def _constants(found: Found, shared: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield f"app = Scheduler({found.namespace!r})"
    if any(job.timeout is None for job in found.jobs):
        yield "# Keep it below the broker's consumer_timeout, 30 minutes."
        yield f"TIMEOUT = {format_duration(TIMEOUT)!r}"
    for name, environment in shared.items():
        yield f"{name} = {environment!r}"


def _helpers(jobs: Iterable[ImportedJob]) -> Iterator[str]:
    actions = {type(job.action) for job in jobs}
    helpers = {Command: RUN, CeleryCall: TASK_OF}
    yield from (f"\n{each.rstrip()}" for kind, each in helpers.items() if kind in actions)


def _function(
    job: ImportedJob, name: str, shared: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    yield from comment(f"{job.place}: {job.said}")
    for note in job.notes:
        yield from comment(note.text, bullet="- ")
    decorator = "task" if job.schedule is None else "periodic"
    yield call(f"@app.{decorator}", _options(job))
    waits = isinstance(job.action, CeleryCall) and not job.action.awaited
    define = f"{'' if waits else 'async '}def {name}"
    yield f"{call(define, _signature(job))} -> None:"
    yield textwrap.indent(_action(job, shared), INDENT)


def call(function: str, arguments: Iterable[str]) -> str:
    """Write a call, or a signature: in a line, or with an argument in each."""
    given = list(arguments)
    line = f"{function}({', '.join(given)})"
    if len(line) <= WIDTH - len(INDENT):
        return line
    return "\n".join([f"{function}(", *(f"{INDENT}{each}," for each in given), ")"])


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _options(job: ImportedJob) -> Iterator[str]:
    options: dict[str, str] = {}
    if isinstance(job.schedule, Cron):
        options = {"cron": job.schedule.expression, "tz": job.schedule.tz}
    if job.schedule is not None:
        options |= options_of(job.schedule)
    yield from (f"{name}={text!r}" for name, text in options.items())
    yield f"retry={_retry(job.retry)}"
    if job.rate:
        yield f"rate={job.rate!r}"
    if job.expires is not None:
        yield f"expires={format_duration(job.expires)!r}"
        yield 'expired="drop"'
    yield f"timeout={repr(format_duration(job.timeout)) if job.timeout else 'TIMEOUT'}"


def _retry(retry: Retry) -> str:
    usual, arguments = Retry(retry.retries), [str(retry.retries)]
    if not retry.retries:
        return "Retry(0)"
    if retry.delays is not None:
        arguments.append(f"delays={[format_duration(each) for each in retry.delays]}")
    for name in ("initial", "multiplier", "maximum", "jitter"):
        if (value := getattr(retry, name)) != getattr(usual, name):
            shown = format_duration(value) if isinstance(value, timedelta) else value
            arguments.append(f"{name}={shown!r}")
    arguments += [
        f"{name}={_tuple([each.__name__ for each in types])}"
        for name in ("retry_on", "give_up_on")
        if (types := getattr(retry, name)) != getattr(usual, name)
    ]
    return f"Retry({', '.join(arguments)})"


def _signature(job: ImportedJob) -> list[str]:
    parameters = [
        f"{each.name}: Any{f' = {each.default}' if each.default else ''}" for each in job.parameters
    ]
    positional = sum(not each.by_name for each in job.parameters)
    star = ["*"] if positional < len(parameters) else []
    return [*parameters[:positional], *star, *parameters[positional:]]


def _action(job: ImportedJob, shared: Mapping[str, Mapping[str, str]]) -> str:
    match job.action:
        case Command() as command:
            return call("await run", _arguments(command, shared))
        case CeleryCall(path, args, kwargs, awaited):
            passed = [
                *map(repr, args),
                *(f"{name}={each!r}" for name, each in kwargs.items() if _is_name(name)),
                *(f"{each.name}=" * each.by_name + each.name for each in job.parameters),
            ]
            if odd := {name: each for name, each in kwargs.items() if not _is_name(name)}:
                passed.append(f"**{odd!r}")
            return call(f'{"await " if awaited else ""}task_of("{path}")', passed)
        case Unknown(why):
            return call("raise Reject", [repr(why)])


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _arguments(command: Command, shared: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield from map(repr, command.words)
    if command.stdin:
        yield f"stdin={command.stdin!r}"
    if environment := command.environment:
        names = [name for name, each in shared.items() if each == environment]
        yield f"env={names[0] if names else repr(environment)}"
    if command.folder:
        yield f"cwd={command.folder!r}"
    if (seconds := command.grace.total_seconds()) != 10:
        yield f"grace={int(seconds)}"
