"""How loops and tasks stand, and what is said of them."""

from dataclasses import replace
from datetime import timedelta
from random import Random
from urllib.parse import parse_qsl

import pytest

from scheduler import Every, Scheduler
from scheduler.brokers.contract import Depth
from scheduler.control.loops import Where
from scheduler.control.status import Pause, Status
from scheduler.dashboard.acknowledgements import Acknowledgement
from scheduler.dashboard.forms import PAGE, Filter
from scheduler.dashboard.picture import RUNS_KEPT, LoopPicture, ParkedGroup, PastRun, Picture
from scheduler.dashboard.standings import (
    Standing,
    Standings,
    count_listed,
    workloads,
)
from scheduler.dashboard.verdict import (
    Failure,
    Vital,
    failures_of,
    verdict_of,
    vital_of_broker,
    vital_of_calls,
    vital_of_processors,
)
from scheduler.protocol.epochs import Entry, LoopState, Verb
from scheduler.protocol.tokens import WHOLE, Act, Ending, LastRun, LoopId, State, Token
from scheduler.protocol.topology import Names
from scheduler.queues.entries import RosterEntry, messages_of, parts_of
from scheduler.queues.history import CallTotals
from scheduler.queues.listing import Listing
from scheduler.tasks.loops import Loop, absent
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.schedules import Schedule
from tests.stage import START, new_app
from tests.unit.dashboard.test_picture import POLL, at, message, picture_of, ran

LAST = LastRun(Ending.ESCALATED, START, START, timedelta(seconds=1))
BUSY, IDLE, ALONE = Depth(3, 1), Depth(0, 1), Depth(1, 0)


def listed(state: LoopState = LoopState.ACTIVE, loop: LoopId = POLL) -> RosterEntry:
    return RosterEntry(loop, Every("10s"), {}, Entry(5, state, 5))


def polling_app() -> Scheduler:
    app = new_app()

    @app.periodic(every="10s", timeout="1m")
    async def poll() -> None: ...

    return app


def judged(picture: Picture, second: float = 0, depth: Depth | None = None) -> Standing:
    """The loop of the app at a second."""
    app = polling_app()
    picture.measure({app.names.processor_queue("poll"): depth})
    (found,) = Standings(app, picture).at(at(second))
    return found


def test_the_state_of_a_loop_follows_its_entry_token_queue_and_timeout() -> None:
    picture = picture_of(ran(0))
    assert judged(picture, 71, BUSY).state is Where.WAITING  # the roster was not read yet
    picture.list([listed()])
    assert judged(picture, 9, ALONE).state is Where.WAITING
    assert judged(picture, 11, None).state is Where.RUNNING
    assert judged(picture, 16, ALONE).state is Where.UNATTENDED
    assert judged(picture, 69, BUSY).state is Where.READY
    assert judged(picture, 71, BUSY).state is Where.LATE
    picture.list([listed(LoopState.PAUSED)])
    assert judged(picture, 1000, ALONE).state is Where.PAUSED
    empty = Picture("test")
    assert judged(empty).state is Where.UNSEEDED
    empty.list([listed()])
    assert judged(empty).state is Where.UNHEARD


def test_a_pause_has_its_user_and_reason_until_a_later_token_or_entry() -> None:
    def entered(epoch: int, state: LoopState, reason: str = "") -> None:
        picture.list([replace(listed(), entry=Entry(epoch, state, 5), reason=reason)])

    picture = Picture("test")
    act = Act(Verb.PAUSE, at(3), "alice at pod-1")
    pause = ran(2, epoch=6, act=act, state=State.PAUSED, reason="a release")
    picture.hear(message(pause))
    it = judged(picture)
    assert (it.is_paused, it.status.reason, it.status.due_at) == (True, "a release", None)
    assert [(entry.what, entry.by) for entry in it.loop.acts] == [("paused", "alice at pod-1")]
    entered(5, LoopState.ACTIVE)
    it = judged(picture)
    assert (it.is_paused, it.status.reason) == (True, "a release")
    picture.hear(message(ran(2, epoch=7, act=Act(Verb.RESUME, at(4)))))
    it = judged(picture)
    assert (it.is_paused, it.status.due_at) == (False, at(12))
    entered(9, LoopState.PAUSED, "by hand")
    it = judged(picture)
    assert (it.is_paused, it.status.reason) == (True, "by hand")
    entered(10, LoopState.ACTIVE)
    of_task = listed(LoopState.PAUSED, LoopId("poll", WHOLE))
    picture.listing.enter(replace(of_task, by="ada", reason="a strike"))
    it = judged(picture)
    assert (it.state, it.is_paused, it.status.due_at) == (Where.PAUSED, False, None)
    assert it.status.task_pause == Pause("ada", of_task.at, "a strike")


