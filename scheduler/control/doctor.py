"""Check whether the broker and its objects are fit for the guarantees."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Literal

from scheduler.brokers.contract import Broker, BrokerInfo, Delivery
from scheduler.control.installation import Installation
from scheduler.control.loops import Where, orphans_of
from scheduler.control.status import Choice, Status, Survey
from scheduler.control.timer_watch import TimerWatch
from scheduler.errors import (
    AccessRefused,
    BrokerError,
    BrokerUnavailable,
    IncompatibleBroker,
    OtherArguments,
    QueueNotFound,
    Rejected,
    Unroutable,
)
from scheduler.protocol.administration import (
    Rights,
    command,
    rights_to_look,
    rights_to_process,
    rights_to_seed,
    rights_to_send,
)
from scheduler.protocol.administration import advice as advice_on
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names, Topology, probe
from scheduler.queues.history import CallTotals
from scheduler.queues.namespace import Namespace
from scheduler.spelling import counted
from scheduler.tasks.loops import App, served
from scheduler.timing.durations import ZERO, format_duration
from scheduler.timing.schedules import describe

PROBED_FOR_S = 10

# RabbitMQ's consumer_timeout, unless it was configured.
CONSUMER_TIMEOUT = timedelta(minutes=30)

OLDEST = (3, 10, 0)
# Their detection of dead-letter cycles drops messages that travel round a loop
# (https://github.com/rabbitmq/rabbitmq-server/issues/11159).
BREAKS_LOOPS = ((3, 13, 0), (3, 13, 1), (3, 13, 2))

Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Report one check; the advice says what to change."""

    about: str
    verdict: Verdict
    detail: str
    advice: str = ""


def check_version(info: BrokerInfo) -> Finding:
    """Check whether the broker's version supports loops."""
    about, detail = "broker version", f"{info.product} {info.version}"
    version = _numbers(info.version)
    if info.is_embedded:
        return Finding(about, "ok", "the embedded broker")
    if version < OLDEST:
        return Finding(about, "problem", detail, "Upgrade to RabbitMQ 3.10 or newer.")
    if version in BREAKS_LOOPS:
        return Finding(
            about,
            "problem",
            f"{detail} drops messages that go round a loop",
            "Upgrade to 3.13.3 or newer.",
        )
    return Finding(about, "ok", detail)


def require_fit(broker: Broker) -> None:
    """Reject a broker that would lose loops."""
    finding = check_version(broker.info)
    if finding.verdict == "problem":
        raise IncompatibleBroker(
            f"{broker.address} is {finding.detail}: loops would be lost, so nothing was started. "
            f"{finding.advice}"
        )


NOT_COMPARED = Finding(
    "arguments of queues",
    "ok",
    "not checked: this user may not declare (`scheduler run` does not need that)",
)
NO_MANAGEMENT = "not checked: SCHEDULER_MANAGEMENT_URL is not set"
READ_POLICIES = (
    "Check SCHEDULER_MANAGEMENT_URL, and that its user has the tag `management`; or check "
    "yourself: `rabbitmqctl list_policies` and `list_operator_policies`."
)
SEED = "Run `scheduler seed` of the newest release; restart programs of older ones."
RESTART = (
    "If this persists, restart this node of the broker: its rabbit_fifo_dlx_sup has crashed, and "
    "until a restart no timer on this node works, in any namespace. A decimal in the headers of "
    "a message that is dead-lettered into a stream crashes it."
)


