"""Rounds: publish some hundred messages, wait until each has ended, have an operator look."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import TypeAlias

from scheduler.brokers.contract import Broker
from scheduler.protocol.tokens import claims_of
from scheduler.queues.failed import ParkedMessage
from scheduler.queues.outbox import Posting
from scheduler.timing.pacing import backoff
from tests.fuzz.fates import Fate
from tests.fuzz.field import Field, Taken
from tests.fuzz.messages import SPARED, Sample, Samples, number_of
from tests.fuzz.operator import Complaint, Operator
from tests.stage import SYSTEM_CLOCK

PATIENCE, PATIENCE_FOR_EACH = 60.0, 0.05
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=0.1), timedelta(seconds=3)
MANY = 12
Ends: TypeAlias = Mapping[int, Counter[Fate]]
SHOWN = 2


@dataclass
class Tally:
    """What became of all messages, and what should not have been."""

    published: int = 0
    taken: Counter[Taken] = field(default_factory=Counter[Taken])
    ended: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    delayed: int = 0
    told: int = 0
    seconds: float = 0.0

    def expect(self, condition: object, otherwise: str) -> None:
        if not condition:
            self.wrong.append(otherwise)


def _nothing(_: Tally) -> None: ...


class Fuzz:
    """One field, and what is published to it."""

    def __init__(self, field: Field, seed: int) -> None:
        self.tally = Tally()
        self._field = field
        self._operator = Operator(field)
        self._rng = Random(seed + 1)
        self._samples = Samples(
            seed, field.app.names, fragile=field.broker.info.version.startswith("3.")
        )
        self._sent = 0
        self._since = SYSTEM_CLOCK.now()
        self._patience = PATIENCE
        self._unknown = set[str]()

    async def run(
        self, messages: int, *, per_round: int = 500, tell: Callable[[Tally], None] = _nothing
    ) -> Tally:
        """Publish so many messages, and judge what became of them; `tell` hears of each round."""
        began, sending = time.monotonic(), asyncio.create_task(self._send_delayed())
        while self.tally.published < messages and len(self.tally.wrong) < MANY:
            count = min(per_round, messages - self.tally.published)
            await self._round([self._samples.next() for _ in range(count)])
            self.tally.seconds = time.monotonic() - began
            tell(self.tally)
        sending.cancel()
        await self._judge_loop_and_delayed()
        for publisher in self._field.publishers:
            self.tally.refused.update(publisher.refusals)
        return self.tally

    async def _round(self, samples: Sequence[Sample]) -> None:
        self.tally.published += len(samples)
        self._patience = PATIENCE + PATIENCE_FOR_EACH * len(samples)
        self._since = SYSTEM_CLOCK.now()
        accepted = await self._publish(samples)
        ends = await self._ended(accepted)
        self._judge(accepted, ends)
        found = await self._operator.parked()
        self.tally.reasons.update(each.reason for each in found)
        try:
            await self._operator.look(found, self._rng.sample(found, min(SHOWN, len(found))))
        except Complaint as error:
            self.tally.wrong.append(f"an operator: {error}")
        await self._replay(accepted, found)
        await self._purge()
        self._forget()

    async def _publish(self, samples: Sequence[Sample]) -> dict[int, Sample]:
        accepted, waiting = dict[int, Sample](), iter(samples)

        async def publish_all(number: int) -> None:
            for sample in waiting:
                taken = await self._field.publishers[number].publish(sample)
                self.tally.taken[taken] += 1
                if taken is Taken.ACCEPTED:
                    accepted[sample.number] = sample
                elif taken is Taken.REFUSED:
                    self.tally.refused[f"{sample.kind}, expected: {sample.refusable}"] += 1

        await asyncio.gather(*map(publish_all, range(len(self._field.publishers))))
        return accepted

    async def _ended(self, accepted: Mapping[int, Sample]) -> Ends:
        """Wait until each has ended as often as it has copies, and nothing is on its way."""
        unseen = Fate.ACKED | Fate.DROPPED | Fate.WAITS
        least = sum(each.copies for each in accepted.values() if not each.fate & unseen)

        def are_all(ends: Ends) -> bool:
            all_ended = all(each.copies <= ends[n].total() for n, each in accepted.items())
            return all_ended and _waiting(ends) <= self._field.record.waits

        return await self._ends_once(are_all, accepted, least)

    async def _ends_once(
        self, are_all: Callable[[Ends], bool], accepted: Mapping[int, Sample], least: int
    ) -> Ends:
        """Wait until so many ends are seen, and they are all; or not to be expected any more."""
        ends: Ends = {}

        async def ended() -> bool:
            nonlocal ends
            if await self._seen() < least or not await self._at_rest():
                return False
            ends = await self._ends(accepted)
            return are_all(ends)

        await self._until(ended)
        return ends or await self._ends(accepted)

    async def _seen(self) -> int:
        """How many ends there are at the least: to look at all that is parked takes long."""
        names, record = self._field.app.names, self._field.record
        queues = [names.failed, *map(names.failed_queue, self._field.app.tasks)]
        return record.runs.total() + record.acked.total() + await _ready(self._field.broker, queues)

    async def _at_rest(self) -> bool:
        """Whether the queues of tasks, and those of timers that are short, are empty."""
        names, app = self._field.app.names, self._field.app
        queues = [names.processor_queue(task) for task in app.tasks if task not in ("work", SPARED)]
        timed = names.unrouted, names.later_unrouted
        return not await _ready(self._field.broker, [*queues, *timed])

    async def _ends(self, accepted: Mapping[int, Sample]) -> Ends:
        record, ends = self._field.record, {number: Counter[Fate]() for number in accepted}
        found = await self._operator.parked()
        parked = Counter(map(_number_of_parked, found))
        known = (Fate.RUN, record.runs), (Fate.PARKED, parked), (Fate.ACKED, record.acked)
        for fate, counts in known:
            for number, count in counts.items():
                if number in ends:
                    ends[number][fate] += count
                elif number is None:
                    self._unknown.update(
                        f"{each!r:.900}" for each in found if _number_of_parked(each) is None
                    )
                else:
                    self._unknown.add(f"{fate}, though it had ended: {number}")
        for number in await self._put_again([n for n, each in ends.items() if not each]):
            ends[number][Fate.ACKED] = 1
        for number, sample in accepted.items():
            if Fate.DROPPED in sample.fate and not ends[number]:
                ends[number][Fate.DROPPED] = 1
            if Fate.WAITS in sample.fate and (rest := sample.copies - ends[number].total()) > 0:
                ends[number][Fate.WAITS] = rest
        return ends

    async def _put_again(self, numbers: Collection[int]) -> set[int]:
        """Tokens that were put again without a run: the journal has heard it."""
        keys, found = {f"f{number}": number for number in numbers}, set[int]()
        if not keys:
            return found
        journal = self._field.broker.read(self._field.app.names.journal, since=self._since)
        async for message in journal:
            key = claims_of(message).get("key")
            if isinstance(key, str) and key in keys:
                found.add(keys[key])
        return found

    def _judge(self, accepted: Mapping[int, Sample], ends: Ends) -> None:
        for number, sample in accepted.items():
            found = ends[number]
            self.tally.ended.update({f"{sample.kind} {fate.name}": n for fate, n in found.items()})
            fates = all(fate in sample.fate for fate in found)
            self.tally.expect(
                fates and found.total() == sample.copies,
                f"{dict(found)} instead of {sample.fate}: {sample!r:.900}",
            )
        waits = self._field.record.waits
        self.tally.expect(_waiting(ends) == waits, f"{waits} wait instead of {_waiting(ends)}")

    async def _replay(self, accepted: Mapping[int, Sample], found: Sequence[ParkedMessage]) -> None:
        """Each that is sent back ends once more."""
        before, least = _totals(await self._ends(accepted)), await self._seen()
        await self._operator.replay(self._rng.sample(found, min(20, len(found))))
        ends = await self._ends_once(lambda ends: _totals(ends) == before, accepted, least)
        for number, after in _totals(ends).items():
            told = f"{after} instead of {before[number]} after a replay"
            self.tally.expect(after == before[number], f"{told}: {accepted[number]!r:.900}")

    async def _purge(self) -> None:
        """Delete all; what somebody has just looked at may not be back in its queue yet."""

        async def purged() -> bool:
            await self._operator.purge()
            return not await self._operator.parked()

        await self._until(purged)
        left = await self._operator.parked()
        self.tally.expect(not left, f"{len(left)} messages are left after a purge")

    def _forget(self) -> None:
        record = self._field.record
        record.runs.clear()
        record.acked.clear()
        record.waits = 0

    async def _send_delayed(self) -> None:
        while True:
            posting = Posting(delay=timedelta(milliseconds=300))
            await self._field.app.outbox.send("work", {"n": self._sent}, posting)
            self._sent += 1
            await asyncio.sleep(0.25)

    async def _judge_loop_and_delayed(self) -> None:
        """The loop has run tick by tick, and each delayed message once."""
        record, tally = self._field.record, self.tally

        async def all_run() -> bool:
            return len(record.delayed) >= self._sent

        await self._until(all_run)
        once = Counter(dict.fromkeys(range(self._sent), 1))
        tally.expect(record.delayed == once, f"delayed: {once - record.delayed} are missing")
        tally.delayed = self._sent
        seqs = record.beats
        tally.expect(len(seqs) > 1, f"{SPARED} has run {len(seqs)} times")
        tally.expect(seqs == list(range(len(seqs))), f"{SPARED} has run {seqs}")
        tally.wrong += self._unknown
        tally.wrong += record.troubles

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until it is so, or it is not to be expected any more."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience
        for pause in backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0):
            if await condition() or loop.time() >= end:
                return
            await asyncio.sleep(pause)


def _totals(ends: Ends) -> Mapping[int, int]:
    return {number: each.total() for number, each in ends.items()}


def _waiting(ends: Ends) -> int:
    return sum(each[Fate.WAITS] for each in ends.values())


def _number_of_parked(parked: ParkedMessage) -> int | None:
    return number_of(parked.message.body, parked.message.headers)


async def _ready(broker: Broker, queues: Sequence[str]) -> int:
    depths = [await broker.depth(queue) for queue in queues]
    return sum(depth.ready for depth in depths if depth)