def standing_of(
    loop: LoopPicture, state: Where, schedule: Schedule | None = None, failures: int = 0
) -> Standing:
    schedule = schedule or Every("10s")
    due_at = loop.token.due_at if loop.token else None
    status = Status(Loop(loop.id, absent(loop.id.task), schedule, {}), state, 0, due_at)
    return Standing(str(loop.id), status, loop, True, failures)


def standing(
    name: str, state: Where, *, failures: int = 0, ending: Ending | None = None
) -> Standing:
    loop = LoopPicture(LoopId(name), listed(loop=LoopId(name)))
    if ending is not None:
        loop = picture_of(ran(0, ending=ending)).loops[POLL]
    return replace(standing_of(loop, state, failures=failures), name=name)


@pytest.mark.parametrize(
    ("standings", "sentence"),
    [
        ([], "This app has no loops."),
        ([standing("a", Where.WAITING)], "The only loop is on time."),
        (
            [standing("a", Where.WAITING), standing("b", Where.PAUSED)],
            "All 2 loops are on time, 1 of them paused.",
        ),
        (
            [standing("a", Where.LATE), standing("b", Where.LATE), standing("c", Where.UNATTENDED)],
            "Of 3 loops, 1 is unattended and 2 are late.",
        ),
        (
            [
                standing("a", Where.WAITING, failures=3),
                standing("b", Where.WAITING, failures=1, ending=Ending.ESCALATED),
                *[standing("c", Where.WAITING, failures=2)] * 998,
            ],
            "Of 1,000 loops, 2 are failing.",
        ),
    ],
)
def test_the_verdict_is_one_sentence(standings: list[Standing], sentence: str) -> None:
    assert verdict_of(standings).sentence == sentence


def test_the_verdict_is_as_bad_as_the_worst_of_loops_processors_and_the_broker() -> None:
    def vital(problem: str, level: str) -> Vital:
        return Vital("", "", level, "", problems=[(problem, level)])

    well = [standing("a", Where.WAITING)]
    assert verdict_of(well).level == "ok"
    unknown, away = vital("Not known yet.", "off"), vital("The broker is away.", "bad")
    silent = vital("1 of 2 processors does not respond.", "warn")
    verdict = verdict_of(well, others=[unknown])
    assert (verdict.level, verdict.sentence) == ("off", "Not known yet.")
    assert verdict.more == "The only loop is on time."
    late = [standing("a", Where.LATE)]
    verdict = verdict_of(late, others=[silent, away])
    assert verdict.level == "bad"
    assert verdict.sentence == "The broker is away. 1 of 2 processors does not respond."
    assert verdict.more == "Of 1 loop, 1 is late."
    assert verdict_of(late).level == "warn"


def failing(picture: Picture, *keys: str, second: int = 10) -> list[Standing]:
    """Loops whose last run has failed, those of these keys at this second."""
    for key in keys:
        token = ran(second, loop=LoopId("poll", key), ending=Ending.ESCALATED)
        picture.hear(message(replace(token, last=replace(token.last or LAST, error="E 7"))))
    standings = [standing_of(loop, Where.WAITING, failures=1) for loop in picture.loops.values()]
    return [each for each in standings if each.is_failing]


