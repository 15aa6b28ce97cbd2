"""Draw runs and charts as inline SVG. They are part of the page, and need no script."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import groupby
from math import floor, log1p, log10

from markupsafe import Markup, escape

from scheduler.dashboard.picture import RUNS_KEPT, PastRun
from scheduler.dashboard.wording import in_full, span
from scheduler.protocol.tokens import Ending
from scheduler.spelling import counted

WIDTH, HEIGHT = 600, 96
LABELS = 5
LONG = timedelta(days=2)
STEPS = (1, 2, 5, 10)
BAR, GAP, BAR_HEIGHT = 4, 1, 22
SHORTEST = 4
SPARK_WIDTH, SPARK_HEIGHT = 132, 23
# Shape shows the state as well: failed runs hang down from the line, in their colour.
HANGING = (Ending.RETRIED, Ending.ESCALATED, Ending.STOPPED)
UNSCALED = {"vector-effect": "non-scaling-stroke"}


def element(tag: str, attributes: Mapping[str, object], *inside: object) -> Markup:
    """Mark up an element; an attribute without a value is left out."""
    given = ((name, value) for name, value in attributes.items() if value not in (None, ""))
    written = "".join(f' {name}="{escape(value)}"' for name, value in given)
    return Markup(f"<{tag}{written}>{''.join(map(escape, inside))}</{tag}>")


def image(classes: str, label: str, height: int, *drawn: Markup, width: int = WIDTH) -> Markup:
    """Draw an image as wide as its place."""
    scaled = {"viewBox": f"0 0 {width} {height}", "preserveAspectRatio": "none", "role": "img"}
    return element("svg", {"class": classes, **scaled, "aria-label": label}, *drawn)


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """Hold the values of one kind, one for each moment of a chart; None: unknown."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark an event that may explain a change: its kind is "pause" or "deployment"."""

    at: datetime
    kind: str
    what: str


