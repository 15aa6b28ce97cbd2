"""What a process under test writes down, for the test that started it."""

import json
import os
import signal
import time
from pathlib import Path

RECORD = Path(os.environ["RECORD"])


def note(what: str, **facts: object) -> None:
    """Append a line; O_APPEND keeps the lines of many processes whole."""
    line = {"at": time.monotonic(), "pid": os.getpid(), "what": what, **facts}
    with RECORD.open("a") as file:
        file.write(json.dumps(line) + "\n")


def die() -> None:
    """End this process, as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
