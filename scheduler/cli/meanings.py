"""What cron expressions mean, for whoever seeds or asks when they are next."""

import sys
from collections.abc import Iterable, Iterator

from scheduler.cli.printing import print_line
from scheduler.tasks.loops import Loop
from scheduler.timing.phrases import in_words, seconds_first
from scheduler.timing.schedules import Cron, Schedule, describe


def meaning_of(schedule: Schedule) -> str:
    """The schedule in one phrase, in words too where that is a cron expression."""
    if not isinstance(schedule, Cron):
        return describe(schedule)
    return f"{describe(schedule)}: {in_words(schedule.expression)}"


def print_meanings(loops: Iterable[Loop]) -> None:
    """Each cron expression once, in words."""
    for meaning in dict.fromkeys(
        meaning_of(loop.schedule) for loop in loops if isinstance(loop.schedule, Cron)
    ):
        print_line(meaning)


def warn_of_doubts(loops: Iterable[Loop]) -> None:
    """Say on stderr whose seconds may have been meant to stand first."""
    for doubt in _doubts(loops):
        sys.stderr.write(f"scheduler: {doubt}\n")


def _doubts(loops: Iterable[Loop]) -> Iterator[str]:
    for loop in loops:
        if not isinstance(loop.schedule, Cron):
            continue
        written = loop.schedule.expression
        if (meant := seconds_first(written)) is not None:
            yield (
                f"Warning: of the six fields of {loop.id}, {written!r}, the last is the second: "
                f"{in_words(written)}. If the first was meant to be, write "
                f"{meant!r}: {in_words(meant)}."
            )
