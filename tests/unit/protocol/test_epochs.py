import pytest

from scheduler.protocol.epochs import (
    Answer,
    Beginning,
    Entry,
    LoopState,
    Position,
    Verb,
    accepted,
    adopted,
    awaited,
    begun,
    ends,
    is_behind,
    is_doubled,
    stays_ended,
    unaware,
    was_settled,
)

ACTIVE, PAUSED, GONE = LoopState.ACTIVE, LoopState.PAUSED, LoopState.GONE
FIRST = Position(5, 2, joined=False)


def entry(state: LoopState, epoch: int = 4, life: int = 2) -> Entry:
    return Entry(epoch, state, life, asked=3)


@pytest.mark.parametrize(
    ("behind", "ahead"),
    [
        (Position(1, 0), Position(1, 1)),
        (Position(1, 1, attempt=3), Position(1, 2, attempt=0)),
        (Position(1, 9, attempt=9), Position(2, 0, attempt=0)),
        (Position(1, 1, joined=False), Position(1, 1)),
        (Position(1, 1), Position(1, 1, attempt=1, joined=False)),
        (Position(1, 1), Position(2, 0, joined=False)),
    ],
)
def test_a_later_epoch_is_ahead_and_within_an_epoch_the_greater_progress(
    behind: Position, ahead: Position
):
    assert behind < ahead


@pytest.mark.parametrize(
    ("state", "verb", "after"),
    [
        (GONE, Verb.SEED, ACTIVE),
        (ACTIVE, Verb.PAUSE, PAUSED),
        (PAUSED, Verb.PAUSE, PAUSED),
        (PAUSED, Verb.RESUME, ACTIVE),
        (ACTIVE, Verb.TRIGGER, ACTIVE),
        (ACTIVE, Verb.RESCHEDULE, ACTIVE),
        (PAUSED, Verb.RESCHEDULE, PAUSED),
        (ACTIVE, Verb.RENAME, ACTIVE),
        (PAUSED, Verb.RENAME, PAUSED),
        (ACTIVE, Verb.REPAIR, ACTIVE),
        (ACTIVE, Verb.REMOVE, GONE),
        (PAUSED, Verb.REMOVE, GONE),
        (GONE, Verb.REMOVE, GONE),
    ],
)
def test_a_creator_begins_the_next_epoch(state: LoopState, verb: Verb, after: LoopState):
    beginning = begun(verb, entry(state))
    assert beginning is not None
    base = 0 if state is GONE else 4
    life = 5 if verb is Verb.SEED else 2
    asked = 3 if verb in (Verb.REPAIR, Verb.RESCHEDULE, Verb.RENAME) else 5
    assert beginning.entry == Entry(5, after, life, base, asked)
    assert beginning.token == (Position(5, 0, joined=False) if after is ACTIVE else None)


@pytest.mark.parametrize("latest", [None, entry(GONE)])
def test_a_loop_may_be_started_paused(latest: Entry | None):
    beginning = begun(Verb.SEED, latest, paused=True)
    assert beginning is not None
    assert (beginning.entry.state, beginning.token) == (PAUSED, None)


@pytest.mark.parametrize(
    ("state", "verb"),
    [
        (ACTIVE, Verb.SEED),
        (PAUSED, Verb.SEED),
        (ACTIVE, Verb.RESUME),
        (PAUSED, Verb.TRIGGER),
        (PAUSED, Verb.REPAIR),
        *((GONE, verb) for verb in Verb if verb not in (Verb.SEED, Verb.REMOVE)),
    ],
)
def test_a_creator_without_a_change_begins_no_epoch(state: LoopState, verb: Verb):
    assert begun(verb, entry(state)) is None
    assert not any(begun(verb, None) for verb in Verb if verb is not Verb.SEED)


@pytest.mark.parametrize(
    ("latest", "at_ms", "epoch"),
    [
        (None, 0, 1),
        (None, 1_000, 1_000),
        (4, 1_000, 1_000),
        (999, 1_000, 1_000),
        (1_000, 1_000, 1_001),  # two within a millisecond
        (5_000, 1_000, 5_001),  # the clock was set back
    ],
)
def test_epochs_are_numbered_by_time_and_always_increase(
    latest: int | None, at_ms: int, epoch: int
):
    last = None if latest is None else entry(GONE, latest)
    assert begun(Verb.SEED, last, at_ms=at_ms) == Beginning(
        Entry(epoch, ACTIVE, life=epoch, asked=epoch), Position(epoch, 0, joined=False)
    )


@pytest.mark.parametrize(
    ("latest", "epoch", "base", "counts"),
    [
        (None, 5, 3, True),  # the stream does not reach back to what it is based on
        (entry(ACTIVE), 5, 4, True),
        (entry(PAUSED), 9, 4, True),
        (entry(ACTIVE), 5, 3, False),  # overtaken
        (entry(ACTIVE), 5, 0, False),
        (entry(ACTIVE), 4, 4, False),
        (entry(GONE), 5, 0, True),
        (entry(GONE), 5, 4, False),
        (entry(GONE), 4, 0, False),
    ],
)
def test_an_entry_counts_if_it_is_based_on_the_latest_accepted_one(
    latest: Entry | None, epoch: int, base: int, counts: bool
):
    assert accepted(Entry(epoch, ACTIVE, 2, base), latest) is counts


SECOND_TRY, NOT_JOINED = Position(2, 5, attempt=1), Position(2, 5, joined=False)


