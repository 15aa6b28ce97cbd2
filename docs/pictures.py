"""Pictures that are drawn from the code, at each build; they need nothing from elsewhere."""

from collections.abc import Iterable

from scheduler.protocol.hatchery import UNITS

STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f;text-anchor:middle}"
    ".box{fill:#eef4fb;stroke:#4a76a8}.timer{fill:#fdf3df;stroke:#b98a2f}"
    ".small{font-size:11px;fill:#57606a}path{stroke:#57606a;fill:none;marker-end:url(#tip)}"
)
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#57606a;stroke:none;marker-end:none"/>'
    "</marker>"
)


def drawn() -> dict[str, str]:
    """Each picture, by the name of its file."""
    return {"hatchery.svg": hatchery(), "loop.svg": loop()}


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{title}</title><style>{STYLE}</style><defs>{TIP}</defs>"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def box(x: int, y: int, width: int, words: str, below: str = "", kind: str = "box") -> str:
    """A box around its words, the middle of its left side at x and y."""
    middle = x + width // 2
    note = f'<text class="small" x="{middle}" y="{y + 38}">{below}</text>' if below else ""
    return (
        f'<rect class="{kind}" x="{x}" y="{y - 20}" width="{width}" height="40" rx="5"/>'
        f'<text x="{middle}" y="{y + 5}">{words}</text>{note}'
    )


def arrow(way: str) -> str:
    return f'<path d="{way}"/>'


def words(x: int, y: int, text: str) -> str:
    return f'<text class="small" x="{x}" y="{y}">{text}</text>'


def loop() -> str:
    """The way of a token."""
    parts = [
        box(10, 90, 130, "hatchery", "timers all loops share", "timer"),
        arrow("M140 90H255"),
        words(197, 80, "time to live over"),
        box(255, 90, 140, "processor queue", "of the task"),
        arrow("M395 90H490"),
        words(442, 80, "delivery"),
        box(490, 90, 120, "processor", "runs the task"),
        arrow("M550 70V30H75V70"),
        words(312, 22, "the next token is published and confirmed; then this one is acked"),
        arrow("M610 90H705"),
        words(657, 80, "N failures"),
        box(705, 90, 110, "failed queue", "parked, can be replayed"),
    ]
    return picture(840, 145, "The way of a token", parts)


def hatchery() -> str:
    """Draw the exchanges of the units one below the other, each with its timer queues beside it."""
    parts: list[str] = []
    for at, unit in enumerate(UNITS):
        y = 40 + at * 62
        numbered = "…" if unit.most > 2 else ","
        timers = f"1{numbered}{unit.most} × {unit.name}" if unit.most > 1 else f"1 × {unit.name}"
        parts += [
            box(60, y, 120, unit.name),
            arrow(f"M120 {y + 20}V{y + 42}"),
            words(148, y + 35, "0: skipped"),
            arrow(f"M180 {y}H300"),
            words(240, y + 14, f"digit 1 to {unit.most}"),
            box(300, y, 190, f"timer queues {timers}", kind="timer"),
            arrow(f"M395 {y + 20}V{y + 48}H182"),
        ]
    end = 40 + len(UNITS) * 62
    parts.append(box(60, end, 120, "end", "to the queue of the task"))
    return picture(560, end + 60, "The timers", parts)
