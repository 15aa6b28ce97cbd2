"""Count loops: `scheduler census`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.cli.arguments import AppArgument, Json, command, new_group
from scheduler.cli.connecting import ask
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import print_json, print_line
from scheduler.cli.tables import Table, print_table
from scheduler.control.census import Figures, count
from scheduler.protocol.epochs import LoopState

NAMED = 5  # loops that are named, of many

cli = new_group()


@command(cli, "census")
def census(reference: AppArgument = None, as_json: Json = False) -> bool:
    """Count loops by task and state, and messages in queues and timers.

    The loops are as the last round of supervision counted them. If there was none in the last
    minute, they are counted from the roster, which takes a minute for a million. Nothing is
    written. The exit code is 1 if loops are overdue, or have two tokens: supervision repairs them.

    Example: scheduler census shop:app
    """
    figures = ask(ready_app(reference), count, is_long=True)
    tally = figures.tally
    if as_json:
        print_json(
            {
                "counted_at": figures.at,
                **tally.model_dump(),
                "ready": figures.ready,
                "timers": figures.timers,
                "later": figures.later,
                "void": figures.void,
            }
        )
    else:
        print_table(_tasks_of(figures), TASKS)
        print_line("")
        print_table(_timers_of(figures), TIMERS)
        print_line("")
        if tally.paused:
            print_line(f"paused as a whole: {', '.join(tally.paused)}")
        print_line(_line("overdue", tally.overdue, tally.overdue_names))
        print_line(_line("doubled", tally.doubled, tally.doubled_names))
        print_line(f"void: at least {figures.void:,}")
        print_line(f"loops counted: {figures.at:%H:%M:%S %Z}")
    return not tally.overdue and not tally.doubled


@dataclass(frozen=True, slots=True)
class _Task:
    name: str
    states: Mapping[LoopState, int]
    ready: int


@dataclass(frozen=True, slots=True)
class _Timer:
    name: str
    tokens: int
    calls: int


def _in_state(state: LoopState) -> Callable[[_Task], str]:
    return lambda task: f"{task.states.get(state, 0):,}"


TASKS = Table[_Task](
    {
        "TASK": lambda task: task.name,
        "ACTIVE": _in_state(LoopState.ACTIVE),
        "PAUSED": _in_state(LoopState.PAUSED),
        "GONE": _in_state(LoopState.GONE),
        "READY": lambda task: f"{task.ready:,}",
    },
    brief=("TASK", "ACTIVE", "PAUSED", "GONE", "READY"),
)
TIMERS = Table[_Timer](
    {
        "TIMER": lambda timer: timer.name,
        "TOKENS": lambda timer: f"{timer.tokens:,}",
        "CALLS": lambda timer: f"{timer.calls:,}",
    },
    brief=("TIMER", "TOKENS", "CALLS"),
)


def _tasks_of(figures: Figures) -> list[_Task]:
    loops, ready = figures.tally.loops, figures.ready
    return [
        _Task(each, loops.get(each, {}), ready.get(each, 0)) for each in sorted({*loops, *ready})
    ]


def _timers_of(figures: Figures) -> list[_Timer]:
    return [
        _Timer(name, figures.timers.get(name, 0), figures.later.get(name, 0))
        for name in dict.fromkeys((*figures.timers, *figures.later))
    ]


def _line(about: str, count: int, names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED]) + (", ..." if count > NAMED else "")
    return f"{about}: {count:,}" + (f" ({shown})" if count else "")
