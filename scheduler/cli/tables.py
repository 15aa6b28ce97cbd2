"""Tables and trees, for people: whole where they are piped, and as much as fits in a terminal."""

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from scheduler.protocol.messages import flat

GAP = "  "
LEAST = 12  # columns for what may be cut

GOOD, ODD, BAD = "green", "yellow", "red"
STYLES: Mapping[str, str] = {
    **dict.fromkeys(("running", "succeeded", "created", "resumed", "replayed", "ok"), GOOD),
    **dict.fromkeys(("paused", "retried", "skipped", "stopped", "cancelled"), ODD),
    **dict.fromkeys(("repaired", "warning"), ODD),
    **dict.fromkeys(("lost", "unseeded", "escalated", "parked", "PROBLEM"), BAD),
}
"""The colours of states on a terminal, which names them in words as well."""
COLOURED = ("STATE", "LAST", "WHAT", "SEED")
CUT = ("NOTE", "ERROR", "SCHEDULE")

E = TypeVar("E")


@dataclass(frozen=True)
class Columns(Generic[E]):
    """What is shown of each thing.

    Attributes:
        head: the names of the columns; in a terminal, what is in a last one of `CUT` may be cut.
    """

    head: tuple[str, ...]
    cells: Callable[[E], Sequence[str]]

    def rows(self, things: Iterable[E]) -> Iterator[list[str]]:
        return ([flat(cell) for cell in self.cells(thing)] for thing in things)

    def widths(self, things: Iterable[E]) -> list[int]:
        widths = [cell_len(name) for name in self.head]
        for row in self.rows(things):
            widths = [max(width, cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        return widths

    def fitted(self, widths: Sequence[int], width: int, least: int) -> list[int]:
        """The widths of the columns in a terminal: none but a last one is less than its cells.

        Args:
            least: that of the last one, whatever is left for it.
        """
        *others, last = widths
        room = width - sum(others) - len(GAP) * len(others)
        return [*others, min(last, max(room, least))] if self.head[-1] in CUT else list(widths)


def print_table(things: Iterable[E], whole: Columns[E], brief: Columns[E]) -> None:
    """A line for each of things that can be gone through twice, and need not fit into memory.

    A program, or grep, is given the whole, however long; who sits at a terminal, too, if it fits
    there: else what is brief.
    """
    if sys.stdout.isatty():
        terminal = console()
        for line in fitting(things, whole, brief, terminal.width):
            terminal.print(line, soft_wrap=True)
    else:
        for line in _laid_out(things, whole, whole.widths(things)):
            sys.stdout.write(f"{line.plain}\n")


def fitting(
    things: Iterable[E], whole: Columns[E], brief: Columns[E], width: int
) -> Iterator[Text]:
    """The lines of a table in a terminal that is so wide."""
    widths = whole.fitted(whole.widths(things), width, LEAST)
    if sum(widths) + len(GAP) * (len(widths) - 1) <= width:
        return _laid_out(things, whole, widths)
    widths = brief.fitted(brief.widths(things), width, len(brief.head[-1]))
    return _laid_out(things, brief, widths)


def _laid_out(things: Iterable[E], columns: Columns[E], widths: Sequence[int]) -> Iterator[Text]:
    coloured = [name in COLOURED for name in columns.head]
    yield _line(columns.head, widths, ["bold"] * len(widths))
    for row in columns.rows(things):
        styles = [
            STYLES.get(cell, "") if is_state else ""
            for is_state, cell in zip(coloured, row, strict=True)
        ]
        yield _line(row, widths, styles)


def _line(cells: Sequence[str], widths: Sequence[int], styles: Sequence[str]) -> Text:
    line = Text()
    for cell, width, style in zip(cells, widths, styles, strict=True):
        line.append(_cut(cell, width), style=style)
        line.append(" " * (width - cell_len(cell)) + GAP)
    line.rstrip()
    return line


def _cut(cell: str, width: int) -> str:
    return cell if cell_len(cell) <= width else f"{set_cell_size(cell, width - 1).rstrip()}…"


def print_paragraph(text: str, mark: str = "", *, indent: int, broken: bool = True) -> None:
    """A text behind a mark; in a terminal, broken between its words, unless it is to be copied."""
    terminal = console()
    width = terminal.width - indent if broken and sys.stdout.isatty() else sys.maxsize
    lines = textwrap.wrap(
        flat(text), max(width, LEAST), break_long_words=False, break_on_hyphens=False
    )
    for line in lines:
        marked = Text(set_cell_size(mark, indent), style=STYLES.get(mark, ""))
        terminal.print(marked.append(line, style="default"), soft_wrap=True)
        mark = ""


def print_tree(tree: Tree) -> None:
    console().print(tree)


def console() -> Console:
    """Where output goes: without colour where it is piped, or NO_COLOR is set."""
    # Piped output is read by programs and by grep: a line is a line.
    width = None if sys.stdout.isatty() else 1000
    return Console(width=width, highlight=False, markup=False)
