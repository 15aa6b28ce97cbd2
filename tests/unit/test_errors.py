import pytest

from scheduler import errors
from scheduler.errors import SchedulerError, TooLarge

KINDS: list[type[SchedulerError]] = [
    each for each in vars(errors).values() if isinstance(each, type)
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_message_of_an_error_is_of_its_docstring(kind: type[SchedulerError]):
    assert issubclass(kind, SchedulerError)
    assert kind.__doc__
    assert str(kind()) == str(kind(None)) == kind.__doc__.splitlines()[0]
    assert str(kind("what happened")) == "what happened"


def test_headers_that_are_too_large_say_by_how_much():
    assert TooLarge("too many", excess=7).excess == 7
    assert TooLarge().excess == 0
