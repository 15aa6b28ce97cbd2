"""Users of a real broker that may do what `doctor` says they need, and nothing else."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

import aiormq
import pytest

from scheduler import Context, Retry, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.control.doctor import Finding, explaining_refusals
from scheduler.control.reports import Did
from scheduler.control.status import Where
from scheduler.errors import AccessRefused
from scheduler.events import Event, MessageParked
from scheduler.program import Program
from scheduler.protocol.messages import Message
from scheduler.protocol.rights import (
    Rights,
    rights_to_process,
    rights_to_seed,
    rights_to_send,
    rights_to_start,
)
from scheduler.protocol.topology import Binding, Exchange, Names, Queue, Topology, next_to
from scheduler.queues.failed import Parked, Selection
from scheduler.timing.clock import SystemClock
from tests.integration.shop import new_namespace
from tests.rabbitmq import Users
from tests.stage import at_work, failed_of, processor_of, program_of

pytestmark = pytest.mark.timeout(120)


class Office:
    """An app with something of everything, and the users that work with it."""

    def __init__(self, url: str, users: Users) -> None:
        self.url = url
        self.namespace = new_namespace()
        self.theirs, self.declared = f"{self.namespace}.theirs", f"{self.namespace}.declared"
        self.app = Scheduler(self.namespace, Settings())
        self.names = self.app.names
        self._register()
        self.reset()
        self.app.listen(self._hear)
        self.to_seed = rights_to_seed(self.names, self.app.topology())
        self.seed = user(users, self.to_seed)
        self.processor = user(users, rights_to_process(self.names))
        self.client = user(users, rights_to_send(self.names))
        self.starter = user(users, rights_to_start(self.names))
        self.nobody = users.add()

    def _register(self) -> None:
        @self.app.periodic(every="100ms", retry=Retry(2, delays=["50ms"], jitter=0))
        async def beat(ctx: Context) -> None:
            self._note("beat", ctx.seq, ctx.attempt)
            if ctx.attempt < 1:
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
            if ctx.attempt < 1:
                raise ValueError("boom")

        self.mail = mail

    def reset(self) -> None:
        """Forget what other tests did."""
        self.runs: list[tuple[str, Any, int]] = []
        self.parked = 0
        self._news = asyncio.Event()

    def _hear(self, event: Event) -> None:
        self.parked += isinstance(event, MessageParked)
        self._news.set()

    def _note(self, *run: Any) -> None:
        self.runs.append(run)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(40):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def runs_of(self, task: str) -> list[tuple[Any, int]]:
        return [run[1:] for run in self.runs if run[0] == task]

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[AmqpBroker]:
        """A processor that is logged in as the processor user."""
        async with (
            AmqpBroker(self.processor, emit=self.app.events.emit) as broker,
            at_work(processor_of(self.app, broker)),
        ):
            yield broker

    def program(self, broker: AmqpBroker) -> Program:
        return program_of(self.app, broker)

    async def make_theirs(self) -> None:
        async with AmqpBroker(self.url) as broker:
            await broker.declare(Topology(exchanges=(Exchange(self.theirs, "topic"),)))

    async def seed_as(self, url: str) -> None:
        async with AmqpBroker(url) as broker:
            with explaining_refusals(broker, self.to_seed):
                await self.program(broker).seeding.seed()

    async def findings_of(self, url: str) -> dict[str, Finding]:
        async with AmqpBroker(url) as broker:
            found = [each async for each in program_of(self.app, broker).doctor.examine()]
        return {finding.about: finding for finding in found}

    async def sweep(self) -> None:
        every = self.app.topology()
        await delete(
            self.url,
            queues=[queue.name for queue in every.queues],
            exchanges=[exchange.name for exchange in every.exchanges],
        )


async def delete(url: str, *, queues: Sequence[str], exchanges: Sequence[str]) -> None:
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    for queue in queues:
        await channel.queue_delete(queue)
    for exchange in exchanges:
        await channel.exchange_delete(exchange)
    await connection.close()


def user(users: Users, rights: Rights) -> str:
    return users.add(configure=rights.configure, write=rights.write, read=rights.read)


@pytest.fixture(scope="module")
def unseeded(broker_url: str, users: Users) -> Iterator[Office]:
    office = Office(broker_url, users)
    try:
        asyncio.run(office.make_theirs())
        yield office
    finally:
        asyncio.run(office.sweep())


@pytest.fixture(scope="module")
def seeded(unseeded: Office) -> Office:
    asyncio.run(unseeded.seed_as(unseeded.seed))
    return unseeded


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


# Before anything is seeded


async def test_who_has_no_rights_is_told_which_to_ask_for(unseeded: Office) -> None:
    with pytest.raises(AccessRefused) as refused:
        await unseeded.seed_as(unseeded.nobody)
    told, rights = str(refused.value), unseeded.to_seed
    assert "\n" not in told
    assert f"access to queue '{next_to(unseeded.names.lock)}' in vhost" in told
    assert told.endswith(f"'{rights.configure}' '{rights.write}' '{rights.read}'")


async def test_a_processor_does_not_seed(unseeded: Office) -> None:
    with pytest.raises(AccessRefused, match="access to exchange .* refused for user 'test-") as it:
        await unseeded.seed_as(unseeded.processor)
    assert f"'{unseeded.to_seed.configure}'" in str(it.value)


# What each of them does


async def test_who_seeds_may_do_so_again_and_ask_the_doctor(office: Office) -> None:
    await office.seed_as(office.seed)
    found = await office.findings_of(office.seed)
    assert found["queues"].detail.endswith("as they should be")
    assert found["dead-lettering"].detail == "what is due comes to its next queue"
    assert {each.verdict for each in found.values()} <= {"ok", "warning"}


async def test_a_processor_runs_loops_and_retries_them(office: Office) -> None:
    async with office.working():
        await office.until(lambda: len(office.runs_of("beat")) >= 6)
    (first, _), *_ = office.runs_of("beat")
    assert office.runs_of("beat")[:4] == [(first, 0), (first, 1), (first + 1, 0), (first + 1, 1)]


async def test_a_processor_runs_what_a_client_sends_now_and_later(office: Office) -> None:
    url: Any = office.client
    client = Scheduler(office.namespace, Settings(broker_url=url))
    mail = client.task(name="mail")(office.mail.spec.function)
    async with client, office.working():
        await mail.send("ada")
        await mail.send_later("1.2s", "bob")
        await office.until(lambda: len(office.runs_of("mail")) >= 2)
    assert office.runs_of("mail") == [("ada", 0), ("bob", 0)]


async def test_a_processor_retries_parks_and_replays(office: Office) -> None:
    async with office.working() as broker, lent(office, office.processor):
        await office.mail.send("nobody")
        failed = failed_of(office.names, broker)
        which = Selection(task="mail")
        await office.until(lambda: office.parked == 1)
        assert await found(failed.browse(["mail"], which))
        assert await found(failed.replay(["mail"], which))
        await office.until(lambda: office.parked == 2)
        assert await found(failed.purge(["mail"], which))
    assert office.runs_of("mail") == [("nobody", 0), ("nobody", 1)] * 2


async def test_a_processor_gets_and_retries_what_it_subscribes_to(office: Office) -> None:
    async with office.working(), AmqpBroker(office.url) as somebody:
        for exchange, body in [(office.theirs, b"1"), (office.declared, b"2")]:
            await somebody.publish(Message(body), exchange=exchange, routing_key="order.paid")
        await office.until(lambda: len(office.runs_of("audit")) >= 4)
    assert sorted(office.runs_of("audit")) == [(b"1", 0), (b"1", 1), (b"2", 0), (b"2", 1)]


async def test_a_processor_pauses_resumes_and_triggers(office: Office) -> None:
    (loop,) = office.app.loops.values()
    async with AmqpBroker(office.processor) as broker:
        program = office.program(broker)
        assert (await program.verbs.pause(loop)).did is Did.PAUSED
        (status,) = await program_of(office.app, broker).survey.status()
        assert status.where is Where.PAUSED
        assert (await program.verbs.resume(loop)).did is Did.RESUMED
        assert (await program.verbs.trigger(loop)).did in (Did.TRIGGERED, Did.RUNNING)


async def test_a_starter_starts_and_stops_loops(office: Office) -> None:
    async with lent(office, office.starter):
        assert await office.mail.start("daily", every="1d", args={"to": "ada"}) is Did.CREATED
        assert [loop.key for loop in await office.mail.list()] == ["daily"]
        assert await office.mail.stop("daily")


async def found(parked: Awaitable[list[Parked]]) -> bool:
    return [each.reason for each in await parked] == ["exhausted"]


@asynccontextmanager
async def lent(office: Office, url: str) -> AsyncGenerator[None]:
    """The app uses the connection of this user."""
    async with AmqpBroker(url) as broker:
        office.app.outbox.use(broker, SystemClock())
        try:
            yield
        finally:
            office.app.outbox.release(broker)


# What they may not


async def test_a_processor_starts_no_loops(office: Office) -> None:
    hatchery = f"{office.names.prefix}.hatchery.mail.daily"
    async with lent(office, office.processor):
        with pytest.raises(AccessRefused, match=f"the right to configure '{hatchery}'"):
            await office.mail.start("daily", every="1d", args={"to": "ada"})


async def test_a_processor_declares_and_deletes_nothing_but_the_lock(office: Office) -> None:
    names, processor = office.names, office.processor
    queue = names.processor_queue("mail")
    refused: list[Topology] = [
        Topology(queues=(Queue(f"{names.prefix}.other"),)),
        Topology(queues=(Queue(f"{names.lock}.other"),)),
        Topology(queues=office.app.topology().queues[:1]),
        Topology(exchanges=(Exchange(f"{names.prefix}.other", "topic"),)),
        Topology(exchanges=(Exchange("amq.topic", "topic"),)),
        Topology(bindings=(Binding(office.theirs, queue, "#"),)),
    ]
    for topology in refused:
        assert await attempt(processor, lambda broker, wanted=topology: broker.declare(wanted))
    assert await attempt(processor, lambda broker: broker.delete(queue))
    assert await attempt(processor, lambda broker: broker.get(f"{office.namespace}.elsewhere"))
    async with AmqpBroker(processor) as broker, broker.mutex(names.lock):
        pass


async def test_a_client_only_sends(office: Office) -> None:
    names, client = office.names, office.client
    queue = names.processor_queue("mail")
    for exchange in (names.scheduler, names.failed, office.theirs):
        assert await attempt(client, lambda broker, at=exchange: published(broker, at))
    assert await attempt(client, lambda broker: broker.get(queue))
    assert await attempt(client, lambda broker: broker.purge(queue))
    assert await attempt(client, lambda broker: broker.delete(queue))
    assert await attempt(client, lambda broker: broker.declare(office.app.topology()))


async def published(broker: AmqpBroker, exchange: str) -> None:
    await broker.publish(Message(), exchange=exchange, routing_key="#")


async def test_without_a_right_on_somebodys_exchange_it_is_not_bound_to(
    office: Office, users: Users
) -> None:
    ours = rf"^{office.namespace}\.v1\."
    poor = users.add(configure=office.to_seed.configure, write=ours, read=ours)
    refusal = f"access to exchange '{office.namespace}\\.(theirs|declared)'"
    with pytest.raises(AccessRefused, match=refusal) as refused:
        await office.seed_as(poor)
    assert rf"|{office.namespace}\.theirs$)'" in str(refused.value)


# Whom the doctor looks for


async def test_the_doctor_looks_as_far_as_its_user_may(office: Office) -> None:
    full = await office.findings_of(office.processor)
    assert "not compared: this user may not declare" in full["arguments of queues"].detail
    assert "not tried, this user may not configure" in full["dead-lettering"].detail
    assert f"'{office.names.probe}" in full["dead-lettering"].detail
    assert "loops" in full
    assert full["loops"].verdict == "ok"
    for url in (office.client, office.nobody):
        found = await office.findings_of(url)
        assert "not looked at, this user may not" in found["loops"].detail
        assert "refused: ACCESS_REFUSED" in found["loops"].detail
        told = {about: each.advice for about, each in found.items() if "rights of" in about}
        assert told == {about: each.advice for about, each in full.items() if "rights of" in about}
        assert not [each for each in found.values() if each.verdict == "problem"]


# The rules


async def test_these_rights_are_enough_and_each_of_them_is_needed(
    namespace: str, broker_url: str, users: Users
) -> None:
    a, b, c, q = (f"{namespace}.{letter}" for letter in "abcq")
    given = Topology(exchanges=(Exchange(a, "topic"), Exchange(c, "topic")))
    wanted = Topology(
        exchanges=(Exchange(b, "topic", {"alternate-exchange": a}),),
        queues=(Queue(q, {"x-queue-type": "quorum", "x-dead-letter-exchange": c}),),
        bindings=(Binding(b, q, "#"), Binding(a, c, "#", "exchange")),
    )
    rights = rights_to_seed(Names(namespace), wanted)
    needed = [
        (right, name) for right, pattern in asdict(rights).items() for name in others(pattern)
    ]
    assert needed == [
        *(("configure", name) for name in (b, q)),
        *(("write", name) for name in (a, c, q)),
        *(("read", name) for name in (a, b, q)),
    ]

    async def declared_by(rights: Rights) -> str:
        # What exists is not asked for its arguments' sake again.
        await delete(broker_url, queues=[q], exchanges=[a, b, c])
        async with AmqpBroker(broker_url) as broker:
            await broker.declare(given)
        return await attempt(user(users, rights), lambda broker: broker.declare(wanted))

    try:
        assert not await declared_by(rights)
        for right, name in needed:
            poorer = asdict(rights)[right].replace(f"|{re.escape(name)}$", "")
            refused = await declared_by(replace(rights, **{right: poorer}))
            assert f"'{name}' in vhost" in refused, (right, name)
    finally:
        await delete(broker_url, queues=[q], exchanges=[a, b, c])


def others(pattern: str) -> list[str]:
    """The names in a pattern that are not of the namespace."""
    return [name.replace("\\", "") for name in re.findall(r"\|([^|$]+)\$", pattern)]
