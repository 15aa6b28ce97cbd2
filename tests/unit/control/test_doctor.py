import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from scheduler import Every, Scheduler
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
from scheduler.protocol.administration import Rights
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Topology
from scheduler.queues.failed import Reason
from tests.faulty import Call, FaultyBroker
from tests.stage import Stage, new_app, program_of

REPORT = LoopId("report")

pytestmark = pytest.mark.usefixtures("clock")  # in virtual time


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("3.9.29", "problem"),
        ("3.10.0", "ok"),
        ("3.13.0-rc.2", "problem"),
        ("3.13.2+1.g1234567", "problem"),
        ("3.13.3", "ok"),
        ("4.1.0-beta.1", "ok"),
        ("10.0.0", "ok"),
        ("unknown", "problem"),
    ],
)
def test_a_version_of_rabbitmq_that_loses_loops_is_a_problem(version: str, verdict: str):
    finding = check_version(BrokerInfo("RabbitMQ", version))
    assert finding.verdict == verdict
    assert version in finding.detail
    assert bool(finding.advice) is (verdict == "problem")


async def test_an_unfit_broker_is_refused_with_what_to_do():
    async with FaultyBroker(info=BrokerInfo("RabbitMQ", "3.13.1")) as broker:
        with pytest.raises(IncompatibleBroker, match=r"nothing was started\. Upgrade to 3\.13\.3"):
            require_fit(broker)


def forbidding() -> FaultyBroker:
    """A broker that lets its user do nothing."""
    broker = FaultyBroker(info=BrokerInfo("memory", "1", "my vhost", "mallory"))

    async def refuse(call: Call) -> None:
        raise AccessRefused(f"memory:// refused: access to queue {call.target!r}.")

    for operation in "depth", "get", "publish":
        broker.on(operation).first(refuse)
    return broker


async def run() -> None: ...


def reporting(**options: Any) -> Scheduler:
    app = new_app()
    app.periodic(every="1h", name="report", **options)(run)
    app.task(name="mail")(run)
    return app


async def findings(
    stage: Stage, broker: MemoryBroker | None = None, app: Scheduler | None = None
) -> dict[str, Finding]:
    program = program_of(app or stage.app, broker or stage.broker, stage.clock)
    found = await program.doctor.examine()
    assert all(finding.advice for finding in found if finding.verdict != "ok")
    return {finding.about: finding for finding in found}


async def test_each_missing_or_other_queue_is_a_problem_and_not_declared(stage: Stage) -> None:
    app = reporting()
    first, *missing = app.topology().queues
    other = replace(first, arguments={"x-queue-type": "classic"})
    await stage.broker.declare(Topology(queues=(other,)))
    found = await findings(stage, app=app)
    problems = {about: each.advice for about, each in found.items() if each.verdict == "problem"}
    assert "`scheduler seed --migrate`" in problems.pop(f"queue {other.name}")
    assert problems == {f"queue {queue.name}": SEED for queue in missing}
    assert "queues" not in found
    assert {await stage.broker.depth(queue.name) for queue in missing} == {None}
    assert "test-client '^$' '^test" in found["rights of a client"].advice


async def test_each_pause_override_and_parked_message_is_a_warning(stage: Stage) -> None:
    app = reporting()
    app.periodic(every="30s", name="poll")(run)
    await stage.seed(app)
    assert {finding.verdict for finding in (await findings(stage)).values()} == {"ok"}
    await app.senders["mail"].send()
    await app.pause("mail", "no credit")
    await app.pause("report", "stocktaking")
    await stage.verbs.set_schedule(app.loop("poll"), Every("5m"), by="anna@host")
    for key in ("loop.report", "loop.report", "loop.gone"):
        await stage.failed.park(Message(), key, Reason.REJECTED, ValueError())
    found = await findings(stage)
    warnings = {about: each.detail for about, each in found.items() if each.verdict == "warning"}
    paused = warnings.pop("task mail")
    assert re.fullmatch("is paused by .+: no credit; 1 message waiting", paused)
    assert warnings == {
        "loop report": "is paused: stocktaking",
        "loop poll": "schedule overridden by anna@host: every 5m (code: every 30s)",
        "queue test.v1.failed.report": "2 messages parked",
        "queue test.v1.failed": "1 message parked",
    }


async def test_a_lost_loop_is_a_problem_and_an_unattended_one_a_warning(stage: Stage) -> None:
    await stage.seed(reporting())
    async with stage.processor():
        await asyncio.sleep(1)
        await stage.lose(REPORT)
        await asyncio.sleep(3600 + 10)
        found = (await findings(stage))["loop report"]
        assert found.verdict == "problem"
        assert "`scheduler seed`" in found.advice
        await stage.seeding.seed()
    await asyncio.sleep(3600 + 10)
    found = (await findings(stage))["loop report"]
    assert found.verdict == "warning"
    assert "`scheduler run`" in found.advice
    await stage.broker.delete(stage.app.names.presence)
    found = await findings(stage)
    assert found[f"queue {stage.app.names.presence}"].verdict == "problem"
    assert {"timers", "dead-lettering", "rights of this user"} <= found.keys()


