import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from scheduler import Scheduler, Settings
from scheduler.brokers.contract import BrokerInfo
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.control.doctor import (
    SEED,
    Finding,
    check_addresses,
    check_version,
    explaining_refusals,
    require_fit,
)
from scheduler.errors import AccessRefused, BrokerUnavailable, IncompatibleBroker, Unconfirmed
from scheduler.program import Program
from scheduler.protocol.administration import Rights
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Topology
from scheduler.queues.failed import Reason
from scheduler.timing.moments import LoopClock
from tests.faulty import Call, FaultyBroker
from tests.stage import Stage, failed_of, new_app, program_of

REPORT = LoopId("report")

pytestmark = pytest.mark.usefixtures("clock")  # in virtual time


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("2.8.7", "problem"),
        ("3.9", "problem"),
        ("3.9.29", "problem"),
        ("3.10.0", "ok"),
        ("3.10.8", "ok"),
        ("3.12.14", "ok"),
        ("3.13.0", "problem"),
        ("3.13.0-rc.2", "problem"),
        ("3.13.1", "problem"),
        ("3.13.2", "problem"),
        ("3.13.2+1.g1234567", "problem"),
        ("3.13.3", "ok"),
        ("3.13.7", "ok"),
        ("4.0.0", "ok"),
        ("4.1.0-beta.1", "ok"),
        ("4.3.6", "ok"),
        ("10.0.0", "ok"),
        ("", "problem"),
        ("unknown", "problem"),
    ],
)
def test_a_version_that_loses_loops_is_a_problem(version: str, verdict: str):
    finding = check_version(BrokerInfo("RabbitMQ", version))
    assert finding.verdict == verdict
    assert version in finding.detail
    assert bool(finding.advice) is (verdict == "problem")


def forbidding() -> FaultyBroker:
    """A broker that lets its user do nothing."""
    broker = FaultyBroker(info=BrokerInfo("memory", "1", "my vhost", "mallory"))

    async def refuse(call: Call) -> None:
        raise AccessRefused(f"memory:// refused: access to queue {call.target!r}.")

    for operation in "depth", "get", "publish":
        broker.on(operation).first(refuse)
    return broker


async def test_an_unfit_broker_is_refused_with_what_to_do():
    async with FaultyBroker(info=BrokerInfo("RabbitMQ", "3.13.1")) as broker:
        with pytest.raises(IncompatibleBroker, match=r"nothing was started\. Upgrade to 3\.13\.3"):
            require_fit(broker)


def an_app(**options: Any) -> Scheduler:
    app = Scheduler("shop", Settings())
    app.periodic(every="1h", name="report", **options)(run)
    return app


async def run() -> None: ...


@pytest.fixture
def app() -> Scheduler:
    return an_app()


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker() as broker:
        yield broker


@pytest.fixture
def program(app: Scheduler, broker: MemoryBroker) -> Program:
    return program_of(app, broker)


async def findings(app: Scheduler, broker: MemoryBroker) -> dict[str, Finding]:
    found = await program_of(app, broker).doctor.examine()
    assert all(finding.advice for finding in found if finding.verdict != "ok")
    return {finding.about: finding for finding in found}


def verdicts(found: dict[str, Finding]) -> dict[str, str]:
    return {about: finding.verdict for about, finding in found.items()}


ALL_WELL = {
    "broker version": "ok",
    "timeouts": "ok",
    "app": "ok",
    "queues": "ok",
    "timers": "ok",
    "messages": "ok",
    "dead-lettering": "ok",
    "processors": "ok",
    "loops": "ok",
    "rights of this user": "ok",
    "rights of a seed": "ok",
    "rights of a processor": "ok",
    "rights of a viewer": "ok",
}


async def test_a_seeded_app_is_well(app: Scheduler, broker: MemoryBroker, program: Program):
    await program.seeding.seed()
    assert verdicts(await findings(app, broker)) == ALL_WELL


async def test_queues_that_are_missing_are_a_problem_each(app: Scheduler, broker: MemoryBroker):
    found = await findings(app, broker)
    missing = {about for about, finding in found.items() if finding.verdict == "problem"}
    assert missing == {f"queue {queue.name}" for queue in app.topology().queues}
    assert {found[about].advice for about in missing} == {SEED}
    assert "queues" not in found