def test_an_acknowledged_failure_is_held_until_the_next_success() -> None:
    picture = Picture("test")
    acknowledged = Acknowledgement("poll", "E …", "mia", at(20), "partner informed")
    picture.hear(acknowledged.record)
    picture.hear(replace(acknowledged.record, body=b"{}"))  # of another version
    for keys in (("a", "b"), ("c",)):
        standings = failing(picture, *keys)
        (group,) = failures_of(standings, picture, NAMES, at(30))
        assert (group.acknowledged, group.kind) == (acknowledged, "E …")
        verdict = verdict_of(standings, failures=[group])
        assert verdict.level == "hold"
        count = len(standings)
        assert verdict.sentence == f"Of {count} loops, {count} are failing ({count} acknowledged)."
    other = standing("other", Where.WAITING, failures=3)
    verdict = verdict_of([*standings, other], failures=[group])
    assert (verdict.level, verdict.sentence[-17:]) == ("bad", "(3 acknowledged).")
    late = verdict_of([*standings, standing("z", Where.LATE)], failures=[group])
    assert late.level == "warn"
    for key, holds in (("well", True), ("a", False)):  # one that does not fail, and one that does
        picture.hear(message(ran(40, loop=LoopId("poll", key))))
        standings = [each for each in failing(picture, "a", second=50) if each.name != "poll.well"]
        (group,) = failures_of(standings, picture, NAMES, at(60))
        assert (group.acknowledged is not None) is holds


def test_unacknowledged_failures_come_first() -> None:
    picture = Picture("test")
    for task, kind in (("a", "X"), ("b", "Y")):
        picture.parked[task, kind] = ParkedGroup(kind, 3, at(0), at(1))
    assert [each.task for each in failures_of([], picture, NAMES, at(5))] == ["a", "b"]
    picture.hear(Acknowledgement("a", "X", "mia", at(2)).record)
    found = failures_of([], picture, NAMES, at(5))
    assert [each.task for each in found] == ["b", "a"]
    assert vital_of_calls(new_app(), {}, found).problems == [
        ("3 messages of b are parked, and no run has succeeded since.", "bad"),
        ("3 messages of a are parked, and no run has succeeded since (acknowledged).", "hold"),
    ]
    withdrawn = picture.acknowledged["a", "X"].withdrawn
    picture.hear(withdrawn.record)
    picture.hear(Acknowledgement("a", "X", "mia", at(2)).record)  # of another process
    assert not any(each.acknowledged for each in failures_of([], picture, NAMES, at(5)))
    picture.hear(Acknowledgement("b", "Y", "mia", at(2)).record)
    picture.parked["b", "Z"] = ParkedGroup("Z", 1, at(0), at(1))
    vital = vital_of_calls(new_app(), {}, failures_of([], picture, NAMES, at(5)))
    # One of its errors is not acknowledged.
    told = "4 messages of b are parked, and no run has succeeded since."
    assert (told, "bad") in vital.problems
    picture.succeeded_at["b"] = at(3)
    picture.parked["b", "Y"].last_at = at(4)
    found = {each.kind: each.acknowledged for each in failures_of([], picture, NAMES, at(5))}
    assert found == {"X": None, "Y": None}


def test_loops_of_code_and_broker_are_distinguished() -> None:
    app, picture = polling_app(), Picture("test")
    user, old = LoopId("poll", "user-1"), LoopId("old")
    for loop in (POLL, user, old):
        picture.hear(message(ran(0, loop=loop)))
    picture.list([listed(), listed(loop=user), listed(loop=old)])
    found = {each.name: each.in_code for each in Standings(app, picture).at(at(1))}
    assert found == {"old": False, "poll": True, "poll.user-1": True}
    picture.list([RosterEntry(old, Every("1s"), {}, Entry(9, LoopState.GONE, 5, 5))])
    assert "old" not in {each.name for each in Standings(app, picture).at(at(1))}


