"""What counts as missing or doubled in the records of a guide."""

from collections.abc import Sequence

import pytest

from tests.migrations.verdict import Calls, Every, Judged, Kind, Line, OnGrid, judged, wrongs_of

THEIRS, OURS = "celery", "scheduler"
EVER = 1e9


def ran(at: float, side: str = THEIRS, *, due: float | None = None, key: str | None = None) -> Line:
    return Line("job", side, "ran", at, due, key)


def noted(did: str, at: float, key: str, *, due: float | None = None) -> Line:
    return Line("job", THEIRS, did, at, due, key)


def judge(kind: Kind, *lines: Line, until: float = EVER) -> Judged:
    return judged("job", kind, lines, since=0, until=until)


@pytest.mark.parametrize(
    ("ours", "missing", "doubled"),
    [
        ([6.0, 8.0], 0, 0),
        ([4.1, 6.1], 0, 0),  # the phases differ: the wait over the seam is shorter
        ([8.0, 10.0], 1, 0),
        ([6.0, 6.1, 8.0], 0, 1),
        ([6.0, 8.9, 10.0, 12.0], 0, 0),  # one was held up, and the next one not
        ([6.0, 10.0], 1, 0),
        ([4.0, 6.0], 0, 1),
    ],
)
def test_a_period_is_kept_over_a_seam(ours: Sequence[float], missing: int, doubled: int) -> None:
    found = judge(Every(2), ran(2.0), ran(4.0), *(ran(at, OURS) for at in ours))
    assert (len(found.missing), len(found.doubled)) == (missing, doubled)
    assert found.is_well is (not missing and not doubled)


@pytest.mark.parametrize(
    ("first", "missing", "made_up_for"), [(4.0, 0, 0), (8.0, 0, 2), (70.0, 1, 0)]
)
def test_one_run_may_stand_for_all_ticks_of_a_seam(first: float, missing: int, made_up_for: int):
    kind = Every(2, once_for_all=THEIRS)
    found = judge(kind, ran(2.0, OURS), ran(first), ran(first + 2))
    assert (len(found.missing), found.made_up_for) == (missing, made_up_for)
    assert judge(kind, ran(2.0), ran(8.0, OURS)).missing
    assert judge(kind, ran(2.0), ran(8.0)).missing


@pytest.mark.parametrize(
    ("ours", "missing", "doubled"),
    [([9, 13], 0, 0), ([13], 1, 0), ([8.9, 9], 0, 1), ([9, 9], 0, 1)],
)
def test_a_grid_is_kept_over_a_seam(ours: Sequence[float], missing: int, doubled: int) -> None:
    found = judge(OnGrid(4, offset=1), ran(5.01), *(ran(20, OURS, due=due) for due in ours))
    assert (len(found.missing), len(found.doubled)) == (missing, doubled)


def test_a_retried_run_counts_once_and_an_unfinished_one_is_missing() -> None:
    found = judge(Every(2), noted("failed", 2, "a"), noted("ran", 3.9, "a"), ran(4.0, key="b"))
    assert found.is_well
    assert found.runs == {THEIRS: 2}
    lines = [ran(2.0), noted("failed", 4, "a")]
    assert judge(Every(2), *lines).missing == ["00:00:04.0 (celery) never succeeded"]
    assert judge(Every(2), *lines, until=3).is_well


@pytest.mark.parametrize(
    ("runs", "missing", "doubled", "early"),
    [([21], 0, 0, 0), ([20], 0, 0, 0), ([], 1, 0, 0), ([21, 22], 0, 1, 0), ([19.9], 0, 0, 1)],
)
def test_a_call_is_run_once_and_not_before_its_moment(
    runs: Sequence[float], missing: int, doubled: int, early: int
) -> None:
    others = [ran(1, key="b"), ran(2, OURS, key="c"), ran(3, key="d")]  # of both, in any order
    ours = [ran(at, OURS, key="a") for at in runs]
    found = judge(Calls(), noted("sent", 1, "a", due=20), *ours, *others)
    assert found.seams == []
    assert [len(each) for each in (found.missing, found.doubled, found.early)] == [
        *(missing, doubled, early)
    ]


def test_a_failure_right_before_a_seam_is_left_to_the_other_side() -> None:
    lines = [ran(2.0), noted("failed", 4.0, "a"), ran(4.5, OURS), ran(6.5, OURS)]
    assert judge(Every(2), *lines).is_well
    assert judge(Every(2), *lines[:2], ran(7.0, OURS)).missing


@pytest.mark.parametrize(
    ("sides", "wrong"),
    [
        ([THEIRS, OURS, THEIRS], []),
        ([THEIRS, OURS], ["job: it did not come back"]),
        ([OURS], ["job: it did not run on both sides"]),
        ([], ["job: it did not run on both sides"]),
    ],
)
def test_a_job_must_migrate_there_and_back(sides: Sequence[str], wrong: Sequence[str]) -> None:
    lines = [ran(2.0 * number, side) for number, side in enumerate(sides)]
    found = judge(Every(2), *lines)
    assert found.is_well is bool(sides)
    assert list(wrongs_of([found])) == wrong
