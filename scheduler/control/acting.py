"""Who it is that acts: told in the roster and in the journal of what is done to loops."""

import getpass
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from scheduler.protocol.messages import one_line

_ACTING = ContextVar("acting", default="")


@contextmanager
def acting_as(name: str) -> Generator[None]:
    """Have what is done inside the block be told of this person, besides the program."""
    token = _ACTING.set(one_line(name))
    try:
        yield
    finally:
        _ACTING.reset(token)


def user_here() -> str:
    """Who runs this program, as far as this machine knows."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # which of them depends on the version of Python
        return str(os.getuid()) if hasattr(os, "getuid") else ""


def operator_here() -> str:
    """The same, and on which machine."""
    return f"{user_here() or 'somebody'}@{socket.gethostname()}"


def actor(program: str) -> str:
    """Who acts: a person, if one is known, at a program."""
    name = _ACTING.get()
    return f"{name} at {program}" if name else program
