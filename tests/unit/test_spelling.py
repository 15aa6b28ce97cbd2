import pytest

from scheduler.spelling import no_such


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("send_repot", "There is no task 'send_repot'; did you mean 'send_report'?"),
        ("xyz", "There is no task 'xyz'; there are: clean, send_report, send_reports."),
    ],
)
def test_of_a_name_that_nothing_has_the_nearest_is_told(name: str, told: str):
    assert no_such("task", name, {"send_reports", "send_report", "clean"}) == told
    assert no_such("loop", "xyz", []) == "There is no loop 'xyz'; there are: none."
