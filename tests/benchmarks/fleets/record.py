"""What each process of a fleet writes down: which loop ran, and when. Needs nothing but Python."""

import math
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LOOPS = int(os.environ.get("FLEET_LOOPS", "1"))
EVERY = float(os.environ.get("FLEET_EVERY", "1"))
SPREAD = os.environ.get("FLEET_SPREAD") == "1"
URL = os.environ.get("FLEET_URL", "")
NAME = os.environ.get("FLEET_NAME", "fleet")
ROW = struct.Struct("<idd")
_files = dict[int, int]()  # by process: some libraries fork


def offset_of(loop: int) -> float:
    """Seconds after the beginning of each period at which a loop is due."""
    return loop / LOOPS * EVERY if SPREAD else 0.0


class Ran(NamedTuple):
    """A run: when it began, and, where a fleet knows, when it was due (seconds, Unix epoch)."""

    loop: int
    at: float
    due: float


def ran(loop: int, due: float = math.nan) -> None:
    """Take note of a run that begins now."""
    now = time.time()  # noqa: TID251
    process = os.getpid()
    if process not in _files:
        path = Path(os.environ["FLEET_RECORDS"]) / str(process)
        _files[process] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_files[process], ROW.pack(loop, now, due))


def runs_in(records: Path) -> Iterator[Ran]:
    """All that was written down."""
    for path in records.iterdir():
        data = path.read_bytes()
        yield from map(Ran._make, ROW.iter_unpack(data[: len(data) // ROW.size * ROW.size]))
