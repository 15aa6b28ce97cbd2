# pyright: basic, reportMissingImports=false
"""What `growth.py` has measured, drawn: small SVGs that can be read on light and on dark pages."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes

from tests.benchmarks.growth import Point

GREY = "#888888"
COLOURS = "#3b8eea", "#e8833a"
matplotlib.use("svg")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: smaller, and sharp
    "svg.hashsalt": "growth",  # the same figures, the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "savefig.transparent": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "grid.alpha": 0.3,
    "lines.marker": "o",
    "lines.markersize": 4,
}
GREYS = "text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"
STYLE |= dict.fromkeys((*GREYS, "grid.color", "axes.titlecolor"), GREY)
matplotlib.rcParams.update(STYLE)

Value = Callable[[Point], float]


class Panel(NamedTuple):
    title: str
    lines: dict[str, Value]
    logarithmic: bool = False


PANELS = (
    Panel("CPU of a run, ms", {"worker": lambda p: p.worker_ms, "broker": lambda p: p.broker_ms}),
    Panel("lateness, ms", {"p50": lambda p: p.late_p50, "p99": lambda p: p.late_p99}, True),
    Panel("of the runs due, %", {"runs": lambda p: p.share * 100}),
)
MEMORY = Panel(
    "memory, MB", {"a processor": lambda p: p.processor_mb, "broker": lambda p: p.broker_mb}, True
)


def draw(measured: Sequence[Point], directory: Path) -> None:
    """Draw a file for each part that was measured, and the memory of loops."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn: tuple[tuple[str, str, str, Value, Sequence[Panel]], ...] = (
        ("loops", "loops", "loops, at 100 runs/s", lambda p: p.loops, PANELS),
        ("loops", "memory", "loops", lambda p: p.loops, [MEMORY]),
        ("rate", "rate", "runs/s, of loops of 1 s", lambda p: p.rate, PANELS),
        ("processors", "processors", "processors, at 300 runs/s", lambda p: p.processors, PANELS),
    )
    for part, name, label, along, panels in drawn:
        points = [each for each in measured if (each.part, each.system) == (part, "ours")]
        if not points:
            continue
        size = max(3.1 * len(panels), 4), 2.6
        figure, (axes,) = pyplot.subplots(
            1, len(panels), figsize=size, layout="constrained", squeeze=False
        )
        for axis, panel in zip(axes, panels, strict=True):
            plot(axis, panel, points, along)
            axis.set_xlabel(label)
        path = directory / f"growth-{name}.svg"
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def plot(axis: Axes, panel: Panel, points: Sequence[Point], along: Value) -> None:
    where = [along(point) for point in points]
    for (name, value), colour in zip(panel.lines.items(), COLOURS, strict=False):
        axis.plot(where, [value(point) for point in points], color=colour, label=name)
    if max(where) > 10:
        axis.set_xscale("log")
    else:
        axis.set_xticks(where)
    if panel.logarithmic:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.set_title(panel.title)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.minorticks_off()
    axis.grid(True)
    if len(panel.lines) > 1:
        axis.legend(frameon=False)
