"""Which of two tokens of a loop goes on, and what it takes from the other."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues.hatchery import merge, superseded
from scheduler.timing.schedules import Every

NINE = datetime(2026, 6, 1, 9, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
OLD, NEW = "000000000000001-aaaaaaaaaaaa", "000000000000002-bbbbbbbbbbbb"
ARMED, PAUSED, GUARD = State.ARMED, State.PAUSED, State.GUARD


def token(
    who: str, seq: int = 0, attempt: int = 0, state: State = ARMED, generation: str = OLD
) -> Token:
    """A token whose every field tells whose it was."""
    number = {"mine": 1, "occupant": 2}[who]
    return Token(
        loop=LoopId("report"),
        schedule=Every(number * MINUTE),
        generation=generation,
        scheduled_at=NINE + number * MINUTE,
        due_at=NINE + number * MINUTE + timedelta(seconds=30),
        seq=seq,
        attempt=attempt,
        state=state,
        args={"of": who},
        carry=who,
        reason=f"reason of {who}" if state is PAUSED else None,
    )


PROGRESS = [(0, 0), (1, 0), (1, 1)]
STATES = [ARMED, PAUSED, GUARD]
PAIRS = [
    (
        token("mine", *mine, mine_state, mine_generation),
        token("occupant", *occupants, occupants_state, occupants_generation),
    )
    for mine, occupants, mine_state, occupants_state, mine_generation, occupants_generation in (
        product(PROGRESS, PROGRESS, STATES, STATES, ["", OLD, NEW], ["", OLD, NEW])
    )
]


@pytest.mark.parametrize("occupants_state", [ARMED, PAUSED])
@pytest.mark.parametrize(
    ("mine", "occupants", "carry"),
    [
        ((1, 0), (0, 0), "mine"),
        ((1, 0), (0, 5), "mine"),
        ((1, 1), (1, 0), "mine"),
        ((1, 0), (1, 0), "occupant"),
        ((1, 0), (1, 1), "occupant"),
        ((1, 9), (2, 0), "occupant"),
    ],
)
def test_the_token_that_has_come_further_goes_on(
    mine: tuple[int, int], occupants: tuple[int, int], carry: str, occupants_state: State
):
    merged = merge(token("mine", *mine), token("occupant", *occupants, occupants_state))
    assert merged.carry == carry
    assert merged.progress == max(mine, occupants)


@pytest.mark.parametrize("progress", [(0, 0), (0, 1), (5, 0)])
def test_a_guard_gives_way_to_the_run_it_stood_in_for(progress: tuple[int, int]):
    mine = token("mine", *progress)
    assert merge(mine, token("occupant", state=GUARD)) is mine


def test_a_guard_does_not_take_the_place_of_a_token():
    occupant = token("occupant")
    assert merge(token("mine", state=GUARD), occupant) is occupant


def test_of_two_guards_there_is_one():
    mine = token("mine", state=GUARD)
    assert merge(mine, token("occupant", state=GUARD)) is mine


@pytest.mark.parametrize(
    ("state", "due_after_tick"),
    # A guard is due late only in case a run goes on: it ended, so nobody waits for it.
    [(ARMED, timedelta(seconds=30)), (PAUSED, timedelta(seconds=30)), (GUARD, timedelta(0))],
)
def test_a_run_takes_the_schedule_that_was_seeded_during_it(
    state: State, due_after_tick: timedelta
):
    mine, occupant = token("mine", 5), token("occupant", state=state, generation=NEW)
    merged = merge(mine, occupant)
    assert (merged.schedule, merged.args) == (occupant.schedule, occupant.args)
    assert (merged.generation, merged.scheduled_at) == (NEW, occupant.scheduled_at)
    assert merged.due_at - merged.scheduled_at == due_after_tick
    assert (merged.seq, merged.carry) == (5, "mine")


@pytest.mark.parametrize("generation", ["", OLD])
def test_a_run_keeps_its_schedule_if_nothing_newer_was_seeded(generation: str):
    mine = token("mine", 5)
    merged = merge(mine, token("occupant", state=PAUSED, generation=generation))
    assert merged == replace(mine, state=PAUSED, reason="reason of occupant")


def test_a_token_that_waits_takes_the_newer_schedule_of_one_that_has_not_come_as_far():
    merged = merge(token("mine", 1, generation=NEW), token("occupant", 2))
    assert (merged.carry, merged.seq, merged.generation) == ("occupant", 2, NEW)


@pytest.mark.parametrize("states", [(PAUSED, ARMED), (ARMED, PAUSED), (PAUSED, PAUSED)])
@pytest.mark.parametrize(
    ("mine", "occupants"), [((1, 0), (2, 0)), ((1, 0), (1, 0)), ((2, 0), (1, 0))]
)
def test_a_pause_outlives_the_run_it_came_during(
    states: tuple[State, State], mine: tuple[int, int], occupants: tuple[int, int]
):
    merged = merge(token("mine", *mine, states[0]), token("occupant", *occupants, states[1]))
    assert merged.state is PAUSED
    assert merged.reason in {"reason of mine", "reason of occupant"}


def test_a_pause_without_a_seeding_brings_nothing_but_the_pause():
    mine = token("mine", 5)
    stand_in = token("occupant", state=PAUSED, generation="")
    assert merge(mine, stand_in) == replace(mine, state=PAUSED, reason=stand_in.reason)


# What follows holds for all pairs.


def test_no_progress_is_lost_but_that_of_guards():
    for mine, occupant in PAIRS:
        real = [each.progress for each in (mine, occupant) if each.state is not GUARD]
        assert merge(mine, occupant).progress >= max(real, default=(0, 0))


def test_a_carry_goes_with_its_progress():
    for mine, occupant in PAIRS:
        merged = merge(mine, occupant)
        source = {"mine": mine, "occupant": occupant}[merged.carry]
        assert merged.progress == source.progress


def test_a_paused_loop_stays_paused():
    for mine, occupant in PAIRS:
        paused = PAUSED in (mine.state, occupant.state)
        assert (merge(mine, occupant).state is PAUSED) is paused


def test_the_newest_seeding_counts_and_stays_whole():
    for mine, occupant in PAIRS:
        merged = merge(mine, occupant)
        assert merged.generation == max(mine.generation, occupant.generation)
        wholes = [(each.generation, each.schedule, each.args) for each in (mine, occupant)]
        assert (merged.generation, merged.schedule, merged.args) in wholes


def test_merging_again_changes_nothing():
    for mine, occupant in PAIRS:
        merged = merge(mine, occupant)
        assert merge(merged, merged) == merged
        if occupant.state is not GUARD:
            assert merge(merged, occupant) == merged


def test_a_guard_never_outlives_a_token():
    for mine, occupant in PAIRS:
        if GUARD in (mine.state, occupant.state) and mine.progress <= occupant.progress:
            guards = mine.state is occupant.state
            assert (merge(mine, occupant).state is GUARD) is guards


@pytest.mark.parametrize(
    ("occupant", "settled_before"),
    [
        (None, False),
        (token("occupant", 5, 1), False),
        (token("occupant", 4, 9), False),
        (token("occupant", 5, 2), True),
        (token("occupant", 6), True),
        (token("occupant", 6, state=PAUSED), True),
        (token("occupant", 0, state=PAUSED, generation=""), False),
        (token("occupant", 6, state=GUARD), False),
    ],
)
def test_a_token_was_settled_before_if_its_loop_has_come_further(
    occupant: Token | None, settled_before: bool
):
    assert superseded(token("mine", 5, 1), occupant) is settled_before
