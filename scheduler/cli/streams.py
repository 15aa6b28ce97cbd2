"""Standard streams that are closed, or cannot be written to."""

import errno
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


@contextmanager
def standard_streams() -> Generator[None]:
    """Have both streams for output inside the block; what was closed takes everything.

    What cannot be written at the end of it, or before, is told in a line, with exit code 1.
    """
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _give_up_output()  # who reads it has seen enough
        sys.exit(1)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        _give_up_output()
        sys.stderr.write(f"scheduler: The output cannot be written: {error.strerror}.\n")
        sys.exit(1)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _give_up_output() -> None:
    """Let go of what is not written yet: Python would try again when it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
