"""Tables and trees, for people."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from scheduler.protocol.messages import printable


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*head, box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = not sys.stdout.isatty()
    for row in rows:
        table.add_row(*map(printable, row))
    _console().print(table)


def print_tree(tree: Tree) -> None:
    _console().print(tree)


def _console() -> Console:
    # Piped output is read by programs and by grep: no colour, and a line is a line.
    width = None if sys.stdout.isatty() else 1000
    return Console(width=width, highlight=False, markup=False)
