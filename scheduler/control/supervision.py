"""Supervise loops: find lost and doubled ones, and repair them.

Supervision is itself a loop, so that one processor at a time does it. Its queue has one consumer at
a time (single active consumer), which keeps the census of the journal, and the notes in the roster,
from round to round. The start and the end of each round are announced over the stream of the roll
call: the other processors skip the notes, and begin a census when it is their turn. A processor
that has heard of neither for longer than a round takes checks whether the loop is still there.

======================  ========================================================================
the loop                what supervision does
======================  ========================================================================
waits, is running, or   nothing; a token that waits for long is noted in the roster, so that the
is ready for its task   journal may drop it
lost                    overdue, not held by a processor and not ready: a new epoch begins, from
                        the last progress in the journal (S1). A wrong repair is harmless
doubled                 two lines were heard: a new epoch begins, so that both are void (S2)
has ended               its run paused it, or was the only one of a one-off, and its processor died
                        before it entered that in the roster: the end is entered
======================  ========================================================================

A broker that restarts loses tokens that come due until it is up. So after each reconnect rounds
follow one another at once (S1b): of all processors that reconnect, the one whose entry is first
triggers the loop.
"""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from scheduler.brokers.contract import Depth, cancelled
from scheduler.control.beginnings import Beginnings, Intent
from scheduler.control.census import MOST_TASKS, Census, Memory, Overdue, memory_of, tally_of
from scheduler.control.first_tokens import triggered
from scheduler.control.installation import Installation
from scheduler.control.loops import TOLERANCE, Where, loop_of_entry, where
from scheduler.control.reports import Effect, Report
from scheduler.control.seeding import Seeding
from scheduler.control.status import Survey, held_in
from scheduler.control.timer_watch import IN_TIME, TimerWatch
from scheduler.control.verbs import Endings
from scheduler.errors import AccessRefused, BrokerError, MessageError, NoSpace, QueueNotFound
from scheduler.events import (
    CensusTaken,
    Connected,
    Event,
    LoopReported,
    PolicyReported,
    QueuesMissing,
    SupervisionDelayed,
    TimerStuck,
)
from scheduler.protocol.administration import advice
from scheduler.protocol.epochs import Verb
from scheduler.protocol.hatchery import timers
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId, Token, decode
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.queues.roll_call import in_parts
from scheduler.tasks.context import Context
from scheduler.tasks.loops import SUPERVISION_TIMEOUT, Loop
from scheduler.tasks.tasks import SUPERVISION, Arguments, TaskSpec
from scheduler.timing.durations import SECOND, format_duration
from scheduler.timing.moments import milliseconds_since_epoch
from scheduler.timing.pacing import dice
from scheduler.user_code import log_of

ROUND = "scheduler.supervision"
"""The type of the messages that announce a round."""
REMEMBERED = 100  # troubles: a token can carry a limited number
NOTED_AT_ONCE = 50  # loops that are noted in the roster

LONGEST_ROUND = SUPERVISION_TIMEOUT - timedelta(seconds=10)
"""A run that its task's timeout ends would be parked."""

ROUNDS_AFTER_RECONNECT_S = (0.5, 3.0, 7.0, 12.0, 20.0)
UNSETTLED = 30 * SECOND
"""The time after a reconnect in which overdue tokens count as lost sooner."""
SHORT_TOLERANCE = SECOND
LONGEST_DRAINING = timedelta(minutes=2)
"""The time after which a loop is repaired even if its timer is behind."""
JUST_BEGUN = timedelta(seconds=1.5)

ADVICE = {
    "orphaned": "It is not in the code: `scheduler seed --prune` removes it.",
    "removed": "A newer release removed it: this program is older. Restart it.",
    "unattended": "It is due, and no processor consumes from its queue: start one for this task.",
}


