"""Write code: `scheduler init`, a first app; `scheduler import`, from files of other schedulers."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from scheduler.app import NAMESPACE
from scheduler.cli.arguments import command, new_group
from scheduler.cli.printing import AS_JSON, Output, print_json
from scheduler.errors import ScheduleError, SchedulerError, UsageError
from scheduler.importing.celery import read_celery
from scheduler.importing.crontab import read_cronjobs, read_crontab
from scheduler.importing.writing import Found, code_of
from scheduler.protocol.messages import printable
from scheduler.spelling import counted
from scheduler.timing.schedules import Cron

cli = new_group()

TEXTS = files("scheduler.cli") / "first_app"
NAMES = ("jobs.py", "test_jobs.py", "compose.yaml")


@command(cli, "init", asks=False)
def init(
    folder: Annotated[
        str,
        typer.Argument(metavar="[FOLDER]", help="The folder to write to; by default, this one."),
    ] = ".",
) -> Output:
    """Write a first app, its test, and a compose file with RabbitMQ.

    The files are jobs.py, test_jobs.py and compose.yaml. The namespace of the app is the name of
    the folder. If one of the files exists, the command writes none.

    Example: scheduler init shop
    """
    written = _write_app(Path(folder))
    line = f"Written: {', '.join(written)}. `scheduler dev {written[0]}` runs the app."
    return Output({"written": written}, [line])


def _write_app(folder: Path) -> list[str]:
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name)[:64].strip("-") or "jobs"
    texts = {
        folder / name: (TEXTS / f"{name}-tpl").read_text("utf-8").replace("NAMESPACE", plain)
        for name in NAMES
    }
    try:
        if there := [str(path) for path in texts if path.exists()]:
            raise UsageError(f"{there[0]} exists: nothing was written. Name another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error.strerror}.") from None
    return [str(path) for path in texts]


STDIN = "-"


Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE", help="The files to read; - for stdin. Required."),
]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="FILE", help="Write the code to FILE, instead of printing it."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite FILE if it exists.")]
Namespace = Annotated[
    str | None,
    typer.Option(help="The namespace of the app; by default, that of the source."),
]
Zone = Annotated[
    str | None,
    typer.Option(help="The zone of times, such as Europe/Berlin, if the file names none."),
]

imports = new_group("Convert the jobs of Celery, crontabs and CronJobs to code. Runs nothing.")
cli.add_typer(imports, name="import")


@command(imports, "celery", asks=False)
def import_celery(
    files: Files,
    out: Out = None,
    force: Force = False,
    namespace: Namespace = None,
    tz: Zone = None,
) -> None:
    """Convert loops and tasks of Celery or django-celery-beat.

    For Celery, give the modules with beat_schedule, with calls of add_periodic_task, and with the
    tasks. For django-celery-beat, give the output of `manage.py dumpdata django_celery_beat`. A
    report lists the parts that are not carried over.

    Example: scheduler import celery shop/celery.py shop/tasks.py --out jobs.py
    """
    _show(read_celery(dict(_texts(files)), tz=_zone(tz)), out, force, namespace)


@command(imports, "crontab", asks=False)
def import_crontab(
    files: Files,
    out: Out = None,
    force: Force = False,
    namespace: Namespace = None,
    tz: Zone = None,
    users: Annotated[
        bool | None,
        typer.Option(
            "--users/--no-users",
            help="Expect a user after the times, as in /etc/cron.d; by default, guess.",
        ),
    ] = None,
) -> None:
    """Convert crontabs to loops that run their commands.

    Give the output of `crontab -l`. A report lists the parts that are not carried over.

    Example: crontab -l | scheduler import crontab - --tz Europe/Berlin --out jobs.py
    """
    found = [read_crontab(text, file, tz=_zone(tz), users=users) for file, text in _texts(files)]
    _show(_together(found), out, force, namespace)


@command(imports, "cronjob", asks=False)
def import_cronjob(
    files: Files,
    out: Out = None,
    force: Force = False,
    namespace: Namespace = None,
    tz: Zone = None,
) -> None:
    """Convert Kubernetes CronJobs to loops that run their commands.

    Give the output of `kubectl get cronjobs -o yaml`. The command needs the extra `import`. A
    report lists the parts that are not carried over.

    Example: kubectl get cronjobs -o yaml | scheduler import cronjob - --out jobs.py
    """
    found = [read_cronjobs(text, file, tz=_zone(tz)) for file, text in _texts(files)]
    _show(_together(found), out, force, namespace)


def _zone(name: str | None) -> str | None:
    """Return the zone of --tz, or raise a UsageError if there is none of this name."""
    try:
        return None if name is None else Cron("* * * * *", tz=name).tz
    except ScheduleError as error:
        raise UsageError(f"--{error}") from None


def _together(found: Sequence[Found]) -> Found:
    jobs = [job for each in found for job in each.jobs]
    return replace(found[0], jobs=jobs, notes=[note for each in found for note in each.notes])


def _texts(files: list[str]) -> Iterator[tuple[str, str]]:
    """Read files; return each with its name."""
    for file in files:
        try:
            data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
            yield "stdin" if file == STDIN else file, data.decode("utf-8-sig")
        except IsADirectoryError:
            raise UsageError(f"{file} is a folder: name its files, such as {file}/*.py.") from None
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise UsageError(f"{file} cannot be read: it is not UTF-8 text.") from None


def _show(found: Found, out: str | None, force: bool, namespace: str | None) -> None:
    """Write the code of the jobs to a file, or to stdout; report the findings on stderr."""
    if force and out is None:
        raise UsageError("--force is for --out: give both, or none.")
    found = replace(found, namespace=_namespace(found, namespace))
    if not found.jobs:
        _report(found, "")
        raise SchedulerError("Nothing in the files can be carried over.")
    code, as_json = code_of(found), AS_JSON.get()
    next_step = "" if as_json else "Nothing was written: --out FILE does that."
    if out is not None:
        _write(code, Path(out), force)
        next_step = f"Written: {out}. `scheduler next {out}` shows when its loops run."
    elif not as_json:
        sys.stdout.write(code)
    if as_json:
        print_json(_plain(found, code, out))
    _report(found, next_step)


def _namespace(found: Found, wanted: str | None) -> str:
    if wanted is None:
        return re.sub(r"[^A-Za-z0-9_-]+", "-", found.namespace)[:64].strip("-") or found.kind
    if not NAMESPACE.fullmatch(wanted):
        problem = "--namespace has 1 to 64 letters, digits, '_' or '-'"
        raise UsageError(f"{problem}, got {wanted!r}.")
    return wanted


def _write(code: str, path: Path, force: bool) -> None:
    if path.suffix != ".py":
        raise UsageError(f"--out: expected a Python file, such as jobs.py, got {str(path)!r}.")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(code)
    except FileExistsError:
        problem = "is there already: nothing was written. --force writes over it."
        raise UsageError(f"{path} {problem}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None


def _plain(found: Found, code: str, out: str | None) -> dict[str, object]:
    return {
        "loops": sum(job.schedule is not None for job in found.jobs),
        "tasks": sum(job.schedule is None for job in found.jobs),
        "left": [{**asdict(note.place), "what": note.text} for note in found.left],
        "written": out,
        "code": code,
    }


def _report(found: Found, next_step: str) -> None:
    loops = sum(job.schedule is not None for job in found.jobs)
    tasks = len(found.jobs) - loops
    said = " and ".join([counted(loops, "loop"), *([counted(tasks, "task")] if tasks else [])])
    lines = [f"{said}; not carried over, or not as it was:" if found.left else f"{said}."]
    lines += [*(f"  {note}" for note in found.left), *([next_step] if next_step else [])]
    sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))