@dataclass(eq=False)
class Doctor:
    """Check everything the guarantees rest on, without changing it."""

    space: Namespace
    survey: Survey
    installation: Installation
    timer_watch: TimerWatch

    def __post_init__(self) -> None:
        self._app, self._broker = self.space.app, self.space.broker

    async def examine(self) -> list[Finding]:
        """Return the findings of all checks."""
        info, alarm = self._broker.info, await self._broker.alarm()
        found = [check_version(info), *_check_timeouts(self._app), _check_alarm(alarm)]
        refusal: AccessRefused | None = None
        checks = {
            "app": self._check_app(),
            "queues": self._check_queues(),
            "policies": self._check_policies(),
            "dead-lettering": self._check_dead_lettering(alarm),
            "processors": self._check_processors(alarm),
            "timers": self._check_timers(),
            "pauses": self._check_pauses(),
            "loops": self._check_loops(),
            "calls": self._check_calls(),
            "tasks": self._check_leftovers(),
            "parked messages": self._check_parked(),
        }
        for about, check in checks.items():
            try:
                found += [finding async for finding in check]
            except QueueNotFound:
                pass  # reported by `queues`
            except AccessRefused as error:
                refusal = refusal or error
                detail = f"not checked, permission denied: {error}"
                other = "Run this as the user of `scheduler run`, or of `scheduler seed`."
                found.append(Finding(about, "warning", detail, other))
        about = "rights of this user"
        if refusal is None:
            own = Finding(about, "ok", "sufficient for `scheduler run`, as far as tested")
        else:
            line = _command(rights_to_process(self._app.names), info)
            own = Finding(about, "problem", f"insufficient for `scheduler run`: {refusal}", line)
        return [*found, own, *_rights_of_users(self._app, info.vhost)]

    async def _check_app(self) -> AsyncIterator[Finding]:
        about = "app"
        if (other := await self.installation.other_app()) is None:
            yield Finding(about, "ok", "namespace not used by another app")
        else:
            yield Finding(
                about,
                "problem",
                f"namespace used by another app, seeded from {other!r}",
                "Give this app its own namespace; or, if it is the same app that has moved, run "
                "`scheduler seed --take-over`. Do not run --prune until this is resolved.",
            )

    async def _check_queues(self) -> AsyncIterator[Finding]:
        queues, wrong = self._app.topology().queues, False
        for queue in queues:
            detail, advice = "does not exist", SEED
            if await self._broker.depth(queue.name) is not None:
                try:
                    await self._broker.declare(Topology(queues=(queue,)))
                    continue
                except AccessRefused:
                    yield NOT_COMPARED
                    return
                except OtherArguments as error:
                    detail = "does not fit the code or the settings"
                    advice = str(await self.installation.refusal_of(error))
            wrong = True
            yield Finding(f"queue {queue.name}", "problem", detail, advice)
        if not wrong:
            yield Finding("queues", "ok", f"{len(queues)}, all as expected")

    async def _check_policies(self) -> AsyncIterator[Finding]:
        about = "policies"
        if self._broker.info.is_embedded:
            return
        try:
            found = await self.installation.harms()
        except BrokerError as error:
            yield Finding(about, "warning", f"not checked: {error}", READ_POLICIES)
            return
        for harm in found or ():
            what_to_do = advice_on(harm, self._app.namespace, self._broker.info.vhost)
            yield Finding(harm.about, "problem", harm.detail, what_to_do)
        if not found:
            detail = "none changes the queues" if found is not None else NO_MANAGEMENT
            yield Finding(about, "ok", detail)

    async def _check_dead_lettering(self, alarm: str) -> AsyncIterator[Finding]:
        about = "dead-lettering"
        if alarm:
            yield Finding(about, "ok", "not tested: the broker accepts no messages")
            return
        try:
            if await _hands_on(self._broker, self._app.names):
                yield Finding(about, "ok", "due messages reach their next queue")
            else:
                detail = f"a message due {PROBED_FOR_S} s ago has not reached its next queue"
                yield Finding(about, "problem", detail, RESTART)
        except BrokerUnavailable as error:
            yield Finding(about, "problem", f"no timer queue could be created: {error}", RESTART)
        except AccessRefused as error:
            detail = f"not tested, this user may not configure its queues: {error}"
            yield Finding(about, "ok", detail, "Run this as the user of `scheduler seed`.")

    async def _check_processors(self, alarm: str) -> AsyncIterator[Finding]:
        names = self._app.names
        if not alarm:  # a user who may not publish could not ask; nothing is bound for this
            with suppress(Unroutable, Rejected):
                await self._broker.publish(
                    Message(), exchange=names.control, routing_key=names.presence
                )
        answers = await self.space.roll_call.ask_all({})
        if answers.complete:
            yield Finding("processors", "ok", f"{answers.expected}, all responding")
        else:
            yield Finding(
                "processors",
                "warning",
                f"of {answers.expected}, {answers.silence}",
                "Check whether these processors are hung. Until they respond, pauses cannot be "
                "confirmed and restarted loops wait.",
            )

    async def _check_timers(self) -> AsyncIterator[Finding]:
        watch = self.timer_watch
        stuck = {**(await watch.of_tokens()).stuck, **(await watch.of_calls()).stuck}
        for queue, cause in stuck.items():
            yield Finding(
                f"timer {queue}",
                "problem",
                f"does not hatch. {cause}",
                "Check whether a queue that it leads to rejects messages (a policy's max-length), "
                "or has no leader. Supervision recreates timers of loops.",
            )
        if not stuck:
            yield Finding("timers", "ok", "none holds messages past their time")

    async def _check_loops(self) -> AsyncIterator[Finding]:
        page = await self.survey.page(Choice())
        for finding in chain.from_iterable(map(_check_loop, page.loops)):
            yield finding
        others = f", {page.more} more are not overdue" if page.more else ""
        yield Finding("loops", "ok", f"{len(page.loops)} checked{others}")
        if await self.installation.other_app() is not None:
            return  # otherwise the advice would be to prune all of its loops
        for orphan in orphans_of(self._app, await self.survey.listing()):
            yield Finding(
                f"{'task' if orphan.id.is_whole else 'loop'} {orphan}",
                "warning",
                f"{'is paused' if orphan.id.is_whole else 'is'} in the broker, but not in the code",
                "Run `scheduler seed --prune` once no old processor needs it.",
            )

    async def _check_pauses(self) -> AsyncIterator[Finding]:
        pauses = await self.survey.pauses()
        depths = await self.survey.depths(pauses)
        for task, pause in pauses.items():
            waiting = depth.ready if (depth := depths[task]) else 0
            yield Finding(
                f"task {task}",
                "warning",
                f"is paused by {pause.by}: {pause.reason}; {counted(waiting, 'message')} waiting",
                f"Run `scheduler resume APP {task}` to continue.",
            )

    async def _check_calls(self) -> AsyncIterator[Finding]:
        backlogs = await self.survey.backlogs()
        for each in backlogs:
            if each.recent.lost:
                yield _judge_calls(each.task, each.recent)
        if backlogs and not any(each.recent.lost for each in backlogs):
            yield Finding("calls", "ok", "none failed in the last 15 minutes")
        for each in backlogs:
            if each.is_behind:
                yield Finding(
                    f"calls of {each.task}",
                    "warning",
                    f"{counted(each.ready or 0, 'message')} ready, the oldest for "
                    f"{format_duration(each.oldest or ZERO)}",
                    "Start more processors, or raise the concurrency of the task.",
                )

    async def _check_leftovers(self) -> AsyncIterator[Finding]:
        if await self.installation.other_app() is not None:
            return
        for each in await self.installation.leftovers():
            yield Finding(
                f"task {each.task}",
                "warning",
                f"is in the broker, but not in the code: {each}",
                "Run `scheduler seed --prune` once no old processor needs it: it parks waiting "
                "messages. `scheduler failed replay --to` sends parked messages to another task.",
            )
        for queue, depth in (await self.installation.old_shards()).items():
            yield Finding(
                f"queue {queue}",
                "warning",
                f"of a former shard, not needed: {counted(depth.ready, 'message')} ready, "
                f"{counted(depth.consumers, 'processor')}",
                "Restart processors of older code, then run `scheduler seed`: it moves the "
                "messages, and deletes the queue.",
            )

    async def _check_parked(self) -> AsyncIterator[Finding]:
        names = self._app.names
        for queue in (*map(names.failed_queue, served(self._app)), names.failed):
            depth = await self._broker.depth(queue)
            if depth is not None and depth.ready:
                yield Finding(
                    f"queue {queue}",
                    "warning",
                    f"{counted(depth.ready, 'message')} parked",
                    "See `scheduler failed list`, then replay or purge them.",
                )


