import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, SecretStr

from scheduler import Context, Scheduler, Settings
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.errors import InvalidArguments, NotAllSent, SchedulerError, Unroutable, UsageError
from scheduler.protocol.calls import Call, decode_call
from scheduler.queues.outbox import BlockingBridge
from scheduler.sending import CallTask
from scheduler.timing.moments import SystemClock
from tests.faulty import Call as Faulted
from tests.faulty import FaultyBroker
from tests.stage import START, Stage, new_app


class Order(BaseModel):
    number: int
    at: datetime | None = None


ORDER = Order(number=1)
NAIVE = datetime(2026, 6, 1)  # noqa: DTZ001
LAST = datetime.max.replace(tzinfo=UTC)


def shop() -> tuple[Scheduler, CallTask[..., ..., Any]]:
    app = new_app()

    @app.task(expires="1h")
    async def ship(ctx: Context, order: Order, city: str = "Bonn", *, times: int = 1) -> str:
        return f"{order.number} {city} {times} {ctx}"

    return app, ship


Ship = CallTask[..., ..., Any]


@pytest.fixture
async def ship(stage: Stage) -> Ship:
    """The task of the shop, which is seeded."""
    app, ship = shop()
    await stage.seed(app)
    return ship


async def sent(stage: Stage) -> Call:
    """The call that was sent last; nobody works."""
    delivery = await stage.broker.get(stage.app.names.processor_queue("ship"))
    assert delivery is not None
    await delivery.ack()
    return decode_call(
        delivery.message,
        "test",
        "ship",
        exchange=delivery.exchange,
        routing_key=delivery.routing_key,
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "ship cannot be called like this: missing a required argument: 'order'"),
        ((ORDER,), {"times": "many"}, "times: Input should be a valid integer"),
    ],
)
async def test_a_call_that_does_not_fit_the_function_is_not_sent(
    stage: Stage, ship: Ship, args: tuple[Any, ...], kwargs: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArguments, match=told):
        await ship.send(*args, **kwargs)
    with pytest.raises(InvalidArguments, match=told):
        await ship.send_later("1s", *args, **kwargs)
    assert await stage.waiting() == 0


async def test_a_connection_is_open_within_the_app_alone(stage: Stage) -> None:
    app, ship = shop()
    assert await ship.send(ORDER)
    assert not app.outbox.is_open
    async with app:
        async with app:
            assert app.outbox.is_open
        assert app.outbox.is_open
    assert not app.outbox.is_open
    await stage.seed(app)
    async with app:
        await ship.send(ORDER)
    await ship.send(ORDER)
    assert await stage.waiting() == 2


async def test_options_add_up_and_travel_along(stage: Stage, ship: Ship) -> None:
    sender = ship.options(
        priority=5,
        expires="10m",
        correlation_id="c",
        message_id="m",
        headers={"traceparent": "00-ab"},
    )
    assert await sender.send_later("1s", ORDER) == "m"
    await asyncio.sleep(1.1)
    call = await sent(stage)
    assert call.message.headers["traceparent"] == "00-ab"
    assert (call.message.priority, call.message.correlation_id) == (5, "c")
    assert call.message.message_id == call.id == "m"
    assert call.sent_at == START
    assert call.due_at == START + timedelta(seconds=1)
    assert call.expires_at == START + timedelta(minutes=10, seconds=1)
    await ship.options(priority=1).options(correlation_id="c").send(ORDER)
    call = await sent(stage)
    assert (call.message.priority, call.message.correlation_id) == (1, "c")
    ids = {await ship.send(ORDER) for _ in range(2)}
    assert len(ids) == 2
    call = await sent(stage)
    assert call.message.priority is None
    assert call.sent_at is not None
    assert call.expires_at == call.sent_at + timedelta(hours=1)


def orders(count: int) -> list[dict[str, Any]]:
    return [{"order": Order(number=number)} for number in range(count)]


