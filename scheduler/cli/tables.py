"""Tables and trees, for people."""

import sys
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from scheduler.protocol.messages import flat, printable

PAGE = 1000
GAP = "  "


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table of rows that can be gone through twice, and need not fit into memory."""
    if not sys.stdout.isatty():
        return _print_lines(head, rows)
    rest, full = iter(rows), True
    while full:
        table = Table(*head, box=None, pad_edge=False)
        for row in islice(rest, PAGE):
            table.add_row(*map(printable, row))
        _console().print(table)
        full = table.row_count == PAGE


def _print_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Each row in a line, however long: who reads them is a program, or grep."""
    widths = [cell_len(name) for name in head]
    for row in rows:
        widths = [max(width, cell_len(flat(cell))) for width, cell in zip(widths, row, strict=True)]
    for row in chain([head], rows):
        cells = (set_cell_size(flat(cell), width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(GAP.join(cells).rstrip() + "\n")


def print_tree(tree: Tree) -> None:
    _console().print(tree)


def _console() -> Console:
    # Piped output is read by programs and by grep: no colour, and a line is a line.
    width = None if sys.stdout.isatty() else 1000
    return Console(width=width, highlight=False, markup=False)
