"""Users of a real broker that may do what `doctor` says they need, and nothing else."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler import Context, Retry, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.control.doctor import Finding
from scheduler.control.loops import Where
from scheduler.control.reports import Effect
from scheduler.errors import AccessRefused, NotRunning, Rejected, Unroutable
from scheduler.events import LoopRepaired, MessageParked
from scheduler.protocol.administration import Rights
from scheduler.protocol.hatchery import timers
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Exchange, Queue, Topology
from scheduler.queues.failed import Selection
from tests.integration.witness import Witness
from tests.rabbitmq import Users
from tests.stage import SYSTEM_CLOCK, failed_of, of, program_of
from tests.sweep import clear, empty, new_namespace

ROLES = ("client", "processor", "seed")
PAGE = Path(__file__).parents[2] / "docs/how-to/secure.md"


def rights_in(finding: Finding) -> Rights:
    """What the command gives that the doctor prints."""
    words = shlex.split(finding.advice)
    assert words[:3] == ["rabbitmqctl", "set_permissions", "-p"]
    return Rights(*words[5:])


class Office(Witness):
    """An app with something of everything, and the users that work with it."""

    def __init__(self, url: str, users: Users) -> None:
        self.url = url
        self.namespace = new_namespace()
        self.theirs, self.declared = f"{self.namespace}.theirs", f"{self.namespace}.declared"
        self.app = Scheduler(self.namespace, Settings(supervision_interval=timedelta(seconds=1)))
        self.names = self.app.names
        super().__init__(self.app)
        self._register()
        self.reset()
        found = asyncio.run(self.findings_of(url))
        self.users = {
            role: users.add(**asdict(rights_in(found[f"rights of a {role}"]))) for role in ROLES
        }
        self.client, self.processor, self.seeder = self.users.values()
        self.nobody = users.add()

    def _register(self) -> None:
        @self.app.periodic(every="100ms", retry=Retry(2, delays=["50ms"], jitter=0))
        async def beat(ctx: Context) -> None:
            self._note("beat", ctx.seq, ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError("boom")

        @self.app.task(retry=Retry(1, delays=["200ms"], jitter=0))
        async def mail(ctx: Context, to: str) -> None:
            self._note("mail", to, ctx.attempt)
            if to == "nobody":
                raise ValueError("boom")

        @self.app.task(
            subscribe=[(self.theirs, "order.#"), (self.declared, "order.#", "topic")],
            retry=Retry(1, delays=["100ms"], jitter=0),
        )
        async def audit(ctx: Context, order: bytes) -> None:
            self._note("audit", order, ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError("boom")

        self.mail = mail

    def reset(self) -> None:
        """Forget what other tests did."""
        self.runs: list[tuple[str, Any, int]] = []
        self.events.clear()
        self._news = asyncio.Event()

    def _note(self, *run: Any) -> None:
        self.runs.append(run)
        self._news.set()

    def runs_of(self, task: str) -> list[tuple[Any, int]]:
        return [run[1:] for run in self.runs if run[0] == task]

    def working(self) -> AbstractAsyncContextManager[AmqpBroker]:
        """A processor that is logged in as the processor user."""
        return self.at_work(self.processor)

    async def prepare(self) -> None:
        """Seed as the user who may; one exchange is somebody else's."""
        async with AmqpBroker(self.url) as broker:
            await broker.declare(Topology(exchanges=(Exchange(self.theirs, "topic"),)))
        await self.seed(self.seeder)

    async def findings_of(self, url: str) -> dict[str, Finding]:
        async with AmqpBroker(url) as broker:
            found = await program_of(self.app, broker).doctor.examine()
        return {finding.about: finding for finding in found}


@pytest.fixture(scope="module")
def seeded(broker_url: str, users: Users) -> Iterator[Office]:
    office = Office(broker_url, users)
    try:
        asyncio.run(office.prepare())
        yield office
    finally:
        every, theirs = office.app.topology(), Exchange(office.theirs, "topic")
        asyncio.run(clear(broker_url, replace(every, exchanges=(*every.exchanges, theirs))))


@pytest.fixture
def office(seeded: Office) -> Office:
    seeded.reset()
    return seeded


async def attempt(url: str, act: Callable[[AmqpBroker], Awaitable[object]]) -> str:
    """Do it as this user; what the broker refused with, if it did."""
    async with AmqpBroker(url) as broker:
        try:
            await act(broker)
        except AccessRefused as error:
            return str(error)
    return ""