@dataclass(eq=False)
class Supervisor:
    """Run supervision's part of a processor."""

    space: Namespace
    survey: Survey
    beginnings: Beginnings
    seeding: Seeding
    installation: Installation
    timer_watch: TimerWatch
    endings: Endings

    def __post_init__(self) -> None:
        self._app, self._broker, self._clock = self.space.app, self.space.broker, self.space.clock
        self._roster, self._roll_call = self.space.roster, self.space.roll_call
        self._listing, self._census = self.space.roster.listing, Census(self.space)
        self._are_timers_suspect = True
        self._missing, self._unreported = set[str](), set[str]()
        self._reconnected_at: datetime | None = None
        self._round_heard = asyncio.Event()
        self._roll_call.on(ROUND, self._hear_of_round)
        self._watching: asyncio.Task[None] | None = None
        self._hurrying: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None

    @property
    def task(self) -> TaskSpec:
        """Return the task of the supervision loop, for a worker to run."""

        async def supervise(ctx: Context) -> None:
            try:
                async with asyncio.timeout(LONGEST_ROUND.total_seconds()):
                    ctx.carry((await self.round(memory_of(ctx.carried))).model_dump())
                    await self._roll_call.say(ROUND, "", {})
            except (BrokerError, NoSpace) as error:
                self._app.events.emit(SupervisionDelayed(str(error)))
            except TimeoutError:
                took = format_duration(LONGEST_ROUND)
                self._app.events.emit(SupervisionDelayed(f"A round did not end within {took}."))
            except Exception:
                # Not parked like the failure of any other run: the next round is soon.
                log_of(__name__).exception("A round of supervision failed")

        spec = self._app.supervision.task
        return replace(spec, function=supervise, arguments=Arguments(supervise))

    async def __aenter__(self) -> "Supervisor":
        """Begin to watch the supervision loop."""
        self._watching = asyncio.create_task(self._watch_supervision(), name="supervision")
        return self

    async def __aexit__(self, *exception: object) -> None:
        for task in (self._watching, self._hurrying, self._compacting):
            if task is not None:
                await cancelled(task)

    def hear(self, event: Event) -> None:
        """Note a reconnect; call this with each event."""
        if isinstance(event, Connected):
            self._reconnected_at = self._clock.now()
            if self._hurrying is not None:
                self._hurrying.cancel()
            self._hurrying = asyncio.create_task(
                self._hurry(), name="supervision after a reconnect"
            )

    async def round(self, memory: Memory) -> Memory:
        """Check all loops, and repair lost and doubled ones."""
        began = self._clock.now()
        await self._take_turn()
        await self._declare_missing()
        # Also as it begins: during a long round, the loop must not seem lost.
        await self._roll_call.say(ROUND, "", {})
        known_at = self._clock.now()  # the census may miss later puts
        await self._read_on(memory.counted_at)
        orphans = self._census.orphans()
        # A newer release may have more shards than this code knows.
        shards = await self.installation.shards()
        tasks = self._app.tasks.keys() & self._listing.counts.keys()
        depths = await self.survey.depths(tasks, shards)
        overdue = await self._census.overdue(known_at, self._tolerance, depths)
        self._are_timers_suspect = bool(overdue)
        places = await self._places(overdue, depths, known_at)
        lost = [each for each in overdue if places[each.loop.id] is Where.LOST]
        self._census.look_again(
            each.loop.id for each in overdue if places[each.loop.id] is not Where.LOST
        )
        if lost:  # tokens whose runs were settled since then are not held, but have continued
            await self._read_on()
            lost = [each for each in lost if self._census.put_of_entry(each.listed) == each.put]
        lateness = await self.timer_watch.of_tokens() if lost else IN_TIME
        if lateness.is_draining:  # the broker is behind, as many are due at once
            lost = [each for each in lost if self._clock.now() - each.due_at > LONGEST_DRAINING]
        late = [each.loop.id for each in overdue if places[each.loop.id] is not Where.RUNNING]
        tally = tally_of(self._listing, late, list(self._census.doubled))
        await self.beginnings.repair([each.loop for each in lost], "lost")
        stuck = await self._mend_timers(lateness.stuck, memory.stuck)
        if doubled := self._census.doubled:
            entries = filter(None, map(self._listing.get, doubled))
            seen = [loop_of_entry(self._app, listed) for listed in entries]
            await self.beginnings.repair(list(filter(None, seen)), "doubled", epochs=doubled)
            doubled.clear()
        await self._note()
        unattended = {loop.task for loop in places if places[loop] is Where.UNATTENDED}
        # A processor may have started to consume since the depths were read.
        depths = await self.survey.depths(unattended, shards)
        troubles = {
            **{str(loop): "orphaned" for loop in orphans},
            **{str(loop): "removed" for loop in self._removed()},
            **{task: "unattended" for task, each in depths.items() if each and not each.consumers},
        }
        for name, trouble in troubles.items():
            if memory.reported.get(name) != trouble:
                task, _, key = name.partition(".")
                self._app.events.emit(LoopReported(LoopId(task, key), trouble, ADVICE[trouble]))
        took = self._clock.now() - began
        there = sum(map(self._listing.count_of, self._listing.counts))
        count = there - len(orphans) - (SUPERVISION in self._listing)
        self._app.events.emit(CensusTaken(count, took))
        self._compact()
        return Memory(
            tally=tally if len(tally.loops) <= MOST_TASKS else None,
            counted_at_ms=milliseconds_since_epoch(known_at),
            reported=dict(list(troubles.items())[:REMEMBERED]),
            stuck=stuck,
            policies=await self._report_policies(memory.policies),
        )

    async def _take_turn(self) -> None:
        """Learn what the processor knew that supervised before, if it was another one."""
        if not self._roster.enters_notes:
            await self._roster.enter_notes()
            self._census.begin_again()

    def _hear_of_round(self, announced: Message) -> None:
        self._round_heard.set()
        if announced.app_id != self._roll_call.processor:
            self._roster.skip_notes()

    def _compact(self) -> None:
        """Write a snapshot of the roster, if it needs one.

        The round does not wait for that: it takes long for a million loops, and a round is limited.
        """
        is_busy = self._compacting is not None and not self._compacting.done()
        if self._roster.needs_snapshot and not is_busy:
            writing = self._patiently(self._roster.compact())
            self._compacting = asyncio.create_task(writing, name="snapshot of the roster")

    def _removed(self) -> Iterator[LoopId]:
        """Return the loops of this code that a newer release has removed."""
        for loop in self._app.loops:
            listed = self._listing.get(loop)
            if listed is not None and listed.is_gone and not listed.is_done:
                yield loop

    async def _report_policies(self, known: Collection[str]) -> list[str]:
        """Report policies that change the queues; return them, including those reported before.

        Args:
            known: those that were reported.
        """
        try:
            found = await self.installation.harms() or ()
        except BrokerError as error:
            self._app.events.emit(SupervisionDelayed(f"Policies cannot be read: {error}"))
            return list(known)
        for harm in found:
            if harm.about not in known:
                what_to_do = advice(harm, self._app.namespace, self._broker.info.vhost)
                self._app.events.emit(PolicyReported(harm.about, harm.detail, what_to_do))
        return [harm.about for harm in found]

    async def _declare_missing(self) -> None:
        """Declare missing queues, and report those that existed a round ago."""
        wanted = {queue.name for queue in self._app.topology().queues}
        # A missing timer of tokens shows in overdue tokens, or failing puts.
        if not self._are_timers_suspect:
            wanted -= set(map(self._app.names.timer, timers()))
        before, self._missing = self._missing, set(await self.installation.absent(wanted))
        self._unreported |= self._missing - before
        were_declared = True
        if self._missing or not self._app.loops.keys() <= self._listing.keys():
            try:
                await self.seeding.adopt()
            except AccessRefused:
                were_declared = False
        if self._roster.lacks_some:  # another program has declared the roster, such as a seed
            await self.seeding.restore()
        if self._unreported:  # also by a round that failed after it had declared some
            self._app.events.emit(QueuesMissing(tuple(sorted(self._unreported)), were_declared))
            self._unreported.clear()

    @property
    def _tolerance(self) -> timedelta:
        since = self._reconnected_at
        if since is not None and self._clock.now() - since < UNSETTLED:
            return SHORT_TOLERANCE
        return TOLERANCE

    async def _places(
        self, overdue: Sequence[Overdue], depths: Mapping[str, Depth | None], now: datetime
    ) -> Mapping[LoopId, Where]:
        """Return where overdue loops are, after asking all processors."""
        by_loop, places = {each.loop.id: each for each in overdue}, dict[LoopId, Where]()
        for some in in_parts({loop: self._listing.known(loop) for loop in by_loop}):
            answers = await self._roll_call.ask_all(some)
            places |= {
                loop: where(
                    by_loop[loop].listed,
                    by_loop[loop].put,
                    now,
                    depths.get(loop.task) or Depth(0, 0),
                    of_task=self._listing.of_task(loop.task),
                    timeout=by_loop[loop].loop.task.timeout,
                    held=held_in(loop, by_loop[loop].listed.epoch, answers),
                    served_until=by_loop[loop].served_until,
                    tolerance=self._tolerance,
                )
                for loop in some
            }
        return places

    async def _mend_timers(self, stuck: Mapping[str, str], known: Collection[str]) -> list[str]:
        """Recreate timers of tokens that do not hatch; report and return those of calls.

        Args:
            stuck: those of tokens, each with the cause.
            known: those of calls that were reported.
        """
        emit = self._app.events.emit
        for queue, cause in stuck.items():
            was_recreated = True
            try:
                await self._broker.delete(queue)  # with its tokens, which were put again
                await self.installation.declare_missing()
            except AccessRefused:
                was_recreated = False
            emit(TimerStuck(queue, cause, was_recreated))
        of_calls = (await self.timer_watch.of_calls()).stuck
        for queue, cause in of_calls.items():
            if queue not in known:
                emit(TimerStuck(queue, cause, was_recreated=False))
        return list(of_calls)

    async def _read_on(self, noted_until: datetime | None = None) -> None:
        """Read the journal to its end, and note what was heard whenever it is much."""
        while not await self._census.read_on(noted_until):
            await self._note()

    async def _note(self) -> None:
        """Note in the roster the progress of loops that wait for long, and the ends of loops."""
        heard = list(self._census.long.items())
        for begin in range(0, len(heard), NOTED_AT_ONCE):
            await asyncio.sleep(0)
            some = heard[begin : begin + NOTED_AT_ONCE]
            at_rest = self._decoded(message for _, (put, message) in some if put.rests)
            ends = map(self._listing.under_its_name, at_rest)
            await self.endings.enter_missing(ends, self._listing)
            notes = [self._listing.note_of(loop, *put) for loop, put in some]
            await self._roster.note(list(filter(None, notes)))
        self._census.long.clear()

    def _decoded(self, messages: Iterable[Message]) -> Iterator[Token]:
        for message in messages:
            with suppress(MessageError):
                yield decode(message, self._app.namespace)

    async def _watch_supervision(self) -> None:
        """Check whether the supervision loop exists, if no round was announced for a while.

        Each check makes the processor read all puts since the last round.
        """
        interval = self._app.settings.supervision_interval.total_seconds()
        while True:
            try:
                async with asyncio.timeout(interval * dice.uniform(1.2, 1.6)):
                    await self._round_heard.wait()
            except TimeoutError:
                await self._patiently(self._look_after_supervision())
            self._round_heard.clear()

    async def _look_after_supervision(self) -> None:
        loop = self._app.supervision
        (status,) = await self.survey.status(loop)
        if status.where is Where.LOST:
            self._are_timers_suspect = True
            await self.beginnings.repair([loop], "lost", epochs={loop.id: status.epoch})
        elif status.where is Where.UNSEEDED:
            try:
                await self.seeding.adopt()
            except AccessRefused:
                raise QueueNotFound(
                    "The queue of supervision does not exist, and this user may not declare it. "
                    "Lost loops are not repaired; run `scheduler seed`."
                ) from None

    async def _hurry(self) -> None:
        """Trigger some rounds soon after a reconnect."""
        waited = 0.0
        for pause in ROUNDS_AFTER_RECONNECT_S:
            until = pause + dice.uniform(0, 1)
            await asyncio.sleep(until - waited)
            waited = until
            await self._patiently(self._trigger())

    async def _trigger(self) -> None:
        """Run supervision now, unless another processor has just done so."""

        def decide(loop: Loop, listing: Listing) -> Report | Intent:
            now, listed = self._clock.now(), listing.get(loop.id)
            if listed is None or now - listed.at < JUST_BEGUN:
                return Report(loop, Effect.UNCHANGED)
            return Intent(Verb.TRIGGER, loop, listed, lambda token: triggered(token, now))

        await self.beginnings.act([self._app.supervision], decide)

    async def _patiently(self, step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
        except (BrokerError, NoSpace) as error:
            self._app.events.emit(SupervisionDelayed(str(error)))
        except Exception:
            log_of(__name__).exception("Watching supervision failed")
