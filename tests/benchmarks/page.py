"""Figures of `growth.py` as a page tells them, so that text and measurement cannot disagree.

A page has marked sections, `<!-- growth: NAME -->` to `<!-- end -->`; what stands between is
replaced.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from tests.benchmarks.results import Point, Results

SECTION = re.compile(r"(<!-- growth: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
ALIGNED = "--:"
PRINTED = ("costs", "messages", "starting", "viewing")
"""Sections that show what another benchmark has printed."""

NAMES = {"ours": "this package"}


def fill(page: str, results: Results) -> str:
    """Sections whose part was not measured stay as they are.

    Raises:
        KeyError: there is no such section.
    """

    def section(found: re.Match[str]) -> str:
        if found[2] in PRINTED:
            return found[0]
        text = SECTIONS[found[2]](results)
        return f"{found[1]}{text}\n{found[3]}" if text else found[0]

    return SECTION.sub(section, page)


def pasted(page: str, name: str, printed: str) -> str:
    """A section with what a benchmark has printed, as it was.

    Raises:
        KeyError: there is no such section.
    """
    if name not in PRINTED:
        raise KeyError(name)

    def section(found: re.Match[str]) -> str:
        return (
            f"{found[1]}```text\n{printed.rstrip()}\n```\n{found[3]}"
            if found[2] == name
            else found[0]
        )

    return SECTION.sub(section, page)


def told(value: float | None, digits: int = 2) -> str:
    return "?" if value is None else f"{value:,.{digits}f}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Nothing, if there are no rows."""
    if not (rows := list(rows)):
        return ""
    lines = [heads, [ALIGNED] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_plot(name: str, table: str) -> str:
    """A table above its plot, as `plots.py` names it."""
    return table and f"{table}\n\n![the same, drawn](growth-{name}.svg)"


def costs(point: Point) -> Sequence[str]:
    return (
        told(point.worker_ms),
        told(point.broker_ms),
        told(point.late_p50, 1),
        told(point.late_p99, 1),
        f"{point.share:.1%}",
    )


COSTS = ("worker, ms CPU", "broker, ms CPU", "late p50, ms", "late p99, ms", "of the runs due")


def machine(results: Results) -> str:
    about = results.about
    event_loop = "uvloop" if about["uvloop"] else "asyncio's own event loop"
    return (
        f"Measured on {about['date']}: {about['machine']}, {about['cores']} cores, "
        f"{about['memory_gb']} GB; RabbitMQ {about['rabbitmq']}, one node; "
        f"Python {about['python']} with {event_loop}; version {about['package']}; "
        f"{about['seconds']:g} s for each row, or its period."
    )


def loops(results: Results) -> str:
    rows = [
        (f"{point.loops:,}", f"{point.every:g} s", *costs(point)) for point in results.of("loops")
    ]
    return with_plot("loops", table(("loops", "every", *COSTS), rows))


def rates(results: Results) -> str:
    rows = [rate_row(point) for point in results.of("rate")]
    return with_plot("rate", table(("runs/s due", *COSTS), rows))


def rate_row(point: Point) -> Sequence[str]:
    return (f"{point.rate:,.0f}", *costs(point))


def bare(results: Results) -> str:
    found = {(point.rate, point.system): point for point in results.points if point.part == "rate"}
    both = sorted({rate for rate, system in found if system == "bare driver"})
    rows = [
        (NAMES.get(system, system), *rate_row(found[rate, system]))
        for rate in both
        for system in ("bare, slots", "bare driver", "ours")
        if (rate, system) in found
    ]
    return table(("", "runs/s due", *COSTS), rows)


def processors(results: Results) -> str:
    rows = [(str(point.processors), *costs(point)) for point in results.of("processors")]
    return with_plot("processors", table(("processors", *COSTS), rows))


def memory(results: Results) -> str:
    rows = [
        (
            f"{point.loops:,}",
            told(point.processor_mb, 0),
            told(point.broker_mb_before, 0),
            told(point.broker_mb, 0),
            told(point.seeding_s, 1),
        )
        for point in results.of("loops")
    ]
    heads = ("loops", "a processor, MB", "broker before, MB", "broker, MB", "to start them, s")
    return with_plot("memory", table(heads, rows))


def sizing(results: Results) -> str:
    """Rules of thumb, each where its figures are known."""
    rules = list[str]()
    rate = [point for point in results.of("rate") if point.kept_up]
    if rate:
        best = max(rate, key=lambda point: point.rate)
        rules.append(
            f"This machine kept up with {best.rate:,.0f} runs/s, workers and broker together"
            f" ({best.processors} processors; 99 % of the due runs or more were made)."
        )
        if best.broker_ms:
            rules.append(
                f"There a run took {best.worker_ms:.2f} ms of a worker's CPU and"
                f" {best.broker_ms:.2f} ms of the broker's: a core of workers is good for about"
                f" {1000 / best.worker_ms:,.0f} runs/s of tasks that do nothing,"
                f" a core of the broker for about {1000 / best.broker_ms:,.0f}."
                " Plan with half of either."
            )
    rules += grown(results.of("loops"))
    return "\n".join(f"- {rule}" for rule in rules)


def grown(points: Sequence[Point]) -> Iterable[str]:
    if len(points) < 2:
        return
    few, many = points[0], points[-1]
    more = many.loops - few.loops
    processor = (many.processor_mb - few.processor_mb) / more * 1024
    yield f"A loop takes about {max(processor, 0):.1f} kB of each processor's memory."
    if few.broker_mb is not None and many.broker_mb is not None:
        broker = (many.broker_mb - few.broker_mb) / more * 1024
        yield f"A loop takes about {max(broker, 0):.1f} kB of the broker's memory: it is a message."
    yield f"To start a loop took {many.seeding_s / many.loops * 1000:.1f} ms, of {many.loops:,}."


SECTIONS: Mapping[str, Callable[[Results], str]] = {
    "machine": machine,
    "loops": loops,
    "rates": rates,
    "bare": bare,
    "processors": processors,
    "memory": memory,
    "sizing": sizing,
}
