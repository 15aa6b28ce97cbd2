"""Each worker begins with tests that wait."""

from tests.dealing import dealt

Test = tuple[tuple[str, ...], int]


def file_of(test: Test) -> tuple[str, ...]:
    return test[0]


def numbered(*file: str, count: int) -> list[Test]:
    return [(file, number) for number in range(count)]


FAST = numbered("tests", "unit", "a.py", count=30)
CALLS = numbered("tests", "integration", "calls.py", count=4)
LOOPS = numbered("tests", "integration", "loops.py", count=2)
STORM = numbered("tests", "chaos", "storm.py", count=1)
SLOTS = numbered("tests", "contract", "slots.py", count=3)
EVERY = [*FAST, *SLOTS, *CALLS, *LOOPS, *STORM]


def test_each_hand_begins_with_slow_tests_and_has_as_many_as_the_others() -> None:
    found = dealt(EVERY, 4, file_of)
    assert sorted(found) == sorted(EVERY)
    hands = [found[start : start + 10] for start in range(0, 40, 10)]
    assert [hand[0] for hand in hands] == [STORM[0], CALLS[0], LOOPS[0], SLOTS[0]]


def test_the_tests_of_a_slow_file_stay_together_and_in_order() -> None:
    found = dealt(EVERY, 3, file_of)
    for file in CALLS, LOOPS, SLOTS:
        begin = found.index(file[0])
        assert found[begin : begin + len(file)] == file


def test_more_hands_than_tests_are_dealt_what_there_is() -> None:
    assert sorted(dealt(CALLS, 9, file_of)) == CALLS
    assert dealt([], 2, file_of) == []
