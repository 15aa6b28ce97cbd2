"""The judge of a storm finds what is wrong in a record, and nothing in one that is right."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.record import Note
from tests.chaos.verdict import (
    ACK_TIME,
    CANCEL_TIME,
    LEARN_TIME,
    NOTICE_TIME,
    OPERATORS_DEATH,
    PUT_RIGHT_WITHIN,
    Pulse,
    Verdict,
    judge,
)

Case = tuple[str, int, str, list[Note]]
PATIENCE = {"kill": 5.0, "cut": 5.0, OPERATORS_DEATH: 7.0}


def at(moment: float, what: str, who: str = "a", loop: str = "l", **facts: Any) -> Note:
    return Note(moment, who, what, loop, **facts)


def message(moment: float, what: str, name: str) -> Note:
    return at(moment, what, loop="", message=name)


def run(
    start: float, end: float, seq: int = 0, who: str = "a", how: str = "end", loop: str = "l"
) -> list[Note]:
    return [at(start, "start", who, loop, seq=seq), at(end, how, who, loop, seq=seq)]


def ends(end: float) -> list[Note]:
    """A run that begins at 1, and is cancelled."""
    return run(1, end, how="cancelled")


def settled(start: float, seq: int = 0, who: str = "a", **facts: Any) -> list[Note]:
    """A run of half a second, and its settlement."""
    moments = {"start": start, "end": start + 0.4, "RunSettled": start + 0.5}
    return [at(moment, what, who, seq=seq, **facts) for what, moment in moments.items()]


def of_epoch(moment: float, epoch: int, who: str = "a", schedule: str = "") -> Note:
    return at(moment, "start", who, seq=0, epoch=epoch, schedule=schedule)


def lost(moment: float, who: str = "a") -> Note:
    return at(moment, "ConnectionLost", who, loop="")


def died(moment: float, who: str = "a") -> Note:
    return at(moment, "died", who, loop="")


def cancelled(moment: float, who: str = "a") -> Note:
    return at(moment, "cancelled", who, seq=0)


def fault(struck: float, healed: float, kind: str = "kill") -> list[Note]:
    notes = at(struck, "strike", "runner", detail=kind), at(healed, "heal", "runner")
    return [replace(note, loop="") for note in notes]


def twice(moment: float, loop: str = "l") -> list[Note]:
    """Two runs at once."""
    return [*run(moment, moment + 2, loop=loop), *run(moment + 1, moment + 2, who="b", loop=loop)]


def gives(before: float, after: float, epoch: int, schedule: str, who: str = "a") -> list[Note]:
    """A loop is given a schedule."""
    return [
        at(before, "seeding", who, schedule=schedule),
        at(after, "seeded", who, epoch=epoch, schedule=schedule),
    ]


def tokens(count: int) -> Note:
    """How many tokens of the loop there are at rest."""
    return at(9, "tokens", detail=str(count))


def judged(*notes: Note) -> Verdict:
    return judge(
        notes, loops=["l"], counting=["counting"], patience=PATIENCE.__getitem__, failing=["kill"]
    )


OVERLAPS: list[Case] = [
    ("overlap", 0, "one after another", [*run(1, 2), *run(2, 3, 1, "b"), *run(4, 5)]),
    ("overlap", 0, "after a death", [*run(3, 9)[:1], died(3.2), *run(3.3, 4, who="b")]),
    ("overlap", 0, "messages", [message(5, "start", each) for each in "xy"]),
    ("overlap", 1, "beside another", [*run(1, 2), *run(1.5, 3, 1, "b")]),
    ("overlap", 1, "without an end", [*run(1, 2)[:1], *run(100, 101, who="b")]),
    ("overlap", 0, "cancelled after a loss", [lost(1.4), *ends(1.6), *run(1.5, 3, who="b")]),
    ("overlap", 1, "cancelled late", [lost(1.4), *ends(1.5 + CANCEL_TIME), *run(1.5, 3, who="b")]),
    ("overlap", 1, "after a loss before it", [lost(0.5), *ends(2), *run(1.5, 3, who="b")]),
    ("overlap", 1, "before a node failed", [*fault(10, 20), *twice(1)]),
    ("overlap", 0, "soon after a node failed", [*fault(10, 20), *twice(25)]),
    ("overlap", 0, "a while after a node failed", [*fault(10, 20), *twice(45)]),
    ("overlap", 1, "long after a node failed", [*fault(10, 20), *twice(55)]),
    ("overlap", 1, "after a connection was cut", [*fault(10, 20, "cut"), *twice(25)]),
    ("overlap", 0, "until all loops ran", [*fault(10, 20), *twice(50.5), *fault(52, 60, "cut")]),
    ("overlap", 1, "after all loops ran", [*fault(10, 20), *twice(50.5), *fault(21, 60, "cut")]),
    ("overlap", 0, "of two lines", [*fault(10, 20), *twice(45), *twice(100)]),
    ("overlap", 1, "after supervision", [*fault(10, 20), *twice(45), *twice(108)]),
    ("overlap", 1, "of another loop", [*fault(10, 20), *twice(45), *twice(100, "m")]),
]

AGAIN = "settled run repeated"
LATER = 5 + PUT_RIGHT_WITHIN
REPEATS: list[Case] = [
    (AGAIN, 1, "the same run", [*settled(1), *run(4, 5, who="b")]),
    (AGAIN, 1, "an earlier one", [*settled(1, 7), *run(4, 5, 6)]),
    (AGAIN, 0, "a later attempt and tick", [*settled(1), *settled(2, attempt=1), *run(4, 5, 1)]),
    (AGAIN, 0, "not settled", [*run(4, 5), *run(6, 7, who="b")]),
    (AGAIN, 0, "ack lost", [*settled(1), lost(1.5 + ACK_TIME / 2), *run(4, 5, who="b")]),
    (AGAIN, 1, "ack not lost", [*settled(1), lost(1.5 + ACK_TIME * 2), *run(4, 5, who="b")]),
    (AGAIN, 0, "acked as a node failed", [*settled(8.5), *fault(10, 20), *run(30, 31, who="b")]),
    (AGAIN, 1, "acked before", [*settled(3.5), *fault(10, 20), *run(30, 31, who="b")]),
    (AGAIN, 1, "excused once", [*settled(1), died(1.6), *settled(2, who="b"), *run(4, 5, who="c")]),
    (AGAIN, 0, "unnoticed loss", [*settled(1), *run(4, 4.2, 0, "b", "cancelled"), lost(4.1, "b")]),
    (AGAIN, 0, "another life", [*settled(1, life=1), *settled(4, life=2)]),
    (AGAIN, 1, "the same life", [*settled(1, life=1), *settled(4, life=1)]),
    (AGAIN, 0, "tampered with", [*settled(1, 5), at(4, "tampered"), *run(5, 6, 5), *run(7, 8)]),
    (AGAIN, 0, "put right", [*settled(1, 5), at(4, "tampered"), *run(LATER + 9, LATER + 10, 3)]),
    (AGAIN, 1, "after", [at(4, "tampered"), *settled(LATER, 3), *run(LATER + 9, LATER + 10, 3)]),
]

PAUSES: list[Case] = [
    ("disobeyed", 0, "before", [*run(0.5, 3), at(1, "paused")]),
    ("disobeyed", 0, "resumed", [at(1, "paused"), at(9, "resuming"), *run(10, 11)]),
    ("disobeyed", 0, "started", [at(1, "stopped"), at(9, "starting"), *run(10, 11)]),
    ("disobeyed", 1, "paused", [at(1, "paused"), *run(2, 3)]),
    ("disobeyed", 1, "stopped", [at(1, "stopped"), *run(2, 3)]),
    ("disobeyed", 1, "paused twice", [at(1, "paused"), at(1.5, "paused"), *run(2, 3)]),
    ("disobeyed", 0, "silent", [at(1, "paused", silent=1), *run(1 + NOTICE_TIME / 2, 9)]),
    ("disobeyed", 1, "silent long", [at(1, "paused", silent=1), *run(1 + NOTICE_TIME * 2, 99)]),
    ("disobeyed", 1, "silent later", [at(0, "paused"), at(1, "paused", silent=1), *run(5, 9)]),
    ("disobeyed", 0, "unnoticed", [at(1, "paused"), *run(2, 2.2, how="cancelled"), lost(2.1)]),
]

VOID = "void token ran"
OLDER = [of_epoch(1, 6), of_epoch(2, 5, "b"), cancelled(2.2, "b")]
SILENT = at(1, "paused", epoch=6, silent=1)
FAILS = [*fault(3, 20), at(19, "seeded", epoch=6)]
BACK = 20 + LEARN_TIME
EPOCHS: list[Case] = [
    (VOID, 0, "later epochs", [of_epoch(n, e, w) for n, e, w in ((1, 5, "a"), (2, 5, "b"))]),
    (VOID, 1, "it ran a later one", [of_epoch(1, 6), of_epoch(2, 5), lost(2.1), cancelled(2.2)]),
    (VOID, 1, "another ran a later one", OLDER),
    (VOID, 0, "unnoticed loss", [*OLDER, lost(2.1, "b")]),
    (VOID, 1, "paused", [at(1, "paused", epoch=6), of_epoch(1.1, 5)]),
    (VOID, 0, "silent", [SILENT, of_epoch(0.9 + NOTICE_TIME, 5)]),
    (VOID, 1, "silent long", [SILENT, of_epoch(1.1 + NOTICE_TIME, 5)]),
    *(
        (VOID, 1, verb, [at(1, verb, epoch=6), of_epoch(1.1 + LEARN_TIME, 5)])
        for verb in ("resumed", "triggered", "seeded", "started")
    ),
    (VOID, 0, "not known yet", [at(1, "seeded", epoch=6), of_epoch(0.9 + LEARN_TIME, 5)]),
    (VOID, 0, "of the same epoch", [at(1, "seeded", epoch=6), of_epoch(1.1 + LEARN_TIME, 6)]),
    (VOID, 0, "a node failed", [*FAILS, of_epoch(BACK - 0.1, 5)]),
    (VOID, 1, "a node is back", [*FAILS, of_epoch(BACK + 0.1, 5)]),
    (VOID, 1, "no node failed", [*fault(3, 20, "cut"), at(19, "seeded", epoch=6), of_epoch(25, 5)]),
]

OLD = "old schedule"
GIVEN = [*gives(1, 2, 5, "old"), *gives(5, 8, 6, "new")]
RIGHT = [of_epoch(3, 5, schedule="old"), of_epoch(6, 5, schedule="old")]
OF_BOTH = [at(0, "seeding", "b", schedule="b"), *gives(1, 3, 5, "a")]
SCHEDULES: list[Case] = [
    (OLD, 0, "meanwhile", [*GIVEN, *RIGHT, of_epoch(7, 6, schedule="new")]),
    (OLD, 0, "of an older epoch", [*GIVEN, of_epoch(9, 5, schedule="old")]),
    (OLD, 1, "brought back", [*GIVEN, of_epoch(9, 7, schedule="old")]),
    (OLD, 1, "started", [replace(at(1, "started"), epoch=5), of_epoch(2, 6, schedule="old")]),
    (OLD, 0, "of two", [*OF_BOTH, *(of_epoch(n, 6, schedule="b") for n in (4, 6))]),
    (OLD, 1, "of the first", [*OF_BOTH, *gives(4, 5, 6, "b", "b"), of_epoch(6, 6, schedule="a")]),
    (
        OLD,
        0,
        "of the dead",
        [at(1, "seeding", schedule="a"), died(2), of_epoch(3, 5, schedule="a")],
    ),
    (OLD, 1, "of the dead, after another", [*OF_BOTH, died(2, "b"), of_epoch(4, 7, schedule="b")]),
]

LATE = [*fault(1, 2), *run(8, 9)]
STARTED = at(0, "started", loop="l.k")
GONE = "one-off lost"
OTHERS: list[Case] = [
    ("carry", 0, "counted", [at(1, "start", loop="counting", seq=1, carried=1)]),
    ("carry", 1, "miscounted", [at(1, "start", loop="counting", seq=2, carried=1)]),
    (GONE, 1, "failed", [message(1, "sent", "m"), message(2, "failed", "m")]),
    *(
        (GONE, 0, what, [message(1, "sent", "m"), message(2, what, "m")])
        for what in ("end", "done once", "MessageParked", "parked")
    ),
    ("late", 1, "after a fault", LATE),
    ("late", 1, "refused before it", [at(0.5, "refused"), *LATE]),
    *(("late", 0, f"refused at {n}", [at(n, "refused"), *LATE]) for n in (1.5, 2.5)),
    ("dead", 1, "loop", [*run(0, 1), *fault(1, 2)]),
    ("dead", 0, "paused", [*fault(1, 2), at(3, "paused")]),
    ("dead", 1, "keyed", [STARTED, *fault(1, 2), *run(3, 4)]),
    ("dead", 0, "stopped", [STARTED, *LATE, at(0.5, "stopped", loop="l.k")]),
    ("dead", 0, "stopped after", [STARTED, *LATE, at(9, "stopped", loop="l.k")]),
    *((what, 1, what, [at(1, what)]) for what in ("failed to stop", "ended by itself")),
    ("loop lost", 1, "no token", [tokens(0)]),
    ("loop doubled", 1, "two tokens", [tokens(2)]),
    *((wrong, 0, "one token", [tokens(1)]) for wrong in ("loop lost", "loop doubled")),
    *(("loop lost", 0, verb, [at(1, verb), tokens(0)]) for verb in ("paused", "stopped")),
    *(("loop doubled", 1, verb, [at(1, verb), tokens(1)]) for verb in ("paused", "stopped")),
    *(
        ("loop lost", 1, after, [at(1, before), at(2, after), tokens(0)])
        for before, after in (("paused", "resumed"), ("stopped", "started"))
    ),
]


@pytest.mark.parametrize(
    ("what", "count", "notes"),
    [
        pytest.param(what, count, notes, id=f"{count} {what}: {case}")
        for what, count, case, notes in (*OVERLAPS, *REPEATS, *PAUSES, *EPOCHS, *SCHEDULES, *OTHERS)
    ],
)
def test_the_judge_finds_what_is_wrong(what: str, count: int, notes: list[Note]) -> None:
    assert sum(found.what == what for found in judged(*notes).violations) == count


def test_a_storm_without_a_fault_of_ours_has_no_violations() -> None:
    verdict = judged(*settled(0), *fault(1, 2), *run(3, 4, 1))
    assert verdict.violations == []
    assert verdict.strikes[0].recovery == 1


def test_excused_overlaps_are_counted() -> None:
    (overlap,) = judged(*fault(10, 20), *twice(25)).overlaps
    assert (overlap.first.who, overlap.second.who, overlap.overlap) == ("a", "b", 1)
    assert overlap.excused


def test_after_the_last_verb_all_active_loops_must_run_once_more() -> None:
    pulse = Pulse(["l"])
    calm = at(6, "calm", "runner", loop="")
    for note in [*fault(1, 2), *run(3, 4), at(5, "resumed", loop="m"), calm]:
        pulse.see(note)
    assert pulse.awaited == {"l", "m"}
    for note in [*run(7, 8, 1), at(9, "paused", loop="m")]:
        pulse.see(note)
    assert pulse.awaited == set()
    assert pulse.strikes[0].recovered_at == 3