@pytest.mark.parametrize(
    ("token", "heard", "settled"),
    [
        (SECOND_TRY, [], False),
        (SECOND_TRY, [SECOND_TRY], False),
        (SECOND_TRY, [Position(2, 5, attempt=2)], True),
        (SECOND_TRY, [Position(2, 4), Position(2, 6)], True),
        (SECOND_TRY, [Position(2, 4), Position(1, 6), Position(3, 6)], False),
        # It came too early, and returned to its timers.
        (SECOND_TRY, [SECOND_TRY._replace(returns=1)], True),
        (SECOND_TRY._replace(returns=1), [SECOND_TRY, SECOND_TRY._replace(returns=1)], False),
        (SECOND_TRY._replace(returns=1), [Position(2, 6)], True),
        # A first token was exchanged.
        (NOT_JOINED, [NOT_JOINED], False),
        (NOT_JOINED, [Position(2, 5)], True),
        (NOT_JOINED, [Position(1, 5), Position(3, 5)], False),
    ],
)
def test_a_token_was_settled_if_its_successor_was_put(
    token: Position, heard: list[Position], settled: bool
):
    assert was_settled(token, heard) is settled


@pytest.mark.parametrize(
    ("answer", "is_unaware", "is_awaited"),
    [
        (None, True, True),
        (Answer(known=2), True, True),
        (Answer(known=2, running=2), True, True),
        (Answer(known=4), False, False),
        (Answer(known=3, running=2), False, True),
        (Answer(known=3, running=3), False, False),
        (Answer(known=4, running=4), False, False),
    ],
)
def test_a_first_run_waits_for_uninformed_processors_and_older_runs(
    answer: Answer | None, is_unaware: bool, is_awaited: bool
):
    answers = {"a": answer, "b": Answer(known=3)}
    assert unaware(3, answers) == ["a"] * is_unaware
    assert awaited(3, answers) == ["a"] * is_awaited


@pytest.mark.parametrize(
    ("heard", "after"),
    [
        ([Position(4, 1, attempt=9)], FIRST),
        ([Position(4, 2, joined=False)], FIRST),
        ([Position(4, 2)], Position(4, 2)),
        ([Position(4, 7), Position(3, 8)], Position(3, 8)),
        ([Position(3, 8), Position(4, 8, attempt=1)], Position(4, 8, attempt=1)),
        ([Position(2, 99), Position(3, 3)], Position(3, 3)),
        ([Position(6, 4)], Position(6, 4)),
    ],
)
def test_a_first_token_adopts_the_greatest_progress_of_its_life(
    heard: list[Position], after: Position
):
    assert adopted(FIRST, heard, life=3) == after


@pytest.mark.parametrize(
    ("put", "greatest", "doubled"),
    [
        (Position(3, 5), None, False),
        (Position(3, 5), Position(3, 5), True),
        (Position(3, 5, attempt=1), Position(3, 5), False),
        (Position(2, 5), Position(2, 6), False),
    ],
)
def test_a_loop_is_doubled_if_a_put_of_its_epoch_is_not_ahead(
    put: Position, greatest: Position | None, doubled: bool
):
    assert is_doubled(put, greatest, current=3) is doubled


@pytest.mark.parametrize(
    ("token", "settled", "behind"),
    [
        (Position(3, 5), None, False),
        (Position(3, 5), Position(3, 5), True),
        (Position(3, 5, attempt=1), Position(3, 5), False),
        (Position(3, 5), Position(3, 5, attempt=1), True),
        (Position(3, 5, joined=False), Position(3, 5, joined=False), True),
        (Position(3, 5), Position(3, 5, joined=False), False),
        (Position(3, 5), Position(2, 6), False),
        (Position(3, 5), Position(4, 6), False),
    ],
)
def test_a_token_is_behind_later_settlements_of_its_epoch(
    token: Position, settled: Position | None, behind: bool
):
    assert is_behind(token, settled) is behind


@pytest.mark.parametrize(("end", "stays"), [(2, False), (3, True), (4, True)])
def test_a_loop_ended_by_its_run_stays_ended_unless_restarted(end: int, stays: bool):
    stop = {"was_only": False, "is_same": True}
    assert stays_ended(Position(end, 5), entry(ACTIVE), **stop) is stays
    assert not stays_ended(Position(end, 5), Entry(4, ACTIVE, 2), **stop)


@pytest.mark.parametrize("latest", [entry(ACTIVE), entry(PAUSED), Entry(4, ACTIVE, 2)])
@pytest.mark.parametrize(
    ("end", "is_same", "holds"), [(1, True, False), (2, True, True), (4, False, False)]
)
def test_a_finished_one_off_stays_finished_unless_the_request_differs(
    latest: Entry, end: int, is_same: bool, holds: bool
):
    only = {"was_only": True, "is_same": is_same}
    assert stays_ended(Position(end, 5), latest, **only) is holds
    assert ends(Position(end, 5), latest, **only) is holds
    assert not ends(Position(end, 5), entry(GONE), **only)


@pytest.mark.parametrize(
    ("end", "latest", "is_entered"),
    [(4, entry(ACTIVE), True), (3, entry(ACTIVE), False), (4, entry(GONE), False)],
)
def test_a_stop_is_entered_in_its_epoch(end: int, latest: Entry, is_entered: bool):
    assert ends(Position(end, 5), latest, was_only=False, is_same=True) is is_entered