async def test_the_seed_user_may_prune_and_ask_the_doctor(office: Office) -> None:
    older = Scheduler(office.namespace, Settings())

    @older.periodic(every="1d")
    async def gone() -> None: ...

    async with AmqpBroker(office.seeder) as broker:
        await program_of(older, broker).seeding.seed()
        program = program_of(office.app, broker)
        assert await program.seeding.plan()
        reports = await program.seeding.seed(prune=True)
        assert [str(each.loop) for each in reports if each.did is Effect.REMOVED] == ["gone"]
        assert await broker.depth(office.names.processor_queue("gone")) is None
    found = await office.findings_of(office.seeder)
    assert found["queues"].detail.endswith("all as expected")
    assert found["dead-lettering"].detail == "due messages reach their next queue"
    assert {each.verdict for each in found.values()} <= {"ok", "warning"}


async def test_a_processor_runs_and_retries_loops_calls_and_foreign_messages(office: Office):
    url: Any = office.client
    client = Scheduler(office.namespace, Settings(broker_url=url))
    mail = client.task(name="mail")(office.mail.spec.function)
    async with client, office.working(), AmqpBroker(office.url) as somebody:
        await mail.send("ada")
        await mail.send_later("1.2s", "bob")
        for exchange, body in [(office.theirs, b"1"), (office.declared, b"2")]:
            await somebody.publish(Message(body), exchange=exchange, routing_key="order.paid")
        await office.until(lambda: len(office.runs_of("beat")) >= 6)
        await office.until(lambda: len(office.runs_of("audit")) >= 4)
        await office.until(lambda: len(office.runs_of("mail")) >= 2)
    (first, _), *_ = office.runs_of("beat")
    assert office.runs_of("beat")[:4] == [(first, 1), (first, 2), (first + 1, 1), (first + 1, 2)]
    assert office.runs_of("mail") == [("ada", 1), ("bob", 1)]
    assert sorted(office.runs_of("audit")) == [(b"1", 1), (b"1", 2), (b"2", 1), (b"2", 2)]


async def test_a_processor_may_use_every_verb(office: Office) -> None:
    (loop,), which, mail = office.app.loops.values(), Selection(task="mail"), office.mail
    async with AmqpBroker(office.processor) as broker:
        program = program_of(office.app, broker)
        assert (await program.verbs.pause(loop)).did is Effect.PAUSED
        (status,) = await program.survey.status()
        assert status.where is Where.PAUSED
        assert (await program.verbs.resume(loop, at_once=True)).did is Effect.RESUMED
        assert [each async for each in program.journal.entries(loop="beat")]
        assert (await program.verbs.trigger(loop)).did in (Effect.TRIGGERED, Effect.RUNNING)
    async with office.working() as broker:
        with office.app.lending(broker, SYSTEM_CLOCK):
            await mail.send("nobody")
            failed = failed_of(office.names, broker)
            await office.until(lambda: office.count(MessageParked) == 1)
            assert [each.reason for each in await failed.browse(["mail"], which)] == ["exhausted"]
            assert await failed.replay(["mail"], which) == 1
            await office.until(lambda: office.count(MessageParked) == 2)
            assert await failed.purge(["mail"], which) == 1
            assert office.runs_of("mail") == [("nobody", 1), ("nobody", 2)] * 2

            created = await mail.start("often", every="1d", args={"to": "ada"})
            assert created is Effect.CREATED
            assert [loop.key for loop in await mail.list()] == ["often"]
            often = mail.start("often", every="100ms", args={"to": "ada"})
            assert await often is Effect.RESCHEDULED
            await office.until(lambda: office.runs_of("mail").count(("ada", 1)) >= 3)
            running = await office.app.running()
            assert (running.expected, running.complete) == (1, True)
            with pytest.raises(NotRunning, match="is running"):
                await office.app.cancel("nobody")
            assert await mail.stop("often")


async def test_a_processor_repairs_a_lost_loop(office: Office) -> None:
    async with AmqpBroker(office.url) as broker:
        waiting = map(office.names.timer, timers())
        for queue in (*waiting, office.names.processor_queue("beat")):
            await empty(broker, queue)
    async with office.working():
        await office.until(lambda: bool(office.runs_of("beat")))
    assert "lost" in [each.kind for each in of(LoopRepaired, office.events)]


