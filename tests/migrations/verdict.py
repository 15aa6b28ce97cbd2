"""Whether a job moved without a gap: what both sides noted, joined. Without I/O.

A *run* is what was due at one moment, whoever ran it and however often it was tried. Where the two
sides meet is a *seam*.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise, zip_longest
from typing import Any, NamedTuple

CUT_OVER = 60  # seconds, at most, between the end of the one side and the begin of the other


class Line(NamedTuple):
    """What a project noted of a run, or of the sending of a call."""

    job: str
    side: str
    did: str
    at: float
    due: float | None
    key: str | None


class Run(NamedTuple):
    """What was due at one moment.

    Attributes:
        at: when it began.
        moment: what it stands for, as far as it is known: else when it began.
        times: how often it succeeded.
    """

    side: str
    at: float
    moment: float
    times: int


class Kind:
    """What a job is due for: what it is asked for its runs, in the order of their moments."""

    def missing(self, runs: Sequence[Run]) -> Iterator[str]:
        """Runs that there should be."""
        return iter(())

    def doubled(self, runs: Sequence[Run]) -> Iterator[str]:
        """Runs of one moment."""
        return iter(())

    def early(self, runs: Sequence[Run]) -> Iterator[str]:
        """Runs before their moment."""
        return iter(())

    def made_up_for(self, runs: Sequence[Run]) -> int:
        """How many went by over a seam, for which another run was made."""
        return 0

    def seams(self, runs: Sequence[Run]) -> list[tuple[Run, Run]]:
        """The last run of the one side, and the first of the other."""
        return [(before, after) for before, after in pairwise(runs) if before.side != after.side]


@dataclass(frozen=True, slots=True)
class Every(Kind):
    """A job that runs each period.

    The two sides count from different moments: over a seam one wait may be shorter, not longer.
    Where only the begin of a run is known, it may have been held up, and the next one not: so of a
    stretch on one side, runs are counted.

    Attributes:
        once_for_all: the side that runs once for all that went by over a seam.
        after_each: whether ours counts from the run before, and not on a grid.
    """

    seconds: float
    once_for_all: str = ""
    after_each: bool = False

    def missing(self, runs: Sequence[Run]) -> Iterator[str]:
        for before, after in pairwise(runs):
            if (gone := self._between(before, after)) and not self._makes_up(before, after):
                yield f"{gone} between {shown(before)} and {shown(after)}"

    def doubled(self, runs: Sequence[Run]) -> Iterator[str]:
        for before, after in pairwise(runs):
            if after.moment <= before.moment:
                yield f"{shown(before)} and {shown(after)}"
        for _, stretch in groupby(runs, key=lambda run: run.side):
            first, *others = stretch
            if others:
                fit = round((others[-1].moment - first.moment) / self.seconds)
                if (more := len(others) - fit) > 0:
                    yield f"{more} between {shown(first)} and {shown(others[-1])}"

    def made_up_for(self, runs: Sequence[Run]) -> int:
        return sum(
            self._between(before, after)
            for before, after in pairwise(runs)
            if self._makes_up(before, after)
        )

    def _between(self, before: Run, after: Run) -> int:
        begin = max(before.at, before.moment) if self.after_each else before.moment
        return max(0, round((after.moment - begin) / self.seconds - 1))

    def _makes_up(self, before: Run, after: Run) -> bool:
        over_a_seam = before.side != after.side == self.once_for_all
        return over_a_seam and after.moment - before.moment < self.seconds + CUT_OVER


@dataclass(frozen=True, slots=True)
class OnGrid(Kind):
    """A job that runs at each multiple of a period, since the Unix epoch and an offset.

    Of 60 s, it runs in each minute, as `* * * * *` says.
    """

    seconds: int
    offset: int = 0

    def missing(self, runs: Sequence[Run]) -> Iterator[str]:
        for before, after in pairwise(runs):
            for number in range(self._number(before) + 1, self._number(after)):
                yield clock(number * self.seconds + self.offset)

    def doubled(self, runs: Sequence[Run]) -> Iterator[str]:
        for before, after in pairwise(runs):
            if self._number(before) == self._number(after):
                yield f"{shown(before)} and {shown(after)}"

    def _number(self, run: Run) -> int:
        return int((run.moment - self.offset) // self.seconds)


class Calls(Kind):
    """Messages that are sent, each to be run once, and not before its moment."""

    def early(self, runs: Sequence[Run]) -> Iterator[str]:
        return (shown(run) for run in runs if run.times and run.at < run.moment)

    def seams(self, runs: Sequence[Run]) -> list[tuple[Run, Run]]:
        """None: those of both sides come in any order."""
        return []


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a job.

    Attributes:
        runs: how many each side had.
        seams, missing, doubled, early, made_up_for: as its `Kind` tells.
    """

    job: str
    runs: Mapping[str, int]
    seams: Sequence[tuple[Run, Run]]
    missing: Sequence[str]
    doubled: Sequence[str]
    early: Sequence[str]
    made_up_for: int

    @property
    def is_well(self) -> bool:
        return bool(self.runs) and not (self.missing or self.doubled or self.early)


