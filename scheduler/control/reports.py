"""Report operations on loops: the actor, and the effect."""

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
    """Set the person that is the actor of operations inside the block, besides the program."""
    token = _ACTING.set(one_line(name))
    try:
        yield
    finally:
        _ACTING.reset(token)


def user_here() -> str:
    """Return the user of this program, if this machine knows."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # which of them depends on the version of Python
        return str(os.getuid()) if hasattr(os, "getuid") else ""


def operator_here() -> str:
    """Return the user of this program, and the machine."""
    return f"{user_here() or 'unknown'}@{socket.gethostname()}"


def actor(program: str) -> str:
    """Return the actor: a person, if known, at a program."""
    name = _ACTING.get()
    return f"{name} at {program}" if name else program


class Effect(StrEnum):
    """Name the effect of a verb on a loop."""

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
    """Report the effect of a verb on a loop.

    Attributes:
        due_at: when the loop is due; None: it is paused or gone, or unknown.
        is_paused: whether the loop is paused.
        silent: the processors that have not confirmed it: they may start one more run.
    """

    loop: Loop
    did: Effect
    due_at: datetime | None = None
    is_paused: bool = False
    silent: Sequence[str] = ()