OPTION = r"An option for 'ship' cannot be sent\."
WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda ship: ship.send_later("soon", ORDER), "got: 'soon'"),
    (lambda ship: ship.send_later("4000d", ORDER), "from 0 to 1343 days, got '4000d'. For later"),
    (lambda ship: ship.send_later(object(), ORDER), "delay: expected a number and a unit"),
    (lambda ship: ship.send_at(NAIVE, ORDER), "aware moment, got: 2026-06-01T00:00:00; give it a"),
    (lambda ship: ship.send_at(LAST, ORDER), "a moment of the years 1970 to 9000, got: 9999"),
    (
        lambda ship: ship.send_at("2026-06-01T09:00", ORDER),
        "expected an aware datetime, got: '2026-06-01T09",
    ),
    (lambda ship: ship.send_many(orders(1), delay="1s", at=START), "a moment, got both"),
    (lambda ship: ship.send_many(orders(1), at=NAIVE), "an aware moment"),
    (
        lambda ship: ship.send_many([*orders(1), ({"order": ORDER}, NAIVE)]),
        "Nothing was sent. Call 1: .* an aware moment",
    ),
    (lambda ship: ship.options(message_id="7").send_many(orders(2)), "omit message_id="),
    (lambda ship: ship.options(headers={"a": {1}}), f"{OPTION} .* 'a' holds a value of type set"),
    (lambda ship: ship.options(headers=[1]), f"{OPTION} The headers are of type list, not a map"),
    (lambda ship: ship.options(priority="high"), f"{OPTION} .* number from 0 to 31, got 'high'"),
    (lambda ship: ship.options(priority=-1), f"{OPTION} The priority must be .*, got -1"),
    (lambda ship: ship.options(message_id=7), f"{OPTION} .* message_id is of type int, not str"),
    (lambda ship: ship.options(correlation_id="c" * 300), f"{OPTION} .* is 300 bytes long"),
    (lambda ship: ship.options(expires="old"), "expires: expected .*got: 'old'"),
    (
        lambda ship: ship.once("x", at="tomorrow", args={"order": {"number": 1}}),
        "The moment of ship.x: expected",
    ),
    (lambda ship: ship.start("x", every="1s", args=["order"]), "args= of ship must map names"),
    (lambda ship: ship.start("x", every=[1]), r"schedule of ship\.x: every: .*got: \[1\]"),
    (lambda ship: ship.sync(["x"]), "sync takes a mapping of keys"),
]