def judged(job: str, kind: Kind, lines: Iterable[Line], *, since: float, until: float) -> Judged:
    """What became of a job.

    Args:
        since: what began before is not looked at: whoever runs it may have been about to start.
        until: nor what began, or was to be, later: it may not be through yet.
    """
    runs = [
        run
        for run in taken_over(runs_of(job, lines))
        if run.at >= since and max(run.at, run.moment) <= until
    ]
    failed = (f"{shown(run)} never succeeded" for run in runs if not run.times)
    repeated = (f"{shown(run)} succeeded {run.times} times" for run in runs if run.times > 1)
    return Judged(
        job,
        Counter(run.side for run in runs),
        kind.seams(runs),
        [*failed, *kind.missing(runs)],
        [*repeated, *kind.doubled(runs)],
        list(kind.early(runs)),
        kind.made_up_for(runs),
    )


def wrongs_of(jobs: Sequence[Judged]) -> Iterator[str]:
    """What went wrong, in lines."""
    for each in jobs:
        for word in "missing", "doubled", "early":
            yield from (f"{each.job}: {word}: {what}" for what in getattr(each, word))
        if len(each.runs) < 2:
            yield f"{each.job}: it did not run on both sides"
        elif len(each.seams) == 1:
            yield f"{each.job}: it did not come back"


def runs_of(job: str, lines: Iterable[Line]) -> list[Run]:
    """The runs of a job, by their moments."""
    by_key = dict[object, list[Line]]()
    for number, line in enumerate(lines):
        if line.job == job:
            by_key.setdefault(number if line.key is None else line.key, []).append(line)
    runs = [_run(sorted(each, key=lambda line: line.at)) for each in by_key.values()]
    return sorted(runs, key=lambda run: run.moment)


def taken_over(runs: Sequence[Run]) -> Iterator[Run]:
    """Without those that failed right before a seam: the next run, on the other side, is theirs."""
    for run, following in zip_longest(runs, runs[1:]):
        if run.times or following is None or run.side == following.side:
            yield run


def _run(lines: Sequence[Line]) -> Run:
    attempts = [line for line in lines if line.did != "sent"]
    first = (attempts or lines)[0]
    due = next((line.due for line in lines if line.due is not None), first.at)
    return Run(first.side, first.at, due, sum(line.did == "ran" for line in lines))


def shown(run: Run) -> str:
    return f"{clock(run.moment)} ({run.side})"


def clock(moment: float) -> str:
    """The time of day, in UTC, to a tenth of a second."""
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S.%f")[:-5]


def line_of(row: Mapping[str, Any]) -> Line:
    """What was noted as JSON."""
    return Line(**{name: row[name] for name in Line._fields})