def is_of_a_probe(call: Call) -> bool:
    return ".probe." in call.routing_key


def handing_on_nothing(stage: Stage) -> FaultyBroker:
    broker = FaultyBroker(stage.server)

    async def block(call: Call) -> None:
        await broker.delete(f"{call.routing_key}.back")

    broker.on("publish", where=is_of_a_probe).first(block)
    return broker


async def test_a_node_that_dead_letters_nothing_is_a_problem_of_its_clients(stage: Stage) -> None:
    await stage.seed()
    async with handing_on_nothing(stage) as broker:
        found, *others = await asyncio.gather(
            findings(stage, broker), *(findings(stage) for _ in range(3))
        )
    assert found["dead-lettering"].verdict == "problem"
    assert found["dead-lettering"].detail == "a message due 10 s ago has not reached its next queue"
    assert "restart this node" in found["dead-lettering"].advice
    assert {each["dead-lettering"].verdict for each in others} == {"ok"}
    assert not [queue for queue in stage.server.queues if ".probe." in queue]


async def test_a_broker_that_cannot_create_a_timer_queue_is_a_problem(stage: Stage) -> None:
    await stage.seed()
    broker = FaultyBroker(stage.server)
    broker.on("publish", where=is_of_a_probe).fails(Unconfirmed("INTERNAL_ERROR."))
    async with broker:
        found = await findings(stage, broker)
    assert found["dead-lettering"].verdict == "problem"
    assert found["dead-lettering"].detail == "no timer queue could be created: INTERNAL_ERROR."
    assert found["loops"].verdict == "ok"


@pytest.mark.parametrize(("timeout", "warned"), [("29m", False), ("30m", True)])
async def test_a_timeout_that_is_too_long_is_a_warning(
    stage: Stage, timeout: str, warned: bool
) -> None:
    found = await findings(stage, app=reporting(timeout=timeout))
    assert ("timeout of report" in found) is warned
    assert ("timeouts" in found) is not warned


async def test_a_lack_of_rights_is_reported_with_the_command_that_gives_them(stage: Stage) -> None:
    async with forbidding() as broker:
        found = await findings(stage, broker, reporting())
        rights = Rights("^c$", "^w$", "^r$")
        with pytest.raises(AccessRefused) as refusal, explaining_refusals(broker, rights):
            await broker.depth("queue")
    command = "rabbitmqctl set_permissions -p 'my vhost' mallory"
    assert str(refusal.value) == (
        "memory:// refused: access to queue 'queue'. Earlier steps remain. Give this user the "
        f"required rights, which replace the current ones: {command} '^c$' '^w$' '^r$'"
    )
    for about in ("queues", "loops", "parked messages"):
        assert found[about].verdict == "warning"
        assert "not checked, permission denied: memory:// refused: " in found[about].detail
        assert "`scheduler run`" in found[about].advice
    assert found["broker version"].verdict == found["rights of a seed"].verdict == "ok"
    own = found["rights of this user"]
    assert own.verdict == "problem"
    refused = "memory:// refused: access to queue 'test.v1."
    assert own.detail.startswith(f"insufficient for `scheduler run`: {refused}")
    assert own.advice.startswith(f"{command} '^$' '^test")


async def test_a_processor_that_does_not_answer_is_named(stage: Stage) -> None:
    await stage.seed()
    mute = FaultyBroker(stage.server)
    async with stage.supervised(), stage.supervised(over=mute):
        await asyncio.sleep(1)
        found = await findings(stage)
        assert (found["processors"].verdict, found["processors"].detail) == (
            "ok",
            "2, all responding",
        )
        mute.on("publish", stage.app.names.control).hangs()
        found = await findings(stage)
        assert found["processors"].verdict == "warning"
        assert re.fullmatch(r"of 2, no answer from \S+:\d+:\w{6}", found["processors"].detail)
        assert "are hung" in found["processors"].advice


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
async def test_addresses_are_of_one_cluster(others: list[MemoryBroker], verdict: str, detail: str):
    cluster = MemoryServer()
    nodes = [MemoryBroker(cluster), *others, MemoryBroker(cluster)]
    finding = await check_addresses(nodes)
    assert finding.verdict == verdict
    assert finding.detail.startswith(detail)
    assert bool(finding.advice) is (verdict != "ok")
