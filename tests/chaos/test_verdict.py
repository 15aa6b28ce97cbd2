"""The judge of a storm finds what is wrong in a record, and nothing in one that is right."""

from collections.abc import Sequence
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
    Violation,
    brought_back,
    disobeyed,
    judge,
    late,
    lost,
    miscounted,
    not_single,
    overlaps,
    repeated,
    repeats,
    untampered,
    void,
)


def at(moment: float, what: str, who: str = "a", **facts: Any) -> Note:
    return Note(moment, who, what, **facts)


def run(start: float, end: float, seq: int = 0, who: str = "a", how: str = "end") -> list[Note]:
    return [at(start, "start", who, loop="l", seq=seq), at(end, how, who, loop="l", seq=seq)]


def in_order(*notes: Note) -> list[Note]:
    return sorted(notes, key=lambda note: note.at)


def repetitions(notes: Sequence[Note]) -> list[Violation]:
    return repeated(repeats(notes))


def verdict(*notes: Note) -> Verdict:
    return judge(notes, loops=["l"], counting=["l"], patience=lambda kind: 5)


# Overlaps


def test_runs_one_after_another_and_of_one_off_messages_do_not_overlap() -> None:
    start, _ = run(3, 4)
    after = [*run(1, 2), *run(2, 3, seq=1, who="b"), start, at(3.2, "died"), *run(3.3, 4, who="b")]
    messages = [at(5, "start", loop="post", message=each) for each in "xy"]
    assert overlaps([*after, *messages]) == []


def test_a_run_beside_another_is_an_overlap() -> None:
    (overlap,) = overlaps(in_order(*run(1, 2), *run(1.5, 3, seq=1, who="b")))
    assert (overlap.first.who, overlap.second.who) == ("a", "b")
    assert overlap.overlap == 0.5
    assert not overlap.excused


@pytest.mark.parametrize(
    ("lost_at", "end", "excused"),
    [(1.4, 1.6, True), (1.4, 1.4 + CANCEL_TIME + 0.1, False), (0.5, 2, False)],
)
def test_a_run_is_excused_that_is_cancelled_soon_after_its_connection_was_lost(
    lost_at: float, end: float, excused: bool
) -> None:
    notes = in_order(
        at(lost_at, "ConnectionLost"), *run(1, end, how="cancelled"), *run(1.5, 3, who="b")
    )
    assert [overlap.excused for overlap in overlaps(notes)] == [excused]


@pytest.mark.parametrize(
    ("starts_at", "excused"), [(1, False), (25, True), (45, True), (55, False)]
)
def test_a_token_that_comes_twice_after_a_node_failed_is_excused(
    starts_at: float, excused: bool
) -> None:
    fault = [at(10, "strike", "runner", detail="kill"), at(20, "heal", "runner")]
    notes = in_order(
        *fault, *run(starts_at, starts_at + 2), *run(starts_at + 1, starts_at + 2, who="b")
    )
    assert [overlap.excused for overlap in overlaps(notes, failing=["kill"])] == [excused]
    assert [overlap.excused for overlap in overlaps(notes)] == [False]


def test_a_broker_that_failed_is_back_when_the_loops_run_again() -> None:
    fault = [at(10, "strike", "runner", detail="kill"), at(20, "heal", "runner")]
    twice = [*run(50.5, 52), *run(51, 52, who="b")]
    back_at_51 = in_order(*fault, *twice, at(51.1, "strike", "runner", detail="cut"))
    assert [overlap.excused for overlap in overlaps(back_at_51, failing=["kill"])] == [True]
    back_at_21 = in_order(*fault, *twice, at(21, "strike", "runner", detail="cut"))
    assert [overlap.excused for overlap in overlaps(back_at_21, failing=["kill"])] == [False]