# Who may do what: each cell of the table in the documentation


def cells() -> list[tuple[str, str, bool]]:
    """User, operation, and whether he may."""
    lines = PAGE.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("| the user of a |"))
    _, *operations = fields(lines[at])
    rows = [fields(line) for line in lines[at + 2 : at + 2 + len(ROLES)]]
    return [
        (role.split(",")[0], operation, {"yes": True, "no": False}[said])
        for role, *row in rows
        for operation, said in zip(operations, row, strict=True)
    ]


def fields(line: str) -> list[str]:
    return [field.strip() for field in line.strip("|").split("|")]


Act = Callable[[AmqpBroker], Awaitable[object]]


def publishing(exchange: str, key: str) -> Act:
    async def act(broker: AmqpBroker) -> None:
        with suppress(Rejected, Unroutable):  # as somebody who may
            await broker.publish(Message(), exchange=exchange, routing_key=key)

    return act


def taking(queue: str) -> Act:
    async def act(broker: AmqpBroker) -> None:
        if (delivery := await broker.get(queue)) is not None:
            await delivery.requeue()

    return act


def following(stream: str) -> Act:
    async def act(broker: AmqpBroker) -> None:
        await (await broker.follow(stream, lambda message: None)).cancel()

    return act


def operations(office: Office) -> dict[str, list[Act]]:
    """What each column of the table means, one way after the other."""
    names = office.names
    other = f"{names.prefix}.other"
    theirs = f"{office.namespace}.elsewhere"

    return {
        "send a call": [publishing(names.calls, "task.mail")],
        "send it later": [publishing(names.later, "task.mail")],
        "write a token": [
            publishing(exchange, "loop.nobody")
            for exchange in (names.scheduler, names.processor, names.rerouted)
        ],
        "pause, resume, trigger": [publishing(names.control, "nobody")],
        "see runs, cancel": [publishing(names.control, "nobody"), following(names.roll_call)],
        "start, stop": [
            publishing(names.control, "nobody"),
            publishing(names.scheduler, "loop.nobody"),
        ],
        "take messages": [
            *map(taking, (names.processor_queue("mail"), names.timer(next(iter(timers()))))),
            following(names.journal),
        ],
        "park, purge": [
            publishing(names.failed, "task.nobody"),
            taking(names.failed_queue("mail")),
        ],
        "declare, delete": [
            lambda broker: broker.declare(Topology(queues=(Queue(other),))),
            lambda broker: broker.delete(other),
        ],
        "touch others": [
            publishing(office.theirs, "order.paid"),
            publishing("", names.processor_queue("mail")),
            taking(theirs),
            lambda broker: broker.declare(Topology(queues=(Queue(theirs),))),
            lambda broker: broker.delete(theirs),
        ],
    }


@pytest.mark.parametrize(("role", "operation", "may"), cells())
async def test_each_user_may_do_what_the_documentation_says(
    office: Office, role: str, operation: str, may: bool
) -> None:
    for number, act in enumerate(operations(office)[operation]):
        refused = await attempt(office.users[role], act)
        assert bool(refused) is not may, (number, refused)
    async with AmqpBroker(office.url) as broker:
        await empty(broker, office.names.processor_queue("mail"))


async def test_the_doctor_checks_as_much_as_its_user_may(office: Office) -> None:
    full = await office.findings_of(office.processor)
    assert "not checked: this user may not declare" in full["arguments of queues"].detail
    assert "not tested, this user may not configure" in full["dead-lettering"].detail
    assert f"'{office.names.prefix}.probe." in full["dead-lettering"].detail
    assert full["loops"].verdict == full["rights of this user"].verdict == "ok"
    for url in (office.client, office.nobody):
        found = await office.findings_of(url)
        assert "not checked, permission denied" in found["loops"].detail
        assert "refused: ACCESS_REFUSED" in found["loops"].detail
        told = {about: each.advice for about, each in found.items() if "rights of a " in about}
        wanted = {about: each.advice for about, each in full.items() if "rights of a " in about}
        assert told == wanted
        (problem,) = [each for each in found.values() if each.verdict == "problem"]
        assert problem.about == "rights of this user"
        assert "insufficient for `scheduler run`: " in problem.detail
        assert rights_in(problem) == rights_in(full["rights of a processor"])
