"""What a shell completes besides commands and options: names that the code of the app has.

No broker is asked, so that keyed loops are not known. Of an app that is not there, or cannot be
imported, nothing is completed, and nothing is said of it: somebody is in the middle of a line.
"""

import io
from collections.abc import MutableMapping
from contextlib import redirect_stderr, redirect_stdout

from scheduler.app import Scheduler
from scheduler.cli.loading import load_app
from scheduler.errors import SchedulerError

WORDS, CURRENT = "COMP_WORDS", "COMP_CWORD"


def loops(reference: str | None) -> list[str]:
    """The names of the app's loops."""
    app = _app(reference)
    return [] if app is None else [str(loop) for loop in app.loops]


def tasks(reference: str | None) -> list[str]:
    """The names of the app's tasks."""
    app = _app(reference)
    return [] if app is None else list(app.tasks)


def one_more_task(reference: str | None, begun: str) -> list[str]:
    """What names of tasks with commas between them may go on with: the last one is not whole."""
    *before, _ = begun.split(",")
    others = [name for name in tasks(reference) if name not in before]
    return [",".join([*before, name]) for name in others]


def rejoin_words(environment: MutableMapping[str, str]) -> None:
    """Put words together again that bash has parted at their colons, as in `shop.py:app`."""
    if WORDS not in environment or CURRENT not in environment:
        return  # it is another shell
    current = int(environment[CURRENT])
    parts = environment[WORDS].split("\n")[: current + 1]
    whole = parts[:1]
    for part in parts[1:]:
        if part == ":" or whole[-1].endswith(":"):
            whole[-1] += part
        else:
            whole.append(part)
    environment[WORDS] = "\n".join(whole)
    environment[CURRENT] = str(current - len(parts) + len(whole))


def _app(reference: str | None) -> Scheduler | None:
    # What the code prints would be taken for what is completed.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            return load_app(reference)
        except (SchedulerError, SystemExit):
            return None