@pytest.mark.parametrize(("again_at", "excused"), [(100, True), (108, False)])
def test_a_loop_has_two_lines_until_supervision_ends_one(again_at: float, excused: bool) -> None:
    fault = [at(10, "strike", "runner", detail="kill"), at(20, "heal", "runner")]
    first = [*run(45, 47), *run(46, 47, who="b")]
    again = [*run(again_at, again_at + 2), *run(again_at + 1, again_at + 2, who="b")]
    notes = in_order(*fault, *first, *again)
    assert [overlap.excused for overlap in overlaps(notes, failing=["kill"])] == [True, excused]
    of_another = [replace(note, loop="m") if note.at >= again_at else note for note in notes]
    assert [each.excused for each in overlaps(of_another, failing=["kill"])] == [True, False]


def test_a_run_without_an_end_goes_on() -> None:
    start, _ = run(1, 2)
    assert len(overlaps([start, *run(100, 101, who="b")])) == 1


# Settled runs


def settled(start: float, seq: int = 0, attempt: int = 0, who: str = "a") -> list[Note]:
    """A run of half a second, and its settlement."""
    facts: dict[str, Any] = {"who": who, "loop": "l", "seq": seq, "attempt": attempt}
    moments = {"start": start, "end": start + 0.4, "RunSettled": start + 0.5}
    return [at(moment, what, **facts) for what, moment in moments.items()]


def test_a_settled_run_does_not_start_again() -> None:
    (violation,) = repetitions([*settled(1), *run(4, 5, who="b")])
    assert "l #0/0 in b" in violation.detail


def test_nor_does_an_earlier_one() -> None:
    assert len(repetitions([*settled(1, seq=7), *run(4, 5, seq=6)])) == 1


def test_a_later_attempt_a_later_tick_and_what_was_not_settled_start() -> None:
    later = settled(2, attempt=1), settled(3, seq=1)
    again = run(4, 5, seq=2), run(6, 7, seq=2, who="b")
    assert repetitions([note for each in (settled(1), *later, *again) for note in each]) == []


def test_it_is_excused_when_the_ack_may_have_been_lost_with_the_connection() -> None:
    notes = [*settled(1), at(1.5 + ACK_TIME / 2, "ConnectionLost"), *run(4, 5, who="b")]
    assert [repeat.excused for repeat in repeats(notes)] == [True]
    notes = [*settled(1), at(1.5 + ACK_TIME * 2, "ConnectionLost"), *run(4, 5, who="b")]
    assert [repeat.excused for repeat in repeats(notes)] == [False]


@pytest.mark.parametrize(("settled_at", "excused"), [(4, False), (9, True)])
def test_it_is_excused_when_a_node_failed_that_may_have_lost_the_ack(
    settled_at: float, excused: bool
) -> None:
    first, ended = run(1, 2)
    settled_then = at(settled_at, "RunSettled", loop="l", seq=0)
    fault = [at(10, "strike", "runner", detail="kill"), at(20, "heal", "runner")]
    notes = in_order(first, ended, settled_then, *fault, *run(30, 31, who="b"))
    assert [clash.excused for clash in repeats(notes, failing=["kill"])] == [excused]
    assert [clash.excused for clash in repeats(notes)] == [False]


def test_it_is_excused_once() -> None:
    notes = [*settled(1), at(1.6, "died"), *settled(2, who="b"), *run(4, 5, who="c")]
    assert [repeat.excused for repeat in repeats(notes)] == [True, False]


def test_it_is_excused_when_it_started_after_its_connection_was_lost_unnoticed() -> None:
    stale = in_order(*run(4, 4.2, who="b", how="cancelled"), at(4.1, "ConnectionLost", "b"))
    assert [repeat.excused for repeat in repeats([*settled(1), *stale])] == [True]


# Carry, pauses and stops


def test_each_tick_is_handed_the_number_of_ticks_before_it() -> None:
    right = [at(1, "start", loop="l", seq=0), at(2, "start", loop="l", seq=1, carried=1)]
    assert miscounted(right, ["l"]) == []
    wrong = at(3, "start", loop="l", seq=2, carried=1)
    assert len(miscounted([*right, wrong], ["l"])) == 1


