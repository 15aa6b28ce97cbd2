"""A connection to the embedded broker of which a test says what goes wrong, and when."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Self

from scheduler.brokers.contract import (
    DEFAULT_TIMEOUT,
    LONGEST_SILENCE,
    BrokerInfo,
    Delivery,
    Depth,
    silent,
    too_long,
)
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import AccessRefused, Unconfirmed
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Topology

Operation = Literal[
    "connect", "close", "declare", "unbind", "publish", "get", "read", "last", "depth", "delete"
]


@dataclass(frozen=True, slots=True)
class Call:
    """An operation that was asked for.

    Attributes:
        at: when, by the running event loop.
        target: the exchange, queue or stream that it is for.
        message: what is published; of a stream, what is about to be handed out.
        position: of a stream, how many of its messages this reading has handed out before.
    """

    operation: Operation
    at: float
    target: str = ""
    routing_key: str = ""
    message: Message = field(default_factory=Message)
    timeout: timedelta = timedelta.max
    position: int = 0


Act = Callable[[Call], Awaitable[None]]


async def proceed(call: Call) -> None: ...


@dataclass(slots=True)
class Fault:
    """What becomes of some operations. Told nothing, it only notes them.

    Attributes:
        times: how many of them it still happens to.
        met: those it has happened to.
    """

    matches: Callable[[Call], bool]
    times: float
    met: list[Call] = field(default_factory=list[Call])
    _before: Act = proceed
    _after: Act = proceed

    def first(self, act: Act) -> Self:
        """Do this before it; if that raises, it is not done, and raises the same."""
        self._before = act
        return self

    def then(self, act: Act) -> Self:
        """Do this when it is done; if that raises, it has been done and raises the same."""
        self._after = act
        return self

    def fails(self, error: Exception) -> Self:
        """It is not done, and raises this."""

        async def fail(call: Call) -> None:
            raise error

        return self.first(fail)

    def hangs(self, seconds: float = math.inf) -> Self:
        """It is not done, and does not answer until its timeout, or for so long."""

        async def hang(call: Call) -> None:
            await asyncio.sleep(min(seconds, call.timeout.total_seconds()))
            raise Unconfirmed("It did not confirm in time.")

        return self.first(hang)

    def loses_its_answer(self) -> Self:
        """It is done, and who asked for it does not get to know."""

        async def lose(call: Call) -> None:
            raise Unconfirmed("The answer was lost.")

        return self.then(lose)

    async def cease(self, call: Call | None = None) -> None:
        """It happens no more; may itself be what becomes of another operation."""
        self.times = 0

    @asynccontextmanager
    async def happening(self, call: Call) -> AsyncGenerator[None]:
        self.times -= 1
        self.met.append(call)
        await self._before(call)
        yield
        await self._after(call)


class FaultyBroker(MemoryBroker):
    """A `MemoryBroker` whose operations fail, hang, lose their answer or are looked at.

    Attributes:
        calls: the operations that were asked for.
        blocks_for: why it blocks publishers; empty: it does not.
    """

    blocks_for = ""

    def __init__(
        self, server: MemoryServer | None = None, *, info: BrokerInfo | None = None
    ) -> None:
        super().__init__(server)
        self.calls: list[Call] = []
        self._faults: list[Fault] = []
        self._info = info

    def on(
        self,
        operation: Operation,
        target: str = "",
        *,
        key: str | None = None,
        where: Callable[[Call], bool] = lambda call: True,
        times: float = math.inf,
    ) -> Fault:
        """Have something become of an operation. Of several that match, the oldest happens.

        Args:
            target: how the name of its exchange, queue or stream ends.
            key: its routing key.
            where: what else it must be like.
            times: how many of them it happens to.
        """

        def matches(call: Call) -> bool:
            wanted = call.operation == operation and call.target.endswith(target)
            return wanted and key in (None, call.routing_key) and where(call)

        self._faults.append(Fault(matches, times))
        return self._faults[-1]

    @property
    def info(self) -> BrokerInfo:
        return self._info or super().info

    async def __aenter__(self) -> Self:
        async with self._asked("connect"):
            return await super().__aenter__()

    async def __aexit__(self, *exception: object) -> None:
        async with self._asked("close"):
            await super().__aexit__(*exception)

    async def alarm(self) -> str:
        return self.blocks_for

    async def declare(self, topology: Topology) -> None:
        async with self._asked("declare"):
            await super().declare(topology)

    async def unbind(self, bindings: Iterable[Binding]) -> None:
        async with self._asked("unbind"):
            await super().unbind(bindings)

    async def publish(self, message: Message, **options: Any) -> None:
        limit = options.get("timeout", DEFAULT_TIMEOUT) or timedelta.max
        asked = options["exchange"], options["routing_key"], message, limit
        async with self._asked("publish", *asked):
            await super().publish(message, **options)

    async def get(self, queue: str) -> Delivery | None:
        async with self._asked("get", queue):
            return await super().get(queue)

    async def read(self, stream: str, **options: Any) -> AsyncGenerator[Message]:
        """Asked for once for each message; where that raises `EOFError`, no more are there."""
        position = 0
        async with aclosing(super().read(stream, **options)) as messages:
            with suppress(EOFError):
                async for message in messages:
                    async with self._asked("read", stream, message=message, position=position):
                        pass
                    yield message
                    position += 1

    async def read_to_end(self, stream: str, **options: Any) -> AsyncGenerator[Message]:
        """Asked for once for each message, with those that are left out, and for its end; where
        that raises `EOFError`, no more come. Its mark is published.
        """
        limit: timedelta = options.get("timeout", DEFAULT_TIMEOUT)
        deadline = asyncio.get_running_loop().time() + limit.total_seconds()
        position, reached = 0, None
        try:
            async with aclosing(super().read_to_end(stream, **options)) as messages:
                async for message in messages:
                    async with (
                        asyncio.timeout_at(deadline),
                        self._asked("read", stream, message=message, position=position),
                    ):
                        pass
                    position, reached = position + 1, message.offset
                    yield message
            async with self._asked("read", stream, position=position):
                pass
        except TimeoutError:
            raise too_long(stream, reached) from None
        except EOFError:
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.sleep(min(left, LONGEST_SILENCE.total_seconds()))
            raise silent(stream, reached) from None

    async def last(self, stream: str) -> Message | None:
        async with self._asked("last", stream):
            return await super().last(stream)

    async def depth(self, queue: str) -> Depth | None:
        async with self._asked("depth", queue):
            return await super().depth(queue)

    async def delete(self, queue: str) -> None:
        async with self._asked("delete", queue):
            await super().delete(queue)

    @asynccontextmanager
    async def _asked(
        self,
        operation: Operation,
        target: str = "",
        routing_key: str = "",
        message: Message | None = None,
        timeout: timedelta = timedelta.max,
        position: int = 0,
    ) -> AsyncGenerator[None]:
        at = asyncio.get_running_loop().time()
        call = Call(operation, at, target, routing_key, message or Message(), timeout, position)
        self.calls.append(call)
        for fault in self._faults:
            if fault.times > 0 and fault.matches(call):
                async with fault.happening(call):
                    yield
                return
        yield


def not_allowed(server: MemoryServer) -> FaultyBroker:
    """A connection of a user who may neither declare nor delete."""
    broker = FaultyBroker(server)
    for operation in "declare", "delete":
        broker.on(operation).fails(AccessRefused("No right to configure."))
    return broker
