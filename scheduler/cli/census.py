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
from scheduler.protocol.tokens import LoopId

NAMED = 5  # loops that are named, of many

cli = new_group()


@command(cli, "census")
def census(reference: AppArgument = None, as_json: Json = False) -> bool:
    """Count loops by task and state, and their messages in each timer.

    Nothing is written, and no message is read. A million loops take some ten seconds. The exit code
    is 1 if loops are overdue, or have two tokens: supervision repairs them.

    Example: scheduler census shop:app
    """
    figures = ask(ready_app(reference), count, is_long=True)
    if as_json:
        print_json(
            {
                "loops": figures.loops,
                "paused": figures.paused,
                "timers": figures.timers,
                "later": figures.later,
                "void": figures.void,
                "overdue": list(map(str, figures.overdue)),
                "doubled": list(map(str, figures.doubled)),
            }
        )
    else:
        print_table(_tasks_of(figures.loops), TASKS)
        print_line("")
        print_table(_timers_of(figures), TIMERS)
        print_line("")
        if figures.paused:
            print_line(f"paused as a whole: {', '.join(figures.paused)}")
        print_line(_line("overdue", figures.overdue))
        print_line(_line("doubled", figures.doubled))
        print_line(f"void: at least {figures.void:,}")
    return not figures.overdue and not figures.doubled


@dataclass(frozen=True, slots=True)
class _Task:
    name: str
    states: Mapping[LoopState, int]


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
    },
    brief=("TASK", "ACTIVE", "PAUSED", "GONE"),
)
TIMERS = Table[_Timer](
    {
        "TIMER": lambda timer: timer.name,
        "TOKENS": lambda timer: f"{timer.tokens:,}",
        "CALLS": lambda timer: f"{timer.calls:,}",
    },
    brief=("TIMER", "TOKENS", "CALLS"),
)


def _tasks_of(loops: Mapping[str, Mapping[LoopState, int]]) -> list[_Task]:
    return [_Task(task, states) for task, states in sorted(loops.items())]


def _timers_of(figures: Figures) -> list[_Timer]:
    return [
        _Timer(name, figures.timers.get(name, 0), figures.later.get(name, 0))
        for name in dict.fromkeys((*figures.timers, *figures.later))
    ]


def _line(about: str, loops: Sequence[LoopId]) -> str:
    names = ", ".join(map(str, loops[:NAMED])) + (", ..." if len(loops) > NAMED else "")
    return f"{about}: {len(loops):,}" + (f" ({names})" if loops else "")