@pytest.mark.parametrize(("ends", "allows"), [("paused", "resuming"), ("stopped", "starting")])
def test_no_run_begins_after_a_pause_or_a_stop_returned(ends: str, allows: str) -> None:
    ended, allowed = at(1, ends, loop="l"), at(9, allows, loop="l")
    going_on, again = run(0.5, 3), run(10, 11, seq=1)
    assert disobeyed(in_order(*going_on, ended, allowed, *again)) == []
    assert len(disobeyed([ended, *run(2, 3), allowed, *again])) == 1
    assert len(disobeyed([ended, at(1.5, ends, loop="l"), *run(2, 3)])) == 1


def test_who_has_not_answered_a_pause_has_a_while_to_hear_of_it() -> None:
    paused = at(1, "paused", loop="l", silent=1)
    assert disobeyed([paused, *run(1 + NOTICE_TIME / 2, 9)]) == []
    assert len(disobeyed([paused, *run(1 + NOTICE_TIME * 2, 99)])) == 1
    answered, later = at(0, "paused", loop="l"), run(1 + NOTICE_TIME / 2, 9)
    assert len(disobeyed([answered, paused, *later])) == 1


def test_a_run_after_a_pause_is_excused_when_its_connection_was_lost_unnoticed() -> None:
    paused, lost_at = at(1, "paused", loop="l"), at(2.1, "ConnectionLost")
    assert disobeyed([paused, *in_order(*run(2, 2.2, how="cancelled"), lost_at)]) == []


# Epochs


def of_epoch(moment: float, epoch: int, who: str = "a", **facts: Any) -> Note:
    return at(moment, "start", who, loop="l", seq=0, epoch=epoch, **facts)


def test_tokens_of_the_same_or_a_later_epoch_may_run() -> None:
    assert void([of_epoch(1, 5), of_epoch(2, 5, "b"), of_epoch(3, 6), of_epoch(4, 6, "b")]) == []


def test_a_process_that_ran_a_later_epoch_runs_no_older_one_whatever_it_lost() -> None:
    older, lost_at = of_epoch(2, 5), at(2.1, "ConnectionLost")
    assert len(void([of_epoch(1, 6), older, at(2.1, "cancelled", loop="l", seq=0), lost_at])) == 1


def test_nor_does_another_process_unless_it_had_lost_its_connection() -> None:
    older, cancelled = of_epoch(2, 5, "b"), at(2.2, "cancelled", "b", loop="l", seq=0)
    assert len(void([of_epoch(1, 6), older, cancelled])) == 1
    assert void([of_epoch(1, 6), older, at(2.1, "ConnectionLost", "b"), cancelled]) == []


@pytest.mark.parametrize(
    ("what", "silent", "known_in"),
    [
        ("paused", 0, 0),
        ("paused", 1, NOTICE_TIME),
        ("resumed", 0, LEARN_TIME),
        ("triggered", 0, LEARN_TIME),
        ("seeded", 0, LEARN_TIME),
        ("started", 0, LEARN_TIME),
    ],
)
def test_no_token_runs_that_is_older_than_what_a_verb_has_reported(
    what: str, silent: int, known_in: float
) -> None:
    report = at(1, what, loop="l", epoch=6, silent=silent)
    assert void([report, of_epoch(1 + known_in - 0.1, 5)]) == []
    assert len(void([report, of_epoch(1 + known_in + 0.1, 5)])) == 1
    assert void([report, of_epoch(1 + known_in + 0.1, 6)]) == []


def test_who_reads_at_a_node_that_fails_knows_of_an_epoch_a_while_after_it_is_back() -> None:
    failed = [at(3, "strike", "runner", detail="kill"), at(20, "heal", "runner")]
    for moment in (1, 19):
        notes = in_order(*failed, at(moment, "seeded", loop="l", epoch=6))
        assert void([*notes, of_epoch(20 + LEARN_TIME - 0.1, 5)], ["kill"]) == []
        assert len(void([*notes, of_epoch(20 + LEARN_TIME + 0.1, 5)], ["kill"])) == 1
        assert len(void([*notes, of_epoch(20 + LEARN_TIME - 0.1, 5)])) == 1


