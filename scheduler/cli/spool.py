"""Rows that wait on disk to be printed: who reads slowly keeps no message in hand."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO, Any

from scheduler.cli.printing import plain


class Spool:
    """Rows in a file, in the order in which they came; each as JSON has it."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Any) -> None:
        self._file.write(json.dumps(row, default=plain) + "\n")
        self._count += 1

    def __iter__(self) -> Iterator[Any]:
        self._file.seek(0)
        return map(json.loads, self._file)


@contextmanager
def spooling() -> Generator[Spool]:
    """Inside the block, rows can be laid out and gone through."""
    with TemporaryFile("w+", encoding="ascii") as file:
        yield Spool(file)
