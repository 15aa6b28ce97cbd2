"""Who answers roll calls, and who is missing."""

import pytest

from scheduler.protocol.messages import Message
from scheduler.queues.attendance import (
    ANSWER,
    GOODBYE,
    QUESTION,
    REMEMBERED,
    RUNNING_ANSWER,
    RUNNING_QUESTION,
    Attendance,
)


def attendance(*said: str) -> Attendance:
    """What is known after a question ("?"), answers ("a") and goodbyes ("-a")."""
    attendance = Attendance()
    for each in said:
        kind = QUESTION if each == "?" else GOODBYE if each.startswith("-") else ANSWER
        attendance.hear(Message(type=kind, app_id=each.strip("?-")))
    return attendance


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ("", []),
        ("?", []),
        ("? here", []),
        ("? here a", ["a"]),
        ("? here a ? here ? here ? here ? here ? here ? here", ["a"]),
        ("? here a -a", []),
        ("? here a -a ? here a", ["a"]),
        ("? here a b ? b here", ["b"]),
        ("? here a b ? here", ["a", "b"]),
        ("? a here ? b here ? here", ["b"]),
    ],
)
def test_who_answered_last_but_not_now_is_missing(said: str, missing: list[str]) -> None:
    assert attendance(*said.split()).missing({"here"}, 1) == missing


def test_as_many_as_are_silent_are_missing() -> None:
    known = attendance(*["?", "a", "here", "?", "b", "here", "?", "c", "here", "?", "here"])
    assert [known.missing({"here"}, many) for many in (0, 1, 2, 3, 9)] == [
        *([], ["c"], ["b", "c"], ["a", "b", "c"], ["a", "b", "c"])
    ]


def test_who_has_not_answered_for_long_is_forgotten() -> None:
    known = attendance("?", *map(str, range(REMEMBERED)), "0", "new")
    assert len(known.missing((), REMEMBERED + 1)) == REMEMBERED
    assert known.missing({"0", "new"}, REMEMBERED + 1) == sorted(map(str, range(2, REMEMBERED)))


def test_who_tells_what_it_runs_is_there_as_well() -> None:
    known = Attendance()
    for kind, name in [
        (RUNNING_QUESTION, ""),
        (RUNNING_ANSWER, "a"),
        (ANSWER, "here"),
        (RUNNING_QUESTION, ""),
        (RUNNING_ANSWER, "here"),
    ]:
        known.hear(Message(type=kind, app_id=name))
    assert known.missing({"here"}, 1) == ["a"]
