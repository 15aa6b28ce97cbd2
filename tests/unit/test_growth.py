"""What is told of how loops grow: the pure parts of the benchmark."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.fleets.record import Ran
from tests.benchmarks.page import PRINTED, SECTIONS, fill, pasted
from tests.benchmarks.results import Part, Point, Results, costs_of, read

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
ABOUT = {
    "date": "2026-06-01",
    "machine": "a machine",
    "cores": 2,
    "memory_gb": 4,
    "rabbitmq": "4.3.6",
    "python": "3.11.7",
    "uvloop": False,
    "package": "0.1.0",
    "seconds": 15.0,
}


def point(part: Part, loops: int, *, share: float = 1.0, worker_ms: float = 2.0) -> Point:
    return Point(
        part=part,
        system="ours",
        loops=loops,
        every=1.0,
        processors=2,
        worker_ms=worker_ms,
        broker_ms=4.0,
        late_p50=1.5,
        late_p99=3.25,
        share=share,
        processor_mb=50.0 + loops / 1024,
        broker_mb=300.0 + loops * 100 / 1024,
        broker_mb_before=290.0,
        seeding_s=loops / 200,
    )


def test_runs_are_summarised():
    runs = [Ran(number, 100 + number + 0.002, 100 + number) for number in range(10)]
    costs = costs_of(runs, due=20, worker=0.03, broker=math.nan)
    assert costs == {
        "worker_ms": 3.0,
        "broker_ms": None,
        "late_p50": 2.0,
        "late_p99": 2.0,
        "share": 0.5,
    }


def test_one_run_has_no_quantiles():
    costs = costs_of([Ran(0, 1.5, 1.0)], due=1, worker=0.001, broker=0.001)
    assert costs["late_p50"] is None


def test_results_are_read_as_they_were_written(tmp_path: Path):
    results = Results(ABOUT, [point("rate", 10), replace(point("loops", 10), broker_ms=None)])
    results.save(path := tmp_path / "growth.json")
    assert read(path) == results
    assert list(tmp_path.iterdir()) == [path]


def test_a_section_is_replaced_and_its_surroundings_are_not():
    page = "before\n<!-- growth: rates -->\nold\n<!-- end -->\nafter\n"
    once = fill(page, Results(ABOUT, [point("rate", 1000, share=0.5)]))
    assert once.startswith("before\n<!-- growth: rates -->\n")
    assert once.endswith("\n<!-- end -->\nafter\n")
    assert "| 1,000 | 2.00 | 4.00 | 1.5 | 3.2 | 50.0% |" in once
    assert "old" not in once
    assert fill(once, Results(ABOUT, [point("rate", 1000, share=0.5)])) == once


def test_a_section_that_nobody_knows_is_an_error():
    with pytest.raises(KeyError, match="rain"):
        fill("<!-- growth: rain -->\n<!-- end -->", Results(ABOUT))


def test_a_part_that_was_not_measured_keeps_what_the_page_says():
    page = "<!-- growth: rates -->\nof old\n<!-- end -->"
    assert fill(page, Results(ABOUT, [point("loops", 10)])) == page


def test_what_another_benchmark_has_printed_is_shown_as_it_was():
    page = "<!-- growth: costs -->\nold\n<!-- end -->\n<!-- growth: rates -->\n1\n<!-- end -->\n"
    once = pasted(page, "costs", " cpu  late\n  1.0   2\n")
    assert "<!-- growth: costs -->\n```text\n cpu  late\n  1.0   2\n```\n<!-- end -->\n" in once
    assert once.endswith("<!-- growth: rates -->\n1\n<!-- end -->\n")
    assert fill(once, Results(ABOUT)) == once
    with pytest.raises(KeyError, match="rain"):
        pasted(page, "rain", "wet")


def test_what_does_not_keep_up_is_no_rule_of_thumb():
    rates = [point("rate", 300), point("rate", 1000, share=0.8)]
    told = fill("<!-- growth: sizing -->\n<!-- end -->", Results(ABOUT, rates))
    assert "kept up with 300 runs/s" in told
    assert "500 runs/s of tasks that do nothing, a core of the broker for about 250" in told


def test_memory_of_a_loop_is_what_more_of_them_take():
    loops = [point("loops", 10), point("loops", 1000)]
    told = fill("<!-- growth: sizing -->\n<!-- end -->", Results(ABOUT, loops))
    assert "about 1.0 kB of each processor's memory" in told
    assert "about 100.0 kB of the broker's memory" in told
    assert "took 5.0 ms, of 1,000" in told


def test_the_page_has_all_sections_and_can_be_filled():
    points = [point("rate", 10), point("loops", 10), point("loops", 100), point("processors", 300)]
    points.append(replace(point("rate", 10), system="bare driver"))
    filled = fill(PAGE.read_text(), Results(ABOUT, points))
    assert [
        name for name in (*SECTIONS, *PRINTED) if f"<!-- growth: {name} -->" not in filled
    ] == []
    assert "Not measured yet" not in filled
