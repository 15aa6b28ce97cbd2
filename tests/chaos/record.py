"""What happened, as every process of the storm writes it down: one line of JSON each."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that happened.

    Attributes:
        at: when, in seconds of the monotonic clock, which all processes of a machine share.
        who: the process; a new one in the place of an old one has another name.
        what: a moment of a run's body (start, end, failed, cancelled), the name of an event, or
            what the runner, the sender and the operator did.
        message: the id of a one-off message, or the name of a named one-off.
        carried: what the run was handed by the one before.
        epoch: of a run's token; of a verb's report, the epoch that it began.
        life: of a run's token: the epoch of its loop's last start.
        schedule: with which the run's token goes on; which a verb gives to the loop.
        silent: how many processors have not answered, as a verb reports.
        detail: the kind of a fault, for example.
    """

    at: float
    who: str
    what: str
    loop: str = ""
    seq: int = -1
    attempt: int = 0
    message: str = ""
    carried: int | None = None
    redelivered: bool = False
    epoch: int = 0
    life: int = 0
    schedule: str = ""
    silent: int = 0
    detail: str = ""

    @property
    def progress(self) -> tuple[int, int]:
        """How far the loop had come."""
        return self.seq, self.attempt


class Pen:
    """Writes notes in the name of one process; O_APPEND keeps the lines of many of them whole."""

    def __init__(self, path: Path, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._who = who

    def __call__(self, what: str, **facts: Any) -> None:
        line = json.dumps({"at": time.monotonic(), "who": self._who, "what": what} | facts)
        os.write(self._file, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self._file)


class Reader:
    """Reads a record that grows."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open()
        self._rest = ""

    def new(self) -> Iterator[Note]:
        """What has been written since the last look."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            yield Note(**json.loads(line))

    def close(self) -> None:
        self._file.close()
