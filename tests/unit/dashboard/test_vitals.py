"""What is said of processors and the broker, and how bad it is."""

import pytest

from scheduler import Scheduler
from scheduler.brokers.contract import Depth
from scheduler.dashboard.acknowledgements import Acknowledgement
from scheduler.dashboard.picture import Picture
from scheduler.dashboard.verdict import (
    Failure,
    vital_of_broker,
    vital_of_calls,
    vital_of_processors,
)
from scheduler.queues.history import CallTotals
from tests.stage import new_app
from tests.unit.dashboard.test_picture import at


def an_app() -> Scheduler:
    app = new_app()

    @app.task
    async def letter() -> None: ...

    return app


def picture_with(app: Scheduler, processors: int | None, waiting: Depth) -> Picture:
    picture = Picture("test")
    picture.be(True, at(0))
    presence = None if processors is None else Depth(0, processors)
    picture.measure({app.names.presence: presence, app.names.processor_queue("letter"): waiting})
    return picture


@pytest.mark.parametrize(
    ("processors", "silent", "waiting", "level", "problem"),
    [
        (None, 0, Depth(0, 0), "off", "The number of processors is not known yet."),
        (2, 0, Depth(5, 2), "ok", ""),
        (2, 1, Depth(5, 2), "warn", "1 of 2 processors does not respond."),
        (2, 0, Depth(5, 0), "bad", "No processor consumes letter."),
        (0, 0, Depth(5, 0), "bad", "No processor is running."),
    ],
)
def test_processors_are_judged_by_presence_answers_and_queues(
    processors: int | None, silent: int, waiting: Depth, level: str, problem: str
) -> None:
    app = an_app()
    picture = picture_with(app, processors, waiting)
    vital = vital_of_processors(app, picture, None, silent)
    assert (vital.level, [*vital.problems]) == (level, [(problem, level)] if problem else [])


def test_the_broker_is_judged_by_its_connection_and_its_alarms() -> None:
    app = an_app()
    picture = picture_with(app, 1, Depth(5, 1))
    vital = vital_of_broker(app, picture, "")
    assert (vital.level, vital.problems, vital.more) == ("ok", (), "5 messages ready")
    vital = vital_of_broker(app, picture, "low on disk")
    assert vital.problems == [("The broker blocks publishers: low on disk.", "bad")]
    picture.be(False, at(60))
    vital = vital_of_broker(app, picture, "")
    ((problem, level),) = vital.problems
    assert level == vital.level == "bad"
    assert problem.startswith("The broker cannot be reached since Mon 1 Jun 2026, 12:01:00")


def test_calls_are_judged_by_failures_that_are_not_acknowledged() -> None:
    app, calls = an_app(), {"letter": CallTotals(started=3, failed=3)}
    vital = vital_of_calls(app, calls, [])  # of an error that is not known
    assert vital.problems == [("3 calls of letter failed in the last 15 minutes.", "bad")]
    assert (vital.level, vital.says) == ("bad", "3 of 3 failed in 15 min")
    known = Acknowledgement("letter", "E", "mia", at(0))
    failure = Failure("letter", "E", "E", parked=3, acknowledged=known)
    vital = vital_of_calls(app, {}, [failure], parked=3)
    assert (vital.level, vital.says) == ("hold", "None in 15 min")
