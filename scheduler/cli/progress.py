"""How far long work has come: on a terminal, beside the output, and gone at its end."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from rich.progress import TextColumn as Words

BAR = 20  # columns: with words and thousands beside it, it fits in 80


class Work:
    """Work that goes on, and whom it is shown to; None: nobody."""

    def __init__(self, shown: Progress | None = None, what: str = "") -> None:
        self._shown = shown
        self._task = None if shown is None else shown.add_task(what, total=None)

    def expect(self, total: int) -> None:
        """So much is to be done."""
        if self._shown is not None and self._task is not None:
            self._shown.update(self._task, total=total)

    def advance(self) -> None:
        """One more of it is done."""
        if self._shown is not None and self._task is not None:
            self._shown.advance(self._task)


@contextmanager
def working(what: str, *, counted: bool, as_json: bool) -> Generator[Work]:
    """Show inside the block how far the work has come, if somebody sits at a terminal.

    Args:
        counted: whether it tells what is done; else only the time is shown.
    """
    if as_json or not sys.stderr.isatty():
        yield Work()
        return
    counts = (BarColumn(BAR), MofNCompleteColumn()) if counted else ()
    shown = Progress(
        SpinnerColumn(),
        Words("{task.description}"),
        *counts,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        # Else what is piped elsewhere would be shown instead.
        redirect_stdout=sys.stdout.isatty(),
    )
    with shown:
        yield Work(shown, what)
