"""What is said of processors and the broker, and how bad it is."""

from dataclasses import dataclass

import pytest

from scheduler import Scheduler
from scheduler.brokers.contract import Depth
from scheduler.dashboard.answers import Roll
from scheduler.dashboard.picture import Picture
from scheduler.dashboard.vitals import vital_of_broker, vital_of_processors
from tests.stage import new_app
from tests.unit.dashboard.test_picture import at


@dataclass
class Answers:
    silent: int = 0
    roll: Roll | None = None
    alarm: str = ""


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
    vital = vital_of_processors(app, picture, Answers(silent))
    assert (vital.level, vital.problem) == (level, problem)


def test_the_broker_is_judged_by_its_connection_and_its_alarms() -> None:
    app = an_app()
    picture = picture_with(app, 1, Depth(5, 1))
    vital = vital_of_broker(app, picture, "")
    assert (vital.level, vital.problem, vital.more) == ("ok", "", "5 messages ready")
    vital = vital_of_broker(app, picture, "low on disk")
    assert (vital.level, vital.problem) == ("bad", "The broker blocks publishers: low on disk.")
    picture.be(False, at(60))
    vital = vital_of_broker(app, picture, "")
    assert vital.level == "bad"
    assert vital.problem.startswith("The broker cannot be reached since 01 Jun 12:01")