async def check_addresses(nodes: Sequence[Broker]) -> Finding:
    """Check whether all addresses of the broker work, and belong to one cluster."""
    about = "addresses of the broker"
    async with AsyncExitStack() as connections:
        opened = await asyncio.gather(
            *map(connections.enter_async_context, nodes), return_exceptions=True
        )
        refusals = [each for each in opened if isinstance(each, BaseException)]
        for unexpected in refusals:
            if not isinstance(unexpected, BrokerError):
                raise unexpected
        reached = [each for each in opened if not isinstance(each, BaseException)]
        clusters = {node.info.cluster for node in reached}
        if len(clusters) > 1:
            return Finding(
                about,
                "problem",
                "not of one cluster: "
                + ", ".join(f"{node.address} is of {node.info.cluster!r}" for node in reached),
                "Name the nodes of one cluster only: each broker would have loops of its own.",
            )
    if refusals:
        return Finding(
            about,
            "warning",
            f"{len(refusals)} of {len(nodes)} cannot be used: {' '.join(map(str, refusals))}",
            "The other addresses are used. Fix it or remove it from SCHEDULER_BROKER_URL.",
        )
    return Finding(about, "ok", f"{len(nodes)}, all responding")


@contextmanager
def explaining_refusals(broker: Broker, rights: Rights) -> Generator[None]:
    """Add the required permissions to an access error inside the block."""
    try:
        yield
    except AccessRefused as error:
        raise AccessRefused(
            f"{error} Earlier steps remain. Give this user the required rights, which replace the "
            f"current ones: {_command(rights, broker.info)}"
        ) from None


def _command(rights: Rights, info: BrokerInfo) -> str:
    return command(rights, user=info.user or "USER", vhost=info.vhost)


