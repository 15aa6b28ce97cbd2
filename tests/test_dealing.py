"""Each worker begins with tests that wait."""

from tests.dealing import dealt

Test = tuple[tuple[str, ...], int]


def numbered(*file: str, count: int) -> list[Test]:
    return [(file, number) for number in range(count)]


FAST = numbered("tests", "unit", "a.py", count=30)
CALLS = numbered("tests", "integration", "calls.py", count=4)
LOOPS = numbered("tests", "integration", "loops.py", count=2)
STORM = numbered("tests", "chaos", "storm.py", count=1)
SLOTS = numbered("tests", "contract", "slots.py", count=3)


def test_each_worker_begins_with_whole_files_of_slow_tests() -> None:
    every = [*FAST, *SLOTS, *CALLS, *LOOPS, *STORM]
    found = dealt(every, 4, lambda test: test[0])
    assert sorted(found) == sorted(every)
    workers = [found[start : start + 10] for start in range(0, 40, 10)]
    assert [each[0] for each in workers] == [STORM[0], CALLS[0], LOOPS[0], SLOTS[0]]
    for worker, file in zip(workers[1:], (CALLS, LOOPS, SLOTS), strict=True):
        assert worker[: len(file)] == file
    assert sorted(dealt(CALLS, 9, lambda test: test[0])) == CALLS
