"""Format values for pages: spans, moments and schedules in words, runs as drawings in SVG.

Drawings are part of the page, and need no script.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import log1p
from typing import Any
from zoneinfo import ZoneInfo

from markupsafe import Markup
from pydantic_core import to_jsonable_python

from scheduler.dashboard.picture import RUNS_KEPT, Run
from scheduler.protocol.tokens import Ending
from scheduler.timing.durations import milliseconds
from scheduler.timing.moments import milliseconds_since_epoch
from scheduler.timing.phrases import in_words, seconds_first
from scheduler.timing.schedules import Cron, Every, Schedule, describe, ticks_after, zone_of

BAR, GAP, HEIGHT = 4, 1, 22
SHORTEST = 4
CHART_WIDTH = 600
# Shape shows the state as well: failed runs hang down from the line, in their colour.
HANGING = (Ending.RETRIED, Ending.ESCALATED, Ending.STOPPED)
LONGEST_LINE = 200


def span(value: timedelta | None) -> str:
    """Format a length of time, in one unit or two: "340 ms", "2.5 s", "4 m 10 s", "3 h 20 m"."""
    if value is None:
        return ""
    sign = "−" if value < timedelta(0) else ""
    # Stays in one line.
    return sign + _span(abs(value.total_seconds())).replace(" ", "\N{NO-BREAK SPACE}")


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest} s" if rest else f"{minutes} m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} m" if minutes else f"{hours} h"
    return f"{hours // 24} d"


def in_zone(moment: datetime, zone: str = "") -> datetime:
    return moment.astimezone(ZoneInfo(zone) if zone else UTC)


def in_full(moment: datetime) -> str:
    """Format a moment to the second, with its zone."""
    return f"{moment:%a} {moment.day} {moment:%b %Y, %H:%M:%S} {moment.tzname()}"


def brief(moment: datetime) -> str:
    """Format a moment as briefly as it is unambiguous."""
    return f"{moment:%d %b %H:%M:%S} {moment.tzname()}"


def by_clock(moment: datetime) -> str:
    """Format a moment in its zone: "Wed 25 Nov, 02:00 CET"; with seconds if there are any."""
    seconds = f":{moment:%S}" if moment.second else ""
    return f"{moment:%a} {moment.day} {moment:%b, %H:%M}{seconds} {moment.tzname()}"


def schedule_in_words(schedule: Schedule) -> str:
    """Describe when a loop runs, in words."""
    if isinstance(schedule, Cron):
        return f"{in_words(schedule.expression)}, by the clock of {schedule.tz}"
    from_the_end = isinstance(schedule, Every) and not schedule.has_grid
    return describe(schedule) + (", from the end of a run" if from_the_end else "")


def zone_name(schedule: Schedule) -> str:
    """Return the zone of a schedule's times; empty: none of its own."""
    zone = zone_of(schedule)
    return "" if zone is None else zone.key


def doubt_of(schedule: Schedule) -> str:
    """Return a doubt about an expression; empty: none."""
    if not isinstance(schedule, Cron) or (meant := seconds_first(schedule.expression)) is None:
        return ""
    return (
        f"Of six fields the last is the second. If you meant the first one, write {meant}: "
        f"{in_words(meant)}."
    )


def ticks(schedule: Schedule, after: datetime, most: int) -> list[datetime]:
    """Return the next times of a schedule, as far as they are fixed."""
    return [*islice(ticks_after(schedule, after), most)] if schedule.has_grid else []


def readable_json(value: Any) -> str:
    return json.dumps(
        to_jsonable_python(value, fallback=str, bytes_mode="base64"), indent=2, ensure_ascii=False
    )


def body(content: bytes) -> str:
    """Return the body of a message as text, or in hexadecimal if it is binary."""
    with suppress(UnicodeDecodeError):
        text = content.decode()
        if all(each.isprintable() or each in "\n\r\t" for each in text):
            return text
    rows = range(0, len(content), 16)
    return "\n".join(
        f"{at:08x}  {content[at : at + 16].hex(' '):<47}  "
        + "".join(chr(each) if 32 <= each < 127 else "." for each in content[at : at + 16])
        for at in rows
    )


