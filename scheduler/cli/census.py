"""Count loops: `scheduler census`."""

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from scheduler.app import Scheduler
from scheduler.cli.arguments import command, new_group
from scheduler.cli.connecting import ask
from scheduler.cli.printing import Output
from scheduler.cli.tables import Table
from scheduler.control.census import Figures, count
from scheduler.protocol.epochs import LoopState

NAMED = 5  # loops that are named, of many

cli = new_group()


@command(cli, "census")
def census(app: Scheduler) -> Output:
    """Count loops, and the messages in queues and timers.

    The counts of loops are those of the last round of supervision. If that is older than a minute,
    the command counts the roster, which takes a minute for a million loops. The exit code is 1 if
    loops are overdue, or have two tokens: supervision repairs them.

    Example: scheduler census shop:app
    """
    figures = ask(app, count, is_long=True)
    tally = figures.tally
    data = {
        "counted_at": figures.at,
        **tally.model_dump(),
        "ready": figures.ready,
        "timers": figures.timers,
        "later": figures.later,
        "void": figures.void,
    }
    return Output(data, _lines(figures), is_fine=not tally.overdue and not tally.doubled)


def _lines(figures: Figures) -> Iterator[str | Text]:
    tally = figures.tally
    yield from _tasks(figures).shown(sorted({*tally.loops, *figures.ready}))
    yield ""
    yield from _timers(figures).shown([*dict.fromkeys((*figures.timers, *figures.later))])
    yield ""
    if tally.paused:
        yield f"paused as a whole: {', '.join(tally.paused)}"
    yield _named("overdue", tally.overdue, tally.overdue_names)
    yield _named("doubled", tally.doubled, tally.doubled_names)
    yield f"void: at least {figures.void:,}"
    yield f"loops counted: {figures.at:%H:%M:%S %Z}"


def _tasks(figures: Figures) -> Table[str]:
    def in_state(state: LoopState) -> Callable[[str], str]:
        return lambda task: f"{figures.tally.loops.get(task, {}).get(state, 0):,}"

    return Table(
        {
            "TASK": str,
            "ACTIVE": in_state(LoopState.ACTIVE),
            "PAUSED": in_state(LoopState.PAUSED),
            "GONE": in_state(LoopState.GONE),
            "READY": lambda task: f"{figures.ready.get(task, 0):,}",
        }
    )


def _timers(figures: Figures) -> Table[str]:
    return Table(
        {
            "TIMER": str,
            "TOKENS": lambda timer: f"{figures.timers.get(timer, 0):,}",
            "CALLS": lambda timer: f"{figures.later.get(timer, 0):,}",
        }
    )


def _named(about: str, count: int, names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED]) + (", ..." if count > NAMED else "")
    return f"{about}: {count:,}" + (f" ({shown})" if count else "")