async def test_a_queue_with_other_arguments_is_a_problem(app: Scheduler, broker: MemoryBroker):
    wanted = app.topology()
    other = replace(wanted.queues[0], arguments={"x-queue-type": "classic"})
    await broker.declare(Topology(queues=(other, *wanted.queues[1:])))
    found = await findings(app, broker)
    assert found[f"queue {other.name}"].verdict == "problem"
    assert "`scheduler seed --migrate`" in found[f"queue {other.name}"].advice


async def test_a_paused_loop_is_a_warning_with_its_reason(
    app: Scheduler, broker: MemoryBroker, program: Program
):
    await program.seeding.seed()
    await program.verbs.pause(app.loop("report"), "stocktaking")
    found = await findings(app, broker)
    assert found["loop report"].verdict == "warning"
    assert found["loop report"].detail == "is paused: stocktaking"


async def test_a_paused_task_is_one_warning_with_what_waits_for_it(stage: Stage) -> None:
    @stage.app.task
    async def mail() -> None: ...

    await stage.seed()
    await mail.start("daily", every="1d")
    await stage.app.pause("mail", "no credit")
    await mail.send()
    found = await stage.program.doctor.examine()
    (warning,) = [finding for finding in found if finding.verdict == "warning"]
    assert warning.about == "task mail"
    assert re.fullmatch("is paused by .+: no credit; 1 message waiting", warning.detail)


async def test_a_lost_loop_is_a_problem(stage: Stage) -> None:
    stage.app.periodic(every="10s", name="report")(run)
    await stage.seed()
    async with stage.processor():
        await asyncio.sleep(1)
        await stage.lose(REPORT)
        await asyncio.sleep(20)
        found = await findings(stage.app, stage.broker)
    stage.expects_none(REPORT)
    assert found["loop report"].verdict == "problem"
    assert "`scheduler seed`" in found["loop report"].advice


async def test_a_loop_that_is_due_without_processors_is_a_warning(
    app: Scheduler, stage: Stage
) -> None:
    await stage.seed(app)
    await asyncio.sleep(3600 + 10)
    found = await findings(app, stage.broker)
    assert found["loop report"].verdict == "warning"
    assert "`scheduler run`" in found["loop report"].advice


async def test_where_a_queue_is_missing_all_else_is_looked_at(app: Scheduler, stage: Stage) -> None:
    await stage.seed(app)
    await asyncio.sleep(3600 + 10)
    await stage.broker.delete(app.names.presence)
    found = await findings(app, stage.broker)
    assert found[f"queue {app.names.presence}"].verdict == "problem"
    assert {"timers", "dead-lettering", "rights of this user"} <= found.keys()


async def test_parked_messages_are_a_warning(
    app: Scheduler, broker: MemoryBroker, program: Program
):
    await program.seeding.seed()
    failed = failed_of(app.names, broker)
    for key in ("loop.report", "loop.report", "loop.gone"):
        await failed.park(Message(), key, Reason.REJECTED, ValueError())
    found = await findings(app, broker)
    parked = {about: each.detail for about, each in found.items() if each.verdict == "warning"}
    assert parked == {
        "queue shop.v1.failed.report": "2 messages parked",
        "queue shop.v1.failed": "1 message parked",
    }


def is_of_a_probe(call: Call) -> bool:
    return ".probe." in call.routing_key


def handing_on_nothing(stage: Stage) -> FaultyBroker:
    broker = FaultyBroker(stage.server)

    async def block(call: Call) -> None:
        await broker.delete(f"{call.routing_key}.back")

    broker.on("publish", where=is_of_a_probe).first(block)
    return broker


async def test_a_broker_that_hands_on_nothing_is_a_problem_of_who_comes_to_it(stage: Stage) -> None:
    await stage.seed(app := new_app())
    async with handing_on_nothing(stage) as broker:
        found, *others = await asyncio.gather(
            findings(app, broker), *(findings(app, stage.broker) for _ in range(3))
        )
    assert found["dead-lettering"].verdict == "problem"
    assert found["dead-lettering"].detail == "a message due 10 s ago has not reached its next queue"
    assert "restart this node" in found["dead-lettering"].advice
    assert {each["dead-lettering"].verdict for each in others} == {"ok"}
    assert not [queue for queue in stage.server.queues if ".probe." in queue]


