"""Draw for people: tables, complete when piped, fitted to a terminal; progress."""

import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from rich.progress import TextColumn as Words
from rich.text import Text

from scheduler.cli.printing import AS_JSON, console, relative, seconds
from scheduler.protocol.messages import flat
from scheduler.timing.moments import SystemClock, exact

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


@dataclass(frozen=True)
class Table(Generic[E]):
    """Define the columns of a table.

    Attributes:
        columns: returns a cell, by the name of its column: a moment is exact, and relative in a
            brief table.
        brief: the columns to keep if not all fit; empty: all. In a terminal, a last one of `CUT`
            may be shortened.
    """

    columns: Mapping[str, Callable[[E], object]]
    brief: Sequence[str] = ()

    def shown(self, things: Iterable[E]) -> Iterator[Text]:
        """Format things for the output of this program."""
        return self.lines(things, width())

    def lines(self, things: Iterable[E], width: int | None) -> Iterator[Text]:
        """Format things, which are iterated twice, for a terminal of a width; None: completely."""
        names = tuple(self.columns)
        rows = self._rows(things, names, None)
        widths = _widths(names, rows)
        if width is not None:
            widths = _fitted(names, widths, width, LEAST)
            if sum(widths) + len(GAP) * (len(widths) - 1) > width:
                names = tuple(self.brief or self.columns)
                rows = self._rows(things, names, SystemClock().now())
                widths = _fitted(names, _widths(names, rows), width, len(names[-1]))
        yield _line(names, widths, ["bold"] * len(widths))
        for row in rows:
            cells = zip(names, row, strict=True)
            styles = [STYLES.get(cell, "") if name in COLOURED else "" for name, cell in cells]
            yield _line(row, widths, styles)

    def _rows(
        self, things: Iterable[E], names: Sequence[str], now: datetime | None
    ) -> list[list[str]]:
        columns = [self.columns[name] for name in names]
        return [[flat(_text(of(thing), now)) for of in columns] for thing in things]


def _widths(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Sequence[int]:
    return [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]


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
    """Fit columns into a terminal: only a last one of `CUT` is shortened, to `least`."""
    *others, last = widths
    room = width - sum(others) - len(GAP) * len(others)
    return [*others, min(last, max(room, least))] if names[-1] in CUT else widths


def _line(cells: Sequence[str], widths: Sequence[int], styles: Sequence[str]) -> Text:
    line = Text()
    for cell, width, style in zip(cells, widths, styles, strict=True):
        is_cut = cell_len(cell) > width
        cell = f"{set_cell_size(cell, width - 1).rstrip()}…" if is_cut else cell
        line.append(cell, style=style)
        line.append(" " * (width - cell_len(cell)) + GAP)
    line.rstrip()
    return line


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


def paragraph(text: str, mark: str = "", *, indent: int, broken: bool = True) -> Iterator[Text]:
    """Format a text behind a mark; wrapped in a terminal, unless it is for copying."""
    room = (width() or sys.maxsize) - indent if broken else sys.maxsize
    lines = textwrap.wrap(
        flat(text), max(room, LEAST), break_long_words=False, break_on_hyphens=False
    )
    for at, line in enumerate(lines):
        each = "" if at else mark
        begin = Text(set_cell_size(each, indent), style=STYLES.get(each, ""))
        yield begin.append(line, style="default")


class Work:
    """Count the progress of work, or only its time, and show it on a terminal inside a block."""

    def __init__(self, what: str, *, counted: bool) -> None:
        counts = (BarColumn(BAR), MofNCompleteColumn()) if counted else ()
        self._shown = Progress(
            SpinnerColumn(),
            Words("{task.description}"),
            *counts,
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            # Otherwise piped output would be shown instead.
            redirect_stdout=sys.stdout.isatty(),
            disable=AS_JSON.get() or not sys.stderr.isatty(),
        )
        self._task = self._shown.add_task(what, total=None)

    def __enter__(self) -> "Work":
        self._shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.stop()

    def expect(self, total: int) -> None:
        self._shown.update(self._task, total=total)

    def advance(self) -> None:
        self._shown.advance(self._task)
