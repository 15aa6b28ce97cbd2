"""Draw charts as inline SVG, with axes and units. They are part of the page, and need no script."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from math import floor, log10

from markupsafe import Markup

WIDTH, HEIGHT = 600, 96
LABELS = 5
LONG = timedelta(days=2)
STEPS = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Series:
    """Hold the values of one kind, one for each moment of a chart; None: unknown."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark an event that may explain a change: its kind is "pause" or "deployment"."""

    at: datetime
    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Draw values over time, oldest first, as stacked bars or as lines."""

    title: str
    unit: str
    moments: Sequence[datetime]
    series: Sequence[Series]
    are_lines: bool = False
    marks: Sequence[Mark] = ()

    @property
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

    @property
    def svg(self) -> Markup:
        drawn = [*(self._paths() if self.are_lines else ()), *self._columns(), *self._marks()]
        return Markup(
            '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
            'aria-label="{}">{}</svg>'
        ).format(WIDTH, HEIGHT, f"{self.title}: {self._at(-1)}", Markup("").join(drawn))

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
                    bars.append(
                        Markup(
                            '<rect class="{}" x="{}" y="{}" width="{}" height="{}"></rect>'
                        ).format(
                            each.name or "column",
                            x,
                            round(y, 1),
                            round(width * 0.8, 2),
                            round(height, 1),
                        )
                    )
            yield Markup(
                '<g><rect class="hover" x="{}" y="0" width="{}" height="{}"></rect>{}'
                "<title>{}</title></g>"
            ).format(x, round(width, 2), HEIGHT, Markup("").join(bars), self._at(index))

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
            yield Markup(
                '<path class="line {}" d="{}" vector-effect="non-scaling-stroke"></path>'
            ).format(each.name, path)

    def _marks(self) -> Iterator[Markup]:
        begin, step = self.moments[0], self.moments[1] - self.moments[0]
        for mark in self.marks:
            share = (mark.at - begin) / (step * len(self.moments))
            if 0 <= share <= 1:
                yield Markup(
                    '<line class="mark {}" x1="{x}" x2="{x}" y1="0" y2="{}" '
                    'vector-effect="non-scaling-stroke"><title>{}</title></line>'
                ).format(mark.kind, HEIGHT, mark.what, x=round(share * WIDTH, 1))


def amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2f}"
