# pyright: basic, reportMissingImports=false
"""What `growth.py` has measured, drawn: small SVGs that can be read on light and on dark pages."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes

from tests.benchmarks.results import Part, Point, Results

GREY = "#888888"
BLUE, ORANGE = "#3b8eea", "#e8833a"
matplotlib.use("svg")
STYLE: dict[Any, Any] = (
    {
        "svg.fonttype": "none",  # text stays text: smaller, and sharp
        "svg.hashsalt": "growth",  # the same figures, the same file
        "font.family": "sans-serif",
        "font.size": 9,
        "savefig.transparent": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.alpha": 0.3,
        "lines.marker": "o",
        "lines.markersize": 4,
    }
    | dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY
    )
    | {"grid.color": GREY, "axes.titlesize": 10, "axes.titlecolor": GREY}
)
matplotlib.rcParams.update(STYLE)

Value = Callable[[Point], float]
Line = tuple[str, str, Callable[[Point], float | None]]
COST: Sequence[Line] = (
    ("worker", BLUE, lambda point: point.worker_ms),
    ("broker", ORANGE, lambda point: point.broker_ms),
)
LATE: Sequence[Line] = (
    ("p50", BLUE, lambda point: point.late_p50),
    ("p99", ORANGE, lambda point: point.late_p99),
)
SHARE: Sequence[Line] = (("runs", BLUE, lambda point: point.share * 100),)
MEMORY: Sequence[Line] = (
    ("a processor", BLUE, lambda point: point.processor_mb),
    ("broker", ORANGE, lambda point: point.broker_mb),
)
PANELS = (
    ("CPU of a run, ms", COST, False),
    ("lateness, ms", LATE, True),
    ("of the runs due, %", SHARE, False),
)


def draw(results: Results, directory: Path) -> None:
    """A file for each part that was measured."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn: tuple[tuple[Part, str, Value], ...] = (
        ("loops", "loops, at 100 runs/s", lambda point: point.loops),
        ("rate", "runs/s, of loops of 1 s", lambda point: point.rate),
        ("processors", "processors, at 300 runs/s", lambda point: point.processors),
    )
    for part, label, along in drawn:
        if points := results.of(part):
            save(points, label, along, PANELS, directory / f"growth-{part}.svg")
    if points := results.of("loops"):
        panels = (("memory, MB", MEMORY, True),)
        save(points, "loops", lambda point: point.loops, panels, directory / "growth-memory.svg")


def save(
    points: Sequence[Point],
    label: str,
    along: Value,
    panels: Sequence[tuple[str, Sequence[Line], bool]],
    path: Path,
) -> None:
    wide = 3.1 * len(panels)
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(max(wide, 4), 2.6), layout="constrained", squeeze=False
    )
    for axis, (title, lines, logarithmic) in zip(axes[0], panels, strict=True):
        panel(axis, points, along, lines, logarithmic)
        axis.set_title(title)
        axis.set_xlabel(label)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def panel(
    axis: Axes, points: Sequence[Point], along: Value, lines: Sequence[Line], logarithmic: bool
) -> None:
    where = [along(point) for point in points]
    for name, colour, value in lines:
        known = [(x, y) for x, point in zip(where, points, strict=True) if (y := value(point))]
        if known:
            axis.plot(*zip(*known, strict=True), color=colour, label=name)
    if max(where) > 10:
        axis.set_xscale("log")
    else:
        axis.set_xticks(where)
    if logarithmic:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.minorticks_off()
    axis.grid(True)
    if len(lines) > 1:
        axis.legend(frameon=False)
