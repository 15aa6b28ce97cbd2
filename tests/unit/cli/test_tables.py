"""Tables as a terminal has them: nothing that one may want to copy is cut."""

import pytest

from scheduler.cli.tables import Table, shortened

TABLE = Table[str](
    {
        "LOOP": str,
        "DUE": lambda _: "09:00",
        "TOOK": lambda _: "1 s",
        "NOTE": lambda _: "x" * 30,
    },
    brief=("LOOP", "NOTE"),
)


def shown(name: str, width: int) -> list[str]:
    return [line.plain for line in TABLE.lines([name], width)]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (80, ["LOOP  DUE    TOOK  NOTE", f"beat  09:00  1 s   {'x' * 30}"]),
        (31, ["LOOP  DUE    TOOK  NOTE", f"beat  09:00  1 s   {'x' * 11}…"]),
        (30, ["LOOP  NOTE", f"beat  {'x' * 23}…"]),
        (9, ["LOOP  NOTE", "beat  xxx…"]),
    ],
)
def test_what_does_not_fit_is_told_in_brief_and_only_a_note_is_cut(
    width: int, lines: list[str]
) -> None:
    assert shown("beat", width) == lines


def test_a_name_is_never_cut() -> None:
    assert shown("n" * 100, 80)[1].split()[0] == "n" * 100


@pytest.mark.parametrize(
    ("ids", "short"),
    [
        ([], []),
        (["abcdefghijk"], ["abcdefgh"]),
        (["abc"], ["abc"]),
        (["abcdefgh-1-x", "abcdefgh-2-x", "b" * 20], ["abcdefgh-1", "abcdefgh-2", "b" * 8]),
        (["abcdefgh-1", "abcdefgh-12", "abcdefgh"], ["abcdefgh-1", "abcdefgh-12", "abcdefgh"]),
        (["a" * 20, "a" * 20], ["a" * 8, "a" * 8]),
    ],
)
def test_an_id_is_as_short_as_it_can_be_told_from_the_others(
    ids: list[str], short: list[str]
) -> None:
    assert [shortened(ids)[each] for each in ids] == short
