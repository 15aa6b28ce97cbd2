"""Draw for people: tables, complete when piped, fitted to a terminal; progress."""

import os
import sys
import textwrap
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TimeElapsedColumn,
)
from rich.progress import (
    TextColumn as Words,
)
from rich.text import Text

from scheduler.cli.printing import Row, print_json, print_line, relative, seconds
from scheduler.protocol.messages import flat
from scheduler.timing.clock import SystemClock
from scheduler.timing.moments import exact

GAP = "  "
LEAST = 12  # columns for a shortened cell
BAR = 20  # columns: with words and thousands next to it, it fits in 80
SHORT = 8  # characters of an ID

GOOD, ODD, BAD = "green", "yellow", "red"
STYLES: Mapping[str, str] = {
    **dict.fromkeys(("running", "succeeded", "created", "resumed", "replayed", "ok"), GOOD),
    **dict.fromkeys(("paused", "retried", "skipped", "stopped", "cancelled", "removed"), ODD),
    **dict.fromkeys(("repaired", "warning"), ODD),
    **dict.fromkeys(("lost", "unseeded", "escalated", "parked", "PROBLEM"), BAD),
}
"""The colors of states on a terminal, besides their names."""
COLOURED = ("STATE", "LAST", "WHAT", "SEED")
CUT = ("NOTE", "ERROR", "SCHEDULE")

E = TypeVar("E")


class CellForms(NamedTuple):
    """Choose between a cell of a complete table, and one of a brief table."""

    whole: str
    brief: str


def _fields(thing: Any) -> Row:
    return asdict(thing)


