"""What a storm was like, on the terminal."""

import statistics
from collections import Counter
from collections.abc import Iterable

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
    shown = Table("fault", box=None)
    for title in "strikes", "recovery p50", "max", "overlaps", "repeats", "violations":
        shown.add_column(title, justify="right")

    def by_kind(moments: Iterable[float]) -> Counter[str]:
        return Counter(strike.kind for at in moments if (strike := verdict.during(at)))

    counts = (
        by_kind(clash.second.started_at for clash in verdict.overlaps),
        by_kind(clash.second.started_at for clash in verdict.repeats),
        by_kind(violation.at for violation in verdict.violations),
    )
    for kind in dict.fromkeys(strike.kind for strike in verdict.strikes):
        strikes = [strike for strike in verdict.strikes if strike.kind == kind]
        times = [strike.recovery for strike in strikes if strike.recovery is not None]
        told = [f"{how(times):.2f} s" if times else "-" for how in (statistics.median, max)]
        shown.add_row(kind, str(len(strikes)), *told, *(str(count[kind]) for count in counts))
    return shown


def totals(verdict: Verdict) -> str:
    of = Counter(violation.what for violation in verdict.violations)
    overlaps = [clash.overlap for clash in verdict.overlaps if clash.excused]
    repeats = sum(clash.excused for clash in verdict.repeats)
    return (
        f"loops lost: {of['loop lost']}, doubled at rest: {of['loop doubled']}; "
        f"one-off messages lost: {of['one-off lost']}\n"
        f"where a connection was lost or a node failed: {len(overlaps)} overlaps, the longest of "
        f"{max(overlaps, default=0):.2f} s, and {repeats} settled runs repeated\n"
        f"violations: {len(verdict.violations)}"
    )