async def test_a_broker_that_makes_no_timer_queue_is_a_problem(stage: Stage) -> None:
    await stage.seed(app := new_app())
    broker = FaultyBroker(stage.server)
    broker.on("publish", where=is_of_a_probe).fails(Unconfirmed("INTERNAL_ERROR."))
    async with broker:
        found = await findings(app, broker)
    assert found["dead-lettering"].verdict == "problem"
    assert found["dead-lettering"].detail == "no timer queue could be created: INTERNAL_ERROR."
    assert found["loops"].verdict == "ok"


@pytest.mark.parametrize(("timeout", "warned"), [("29m", False), ("30m", True), ("2h", True)])
async def test_a_timeout_that_the_broker_does_not_wait_for_is_a_warning(
    broker: MemoryBroker, timeout: str, warned: bool
):
    found = await findings(an_app(timeout=timeout), broker)
    assert ("timeout of report" in found) is warned
    assert ("timeouts" in found) is not warned


async def test_what_may_not_be_looked_at_is_told(app: Scheduler):
    async with forbidding() as broker:
        found = await findings(app, broker)
    for about in ("queues", "loops", "parked messages"):
        assert found[about].verdict == "warning"
        assert "not checked, permission denied: memory:// refused: " in found[about].detail
        assert "`scheduler run`" in found[about].advice
    assert found["broker version"].verdict == found["rights of a seed"].verdict == "ok"


async def test_who_lacks_a_right_to_process_is_told_which_command_gives_it(app: Scheduler):
    async with forbidding() as broker:
        found = (await findings(app, broker))["rights of this user"]
    assert found.verdict == "problem"
    refused = "memory:// refused: access to queue 'shop.v1."
    assert found.detail.startswith(f"insufficient for `scheduler run`: {refused}")
    assert found.advice.startswith("rabbitmqctl set_permissions -p 'my vhost' mallory '^$' '^shop")


async def test_a_refusal_tells_what_the_user_must_be_allowed():
    rights = Rights("^c$", "^w$", "^r$")
    async with forbidding() as broker:
        with pytest.raises(AccessRefused) as refused, explaining_refusals(broker, rights):
            await broker.depth("queue")
    assert str(refused.value) == (
        "memory:// refused: access to queue 'queue'. Earlier steps remain. Give this user the "
        "required rights, which replace the current ones: "
        "rabbitmqctl set_permissions -p 'my vhost' mallory '^c$' '^w$' '^r$'"
    )


async def test_a_processor_that_does_not_answer_is_named(stage: Stage) -> None:
    await stage.seed()
    mute = FaultyBroker(stage.server)
    async with stage.supervised(), stage.supervised(over=mute):
        await asyncio.sleep(1)
        found = await findings(stage.app, stage.broker)
        assert (found["processors"].verdict, found["processors"].detail) == (
            "ok",
            "2, all responding",
        )
        mute.on("publish", stage.app.names.control).hangs()
        found = await findings(stage.app, stage.broker)
        assert found["processors"].verdict == "warning"
        assert re.fullmatch(r"of 2, no answer from \S+:\d+:\w{6}", found["processors"].detail)
        assert "are hung" in found["processors"].advice


async def test_the_doctor_makes_nothing(app: Scheduler, broker: MemoryBroker):
    await findings(app, broker)
    assert {await broker.depth(queue.name) for queue in app.topology().queues} == {None}


async def test_a_program_that_sends_needs_rights_if_there_is_something_to_send(
    app: Scheduler, broker: MemoryBroker
):
    app.task(name="mail")(run)
    found = await findings(app, broker)
    assert "shop-client '^$' '^shop" in found["rights of a client"].advice


class AwayBroker(MemoryBroker):
    async def __aenter__(self) -> Any:
        raise BrokerUnavailable("Cannot connect to amqp://two/: refused.")


@pytest.mark.parametrize(
    ("others", "verdict", "detail"),
    [
        ([], "ok", "2, all responding"),
        ([AwayBroker()], "warning", "1 of 3 cannot be used: Cannot connect to amqp://two/: ref"),
        ([MemoryBroker()], "problem", "not of one cluster: memory:// is of 'memory-"),
    ],
)
async def test_addresses_are_those_of_one_cluster(
    clock: LoopClock, others: list[MemoryBroker], verdict: str, detail: str
):
    cluster = MemoryServer()
    nodes = [MemoryBroker(cluster), *others, MemoryBroker(cluster)]
    finding = await check_addresses(nodes)
    assert finding.verdict == verdict
    assert finding.detail.startswith(detail)
    assert bool(finding.advice) is (verdict != "ok")