@dataclass(frozen=True)
class Table(Generic[E]):
    """Define the columns of a table.

    Attributes:
        columns: returns a cell, by the name of its column: a moment is exact, and relative in a
            brief table.
        brief: the columns to keep if not all fit. In a terminal, a last one of `CUT` may be
            shortened.
        row: returns the JSON form of each thing.
        nothing: the text of an empty table; empty: the table has no rows.
    """

    columns: Mapping[str, Callable[[E], object]]
    brief: Sequence[str]
    row: Callable[[E], Row] = _fields
    nothing: str = ""

    def lines(self, things: Iterable[E], width: int | None) -> Iterator[Text]:
        """Format things, which can be iterated twice, and need not fit into memory.

        Args:
            width: of the terminal; None: complete, for a program, or grep.
        """
        names, now = tuple(self.columns), None
        widths = self._widths(things, names, now)
        if width is not None:
            widths = _fitted(names, widths, width, LEAST)
            if sum(widths) + len(GAP) * (len(widths) - 1) > width:
                names, now = tuple(self.brief), SystemClock().now()
                widths = self._widths(things, names, now)
                widths = _fitted(names, widths, width, len(names[-1]))
        yield _line(names, widths, ["bold"] * len(widths))
        coloured = [name in COLOURED for name in names]
        for row in self._rows(things, names, now):
            styles = [
                STYLES.get(cell, "") if is_state else ""
                for is_state, cell in zip(coloured, row, strict=True)
            ]
            yield _line(row, widths, styles)

    def _widths(
        self, things: Iterable[E], names: Sequence[str], now: datetime | None
    ) -> Sequence[int]:
        widths = [cell_len(name) for name in names]
        for row in self._rows(things, names, now):
            widths = [max(width, cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        return widths

    def _rows(
        self, things: Iterable[E], names: Sequence[str], now: datetime | None
    ) -> Iterator[list[str]]:
        columns = [self.columns[name] for name in names]
        return ([flat(_text(of(thing), now)) for of in columns] for thing in things)


def _text(value: object, now: datetime | None) -> str:
    """Format a cell, of a brief table if `now` is given."""
    match value:
        case None:
            return ""
        case CellForms():
            return value.whole if now is None else value.brief
        case datetime():
            return exact(value, value.tzinfo) if now is None else relative(value, now)
        case timedelta():
            return seconds(value)
        case _:
            return str(value)


def _fitted(names: Sequence[str], widths: Sequence[int], width: int, least: int) -> Sequence[int]:
    """Fit columns into a terminal: only a last one of `CUT` is shortened.

    Args:
        least: the minimum width of the last one.
    """
    *others, last = widths
    room = width - sum(others) - len(GAP) * len(others)
    return [*others, min(last, max(room, least))] if names[-1] in CUT else widths


def _line(cells: Sequence[str], widths: Sequence[int], styles: Sequence[str]) -> Text:
    line = Text()
    for cell, width, style in zip(cells, widths, styles, strict=True):
        line.append(_cut(cell, width), style=style)
        line.append(" " * (width - cell_len(cell)) + GAP)
    line.rstrip()
    return line


def _cut(cell: str, width: int) -> str:
    return cell if cell_len(cell) <= width else f"{set_cell_size(cell, width - 1).rstrip()}…"


def show(things: Sequence[E], table: Table[E], as_json: bool) -> None:
    """Print things: as JSON, or as a table, or that there are none."""
    if as_json:
        print_json([table.row(each) for each in things])
    elif table.nothing and not things:
        print_line(table.nothing)
    else:
        print_table(things, table)


def print_table(things: Iterable[E], table: Table[E]) -> None:
    print_lines(table.lines(things, width()))


def print_lines(lines: Iterable[Text]) -> None:
    terminal = console() if sys.stdout.isatty() else None
    for line in lines:
        if terminal is None:
            sys.stdout.write(f"{line.plain}\n")
        else:
            terminal.print(line, soft_wrap=True)


def width() -> int | None:
    """Return the width of the output's terminal; None: it is not a terminal."""
    return console().width if sys.stdout.isatty() else None


def shortened(ids: Iterable[str]) -> dict[str, str]:
    """Shorten each ID to a unique prefix, which commands accept."""
    ordered = sorted(set(ids))
    least = dict.fromkeys(ordered, SHORT)
    for one, other in pairwise(ordered):
        common = len(os.path.commonprefix([one, other])) + 1
        least[one], least[other] = max(least[one], common), max(least[other], common)
    return {name: name[:length] for name, length in least.items()}


def print_paragraph(text: str, mark: str = "", *, indent: int, broken: bool = True) -> None:
    """Print a text behind a mark; wrapped in a terminal, unless it is for copying."""
    room = (width() or sys.maxsize) - indent if broken else sys.maxsize
    lines = textwrap.wrap(
        flat(text), max(room, LEAST), break_long_words=False, break_on_hyphens=False
    )
    marks = (mark, *[""] * len(lines))
    print_lines(
        Text(set_cell_size(each, indent), style=STYLES.get(each, "")).append(line, style="default")
        for each, line in zip(marks, lines, strict=False)
    )


def console() -> Console:
    """Return the console: without colors if output is piped, or NO_COLOR is set."""
    # Programs and grep read piped output: a line is a line.
    width = None if sys.stdout.isatty() else 1000
    return Console(width=width, highlight=False, markup=False)


class Work:
    """Count the progress of work."""

    def __init__(self, shown: Progress, what: str) -> None:
        self._shown = shown
        self._task = shown.add_task(what, total=None)

    def expect(self, total: int) -> None:
        self._shown.update(self._task, total=total)

    def advance(self) -> None:
        self._shown.advance(self._task)


@contextmanager
def working(what: str, *, counted: bool, as_json: bool) -> Generator[Work]:
    """Show the progress of work inside the block, on a terminal.

    Args:
        counted: whether it counts; else only the time is shown.
    """
    counts = (BarColumn(BAR), MofNCompleteColumn()) if counted else ()
    shown = Progress(
        SpinnerColumn(),
        Words("{task.description}"),
        *counts,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        # Otherwise piped output would be shown instead.
        redirect_stdout=sys.stdout.isatty(),
        disable=as_json or not sys.stderr.isatty(),
    )
    with shown:
        yield Work(shown, what)
