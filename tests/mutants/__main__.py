"""`python -m tests.mutants [MODULE ...]`: how many small changes of the package its tests notice.

A change (a mutant) that fails a test, or hangs it, was noticed. Only the tests that execute the
changed lines are run, in a process of its own; no file is written. Exits with 1 when a module is
under its goal.
"""

import argparse
import fnmatch
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence

from tests import shape
from tests.mutants.changes import mutants_of
from tests.mutants.trials import Record, TestsFail, Trial, import_the_rest, record, run

# Per cent of the changes that must be noticed; the first pattern counts. No change is noticed that
# makes no difference: there are always some.
GOALS = {
    "timing.*": 90,
    "protocol.*": 90,
    "processor.settlement": 90,
    "tasks.*": 90,
    "settings": 90,
    "errors": 90,
    "brokers.credentials": 90,
    "queues.*": 75,
    "control.*": 75,
    "processor.*": 75,
}
ORCHESTRATING = ("queues.timers", "queues.roster", "queues.failed", "control.*", "processor.*")
FAST = ("tests/unit", "tests/property", "tests/test_architecture.py")


def main() -> int:
    asked = arguments()
    chosen = matching(shape.modules(), asked.modules)
    import_the_rest()
    try:
        recorded = record(asked.tests, asked.jobs)
    except TestsFail as failed:
        sys.stdout.write(f"{failed}\nThe tests fail on the package as it is.\n")
        return 2
    trials = {
        name: list(sampled(module, recorded, asked.sample, asked.seed))
        for name, module in chosen.items()
    }
    run([trial for each in trials.values() for trial in each], asked.jobs)
    return told(trials)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.mutants", description="Mutation testing.")
    add = parser.add_argument
    add("modules", nargs="*", metavar="MODULE", help="such as queues.timers or 'timing.*'")
    add("--all", action="store_const", const=["*"], dest="everything", help="all modules")
    add("--sample", type=int, default=20, help="so many changes of each module (20)")
    add("--seed", type=int, default=1, help="which ones")
    add("--jobs", type=int, default=os.cpu_count(), help="how many at once (as there are cores)")
    add("--tests", nargs="+", default=FAST, metavar="PATH", help="which tests should notice")
    asked = parser.parse_args()
    asked.modules = asked.everything or asked.modules or ORCHESTRATING
    for pattern in asked.modules:
        if not matching(shape.modules(), [pattern]):
            parser.error(f"there is no module {pattern!r}")
    return asked


def matching(
    modules: Mapping[str, shape.Module], patterns: Sequence[str]
) -> dict[str, shape.Module]:
    return {
        name: module
        for name, module in modules.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def sampled(module: shape.Module, recorded: Record, count: int, seed: int) -> Iterator[Trial]:
    every = mutants_of(module.tree)
    chosen = random.Random(f"{seed} {module.name}").sample(every, min(count, len(every)))
    for mutant in sorted(chosen, key=lambda mutant: mutant.line):
        yield Trial(module, mutant, recorded.of(module.path, mutant.lines))


def told(trials: Mapping[str, Sequence[Trial]]) -> int:
    """Print the scores and what nobody noticed; the exit code."""
    under = False
    sys.stdout.write(f"{'module':28}{'tried':>7}{'noticed':>9}{'score':>7}{'goal':>6}\n")
    for name, tried in trials.items():
        if not tried:
            continue
        noticed = sum(trial.noticed for trial in tried)
        score, goal = 100 * noticed // len(tried), goal_of(name)
        under = under or score < goal
        columns = f"{len(tried):>7}{noticed:>9}{score:>6}%{f'{goal}%' if goal else '':>6}"
        sys.stdout.write(f"{name:28}{columns}{'  under' if score < goal else ''}\n")
    for survivor in (trial for tried in trials.values() for trial in tried if not trial.noticed):
        place = survivor.module.path.relative_to(shape.ROOT.parent)
        unseen = "" if survivor.tests else "  (no test runs it)"
        sys.stdout.write(f"{place}:{survivor.mutant.line}  {survivor.mutant.what}{unseen}\n")
    return int(under)


def goal_of(name: str) -> int:
    return next((goal for pattern, goal in GOALS.items() if fnmatch.fnmatchcase(name, pattern)), 0)


if __name__ == "__main__":
    sys.exit(main())