@pytest.mark.parametrize("seed", range(20))
def test_renewed_standings_equal_new_ones(seed: int) -> None:
    app, dice, picture = polling_app(), Random(seed), Picture("test")
    renewed = Standings(app, picture)
    names = [POLL, *(LoopId("poll", f"user-{number}") for number in range(5))]
    states = [LoopState.ACTIVE, LoopState.PAUSED, LoopState.GONE]
    now, epoch = 0.0, 5
    for _ in range(60):
        now += dice.choice([0, 1, 5, 10, 70])
        loop, epoch = dice.choice(names), epoch + 1
        match dice.randrange(4):
            case 0:
                late = LastRun(Ending.ESCALATED, at(now - 90), at(now), timedelta(0))
                token = ran(int(now), loop=loop, epoch=epoch, last=late)
                picture.hear(message(dice.choice([token, ran(int(now), loop=loop, epoch=epoch)])))
            case 1:
                state = dice.choice(states)
                entry = Entry(epoch, state, epoch)
                picture.list([RosterEntry(loop, Every("10s"), {}, entry, at=at(now))])
            case 2:
                held = dice.choice(states[1:])
                whole = listed(loop=LoopId("poll", WHOLE))
                picture.listing.enter(replace(whole, entry=Entry(epoch, held, epoch), at=at(now)))
            case _:
                depth = dice.choice([None, BUSY, IDLE, ALONE])
                picture.measure({app.names.processor_queue("poll"): depth})
        if dice.random() < 0.7:
            assert renewed.at(at(now)) == Standings(app, picture).at(at(now))
    day = timedelta(days=1, seconds=now + 1)
    assert renewed.at(START + day) == Standings(app, picture).at(START + day)


def test_a_filter_survives_a_round_trip_as_query() -> None:
    chosen = Filter.of({"q": " Poll x ", "state": "late", "sort": "due", "page": "3"})
    assert chosen == Filter("Poll x", 3, "late", "", "due")
    assert Filter.of(dict(parse_qsl(chosen.query))) == chosen
    assert chosen.but(state="failing") == "q=Poll+x&state=failing&sort=due"
    for wrong in ({"state": "no"}, {"sort": "no"}, {"page": "-1"}, {"page": "x"}):
        assert Filter.of(wrong) == Filter()


def test_a_filter_matches_parts_of_names_and_pages_trouble_first() -> None:
    many = [standing(f"loop-{number:03}", Where.WAITING) for number in range(PAGE + 10)]
    assert [each.name for each in Filter("LOOP 7 05").choose(many)] == ["loop-057"]
    assert len(Filter().cut(Filter().choose(many))) == PAGE
    assert [each.name for each in Filter(page=2).cut(many)] == [each.name for each in many[PAGE:]]
    mixed = [standing("a", Where.WAITING), standing("b", Where.LATE), standing("c", Where.PAUSED)]
    assert [each.name for each in Filter(sort="state").choose(mixed)] == ["b", "c", "a"]


# Tasks

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
NAMES = Names("test")


def polling(
    key: str = "",
    state: Where = Where.WAITING,
    *,
    attempt: int = 0,
    apart: float = 10,
    runs: int = 0,
) -> Standing:
    """A loop whose last runs came so many seconds apart, the last one now."""
    loop = LoopPicture(LoopId("poll", key))
    loop.token = Token(loop.id, Every("10s"), START, START, attempt=attempt)
    for number in range(runs):
        at = START - number * apart * SECOND
        loop.add(PastRun(at, number, LastRun(Ending.SUCCEEDED, at, at, SECOND)))
    return standing_of(loop, state)


