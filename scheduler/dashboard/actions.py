"""Run the actions of visitors as the commands do, after a confirmation."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from secrets import token_urlsafe
from typing import Any, NamedTuple
from urllib.parse import urlencode

from scheduler.control.loops import loop_named
from scheduler.control.reports import Effect, Report
from scheduler.dashboard import wording
from scheduler.dashboard.access import right_of
from scheduler.dashboard.acknowledgements import Acknowledgement
from scheduler.dashboard.forms import Form, ShownMessages, description_of, words_of
from scheduler.dashboard.operations import Operation, OperationRecord, Work
from scheduler.dashboard.site import Site
from scheduler.dashboard.standings import Standing
from scheduler.errors import (
    BrokerError,
    QueueNotFound,
    SchedulerError,
    UnknownLoop,
    UsageError,
)
from scheduler.program import Program
from scheduler.protocol.messages import one_line
from scheduler.queues.concurrency import AT_ONCE, side_by_side
from scheduler.queues.failed import FailedQueues, OnEach, ParkedMessage, Selection
from scheduler.queues.outbox import Outbox
from scheduler.spelling import counted, listed
from scheduler.tasks.loops import Loop, check_arguments
from scheduler.timing.moments import milliseconds_since_epoch
from scheduler.timing.schedules import Once, Schedule, options_of, zone_of

IN_BULK = 250
DIGITS = 15  # of a count; Python refuses to read thousands of them
TICKS = 3
BY_DEFAULT = "paused from the dashboard"


@dataclass(frozen=True, slots=True)
class LoopVerb:
    """Describe an action on loops.

    Attributes:
        says: its effect, for new users.
        in_bulk: whether it acts on all of the loops or none.
        of_tasks: whether it acts on whole tasks as well.
    """

    name: str
    says: str
    do: Callable[[Program, Sequence[Loop], str], Awaitable[Sequence[Report]]]
    in_bulk: bool = True
    undone_by: str = ""
    of_tasks: bool = False

    @property
    def ends(self) -> bool:
        """Return whether it cannot be reverted, and needs a confirmation for one loop, too."""
        return self.name == "remove"


LOOP_VERBS = {
    verb.name: verb
    for verb in (
        LoopVerb(
            "pause",
            "No run begins until it is resumed. A run in progress ends normally.",
            lambda it, loops, why: it.verbs.pause_all(loops, why or BY_DEFAULT),
            undone_by="resume",
            of_tasks=True,
        ),
        LoopVerb(
            "resume",
            "If it is paused, it continues at its next nominal time.",
            lambda it, loops, _: it.verbs.resume_all(loops),
            undone_by="pause",
            of_tasks=True,
        ),
        LoopVerb(
            "now",
            "If it is paused, it continues, and runs at once.",
            lambda it, loops, _: it.verbs.resume_all(loops, at_once=True),
            undone_by="pause",
        ),
        LoopVerb(
            "trigger",
            "If it waits, it runs now, in addition to its schedule. A paused or running loop is "
            "left alone.",
            lambda it, loops, _: side_by_side(it.verbs.trigger, loops),
            in_bulk=False,
        ),
        LoopVerb(
            "remove",
            "It ends for good, with its progress and carried data. A run in progress is its last. "
            "Only loops that are not in the code can be removed.",
            lambda it, loops, _: side_by_side(it.removal.remove, loops),
            in_bulk=False,
        ),
    )
}
UNDOABLE = (Effect.PAUSED, Effect.RESUMED, Effect.TRIGGERED)


@dataclass(frozen=True, slots=True)
class ActionConfirmation:
    """Ask for confirmation before an action.

    Attributes:
        about: the affected things, in a line each.
        yes: the button that confirms it.
        frozen: the counted set, as fields: the action applies to exactly these.
        is_grave: whether it cannot be reverted.
    """

    title: str
    says: str
    about: Sequence[str]
    yes: str
    frozen: Mapping[str, str] = field(default_factory=dict[str, str])
    is_grave: bool = True


class ActionResult(NamedTuple):
    """Lead to the page that shows an operation; to none, if it failed before anything was done."""

    to: str
    operation: OperationRecord


class RequestedAction(NamedTuple):
    """Describe a submitted action in words, with its function, and the next page.

    Attributes:
        question: the confirmation to ask for; None: none is needed.
    """

    what: str
    work: Work
    to: str = ""
    question: ActionConfirmation | None = None


def is_allowed(site: Site, form: Form) -> bool:
    if form.action != "stop":
        return form.visitor.can(form.action)
    running = site.operations.get(form.text("operation"))
    return running is None or form.visitor.can(running.right)


async def act(site: Site, form: Form) -> ActionConfirmation | ActionResult:
    """Run an action; return its result, or the confirmation to ask for."""
    if form.action == "stop":
        if (operation := site.operations.get(form.text("operation"))) is None:
            raise UsageError("That operation is not known any more.")
        await site.operations.stop(operation)
        return ActionResult(form.back(operation.id), operation)
    if (request := ACTS.get(form.action)) is None:
        raise UsageError(f"There is no action {form.action!r}.")
    requested = request(site, form)
    if requested.question is not None and not form.is_sure:
        return requested.question
    operation = await site.operations.begin(
        requested.what, form.visitor.name, right_of(form.action), requested.work
    )
    if operation.error and operation.ended_at is not None and not operation.count:
        return ActionResult("", operation)
    to = form.back(operation.id, to="" if operation.is_bad else requested.to)
    return ActionResult(to, operation)


# Loops


def _on_loops(site: Site, form: Form) -> RequestedAction:
    standings, verb = site.judged.standings, LOOP_VERBS[form.action]
    changes, changed = form.changes(standings), _changed_since(site, form)
    names = [name for name in form.loops(standings) if name not in changed]
    if changed:
        changes.append(f"{len(changed)} changed since, and left alone: {_by_whom(changed)}")
    if not names:
        raise UsageError(f"Changed since: {_by_whom(changed)}.")
    reasons = {each.name: each.status.reason or "" for each in standings}

    async def work(operation: Operation) -> None:
        operation.lines += changes
        operation.total = len(names)
        found = await _found(site, names, verb)
        done = list[str]()
        step = IN_BULK if verb.in_bulk else AT_ONCE
        for begin in range(0, len(names), step):
            operation.check()
            some = names[begin : begin + step]
            reports = await _do(site.program, verb, [found[name] for name in some], form)
            for name, report in zip(some, reports, strict=True):
                if isinstance(report, Report):
                    operation.add_line(_text_of(report))
                    done += [name] if report.did in UNDOABLE else []
                elif len(names) == 1:
                    raise report
                else:
                    operation.fail(f"{name}: {report}")
            if verb.undone_by and done:
                operation.undo = verb.undone_by, _undone(site, verb, done, reasons)
        operation.lines += [f"It was paused {pauses}"] if pauses else []

    is_one = len(names) == 1
    pauses = _pauses_of(site, names) if is_one and verb.undone_by == "pause" else ""
    what = "resume and run now:" if verb.name == "now" else verb.name
    return RequestedAction(
        f"{what} {names[0] if is_one else counted(len(names), 'loop')}",
        work,
        "/loops" if verb.ends else "",  # its page is gone with it
        None if is_one and not verb.ends else _about_loops(site, verb, names),
    )


async def _found(site: Site, names: Sequence[str], verb: LoopVerb) -> dict[str, Loop | UnknownLoop]:
    """Return the loops of these names; report missing ones."""
    loops, app = site.program.loops, site.app
    if len(names) == 1:
        return {names[0]: await loops.find(names[0], or_whole=verb.of_tasks)}
    listing = await site.program.survey.listing()
    known: dict[str, Loop | UnknownLoop] = {str(loop): loop for loop in app.loops.values()}
    known |= {name: loop for name in names if (loop := loop_named(app, listing, name))}
    return {name: known.get(name, UnknownLoop("The loop is gone.")) for name in names}


def _changed_since(site: Site, form: Form) -> dict[str, str]:
    """Return which of the named loops and tasks were changed since the action that a form undoes,
    and by whom.
    """
    if (undoes := form.moment("undoes")) is None:
        return {}
    listing = site.picture.listing
    entries = [
        (name, found.loop.listed if (found := site.standing(name)) else listing.of_task(name))
        for name in form.names
    ]
    return {name: entry.by for name, entry in entries if entry and entry.at > undoes}


def _by_whom(changed: Mapping[str, str]) -> str:
    return wording.few([f"{name} by {by or 'unknown'}" for name, by in changed.items()])


def _about_loops(site: Site, verb: LoopVerb, names: Sequence[str]) -> ActionConfirmation:
    what, says = f"{verb.name.capitalize()} {counted(len(names), 'loop')}", f"For each: {verb.says}"
    if len(names) > 1:
        states = Counter(found.state.value for name in names if (found := site.standing(name)))
        says += f" Now {listed([f'{n} {state}' for state, n in states.items()])}."
        if verb.undone_by == "pause" and (pauses := _pauses_of(site, names)):
            says += f" Paused {pauses}."
    frozen = {"loops": "\n".join(names)}
    return ActionConfirmation(f"{what}?", says, names, what, frozen, is_grave=verb.ends)


def _pauses_of(site: Site, names: Sequence[str]) -> str:
    """Describe who paused these loops, and why; empty: none is paused."""
    pauses = Counter[str]()
    for name in names:
        found = site.standing(name)
        if found is not None and found.is_paused:
            by, reason = found.status.by or "unknown", found.status.reason or "no reason"
            pauses[f"by {by} ({reason})"] += 1
    is_one = len(names) == 1
    return wording.few([by if is_one else f"{n} {by}" for by, n in pauses.most_common()])


def _standing(site: Site, name: str) -> Standing:
    if (found := site.standing(name)) is None:
        raise UsageError(f"There is no loop {name!r} any more.")
    return found


def _run_beside(site: Site, form: Form) -> RequestedAction:
    loop = _standing(site, name := form.text("loop")).loop
    if (spec := site.app.tasks.get(loop.id.task)) is None:
        raise UsageError(f"The task of {name} is not in this code, so it would not run.")
    own: Mapping[str, Any] = loop.listed.args if loop.listed else {}
    args = form.arguments(spec, own.keys())
    spec.arguments.load({**own, **args})

    async def work(operation: Operation) -> None:
        report = await site.program.verbs.run_beside(await site.program.loops.find(name), args)
        operation.add_line(f"{name}: {report.did.value} once, with {', '.join(args) or 'its own'}")

    return RequestedAction(f"run {name} once", work)


def _send(site: Site, form: Form) -> RequestedAction:
    name, app = form.text("task"), site.app
    if (spec := app.tasks.get(name)) is None or not spec.called:
        raise UsageError(f"{name!r} is not a task that accepts calls.")
    wire, posting = spec.arguments.dump(spec.arguments.load(form.arguments(spec))), form.time()

    async def work(operation: Operation) -> None:
        broker = site.program.broker
        outbox = Outbox(app.names, site.clock, lambda: broker, app.events.emit)
        outbox.use(broker, site.clock)
        id = await outbox.send(name, wire, posting)
        operation.add_line(f"{id} sent, and confirmed by the broker")

    return RequestedAction(f"send {name}", work)


def _start(site: Site, form: Form) -> RequestedAction:
    loop = form.loop(site.app)
    verb, says = "Start", "It runs from now on, whatever is deployed, until it is removed."
    if site.standing(str(loop)) is not None:
        verb, says = "Change", "It exists already, and continues with these changes."
    arguments, what = f"arguments: {', '.join(loop.args) or 'none'}", f"{verb} {loop}"
    about = [*_about_schedule(site, loop.schedule), arguments]
    return RequestedAction(
        f"start {loop}",
        _rescheduled(site, lambda program: program.seeding.start(loop)),
        # The page of a loop that does not exist yet would not be found.
        f"/loops?{urlencode({'q': str(loop)})}",
        ActionConfirmation(f"{what}?", says, about, what, is_grave=False),
    )


def _set_schedule(site: Site, form: Form) -> RequestedAction:
    name, schedule = _unchanged(site, form), form.schedule()
    _standing(site, name)

    async def do(program: Program) -> Report:
        loop = await program.loops.find(name)
        return await program.verbs.set_schedule(loop, schedule, by=form.visitor.name)

    return RequestedAction(f"reschedule {name}", _rescheduled(site, do, name))


def _clear_schedule(site: Site, form: Form) -> RequestedAction:
    name = _unchanged(site, form)

    async def do(program: Program) -> Report:
        return await program.verbs.clear_schedule(await program.loops.find(name))

    return RequestedAction(f"clear the schedule of {name}", _rescheduled(site, do, name))


def _unchanged(site: Site, form: Form) -> str:
    """Return the loop whose schedule is changed, unless it was since the change that is undone."""
    if changed := _changed_since(site, form):
        raise UsageError(f"Changed since: {_by_whom(changed)}.")
    return form.text("loop")


def _rescheduled(site: Site, do: Callable[[Program], Awaitable[Report]], name: str = "") -> Work:
    undo = _earlier_schedule(site, name)

    async def work(operation: Operation) -> None:
        report = await do(site.program)
        if undo is not None and report.did is Effect.RESCHEDULED:
            operation.undo = undo[0], {**undo[1], "undoes": _now(site)}
        about = _about_schedule(site, report.loop.schedule)
        operation.add_line("; ".join([_text_of(report), *about]))

    return work


def _earlier_schedule(site: Site, name: str) -> tuple[str, Mapping[str, str]] | None:
    """Return the action that restores the current schedule of a loop, and its fields."""
    if (found := site.standing(name)) is None or isinstance(found.schedule, Once):
        return None
    entry = found.loop.listed
    if found.loop.id in site.app.loops and not (entry and entry.override):
        return "schedule-clear", {"loop": name}
    options = {option: str(value) for option, value in options_of(found.schedule).items()}
    return "schedule-set", {"loop": name, **options}


def _about_schedule(site: Site, schedule: Schedule) -> list[str]:
    """Describe a schedule, and its next times if they are fixed."""
    ticks = wording.ticks(schedule, site.clock.now(), TICKS)
    times = "; ".join(wording.in_full(tick, zone_of(schedule)) for tick in ticks)
    words = f"schedule: {wording.schedule_in_words(schedule)}"
    return [words, f"next: {times}"] if times else [words]


# Parked messages


def _replay(site: Site, form: Form) -> RequestedAction:
    which, replay = form.messages(), partial(FailedQueues.replay, rate=form.rate())
    work = _on_parked(site, form, which, replay, "replayed")
    says = "Each is sent to its task, with all its attempts again."
    question = None if which.ids else _about_messages(form, which, "Replay", says, is_grave=False)
    return RequestedAction(f"replay {description_of(which)}", work, question=question)


def _edit(site: Site, form: Form) -> RequestedAction:
    which, args, check = form.messages(), form.args(), partial(check_arguments, site.app)
    check(form.text("task"), args)  # before typed input could be lost
    replay = partial(FailedQueues.replay, args=args, check=check)
    work = _on_parked(site, form, which, replay, "replayed")
    return RequestedAction(f"replay {description_of(which)} with other arguments", work, "/failed")


def _purge(site: Site, form: Form) -> RequestedAction:
    which, deletion = form.messages(), token_urlsafe(8)
    purge = partial(FailedQueues.purge, deletion=deletion)
    work = _on_parked(site, form, which, purge, "deleted")

    async def purge_with_undo(operation: Operation) -> None:
        try:
            await work(operation)
        finally:
            if operation.count:
                operation.undo = "restore", {"deletion": deletion}

    says = "They can be restored for a day."
    question = _about_messages(form, which, "Delete", says, is_grave=True)
    return RequestedAction(f"delete {description_of(which)}", purge_with_undo, question=question)


def _restore(site: Site, form: Form) -> RequestedAction:
    if not (deletion := form.text("deletion")):
        raise UsageError("No deletion was named.")

    def restore(failed: FailedQueues, *_: object, on_each: OnEach) -> Awaitable[int]:
        return failed.restore(Selection(deletion=deletion), on_each=on_each)

    gone = "The messages are not in the trash any more: it keeps them for a day."
    work = _on_parked(site, form, ShownMessages(), restore, "restored", gone)
    return RequestedAction("restore deleted messages", work)


def _about_messages(
    form: Form, which: ShownMessages, verb: str, says: str, *, is_grave: bool
) -> ActionConfirmation:
    count = form.text("count") or "1"
    about = [*(which.ids or ()), *words_of(which)]
    if which.until is not None:
        says += f" Those parked after {wording.in_full(which.until)} stay."
    what = f"{verb} {count} message{'' if count == '1' else 's'}"
    return ActionConfirmation(f"{what}?", says, about, what, is_grave=is_grave)


def _on_parked(
    site: Site,
    form: Form,
    which: ShownMessages,
    verb: Callable[..., Awaitable[object]],
    done: str,
    none: str = "It is not parked any more: another visitor was faster.",
) -> Work:
    count = form.text("count")

    async def work(operation: Operation) -> None:
        def on_each(parked: ParkedMessage) -> None:
            operation.add_line(f"{done} {parked.id}")
            operation.check()

        if count.isdecimal() and len(count) < DIGITS:
            operation.total = int(count)
        try:
            tasks = await site.with_failed_queues(which.task)
            async with site.watch.taking():
                await verb(site.program.failed, tasks, which, on_each=on_each)
        finally:
            with suppress(BrokerError):  # the page shows older data then
                for task in [*site.watch.looks]:
                    await site.watch.look(task)
        if operation.count != operation.total and operation.total is not None:
            gone = f"{operation.count} of the {count} shown; the rest were gone already."
            operation.lines.insert(0, gone)
        elif not operation.count:
            raise UsageError(none)
        if newer := _newer(site, which):
            operation.lines.insert(0, f"{counted(newer, 'message')} parked since: left alone.")

    return work


def _newer(site: Site, which: ShownMessages) -> int:
    """Count the messages like these that were parked since they were shown."""
    look = site.watch.looks.get(which.task or "") or site.watch.looks.get("")
    if look is None or which.until is None:
        return 0
    return sum(
        group.count
        for group in look.groups
        if (group.task, group.reason, group.kind) == (which.task, which.reason, which.kind)
    )


# Failures


def _acknowledge(site: Site, form: Form) -> RequestedAction:
    task, kind = form.text("task"), form.text("kind")
    failure = site.judged.failure(task, kind)
    if failure is None:
        raise UsageError(f"{task} does not fail with this error any more.")
    if (known := failure.acknowledged) is not None:
        raise UsageError(f"{known.by} has acknowledged this already.")
    now = site.clock.now()
    acknowledgement = Acknowledgement(
        task, kind, form.visitor.name, now, one_line(form.text("reason"))
    )

    async def work(operation: Operation) -> None:
        await site.acknowledge(acknowledgement)
        operation.add_line(f"{task}: acknowledged, until the next success")
        operation.undo = "unacknowledge", {"task": task, "kind": kind, "by": acknowledgement.by}

    return RequestedAction(f"acknowledge the failures of {task}", work)


def _unacknowledge(site: Site, form: Form) -> RequestedAction:
    task, kind = form.text("task"), form.text("kind")
    known = site.picture.acknowledged.get((task, kind))
    if known is None or known.is_withdrawn or known.by != form.text("by"):
        raise UsageError("It is not acknowledged any more, or another user has done so since.")
    again = {"task": task, "kind": kind, "reason": known.note}

    async def work(operation: Operation) -> None:
        await site.acknowledge(known.withdrawn)
        operation.add_line(f"{task}: not acknowledged")
        operation.undo = "acknowledge", again

    return RequestedAction(f"withdraw the acknowledgement of {task}", work)


# The broker and its processors


def _read_stack(site: Site, form: Form) -> RequestedAction:
    run = _run_named_by(form)

    async def work(operation: Operation) -> None:
        running = await site.watch.ask({}, stack_of=run)
        for each in running.runs:
            if each.stack is not None:
                operation.add_line(each.stack)

    return RequestedAction(f"read the stack of {run}", work)


def _run_named_by(form: Form) -> str:
    if not (run := form.text("run")):
        raise UsageError("No run was named.")
    return run


def _cancel(site: Site, form: Form) -> RequestedAction:
    run = _run_named_by(form)

    async def work(operation: Operation) -> None:
        report = await site.program.cancellation.cancel(run, by=form.visitor.name)
        ending = report.ending or "still running, cancellation requested"
        operation.add_line(f"{report.run.id}: {ending}")
        await site.watch.ask({})

    says = "It is not retried; a loop continues with its next tick. Its effects so far remain."
    question = ActionConfirmation("Cancel this run?", says, [run], "Cancel the run")
    return RequestedAction(f"cancel the run {run}", work, question=question)


ACTS: Mapping[str, Callable[[Site, Form], RequestedAction]] = {
    **dict.fromkeys(LOOP_VERBS, _on_loops),
    "run": _run_beside,
    "send": _send,
    "start": _start,
    "schedule-set": _set_schedule,
    "schedule-clear": _clear_schedule,
    "replay": _replay,
    "edit": _edit,
    "purge": _purge,
    "restore": _restore,
    "acknowledge": _acknowledge,
    "unacknowledge": _unacknowledge,
    "stack": _read_stack,
    "cancel": _cancel,
}


def _undone(
    site: Site, verb: LoopVerb, names: Sequence[str], reasons: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the fields of the form that reverts a verb; the loops were paused for reasons."""
    fields = {"loops": "\n".join(names), "sure": "yes", "undoes": _now(site)}
    if verb.undone_by != "pause":
        return fields
    before = {reasons.get(name, "") for name in names}
    again = "paused again: the resumption was undone"
    return fields | {"reason": before.pop() if len(before) == 1 else again}


def _now(site: Site) -> str:
    return str(milliseconds_since_epoch(site.clock.now()))


async def _do(
    program: Program, verb: LoopVerb, loops: Sequence[Loop | UnknownLoop], form: Form
) -> list[Report | SchedulerError]:
    """Run an operation on loops, in bulk if possible; a failure affects its loop alone."""
    reason, there = form.text("reason"), [each for each in loops if isinstance(each, Loop)]
    if verb.in_bulk and len(there) == len(loops):
        with suppress(UsageError, QueueNotFound):
            return [*await verb.do(program, there, reason)]

    async def attempt(loop: Loop | UnknownLoop) -> Report | SchedulerError:
        if isinstance(loop, UnknownLoop):
            return loop
        try:
            return (await verb.do(program, [loop], reason))[0]
        except (UsageError, QueueNotFound) as error:
            return error

    return await side_by_side(attempt, loops)


def _text_of(report: Report) -> str:
    text = f"{report.loop}: {report.did.value}"
    if report.silent:
        silent = ", ".join(report.silent)
        text += f", not confirmed by {silent}; they may start one more run"
    return text
