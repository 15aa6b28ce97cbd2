import pytest

from scheduler.errors import ScheduleError
from scheduler.spelling import no_such, refusing_misnamed


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("send_repot", "There is no task 'send_repot'; did you mean 'send_report'?"),
        ("xyz", "There is no task 'xyz'; there are: clean, send_report, send_reports."),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, told: str):
    assert no_such("task", name, {"send_reports", "send_report", "clean"}) == told
    assert no_such("task", name, [*"ab", *"ab"]).endswith("; there are: a, b.")
    assert no_such("loop", "xyz", []) == "There is no loop 'xyz'; there are: none."


@refusing_misnamed("Cake", ScheduleError)
def cake(flour: int, *, sugar: int = 1) -> int:
    if sugar > 9:
        raise TypeError("too sweet")
    return flour + sugar


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ([1], {"suger": 2}, "Cake takes no suger=; did you mean sugar=?"),
        ([1], {"max": 2}, "Cake takes no max=; it takes flour=, sugar=."),
        ([], {}, "Cake cannot be called like this: missing a required argument: 'flour'."),
        ([1, 2], {}, "Cake cannot be called like this: too many positional arguments."),
    ],
)
def test_a_call_with_wrong_arguments_is_refused(args: list[int], kwargs: dict[str, int], told: str):
    with pytest.raises(ScheduleError) as refused:
        cake(*args, **kwargs)
    assert str(refused.value) == told


def test_errors_of_the_function_itself_are_not_changed():
    assert cake(1, sugar=2) == 3
    with pytest.raises(TypeError, match="too sweet"):
        cake(1, sugar=10)
