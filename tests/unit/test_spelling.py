import pytest

from scheduler.errors import ScheduleError
from scheduler.spelling import no_such, refusing_misnamed


def test_a_name_like_no_other_is_answered_with_all():
    assert no_such("task", "xyz", [*"ba", *"ab"]) == "There is no task 'xyz'; there are: a, b."
    assert no_such("loop", "xyz", []) == "There is no loop 'xyz'; there are: none."


@refusing_misnamed("Cake", ScheduleError)
def cake(flour: int, *, sugar: int = 1) -> int:
    if sugar > 9:
        raise TypeError("too sweet")
    return flour + sugar


def test_a_wrong_call_is_refused_and_errors_of_the_function_itself_are_not_changed():
    assert cake(1, sugar=2) == 3
    with pytest.raises(TypeError, match="too sweet"):
        cake(1, sugar=10)
    wrong = "Cake cannot be called like this: missing a required argument: 'flour'."
    with pytest.raises(ScheduleError, match=wrong):
        cake(sugar=10)  # pyright: ignore[reportCallIssue]
