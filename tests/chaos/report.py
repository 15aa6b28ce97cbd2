"""What a storm was like, on the terminal."""

import statistics
from collections import Counter

from rich.console import Console
from rich.table import Table

from tests.chaos.verdict import Strike, Verdict

SHOWN = 40


def line_of(strike: Strike) -> str:
    """What is told of a fault as it is over."""
    took = f"{strike.healed_at - strike.at:.1f} s"
    if strike.recovery is None:
        after = f"not recovered: {', '.join(sorted(strike.awaited)) or 'a process is missing'}"
    else:
        after = f"recovered in {strike.recovery:.2f} s"
    return f"{strike.kind} ({took}): {after}"


def show(verdict: Verdict, console: Console) -> None:
    """The table of fault kinds, the totals, and the violations."""
    console.print(table(verdict))
    console.print(totals(verdict))
    for violation in verdict.violations[:SHOWN]:
        strike = verdict.during(violation.at)
        after = f", {violation.at - strike.at:.1f} s after {strike.kind} struck" if strike else ""
        console.print(
            f"{violation.at:.3f} {violation.what}: {violation.detail}{after}", soft_wrap=True
        )
    if len(verdict.violations) > SHOWN:
        console.print(f"... and {len(verdict.violations) - SHOWN} more")


def table(verdict: Verdict) -> Table:
    shown = Table(
        "fault", "strikes", "recovery p50", "max", "overlaps", "repeats", "violations", box=None
    )
    for column in shown.columns[1:]:
        column.justify = "right"
    overlaps = Counter(_kind(verdict, clash.second.started_at) for clash in verdict.overlaps)
    repeats = Counter(_kind(verdict, clash.second.started_at) for clash in verdict.repeats)
    violations = Counter(_kind(verdict, violation.at) for violation in verdict.violations)
    for kind in dict.fromkeys(strike.kind for strike in verdict.strikes):
        strikes = [strike for strike in verdict.strikes if strike.kind == kind]
        times = [strike.recovery for strike in strikes if strike.recovery is not None]
        shown.add_row(
            kind,
            str(len(strikes)),
            f"{statistics.median(times):.2f} s" if times else "-",
            f"{max(times):.2f} s" if times else "-",
            str(overlaps[kind]),
            str(repeats[kind]),
            str(violations[kind]),
        )
    return shown


def totals(verdict: Verdict) -> str:
    def of(what: str) -> int:
        return sum(violation.what == what for violation in verdict.violations)

    overlaps = [clash.overlap for clash in verdict.overlaps if clash.excused]
    repeats = sum(clash.excused for clash in verdict.repeats)
    return (
        f"loops lost: {of('loop lost')}, doubled at rest: {of('loop doubled')}; "
        f"one-off messages lost: {of('one-off lost')}\n"
        f"where a connection was lost or a node failed: {len(overlaps)} overlaps, the longest of "
        f"{max(overlaps, default=0):.2f} s, and {repeats} settled runs repeated\n"
        f"violations: {len(verdict.violations)}"
    )


def _kind(verdict: Verdict, at: float) -> str:
    strike = verdict.during(at)
    return strike.kind if strike else ""
