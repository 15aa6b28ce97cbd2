"""A schedule that was set in place of the code's, on a real broker."""

from scheduler import Context, Every, Scheduler, Settings
from scheduler.brokers.contract import Broker
from scheduler.control.reports import Did
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import QueueType
from scheduler.timing.schedules import Recurring, Schedule
from tests.integration.shop import eventually
from tests.stage import at_work, processor_of, program_of
from tests.tokens import waiting

TASK = LoopId("task")


async def test_a_schedule_that_was_set_holds_until_it_is_cleared(
    broker: Broker, app: Scheduler, swept: None, queue_type: QueueType
) -> None:
    ran = list[Schedule]()
    coded(app, Every("1h"), ran)
    program = program_of(app, broker)
    await program.seeding.seed()
    loop = await program.loops.find("task")
    report = await program.verbs.set_schedule(loop, Every("200ms"), by="anna@host")
    assert report.did is Did.RESCHEDULED

    newer = Scheduler(app.namespace, Settings(queue_type=queue_type))
    coded(newer, Every("2h"), ran)
    newer.module = app.module
    async with at_work(processor_of(newer, broker)):

        async def have_run() -> bool:
            return len(ran) >= 3

        await eventually(have_run)
        await program.verbs.pause(loop)
        (seeded,) = await program_of(newer, broker).seeding.seed()
        assert (seeded.did, seeded.loop.schedule) == (Did.UNCHANGED, Every("200ms"))
        await program.verbs.resume(loop)
        ran.clear()
        await eventually(have_run)
        (status,) = await program.survey.status()
        assert status.loop.schedule == Every("200ms")
        assert status.loop.of_code == Every("1h")
        assert status.loop.override is not None
        assert status.loop.override.by == "anna@host"
        await program_of(newer, broker).verbs.clear_schedule(newer.loop("task"))

        async def goes_by_the_code() -> bool:
            tokens = [each for each in await waiting(broker, app.names, []) if each.loop == TASK]
            return bool(tokens) and max(tokens, key=lambda each: each.epoch).schedule == Every("2h")

        await eventually(goes_by_the_code)


def coded(app: Scheduler, schedule: Recurring, ran: list[Schedule]) -> None:
    @app.periodic(schedule=schedule)
    async def task(ctx: Context) -> None:
        ran.append(schedule)
