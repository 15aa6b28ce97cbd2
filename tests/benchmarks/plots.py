# pyright: basic, reportMissingImports=false
"""What `growth.py` has measured, drawn: small SVGs that can be read on light and on dark pages."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes

from tests.benchmarks.growth import Part, Point

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
Line = tuple[str, str, Value]
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
Panel = tuple[str, Sequence[Line], bool]
PANELS = (
    ("CPU of a run, ms", COST, False),
    ("lateness, ms", LATE, True),
    ("of the runs due, %", SHARE, False),
)


def draw(measured: Sequence[Point], directory: Path) -> None:
    """Draw a file for each part that was measured, and the memory of loops."""
    directory.mkdir(parents=True, exist_ok=True)
    memory = (("memory, MB", MEMORY, True),)
    drawn: tuple[tuple[Part, str, str, Value, Sequence[Panel]], ...] = (
        ("loops", "loops", "loops, at 100 runs/s", lambda point: point.loops, PANELS),
        ("loops", "memory", "loops", lambda point: point.loops, memory),
        ("rate", "rate", "runs/s, of loops of 1 s", lambda point: point.rate, PANELS),
        (
            *("processors", "processors"),
            *("processors, at 300 runs/s", lambda point: point.processors, PANELS),
        ),
    )
    for part, name, label, along, panels in drawn:
        if points := [each for each in measured if (each.part, each.system) == (part, "ours")]:
            save(points, label, along, panels, directory / f"growth-{name}.svg")


def save(
    points: Sequence[Point],
    label: str,
    along: Value,
    panels: Sequence[Panel],
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
        axis.plot(where, [value(point) for point in points], color=colour, label=name)
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
