"""What is printed of a guide that was followed."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from tests.migrations.verdict import Judged


def table_of(jobs: Sequence[Judged]) -> Table:
    """How many runs each side had, and what is wrong with them."""
    sides = list(dict.fromkeys(side for each in jobs for side in each.runs))
    table = Table("job", *sides, "missing", "doubled", "early", "made up for by another")
    for each in jobs:
        wrong = map(len, (each.missing, each.doubled, each.early))
        counts = (*(each.runs.get(side, 0) for side in sides), *wrong, each.made_up_for)
        table.add_row(each.job, *map(str, counts))
    return table


def wrongs_of(jobs: Sequence[Judged]) -> Iterator[str]:
    """What went wrong, in lines."""
    for each in jobs:
        for word in "missing", "doubled", "early":
            yield from (f"{each.job}: {word}: {what}" for what in getattr(each, word))
        if len(each.runs) < 2:
            yield f"{each.job}: it did not run on both sides"
        elif len(each.seams) == 1:
            yield f"{each.job}: it did not come back"