@pytest.mark.parametrize(("send", "told"), WRONG)
async def test_a_wrong_moment_or_option_is_refused_and_nothing_sent(
    stage: Stage, ship: Ship, send: Callable[[Ship], Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        await send(ship)
    assert await stage.waiting() == 0


async def test_a_moment_is_the_same_in_every_zone(stage: Stage, ship: Ship) -> None:
    tokyo, berlin = timezone(timedelta(hours=9)), ZoneInfo("Europe/Berlin")
    for moment in (
        datetime(2026, 6, 2, 12, tzinfo=tokyo),
        datetime(2027, 3, 28, 1, 30, tzinfo=berlin),  # half an hour before it becomes 3 o'clock
    ):
        await ship.options(expires="2h").send_at(moment, ORDER)
        assert await in_queue(stage) == []
        await asyncio.sleep((moment - stage.clock.now()).total_seconds() + 1)
        call = await sent(stage)
        assert call.due_at == moment
        assert call.expires_at is not None
        assert call.expires_at - moment.astimezone(UTC) == timedelta(hours=2)


# Outside of a processor


@pytest.mark.parametrize(
    ("exchange", "key", "options", "told"),
    [
        ("test.v1.scheduler", "x", {}, "'test.v1.scheduler' is the scheduler's own"),
        ("test.v1.later", "x", {}, "'test.v1.later' is the scheduler's own"),
        ("", "test.v1.processor.ship", {}, "'test.v1.processor.ship' is the scheduler's own"),
        ("orders", "x", {"headers": {"Scheduler-Due-At-Ms": 1}}, "begin with 'scheduler-' are res"),
        ("orders", "x", {"deadline": "soon"}, "got: 'soon'"),
        ("orders", "x" * 256, {}, "The routing key is 256 bytes long"),
        ("orders", "x", {"headers": {"x": object()}}, "a value of type object"),
        ("orders", "x", {"headers": {1: "x"}}, "The name '1' of a header is of type int"),
        ("orders", "x", {"body": {"at": object()}}, "The body cannot be encoded: Unable to ser"),
        ("orders", "x", {"body": "\ud800"}, "The body cannot be encoded: .*surrogates"),
    ],
)
async def test_a_message_of_the_schedulers_own_or_that_cannot_be_encoded_is_not_published(
    exchange: str, key: str, options: dict[str, Any], told: str
) -> None:
    given: dict[str, Any] = {"body": b"", **options}
    with pytest.raises(SchedulerError, match=told):
        await new_app().publish(exchange, key, **given)


def test_blocking_senders_have_a_connection_of_their_own() -> None:
    _, ship = shop()
    assert ship.blocking.send(ORDER) != ship.blocking.send(ORDER)
    with pytest.raises(UsageError, match="an aware moment"):
        ship.blocking.send_at(NAIVE, ORDER)
    with pytest.raises(InvalidArguments):
        ship.blocking.send()
    assert ship.blocking.send_many([]) == []
    with pytest.raises(InvalidArguments, match=r"Call 0: a call must map .*, got \(1,\)"):
        ship.blocking.send_many([cast("Any", (1,))])


def test_blocking_senders_outlast_any_exception_in_their_event_loop() -> None:
    bridge = BlockingBridge()

    async def exits() -> None:
        asyncio.get_running_loop().stop()
        raise SystemExit(3)

    for _ in range(2):
        with pytest.raises(SystemExit):
            bridge.run(exits())


async def test_blocking_is_refused_where_it_would_block_others() -> None:
    _, ship = shop()
    for send in (
        lambda: ship.blocking.send(ORDER),
        lambda: ship.blocking.send_later("1s", ORDER),
        lambda: ship.options(priority=1).blocking.send_at(START, ORDER),
    ):
        with pytest.raises(RuntimeError, match="await the form without `blocking` instead"):
            send()


def test_another_event_loop_sends_to_the_embedded_broker() -> None:
    app, ship = shop()

    async def perform() -> None:
        async with MemoryBroker() as broker:
            await broker.declare(app.topology())
            with app.lending(broker, SystemClock()):
                name = await asyncio.to_thread(lambda: asyncio.run(ship.send(ORDER)))
            delivery = await broker.get(app.names.processor_queue("ship"))
        assert delivery is not None
        assert delivery.message.message_id == name

    asyncio.run(perform())


# Many at once


async def in_queue(stage: Stage) -> list[Call]:
    """All calls that wait, nobody works."""
    depth = await stage.broker.depth(stage.app.names.processor_queue("ship"))
    return [await sent(stage) for _ in range(depth.ready if depth else 0)]


async def test_the_ids_of_many_calls_are_in_their_order(stage: Stage, ship: Ship) -> None:
    ids = await ship.options(correlation_id="c").send_many([*orders(600), {"order": ORDER}])
    calls = {call.id: call for call in await in_queue(stage)}
    assert [(calls[id].args or {})["order"]["number"] for id in ids] == [*range(600), 1]
    assert {call.message.correlation_id for call in calls.values()} == {"c"}


async def test_many_may_be_sent_after_a_delay_or_at_a_moment(stage: Stage, ship: Ship) -> None:
    await ship.send_many(orders(3), delay="10s")
    await ship.send_many(orders(2), at=START + timedelta(seconds=20))
    four, five, six, seven = orders(4)
    each = [(four, "30s"), (five, START + timedelta(seconds=40)), (six, "0s"), seven]
    await ship.send_many(each, delay="10s")
    assert len(await in_queue(stage)) == 1
    for count in (4, 2, 1, 1):
        await asyncio.sleep(10.1)
        assert len(await in_queue(stage)) == count


@pytest.mark.parametrize(
    "wrong", [{"order": {"number": "x"}}, {"colour": "red"}, ["order"], ({}, "1s", 7)]
)
async def test_no_call_is_sent_if_one_is_wrong(stage: Stage, ship: Ship, wrong: Any) -> None:
    with pytest.raises(InvalidArguments, match=r"^Nothing was sent. Call 3: "):
        await ship.send_many([*orders(3), wrong, *orders(3)])
    assert await in_queue(stage) == []


def is_order(number: int) -> Callable[[Faulted], bool]:
    return lambda call: b'"number":%d,' % number in call.message.body


async def test_the_rest_of_many_calls_is_not_tried(stage: Stage, ship: Ship) -> None:
    async with FaultyBroker(stage.server) as broker:
        broker.on("publish", where=is_order(3)).fails(Unroutable())
        stage.app.outbox.use(broker, stage.clock)
        with pytest.raises(
            NotAllSent, match="messages for 'ship' were sent: The broker has no"
        ) as all_but:
            await ship.send_many(orders(10_000))
        stage.app.outbox.release(broker)
    ids, calls = all_but.value.ids, await in_queue(stage)
    assert ids[3] is None
    assert {call.id for call in calls} == {id for id in ids if id}
    assert 3 <= len(calls) < 1000


async def test_if_no_call_of_many_was_sent_the_error_is_that_of_one(stage: Stage) -> None:
    app, ship = shop()
    await stage.seed(new_app())
    async with FaultyBroker(stage.server) as broker:
        app.outbox.use(broker, stage.clock)
        with pytest.raises(Unroutable, match="no queue for the task 'ship'"):
            await ship.send_many(orders(3))


# On memory://, with nobody who could seed


@pytest.fixture
def alone() -> Scheduler:
    return Scheduler("shop", Settings(broker_url=SecretStr("memory://")))


async def test_a_program_on_the_embedded_broker_needs_no_set_up(alone: Scheduler):
    @alone.task
    async def remind(order: int) -> None: ...

    await remind.start("order-42", every="1d", args={"order": 42})
    async with alone:
        sent = {await remind.send(1), await remind.send_later("1h", 2)}
        sent |= set(await remind.send_many([{"order": 3}]))
        async with alone.outbox.connection() as broker:
            depth = await broker.depth("shop.v1.processor.remind")
        assert [loop.key for loop in await remind.list()] == ["order-42"]
        await remind.stop("order-42")
        assert await remind.list() == []
    assert len(sent) == 3
    assert depth is not None
    assert depth.ready == 2


def test_each_event_loop_has_an_embedded_broker_of_its_own(alone: Scheduler):
    @alone.task
    async def remind(order: int) -> None: ...

    async def send() -> str:
        return await remind.send(1)

    assert asyncio.run(send()) != asyncio.run(send())
    assert remind.blocking.send(2)


def test_a_url_in_the_place_of_settings_is_refused_and_not_shown() -> None:
    wrong: Any = "amqp://ada:secret@broker/"
    with pytest.raises(UsageError, match=r"^Scheduler takes Settings") as refused:
        Scheduler("x", wrong)
    assert "secret" not in str(refused.value)
