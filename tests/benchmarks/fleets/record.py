"""What each process of a fleet writes down: which loop ran, and when. Needs nothing but Python."""

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

LOOPS = int(os.environ.get("FLEET_LOOPS", "1"))
SPREAD = os.environ.get("FLEET_SPREAD") == "1"
URL = os.environ.get("FLEET_URL", "")
NAME = os.environ.get("FLEET_NAME", "fleet")
ROW = struct.Struct("<id")
_files = dict[int, int]()  # by process: some libraries fork


def offset_of(loop: int) -> float:
    """Seconds after each full one at which a loop is due."""
    return loop / LOOPS if SPREAD else 0.0


def ran(loop: int) -> None:
    """Take note of a run that begins now."""
    now = time.time()  # noqa: TID251
    process = os.getpid()
    if process not in _files:
        path = Path(os.environ["FLEET_RECORDS"]) / str(process)
        _files[process] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_files[process], ROW.pack(loop, now))


def runs_in(records: Path) -> Iterator[tuple[int, float]]:
    """All that was written down: which loop, and when, in seconds since the Unix epoch."""
    for path in records.iterdir():
        data = path.read_bytes()
        yield from ROW.iter_unpack(data[: len(data) // ROW.size * ROW.size])