async def _hands_on(broker: Broker, names: Names) -> bool:
    """Return whether a probe is dead-lettered, by the node of this connection.

    It waits in a temporary timer queue, which leads into another one. Both are gone after a minute,
    with their messages, if their creator dies.
    """
    back, id = asyncio.Queue[Delivery](), uuid.uuid4().hex
    wanted = probe(names.namespace, id)
    try:
        await broker.declare(wanted)
        consumer = await broker.consume(names.probed(id), back.put_nowait, prefetch=1)
        try:
            await broker.publish(Message(), exchange=names.control, routing_key=names.probe(id))
            async with asyncio.timeout(PROBED_FOR_S):
                await (await back.get()).ack()
        except TimeoutError:
            return False
        finally:
            await consumer.cancel()
        return True
    finally:
        for queue in wanted.queues:
            await broker.delete(queue.name)


def _rights_of_users(app: App, vhost: str) -> list[Finding]:
    names = app.names
    users = {
        "seed": (rights_to_seed(names, app.topology()), "`scheduler seed` needs"),
        "processor": (rights_to_process(names), "`scheduler run`, and commands of operators, need"),
        "viewer": (rights_to_look(names), "`scheduler dashboard --read-only` needs"),
    }
    if any(task.called for task in app.tasks.values()):
        users["client"] = (rights_to_send(names), "a program that only sends messages needs")
    return [
        Finding(
            f"rights of a {user}",
            "ok",
            f"{needs}:",
            # The whole namespace, because a user has one set of rights in a virtual host.
            command(rights, user=f"{app.namespace}-{user}", vhost=vhost),
        )
        for user, (rights, needs) in users.items()
    ]


def _check_timeouts(app: App) -> list[Finding]:
    limit = format_duration(CONSUMER_TIMEOUT)
    return [
        Finding(
            f"timeout of {task.name}",
            "warning",
            f"{format_duration(task.timeout)} is not below the broker's consumer_timeout "
            f"({limit} unless it was configured): the broker would give a long run to another "
            "processor while it is running",
            "Raise consumer_timeout in rabbitmq.conf, or lower the task's timeout.",
        )
        for task in app.tasks.values()
        if task.timeout >= CONSUMER_TIMEOUT
    ] or [
        Finding(
            "timeouts",
            "ok",
            f"all below the broker's consumer_timeout of {limit}, without what `ctx.extend` adds",
        )
    ]


def _judge_calls(task: str, totals: CallTotals) -> Finding:
    """Return a problem if at least as many calls fail as succeed, else a warning."""
    detail = f"{totals.lost} calls failed in the last 15 minutes, {totals.succeeded} succeeded"
    if (commonest := totals.commonest) is not None:
        error, count, id = commonest
        detail += f"; {count} x {error}" + (f", such as {id}" if id else "")
    verdict: Verdict = "problem" if totals.is_failing else "warning"
    return Finding(f"task {task}", verdict, detail, f"See `scheduler history {task} --failed`.")


def _check_alarm(alarm: str) -> Finding:
    if not alarm:
        return Finding("messages", "ok", "the broker accepts them")
    return Finding(
        "messages",
        "problem",
        f"the broker blocks publishers: it is {alarm}",
        "Free memory or disk of its nodes: `rabbitmqctl status` shows usage and limits. Until "
        "then no run is settled, and no loop continues.",
    )


LOOPS: Mapping[Where, tuple[Verdict, str, str]] = {
    Where.LOST: (
        "problem",
        "is overdue, and no processor has its token",
        "Supervision puts it again while processors run; so does `scheduler seed`.",
    ),
    Where.UNATTENDED: ("warning", "is due, but no processor takes it", "Start `scheduler run`."),
    Where.LATE: (
        "warning",
        "is overdue for longer than its task may take, and not all processors respond",
        "Check whether these processors are hung.",
    ),
}
"""The findings about loops in these states."""


def _check_loop(status: Status) -> Iterator[Finding]:
    about, loop = f"loop {status.loop}", status.loop
    if status.where is Where.PAUSED and status.task_pause is None:
        detail = f"is paused: {status.reason or 'no reason was given'}"
        yield Finding(about, "warning", detail, "Run `scheduler resume` to continue.")
    elif status.where in LOOPS:
        yield Finding(about, *LOOPS[status.where])
    if loop.override is not None and loop.of_code is not None:
        yield Finding(
            about,
            "warning",
            f"schedule overridden by {loop.override.by}: {describe(loop.schedule)} (code: "
            f"{describe(loop.of_code)})",
            "Run `scheduler schedule clear` to return to the code's schedule.",
        )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("-")[0].split("+")[0].split(".")[:3]
    parts += ["0"] * (3 - len(parts))
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)
