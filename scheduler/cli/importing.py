"""Entering somebody's code: what is wrong with it is told in a line, with the lines of theirs."""

import sysconfig
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import scheduler
from scheduler.errors import AppNotFound, LifespanError, UsageError
from scheduler.protocol.messages import printable, summary_of

OURS = (str(Path(scheduler.__file__).parent), "<frozen ")
INSTALLED = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))


@contextmanager
def importing(place: str) -> Generator[None]:
    """Have whatever the code raises that is imported inside the block say where that was.

    Raises:
        UsageError: the code has raised something.
    """
    try:
        yield
    except AppNotFound:
        raise
    except UsageError as error:
        where = "".join(f" ({each.filename}, line {each.lineno})" for each in _theirs(error)[-1:])
        raise type(error)(f"{error}{where}") from None
    except Exception as error:
        told = f"{place} cannot be imported: {summary_of(error)}"
        raise UsageError(_with_lines(told, error)) from error


@contextmanager
def in_lifespan() -> Generator[None]:
    """Have a lifespan that fails inside the block say where in it that was.

    Raises:
        LifespanError: it has failed.
    """
    try:
        yield
    except LifespanError as error:
        cause = error.__cause__ or error
        raise LifespanError(_with_lines(str(error), cause)) from cause


def _with_lines(told: str, error: BaseException) -> str:
    lines = traceback.format_list(_theirs(error))
    return printable(f"{told}\n{''.join(lines)}".rstrip())


def _theirs(error: BaseException) -> list[traceback.FrameSummary]:
    """The lines of their code that led to the error; those of what they use only if it has none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OURS)
    ]
    return [each for each in frames if not each.filename.startswith(INSTALLED)] or frames
