import pytest

from scheduler.protocol.epochs import (
    MISSES,
    STARTING,
    Answer,
    Beginning,
    Entry,
    First,
    LoopState,
    Position,
    Refused,
    Step,
    Verb,
    Watch,
    adopted,
    awaited,
    begun,
    is_doubled,
    is_last,
    is_void,
    learned,
    refused,
    steps,
    unaware,
    was_settled,
)

ACTIVE, PAUSED, GONE = LoopState.ACTIVE, LoopState.PAUSED, LoopState.GONE
FIRST = Position(5, 2, joined=False)


def entry(state: LoopState, epoch: int = 4, life: int = 2) -> Entry:
    return Entry(epoch, state, life)


@pytest.mark.parametrize(
    ("behind", "ahead"),
    [
        (Position(1, 0), Position(1, 1)),
        (Position(1, 1, attempt=0), Position(1, 1, attempt=1)),
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


def test_progress_is_the_same_in_each_epoch():
    assert Position(1, 7, 2).progress == Position(2, 7, 2).progress
    assert Position(1, 7, 2).progress > Position(2, 7, 2, joined=False).progress


@pytest.mark.parametrize(
    ("state", "verb", "after"),
    [
        (GONE, Verb.START, ACTIVE),
        (ACTIVE, Verb.PAUSE, PAUSED),
        (PAUSED, Verb.PAUSE, PAUSED),
        (PAUSED, Verb.RESUME, ACTIVE),
        (ACTIVE, Verb.TRIGGER, ACTIVE),
        (ACTIVE, Verb.RESCHEDULE, ACTIVE),
        (PAUSED, Verb.RESCHEDULE, PAUSED),
        (ACTIVE, Verb.REPAIR, ACTIVE),
        (PAUSED, Verb.REPAIR, PAUSED),
        (ACTIVE, Verb.GONE, GONE),
        (PAUSED, Verb.GONE, GONE),
        (GONE, Verb.GONE, GONE),
    ],
)
def test_a_creator_begins_the_next_epoch(state: LoopState, verb: Verb, after: LoopState):
    beginning = begun(verb, entry(state))
    assert beginning is not None
    assert beginning.entry == Entry(5, after, life=5 if verb is Verb.START else 2)
    first = First(Position(5, 0, joined=False), paused=after is PAUSED)
    assert beginning.token == (None if after is GONE else first)


@pytest.mark.parametrize("latest", [None, entry(GONE)])
def test_a_loop_may_be_started_paused(latest: Entry | None):
    beginning = begun(Verb.START, latest, paused=True)
    assert beginning is not None
    assert beginning.token is not None
    assert (beginning.entry.state, beginning.token.paused) == (PAUSED, True)


@pytest.mark.parametrize("verb", [verb for verb in Verb if verb is not Verb.START])
def test_only_a_start_says_that_a_loop_is_to_be_paused(verb: Verb):
    assert begun(verb, entry(ACTIVE), paused=True) == begun(verb, entry(ACTIVE))


@pytest.mark.parametrize(
    ("state", "verb"),
    [
        (ACTIVE, Verb.START),
        (PAUSED, Verb.START),
        (ACTIVE, Verb.RESUME),
        (PAUSED, Verb.TRIGGER),
        *((GONE, verb) for verb in Verb if verb not in (Verb.START, Verb.GONE)),
    ],
)
def test_a_creator_that_has_nothing_to_do_begins_no_epoch(state: LoopState, verb: Verb):
    assert begun(verb, entry(state)) is None


def test_a_loop_that_was_never_there_is_started():
    assert begun(Verb.START, None) == Beginning(
        Entry(1, ACTIVE, life=1), First(Position(1, 0, joined=False), paused=False)
    )
    assert not any(begun(verb, None) for verb in Verb if verb is not Verb.START)


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
def test_epochs_are_numbered_by_the_time_but_always_onwards(
    latest: int | None, at_ms: int, epoch: int
):
    last = None if latest is None else entry(GONE, latest)
    beginning = begun(Verb.START, last, at_ms=at_ms)
    assert beginning is not None
    assert beginning.entry == Entry(epoch, ACTIVE, life=epoch)
    assert beginning.token is not None
    assert beginning.token.position.epoch == epoch


def test_a_loop_whose_roster_was_lost_begins_after_all_that_was_before():
    before = begun(Verb.TRIGGER, entry(ACTIVE, epoch=1_000), at_ms=2_000)
    after = begun(Verb.START, None, at_ms=2_001)
    assert before is not None
    assert after is not None
    assert is_void(before.entry.epoch, known=after.entry.epoch)


def test_two_that_hold_the_mutex_at_once_begin_two_epochs():
    latest = entry(ACTIVE)
    begun_by = [begun(Verb.TRIGGER, latest, at_ms=at_ms) for at_ms in (2_000, 2_001)]
    assert len({beginning.entry.epoch for beginning in begun_by if beginning}) == 2


@pytest.mark.parametrize("verb", list(Verb))
def test_a_creator_appends_before_it_purges_before_it_puts(verb: Verb):
    puts = () if verb is Verb.GONE else (Step.PUT,)
    calls = (Step.CALL,) if verb in (Verb.PAUSE, Verb.GONE) else ()
    assert steps(verb) == (Step.APPEND, Step.PURGE, *puts, *calls)


def test_who_starts_subscribes_before_it_reads():
    assert STARTING == (Step.SUBSCRIBE, Step.READ)


@pytest.mark.parametrize(("known", "epoch", "after"), [(2, 3, 3), (3, 3, 3), (3, 2, 3)])
def test_known_is_the_greatest_epoch_seen(known: int, epoch: int, after: int):
    assert learned(known, epoch) == after


@pytest.mark.parametrize(("epoch", "known", "void"), [(1, 2, True), (2, 2, False), (3, 2, False)])
def test_a_token_of_an_epoch_before_the_known_one_is_void(epoch: int, known: int, void: bool):
    assert is_void(epoch, known) is void


@pytest.mark.parametrize(
    ("occupant", "then"),
    [
        (Position(1, 9), Refused.REPLACE),
        (Position(2, 4), Refused.REPLACE),
        (Position(2, 5, attempt=0), Refused.REPLACE),
        (Position(2, 5, attempt=1, joined=False), Refused.REPLACE),
        (Position(2, 5, attempt=1), Refused.LEAVE),
        (Position(2, 5, attempt=2), Refused.LEAVE),
        (Position(2, 6), Refused.LEAVE),
        (Position(3, 0), Refused.LEAVE),
    ],
)
def test_a_refused_put_replaces_what_is_behind(occupant: Position, then: Refused):
    assert refused(Position(2, 5, attempt=1), occupant) is then


@pytest.mark.parametrize(
    ("heard", "settled"),
    [
        ([], False),
        ([Position(2, 5, attempt=1)], False),
        ([Position(2, 5, attempt=2)], True),
        ([Position(2, 6)], True),
        ([Position(2, 4), Position(2, 6)], True),
        ([Position(2, 4), Position(1, 6)], False),
        ([Position(3, 6)], False),
    ],
)
def test_a_token_was_settled_if_its_successor_was_put(heard: list[Position], settled: bool):
    assert was_settled(Position(2, 5, attempt=1), heard) is settled


@pytest.mark.parametrize(
    ("put", "settled"),
    [
        (Position(2, 5, joined=False), False),
        (Position(2, 5), True),
        (Position(2, 6), True),
        (Position(1, 5), False),
        (Position(3, 5), False),
    ],
)
def test_a_first_token_was_settled_if_what_it_is_exchanged_for_was_put(
    put: Position, settled: bool
):
    assert was_settled(Position(2, 5, joined=False), [put]) is settled


@pytest.mark.parametrize(
    ("answer", "is_unaware", "is_awaited"),
    [
        (None, True, True),
        (Answer(known=2), True, True),
        (Answer(known=2, running=2), True, True),
        (Answer(known=3), False, False),
        (Answer(known=4), False, False),
        (Answer(known=3, running=2), False, True),
        (Answer(known=3, running=3), False, False),
        (Answer(known=4, running=4), False, False),
    ],
)
def test_a_first_run_waits_for_who_does_not_know_and_for_older_runs(
    answer: Answer | None, is_unaware: bool, is_awaited: bool
):
    answers = {"a": answer, "b": Answer(known=3)}
    assert unaware(3, answers) == ["a"] * is_unaware
    assert awaited(3, answers) == ["a"] * is_awaited


def test_a_first_run_waits_for_each_of_them():
    answers = {"a": Answer(3, running=2), "b": Answer(3), "c": None, "d": Answer(2, running=1)}
    assert unaware(3, answers) == ["c", "d"]
    assert awaited(3, answers) == ["a", "c", "d"]


def test_nobody_is_awaited_where_nobody_is_subscribed():
    assert unaware(3, {}) == awaited(3, {}) == []


@pytest.mark.parametrize(
    ("heard", "after"),
    [
        ([], FIRST),
        ([Position(4, 1)], FIRST),
        ([Position(4, 1, attempt=9)], FIRST),
        ([Position(4, 2, joined=False)], FIRST),
        ([Position(4, 2)], Position(4, 2)),
        ([Position(4, 7), Position(3, 8)], Position(3, 8)),
        ([Position(3, 8), Position(4, 8, attempt=1)], Position(4, 8, attempt=1)),
        ([Position(2, 99), Position(3, 3)], Position(3, 3)),
        ([Position(2, 99)], FIRST),
        ([Position(6, 4)], Position(6, 4)),
    ],
)
def test_a_first_token_adopts_the_greatest_progress_of_its_life(
    heard: list[Position], after: Position
):
    assert adopted(FIRST, heard, life=3) == after


@pytest.mark.parametrize(
    ("looks", "lost"),
    [
        ([], False),
        ([(3, False)] * (MISSES - 1), False),
        ([(3, False)] * MISSES, True),
        ([(3, False), (3, True), (3, False)], False),
        ([(2, False), (3, False)], False),
        ([(3, False), (3, False), (3, True)], False),
        ([(2, False), (3, False), (3, False)], True),
    ],
)
def test_a_loop_is_lost_if_its_epochs_token_is_missed_twice_in_a_row(
    looks: list[tuple[int, bool]], lost: bool
):
    assert MISSES == 2
    watch = Watch()
    for epoch, found in looks:
        watch = watch.looked(epoch, found=found)
    assert watch.is_lost is lost


@pytest.mark.parametrize(
    ("put", "greatest", "doubled"),
    [
        (Position(3, 5), None, False),
        (Position(3, 5), Position(3, 4), False),
        (Position(3, 5), Position(3, 5), True),
        (Position(3, 5), Position(3, 6), True),
        (Position(3, 5, attempt=1), Position(3, 5), False),
        (Position(2, 5), Position(2, 6), False),
    ],
)
def test_a_loop_is_doubled_if_a_put_of_its_epoch_is_not_ahead(
    put: Position, greatest: Position | None, doubled: bool
):
    assert is_doubled(put, greatest, current=3) is doubled


@pytest.mark.parametrize(
    ("found", "known", "last"),
    [
        (Position(4, 7), False, True),
        (Position(3, 7), False, False),
        (Position(4, 7, joined=False), False, False),
        (Position(4, 7, joined=False), True, True),
        (Position(3, 7, joined=False), True, False),
    ],
)
def test_what_is_found_of_the_epoch_before_is_the_last_if_it_has_joined_or_is_known(
    found: Position, known: bool, last: bool
):
    assert is_last(found, 4, known=known) is last