def first_line(text: str) -> str:
    """Return as much of a text as fits into a row."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def rate(value: float) -> str:
    """Format a rate: "0", "0.2", "7.5", "1200"."""
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def strip(runs: Sequence[Run]) -> Markup:
    """Draw the last runs of a loop, a bar each: its height is the duration; failed ones point down.

    The data of each bar is compact, as pages have many of these: the script describes the one under
    the pointer or the cursor.
    """
    longest = max((run.last.duration for run in runs), default=timedelta(0))
    begin = RUNS_KEPT - len(runs)
    strokes: dict[Ending, list[str]] = {}
    for at, run in enumerate(runs):
        strokes.setdefault(run.last.ending, []).append(_stroke(run, begin + at, longest))
    failed = sum(run.last.ending in HANGING for run in runs)
    label = f"last {len(runs)} runs: {failed} failed, the longest took {span(longest)}"
    drawn = [
        Markup('<path class="{}" d="{}"></path>').format(ending.value, "".join(found))
        for ending, found in strokes.items()
    ]
    return Markup(
        '<span class="strip" role="img" aria-label="{label}"{}><svg viewBox="0 0 {} {}" '
        'aria-hidden="true">{}</svg></span>'
    ).format(
        Markup(' tabindex="0" data-runs="{}"').format(" ".join(map(_briefly, runs)))
        if runs
        else "",
        RUNS_KEPT * (BAR + GAP),
        2 * HEIGHT // 3 + HEIGHT,
        Markup("").join(drawn),
        label=label if runs else "no runs found",
    )


def _briefly(run: Run) -> str:
    """Encode a run: how it ended, when it started and its duration in milliseconds."""
    last = run.last
    began, took = milliseconds_since_epoch(last.started_at), milliseconds(last.duration)
    return f"{last.ending.value[:2]}{began}+{took}"


def _stroke(run: Run, at: int, longest: timedelta) -> str:
    """Draw a bar, from the line up; or down, for a failure."""
    most = log1p(longest.total_seconds() * 1000) or 1
    share = log1p(run.last.duration.total_seconds() * 1000) / most
    height = max(SHORTEST, round(share * HEIGHT))
    middle = at * (BAR + GAP) + BAR / 2
    if run.last.ending in HANGING:
        return f"M{middle:g} {HEIGHT + 1}v{max(SHORTEST, height * 2 // 3)}"
    return f"M{middle:g} {HEIGHT}v-{height}"


def timeline(runs: Sequence[Run], now: datetime) -> Markup:
    """Draw the last runs on the axis of time: where each was planned, started and ended."""
    if not runs:
        return Markup("")
    begin = min(run.last.scheduled_at for run in runs)
    whole = max((now - begin).total_seconds(), 1.0)

    def at(moment: datetime) -> float:
        return round((moment - begin).total_seconds() / whole * CHART_WIDTH, 2)

    drawn = [_span_of(run, at) for run in runs]
    return Markup(
        '<svg class="chart timeline" viewBox="0 0 {} 60" preserveAspectRatio="none" role="img" '
        'aria-label="{} runs">{}</svg>'
    ).format(CHART_WIDTH, len(runs), Markup("").join(drawn))


def _span_of(run: Run, at: Callable[[datetime], float]) -> Markup:
    last, start = run.last, at(run.last.started_at)
    title = f"#{run.seq} {last.ending.value}: planned "
    title += f"{in_full(in_zone(last.scheduled_at))}, {span(last.late)} "
    title += f"late, took {span(last.duration)}"
    return Markup(
        '<g><rect class="plan" x="{}" y="28" width="1.5" height="4"></rect><rect '
        'class="run {}" x="{}" y="{}" width="{}" height="24"><title>{}</title></rect></g>'
    ).format(
        at(last.scheduled_at),
        last.ending.value,
        start,
        2 + (30 if last.ending in HANGING else 0),
        max(at(last.started_at + last.duration) - start, 2.0),
        title,
    )
