"""`python -m tests.model`: the whole table, and what goes wrong without each rule.

Of loops and their epochs first, then of ordered queues and their notes.
"""

import argparse
import logging
import sys
from collections.abc import Iterable

from tests.model.moves import Move
from tests.model.ordered import removals as ordered_removals
from tests.model.ordered import table as ordered_table
from tests.model.ordered.world import Move as OrderedMove
from tests.model.removals import REMOVALS
from tests.model.rows import Removal, Row
from tests.model.state import NOTHING, State, Token
from tests.model.table import LARGE, SMALL

ALL_REMOVALS = (*REMOVALS, *ordered_removals.REMOVALS)


def main() -> int:
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=description)
    parser.add_argument("--small", action="store_true", help="not the rows that take minutes")
    parser.add_argument("--show", metavar="RULE", help="the shortest ways without this rule")
    options = parser.parse_args()
    logging.disable()  # each processor that dies is cancelled, and would log that
    if options.show:
        chosen = [each for each in ALL_REMOVALS if each.what.startswith(options.show)]
        for removal in chosen:
            show(removal)
        return 0 if chosen else 2
    rows = [*SMALL, *ordered_table.SMALL]
    if not options.small:
        rows = [*SMALL, *LARGE, *ordered_table.SMALL, *ordered_table.LARGE]
    right = [report(each) for each in rows]
    right += [report_without(each) for each in ALL_REMOVALS]
    return 0 if all(right) else 1


def report(row: Row) -> bool:
    """Whether it is as the table says."""
    result = row.check()
    right = result.complete and result.states == row.states and result.found.keys() == row.found
    found = " ".join(wrong.name for wrong in result.found) or "nothing"
    say(f"{row!s:64} {result.states:>9,} {result.seconds:>6.0f} s  {found}", right)
    return right


def report_without(removal: Removal) -> bool:
    """Whether what the rule prevents is found without it."""
    result = removal.check()
    right = removal.row.found <= result.found.keys()
    found = " ".join(f"{wrong.name} ({len(way)})" for wrong, way in result.found.items())
    say(f"without {removal.what:93} {result.states:>9,} {result.seconds:>6.0f} s  {found}", right)
    return right


def say(line: str, right: bool = True) -> None:
    sys.stdout.write(f"{line}{'' if right else '  NOT AS IN THE TABLE'}\n")
    sys.stdout.flush()


def show(removal: Removal) -> None:
    """Print what goes wrong without a rule, on the shortest ways."""
    for wrong, way in removal.check().found.items():
        say(f"\nwithout {removal.what}: {wrong.value}")
        for move in way:
            say(f"  {line_of(move)}")


def line_of(move: Move | OrderedMove) -> str:
    who = "" if move.which is None else f"P{move.which} "
    if not isinstance(move, Move):
        return f"{who}{move.what}"
    state = move.state
    said = f"{who}{move.what} {brief(move.token)}".strip()
    return f"{said:60} {places(state)}  epoch {state.roster.epoch} {state.roster.state}"


def places(state: State) -> str:
    ready = [f"{brief(token)}{'!' * redelivered}" for token, redelivered in state.ready]
    waiting = [brief(each) for each in state.waiting]
    waiting += [f"{brief(each)} stuck" for each in state.stuck]
    waiting += [f"{brief(each)} late" for each in state.late]
    hands = [brief(each.token) or each.phase.name.lower() for each in state.processors]
    return f"waits {listed(waiting):16} ready {listed(ready):12} hands {listed(hands):28}"


def listed(what: Iterable[str]) -> str:
    return " ".join(what) or "-"


def brief(token: Token) -> str:
    if token is NOTHING:
        return ""
    epoch, seq, *_ = token.position
    return f"{epoch}.{seq}{'first' * token.first}"


if __name__ == "__main__":
    sys.exit(main())