def test_loops_are_counted_by_task_with_median_duration_and_99th_lateness() -> None:
    loops = [
        polling("a"),
        polling("b", attempt=2),
        polling("c", Where.PAUSED),
        polling("d", Where.READY, attempt=1),
    ]
    for number, each in enumerate(loops[:3]):
        late, took = at(number * number), (1 + number * number) * SECOND
        each.loop.add(PastRun(START, 0, LastRun(Ending.SUCCEEDED, at(0), late, took)))
    (work,) = workloads(loops, Listing(), START, None).values()
    assert (work.loops, work.judged, work.waiting, work.retrying) == (4, 4, 2, 1)
    assert work.states == {"waiting": 2, "paused": 1, "ready": 1}
    assert (work.took, work.late) == (2 * SECOND, 4 * SECOND)


@pytest.mark.parametrize(
    ("apart", "runs", "heard", "per_minute"),
    [
        (60, 20, None, 1),  # of five minutes
        (60, 2, 2 * MINUTE, 1),
        (1, RUNS_KEPT, None, 60),  # no more are kept
        (60, 0, None, 0),
    ],
)
def test_known_runs_are_counted(
    apart: float, runs: int, heard: timedelta | None, per_minute: float
) -> None:
    heard_back_to = START - heard if heard else None
    loops = [polling(apart=apart, runs=runs)]
    (work,) = workloads(loops, Listing(), START, heard_back_to).values()
    assert work.per_minute == pytest.approx(per_minute, rel=0.05)


def roster(*entries: RosterEntry) -> Listing:
    listing = Listing()
    for offset, batch in enumerate(messages_of(entries)):
        for part in parts_of(batch):
            listing.enter_first(part, offset)
    return listing


def test_more_loops_than_are_judged_are_counted_and_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keyed(task: str, number: int, state: LoopState = LoopState.ACTIVE) -> RosterEntry:
        return listed(state, LoopId(task, f"k{number}"))

    listing = roster(
        *(keyed("poll", number) for number in range(500)),
        *(keyed("poll", number, LoopState.PAUSED) for number in range(500, 600)),
        *(keyed("poll", number, LoopState.GONE) for number in range(600, 700)),
        *(keyed("crawl", number) for number in range(650)),
        *(keyed("mail", number) for number in range(9)),
        keyed("mail", 9, LoopState.PAUSED),
        RosterEntry(SUPERVISION, Every("10s"), {}, Entry(5, LoopState.ACTIVE, 5)),
    )
    listing.enter(listed(LoopState.PAUSED, LoopId("mail", WHOLE)))
    judged = failing(Picture("test"), "k1", "k2")
    for each in judged:
        each.loop.listed = keyed("poll", 1)
    monkeypatch.setattr(listing, "get", None)
    found = workloads(judged, listing, START, None)
    poll, crawl, mail = found["poll"], found["crawl"], found["mail"]
    assert [*found] == ["poll", "crawl", "mail"]
    assert (poll.loops, poll.judged, poll.failing) == (600, 2, 2)
    assert poll.states == {"failing": 2, "paused": 100}
    assert poll.took == timedelta(seconds=2)
    assert (crawl.loops, crawl.judged, crawl.took) == (650, 0, None)
    assert (mail.loops, mail.states) == (10, {"paused": 10})  # as their task is
    assert count_listed(listing) == 1260
    for sort, tasks in (("", "poll crawl mail"), ("task", "crawl mail poll")):  # trouble first
        chosen = Filter(sort=sort).choose_tasks(found, judged)
        assert [each.task for each in chosen] == tasks.split()
    assert Filter(state="failing").choose_tasks(found, judged) == [poll]
    assert Filter("CRA").choose_tasks(found, judged) == [crawl]


@pytest.mark.parametrize(
    ("query", "total", "is_grouped"),
    [
        ({}, 500, False),
        ({}, 501, True),
        ({"sort": "due"}, 501, False),
        ({"q": "poll"}, 501, False),
        ({"state": "late"}, 501, False),
        ({"by": "loop"}, 501, False),
        ({"by": "task", "state": "late"}, 1, True),
    ],
)
def test_many_loops_are_shown_by_task(query: dict[str, str], total: int, is_grouped: bool) -> None:
    assert Filter.of(query).groups(total) is is_grouped


# Processors, the broker and calls


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