@pytest.mark.parametrize(("before", "after"), [("seeding", "seeded"), ("starting", "started")])
def test_a_schedule_that_a_loop_was_given_is_not_brought_back_when_it_is_given_another(
    before: str, after: str
) -> None:
    old = [at(1, before, loop="l", schedule="old"), at(2, after, loop="l", epoch=5, schedule="old")]
    new = [at(5, before, loop="l", schedule="new"), at(8, after, loop="l", epoch=6, schedule="new")]
    meanwhile = of_epoch(6, 5, schedule="old"), of_epoch(7, 6, schedule="new")
    right = in_order(*old, of_epoch(3, 5, schedule="old"), *new, *meanwhile)
    assert brought_back([*right, of_epoch(9, 5, schedule="old")]) == []  # void, if anything
    assert len(brought_back([*right, of_epoch(9, 7, schedule="old")])) == 1


def test_of_two_who_give_a_loop_schedules_either_may_be_the_last() -> None:
    both = [at(n, "seeding", who, loop="l", schedule=who) for n, who in enumerate("ab")]
    first = at(3, "seeded", "a", loop="l", epoch=5, schedule="a")
    second = at(5, "seeded", "b", loop="l", epoch=6, schedule="b")
    ran = of_epoch(4, 6, schedule="b"), of_epoch(6, 6, schedule="b")
    assert brought_back([*both, first, ran[0], second, ran[1]]) == []
    assert brought_back([*both, second, first, of_epoch(6, 6, schedule="b")]) == []
    assert len(brought_back([*both, first, second, of_epoch(6, 6, schedule="a")])) == 1


def test_who_has_died_gives_no_schedule_after_somebody_else_has() -> None:
    died = [at(1, "seeding", loop="l", schedule="a"), at(2, "died", "a")]
    given = at(3, "seeded", "b", loop="l", epoch=6, schedule="b")
    assert brought_back([*died, of_epoch(2.5, 5, schedule="a")]) == []
    assert len(brought_back([*died, given, of_epoch(4, 7, schedule="a")])) == 1


def test_a_loop_that_is_started_anew_repeats_nothing() -> None:
    first = [replace(note, life=1) for note in settled(1)]
    assert repetitions([*first, *(replace(note, life=2) for note in settled(4))]) == []
    assert len(repetitions([*first, *(replace(note, life=1) for note in settled(4))])) == 1


# One-off messages


def test_a_message_is_done_when_it_ran_to_its_end_or_is_parked() -> None:
    notes = [at(n, "sent", message=str(n)) for n in range(4)]
    notes += [at(5, "end", message="0"), at(6, "MessageParked", message="1")]
    notes += [at(7, "parked", message="2"), at(8, "failed", message="3")]
    assert [violation.detail for violation in lost(notes)] == ["3"]


# Recovery


def fault(struck: float, healed: float) -> list[Note]:
    return [at(struck, "strike", "runner", detail="kill"), at(healed, "heal", "runner")]


@pytest.mark.parametrize(("refused_at", "too_late"), [(0.5, True), (1.5, False), (2.5, False)])
def test_a_loop_whose_verb_was_broken_off_has_the_time_of_an_operators_death(
    refused_at: float, too_late: bool
) -> None:
    notes = [*fault(1, 2), *run(8, 9), at(refused_at, "refused", "operator")]
    strikes = verdict(*notes).strikes
    found = late(strikes, lambda kind: {"kill": 5, OPERATORS_DEATH: 7}[kind])
    assert bool(found) is too_late


def test_a_loop_that_did_not_run_again_is_dead() -> None:
    found = verdict(*run(0, 1), *fault(1, 2)).violations
    assert [(violation.what, violation.detail) for violation in found] == [
        ("dead", "after kill: l")
    ]


