"""What a seed prints of many loops."""

from scheduler import Every
from scheduler.cli.installation import MOST_NAMED, folded_reports
from scheduler.control.reports import Effect, Report
from scheduler.protocol.tokens import LoopId
from scheduler.tasks.loops import Loop, absent


def report_on(task: str, key: str, did: Effect) -> Report:
    return Report(Loop(LoopId(task, key), absent(task), Every("1h"), {}), did)


def test_a_seed_counts_keyed_loops_and_names_some_that_changed() -> None:
    own = [report_on("report", "", Effect.UNCHANGED), report_on("report", "*", Effect.REMOVED)]
    waiting = [report_on("digest", f"a{n}", Effect.UNCHANGED) for n in range(1_000)]
    changed = [report_on("digest", f"b{n}", Effect.RESCHEDULED) for n in range(100)]
    renamed = [report_on("mail", "c", Effect.RENAMED)]
    named, keyed = folded_reports([*waiting, *renamed, *own, *changed])
    assert named == [*renamed, *own, *changed[: MOST_NAMED - 1]]
    assert keyed == {"digest": {"unchanged": 1_000, "rescheduled": 100}, "mail": {"renamed": 1}}
