"""Who acts on loops, as the roster and the journal tell of it, and what was done."""

import getpass
import os
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from scheduler.protocol.messages import one_line
from scheduler.tasks.loops import Loop

_ACTING = ContextVar("acting", default="")


@contextmanager
def acting_as(name: str) -> Generator[None]:
    """Name this person, besides the program, as the actor of what is done inside the block."""
    token = _ACTING.set(one_line(name))
    try:
        yield
    finally:
        _ACTING.reset(token)


def user_here() -> str:
    """Return who runs this program, as far as this machine knows."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # which of them depends on the version of Python
        return str(os.getuid()) if hasattr(os, "getuid") else ""


def operator_here() -> str:
    """Return who runs this program, and on which machine."""
    return f"{user_here() or 'somebody'}@{socket.gethostname()}"


def actor(program: str) -> str:
    """Return who acts: a person, if one is known, at a program."""
    name = _ACTING.get()
    return f"{name} at {program}" if name else program


class Did(StrEnum):
    """What a verb did to a loop."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    RESCHEDULED = "rescheduled"
    RENAMED = "renamed"
    REPAIRED = "repaired"
    PAUSED = "paused"
    RESUMED = "resumed"
    TRIGGERED = "triggered"
    REMOVED = "removed"
    RUNNING = "running"
    NOT_PAUSED = "not paused"
    IS_PAUSED = "is paused"
    NOT_THERE = "not there"
    NOT_SET = "not set"


@dataclass(frozen=True, slots=True)
class Report:
    """A report of what a verb did to a loop.

    Attributes:
        due_at: when the loop is due; None: it is paused or gone, or that is not known.
        is_paused: whether it waits until it is resumed.
        silent: the processors that have not confirmed it: they may start one more run.
    """

    loop: Loop
    did: Did
    due_at: datetime | None = None
    is_paused: bool = False
    silent: Sequence[str] = ()
