"""Files of others, in the forms that projects have them, and what is found in them."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from scheduler import Scheduler
from scheduler.importing.celery import read_celery
from scheduler.importing.crontab import read_cronjobs, read_crontab
from scheduler.importing.writing import NO_FOLDER, NO_LIMIT, Found, ImportedJob, code_of

FORMS = Path(__file__).parent / "unit/importing/forms"


def form(name: str) -> str:
    return (FORMS / name).read_text(encoding="utf-8")


def of_parish() -> Found:
    files = {
        "parish/celery.py": form("parish_celery.txt"),
        "parish/tasks.py": form("parish_tasks.txt"),
    }
    return read_celery(files)


KINDS: dict[str, Callable[[], Found]] = {
    "celery": of_parish,
    "celery of Django": lambda: read_celery({"settings.py": form("settings.txt")}),
    "celery's database": lambda: read_celery({"dump.json": form("dump.json")}),
    "crontab": lambda: read_crontab(form("user.crontab"), "user.crontab"),
    "crontab of the system": lambda: read_crontab(form("system.crontab"), "etc/crontab"),
    "cronjob": lambda: read_cronjobs(form("jobs.yaml"), "jobs.yaml"),
}


def job_of(found: Found, name: str) -> ImportedJob:
    """The last job of a name: loops come after tasks."""
    return [job for job in found.jobs if job.name == name][-1]


def notes_of(found: Found) -> list[str]:
    """Return the notes, but for those of the time limit and the folder, which most have."""
    return [str(note) for note in found.left if note.text not in (NO_LIMIT, NO_FOLDER)]


def module_of(found: Found, folder: Path) -> ModuleType:
    """The code that is written, imported."""
    path = folder / "generated.py"
    path.write_text(code_of(found), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def app_of(found: Found, folder: Path) -> Scheduler:
    app = module_of(found, folder).app
    assert isinstance(app, Scheduler)
    return app