def test_a_paused_loop_need_not_run() -> None:
    strikes = verdict(*fault(1, 2), at(3, "paused", loop="l")).strikes
    assert late(strikes, lambda kind: 5) == []
    assert strikes[0].recovery == 1


def test_a_keyed_loop_must_run_while_it_is_started() -> None:
    started = at(0, "started", loop="l.k")
    (strike,) = verdict(started, *fault(1, 2), *run(3, 4)).strikes
    assert strike.awaited == {"l.k"}
    (strike,) = verdict(started, *fault(1, 2), *run(3, 4), at(5, "stopped", loop="l.k")).strikes
    assert strike.recovery == 3
    (strike,) = verdict(started, at(0.5, "stopped", loop="l.k"), *fault(1, 2), *run(3, 4)).strikes
    assert strike.recovery == 1


# At rest


def test_each_loop_has_one_token_at_rest() -> None:
    counted = [at(9, "tokens", loop=f"l{count}", detail=str(count)) for count in range(3)]
    found = [(violation.what, violation.detail) for violation in not_single(counted)]
    assert found == [("loop lost", "l0: 0 tokens"), ("loop doubled", "l2: 2 tokens")]


@pytest.mark.parametrize(("goes_on", "ends"), [("started", "stopped"), ("resumed", "paused")])
def test_a_loop_that_is_stopped_or_paused_has_no_token_and_one_that_goes_on_has(
    goes_on: str, ends: str
) -> None:
    started, stopped = at(1, goes_on, loop="l"), at(2, ends, loop="l")
    none, one = at(9, "tokens", loop="l", detail="0"), at(9, "tokens", loop="l", detail="1")
    assert not_single([started, stopped, none]) == []
    assert [violation.what for violation in not_single([stopped, one])] == ["loop doubled"]
    assert not_single([stopped, started, one]) == []
    assert [violation.what for violation in not_single([stopped, started, none])] == ["loop lost"]


def test_a_storm_without_a_fault_of_ours_has_no_violations() -> None:
    notes = in_order(*settled(0), *fault(1, 2))
    second = at(3, "start", loop="l", seq=1, carried=1), at(4, "end", loop="l", seq=1)
    assert verdict(*notes, *second).violations == []


def test_each_rule_of_epochs_is_part_of_the_verdict() -> None:
    paused = at(1, "paused", loop="l", epoch=6)
    given = [at(2, "starting", loop="l"), at(3, "started", loop="l", epoch=7, schedule="new")]
    notes = [paused, of_epoch(1.5, 5), *given, of_epoch(4, 7, schedule="old")]
    found = {violation.what for violation in verdict(*notes).violations}
    assert found >= {"disobeyed", "void token ran", "old schedule"}


def test_what_tampering_does_to_a_loop_is_not_held_against_it_for_a_while() -> None:
    tampered = at(4, "tampered", loop="l")
    notes = [*settled(1, 5), tampered, *run(5, 6, seq=5), *run(7, 8, seq=0)]
    assert repetitions(untampered(notes)) == []
    later = 4 + PUT_RIGHT_WITHIN
    assert repetitions(untampered([*notes, *run(later + 1, later + 2, seq=3)])) == []
    again = [*settled(later + 1, 3), *run(later + 9, later + 10, seq=3)]
    assert len(repetitions(untampered([*notes, *again]))) == 1


def test_when_it_is_calm_all_loops_that_are_to_run_are_waited_for_once_more() -> None:
    pulse = Pulse(["l"])
    for note in [*fault(1, 2), *run(3, 4), at(5, "resumed", loop="m"), at(6, "calm", "runner")]:
        pulse.see(note)
    assert pulse.awaited == {"l", "m"}
    for note in [*run(7, 8, seq=1), at(9, "paused", loop="m")]:
        pulse.see(note)
    assert pulse.awaited == set()
    assert pulse.strikes[0].recovered_at == 3
