"""Drawings, as SVG: they are part of the page, and need no script."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import log1p

from markupsafe import Markup

from scheduler.dashboard import wording
from scheduler.dashboard.picture import RUNS_KEPT, Run
from scheduler.protocol.tokens import Ending
from scheduler.timing.durations import milliseconds
from scheduler.timing.moments import milliseconds_since_epoch

BAR, GAP, HEIGHT = 4, 1, 22
SHORTEST = 4
CHART_WIDTH, CHART_HEIGHT = 600, 96
# State is told by shape as well: what failed hangs down from the line, in its colour.
HANGING = (Ending.RETRIED, Ending.ESCALATED, Ending.STOPPED)


def strip(runs: Sequence[Run]) -> Markup:
    """The last runs of a loop, a bar each: as high as it took long; what failed points down.

    What each bar stands for is written beside them, briefly, as pages have many of these: the
    script tells of the one that is pointed at, or come to by the arrow keys.
    """
    longest = max((run.last.duration for run in runs), default=timedelta(0))
    begin = RUNS_KEPT - len(runs)
    strokes: dict[Ending, list[str]] = {}
    for at, run in enumerate(runs):
        strokes.setdefault(run.last.ending, []).append(_stroke(run, begin + at, longest))
    failed = sum(run.last.ending in HANGING for run in runs)
    told = f"last {len(runs)} runs: {failed} failed, the longest took {wording.span(longest)}"
    drawn = [
        Markup('<path class="{}" d="{}"></path>').format(ending.value, "".join(found))
        for ending, found in strokes.items()
    ]
    return Markup(
        '<span class="strip" role="img" aria-label="{told}"{}><svg viewBox="0 0 {} {}" '
        'aria-hidden="true">{}</svg></span>'
    ).format(
        Markup(' tabindex="0" data-runs="{}"').format(" ".join(map(_briefly, runs)))
        if runs
        else "",
        RUNS_KEPT * (BAR + GAP),
        2 * HEIGHT // 3 + HEIGHT,
        Markup("").join(drawn),
        told=told if runs else "no runs were heard of",
    )


def _briefly(run: Run) -> str:
    """How a run has ended, when it started and how long it took, in milliseconds."""
    last = run.last
    began, took = milliseconds_since_epoch(last.started_at), milliseconds(last.duration)
    return f"{last.ending.value[:2]}{began}+{took}"


def _stroke(run: Run, at: int, longest: timedelta) -> str:
    """A bar, from the line up; or down, for what failed."""
    most = log1p(longest.total_seconds() * 1000) or 1
    share = log1p(run.last.duration.total_seconds() * 1000) / most
    height = max(SHORTEST, round(share * HEIGHT))
    middle = at * (BAR + GAP) + BAR / 2
    if run.last.ending in HANGING:
        return f"M{middle:g} {HEIGHT + 1}v{max(SHORTEST, height * 2 // 3)}"
    return f"M{middle:g} {HEIGHT}v-{height}"


def bars(values: Sequence[tuple[datetime, float]], unit: str, classes: str = "") -> Markup:
    """A chart: a bar for each moment, its value to be seen on hover."""
    top = max((value for _, value in values), default=0.0)
    width = CHART_WIDTH / max(len(values), 1)
    drawn = [
        _column(at, value, index, width, top, unit) for index, (at, value) in enumerate(values)
    ]
    told = f"at most {_number(top)} {unit}"
    return Markup(
        '<svg class="chart {}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg><p class="note">{}</p>'
    ).format(classes, CHART_WIDTH, CHART_HEIGHT, told, Markup("").join(drawn), told)


def _column(at: datetime, value: float, index: int, width: float, top: float, unit: str) -> Markup:
    height = 0.0 if not top else value / top * (CHART_HEIGHT - 2)
    if value:
        height = max(height, 2.0)
    title = f"{at:%H:%M} UTC: {_number(value)} {unit}"
    return Markup(
        '<g><rect class="hover" x="{x}" y="0" width="{w}" height="{whole}"></rect>'
        '<rect class="column" x="{x}" y="{y}" width="{bar}" height="{h}"></rect>'
        "<title>{title}</title></g>"
    ).format(
        x=round(index * width, 2),
        w=round(width, 2),
        bar=round(width * 0.8, 2),
        whole=CHART_HEIGHT,
        y=round(CHART_HEIGHT - height, 1),
        h=round(height, 1),
        title=title,
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2f}"


def timeline(runs: Sequence[Run], now: datetime) -> Markup:
    """The last runs on the axis of time: where each was planned, started and ended."""
    if not runs:
        return Markup("")
    begin = min(run.last.scheduled_at for run in runs)
    whole = max((now - begin).total_seconds(), 1.0)

    def at(moment: datetime) -> float:
        return round((moment - begin).total_seconds() / whole * CHART_WIDTH, 2)

    drawn = [_span_of(run, at) for run in runs]
    return Markup(
        '<svg class="chart timeline" viewBox="0 0 {} 60" preserveAspectRatio="none" role="img" '
        'aria-label="{} runs">{}</svg>'
    ).format(CHART_WIDTH, len(runs), Markup("").join(drawn))


def _span_of(run: Run, at: Callable[[datetime], float]) -> Markup:
    last, start = run.last, at(run.last.started_at)
    title = f"#{run.seq} {last.ending.value}: planned "
    title += f"{wording.exact(wording.in_zone(last.scheduled_at))}, {wording.span(last.late)} "
    title += f"late, took {wording.span(last.duration)}"
    return Markup(
        '<g><rect class="plan" x="{}" y="28" width="1.5" height="4"></rect><rect '
        'class="run {}" x="{}" y="{}" width="{}" height="24"><title>{}</title></rect></g>'
    ).format(
        at(last.scheduled_at),
        last.ending.value,
        start,
        2 + (30 if last.ending in HANGING else 0),
        max(at(last.started_at + last.duration) - start, 2.0),
        title,
    )