@dataclass(frozen=True)
class Chart:
    """Draw values over time, oldest first, as stacked bars or as lines."""

    title: str
    unit: str
    moments: Sequence[datetime]
    series: Sequence[ChartSeries]
    are_lines: bool = False
    marks: Sequence[Mark] = ()

    @cached_property
    def top(self) -> float:
        """Return the value at the upper end of the axis: 2, 5 or 10 times a power of ten."""
        columns = zip(*(each.values for each in self.series), strict=True)
        sizes = ([value or 0.0 for value in column] for column in columns)
        most = max((max(size) if self.are_lines else sum(size) for size in sizes), default=0.0)
        if most <= 2:
            return 2.0
        scale = 10.0 ** floor(log10(most))
        return next(step * scale for step in STEPS if step * scale >= most)

    @property
    def axis(self) -> Sequence[datetime]:
        """Return the moments that are labelled under it."""
        last = len(self.moments) - 1
        return [self.moments[last * each // (LABELS - 1)] for each in range(LABELS)]

    @property
    def is_long(self) -> bool:
        """Return whether labels are days rather than times of day."""
        return self.moments[-1] - self.moments[0] > LONG

    @cached_property
    def svg(self) -> Markup:
        drawn = [*(self._paths() if self.are_lines else ()), *self._columns(), *self._marks()]
        return image("chart", f"{self.title}: {self._at(-1)}", HEIGHT, *drawn)

    def _at(self, index: int) -> str:
        parts = [
            f"{amount(value)} {self.unit} {each.name}".rstrip()
            for each in self.series
            if (value := each.values[index]) is not None
        ]
        return f"{self.moments[index]:%d %b %H:%M} UTC, {', '.join(parts) or 'not known'}"

    def _columns(self) -> Iterator[Markup]:
        width, top = WIDTH / len(self.moments), self.top
        for index in range(len(self.moments)):
            x, y, bars = round(index * width, 2), float(HEIGHT), list[Markup]()
            for each in () if self.are_lines else self.series:
                if value := each.values[index]:
                    height = max(value / top * HEIGHT, 2.0)
                    y -= height
                    place = {"x": x, "y": round(y, 1), "width": round(width * 0.8, 2)}
                    size = {**place, "height": round(height, 1)}
                    bars.append(element("rect", {"class": each.name or "column", **size}))
            whole = {"class": "hover", "x": x, "y": 0, "width": round(width, 2), "height": HEIGHT}
            title = element("title", {}, self._at(index))
            yield element("g", {}, element("rect", whole), *bars, title)

    def _paths(self) -> Iterator[Markup]:
        width, top = WIDTH / len(self.moments), self.top
        for each in self.series:
            known = groupby(enumerate(each.values), lambda item: item[1] is None)
            lines = (
                "L".join(
                    f"{(index + 0.5) * width:.1f} {HEIGHT - (value or 0.0) / top * HEIGHT:.1f}"
                    for index, value in points
                )
                for is_gap, points in known
                if not is_gap
            )
            path = "".join(f"M{line}h.1" for line in lines)
            yield element("path", {"class": f"line {each.name}", "d": path, **UNSCALED})

    def _marks(self) -> Iterator[Markup]:
        begin, step = self.moments[0], self.moments[1] - self.moments[0]
        for mark in self.marks:
            share = (mark.at - begin) / (step * len(self.moments))
            if 0 <= share <= 1:
                x = round(share * WIDTH, 1)
                place = {"x1": x, "x2": x, "y1": 0, "y2": HEIGHT, **UNSCALED}
                title = element("title", {}, mark.what)
                yield element("line", {"class": f"mark {mark.kind}", **place}, title)


def amount(value: float) -> str:
    """Format a number: "0", "0.25", "7.5", "1,200"."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def strip(runs: Sequence[PastRun]) -> Markup:
    """Draw the last runs of a loop, a bar each: its height is the duration; failed ones point down.

    The bars of an outcome are one path, as pages have many of these.
    """
    longest = max((run.last.duration for run in runs), default=timedelta(0))
    begin = RUNS_KEPT - len(runs)
    strokes: dict[Ending, list[str]] = {}
    for at, run in enumerate(runs):
        strokes.setdefault(run.last.ending, []).append(_stroke(run, begin + at, longest))
    failed = sum(run.last.ending in HANGING for run in runs)
    label = f"last {len(runs)} runs: {failed} failed, the longest took {span(longest)}"
    drawn = [
        element("path", {"class": ending.value, "d": "".join(found)})
        for ending, found in strokes.items()
    ]
    size = f"0 0 {RUNS_KEPT * (BAR + GAP)} {2 * BAR_HEIGHT // 3 + BAR_HEIGHT}"
    named = {"class": "strip", "role": "img", "aria-label": label if runs else "no runs found"}
    return element("svg", {**named, "viewBox": size}, *drawn)


def _stroke(run: PastRun, at: int, longest: timedelta) -> str:
    """Draw a bar, from the line up; or down, for a failure."""
    most = log1p(longest.total_seconds() * 1000) or 1
    share = log1p(run.last.duration.total_seconds() * 1000) / most
    height = max(SHORTEST, round(share * BAR_HEIGHT))
    middle = at * (BAR + GAP) + BAR / 2
    if run.last.ending in HANGING:
        return f"M{middle:g} {BAR_HEIGHT + 1}v{max(SHORTEST, height * 2 // 3)}"
    return f"M{middle:g} {BAR_HEIGHT}v-{height}"


def sparkline(counts: Sequence[int], since: str) -> Markup:
    """Draw how many failures each span had, the oldest first.

    Args:
        since: the length of all spans, in words.
    """
    step, most = SPARK_WIDTH / max(len(counts), 1), max(counts, default=0)
    bars = "".join(
        f"M{(at + 0.5) * step:.1f} 26v-{max(2, count / most * SPARK_HEIGHT):.1f}"
        for at, count in enumerate(counts)
        if count
    )
    drawn = [element("path", {"class": "base", "d": f"M0 26.5h{SPARK_WIDTH}"})]
    drawn += [element("path", {"class": "bars", "d": bars})] if bars else []
    label = f"{counted(sum(counts), 'failure')} in the last {since}"
    return image("spark", label, 28, *drawn, width=SPARK_WIDTH)


def timeline(runs: Sequence[PastRun], now: datetime) -> Markup:
    """Draw the last runs on the axis of time: where each was planned, started and ended."""
    if not runs:
        return Markup("")
    begin = min(run.last.scheduled_at for run in runs)
    whole = max((now - begin).total_seconds(), 1.0)

    def at(moment: datetime) -> float:
        return round((moment - begin).total_seconds() / whole * WIDTH, 2)

    drawn = [_span_of(run, at) for run in runs]
    return image("chart timeline", f"{len(runs)} runs", 60, *drawn)


def elapsed(
    started_at: datetime, deadline: datetime, usual: timedelta | None, now: datetime
) -> Markup:
    """Draw how far a run is on the way to its timeout, with a mark at its usual duration."""
    whole = max(deadline - started_at, timedelta(seconds=1))

    def share(part: timedelta) -> str:
        return f"{min(max(round(part / whole * 100), 1), 100)}%"

    ran = now - started_at
    is_long = usual is not None and ran > 2 * usual
    bars = [("bg", "", "100%"), ("past" if is_long else "fg", "", share(ran))]
    if usual is not None:
        bars.append(("usual", share(usual), "2"))
    drawn = [
        element("rect", {"class": name, "x": x, "width": width, "height": 6})
        for name, x, width in bars
    ]
    return element("svg", {"class": "bartime", "aria-hidden": "true"}, *drawn)


def shares(counts: Mapping[str, int], total: int) -> Markup:
    """Draw how many of some loops are in each state, in this order; the rest is empty."""
    drawn, begin = list[Markup](), 0
    for state, count in counts.items():
        if count:
            place = {"x": f"{begin / total:.2%}", "width": f"{max(count / total, 0.01):.2%}"}
            drawn.append(element("rect", {"class": state, **place, "height": 8}))
            begin += count
    label = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    title = element("title", {}, label)
    return element("svg", {"class": "shares", "role": "img", "aria-label": label}, title, *drawn)


def _span_of(run: PastRun, at: Callable[[datetime], float]) -> Markup:
    last, start = run.last, at(run.last.started_at)
    title = f"#{run.seq} {last.ending.value}: planned {in_full(last.scheduled_at)}, "
    title += f"{span(last.late)} late, took {span(last.duration)}"
    plan = {"class": "plan", "x": at(last.scheduled_at), "y": 28, "width": 1.5, "height": 4}
    y, width = (
        32 if last.ending in HANGING else 2,
        max(at(last.started_at + last.duration) - start, 2.0),
    )
    ran = {"class": f"run {last.ending.value}", "x": start, "y": y, "width": width, "height": 24}
    named = element("rect", ran, element("title", {}, title))
    return element("g", {}, element("rect", plan), named)
