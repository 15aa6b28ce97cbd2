"""Run the actions of visitors as the commands do, after a confirmation."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from scheduler.control.loops import loops_of, orphans_of
from scheduler.control.reports import Did, Report
from scheduler.dashboard import wording
from scheduler.dashboard.access import right_of
from scheduler.dashboard.answers import (
    Look,
    ShownMessages,
    description_of,
    look_at,
    roll_of,
    words_of,
)
from scheduler.dashboard.forms import Form
from scheduler.dashboard.operations import Operation, Work
from scheduler.dashboard.site import Site
from scheduler.dashboard.standing import AT_REST
from scheduler.errors import (
    BrokerError,
    InvalidArguments,
    QueueNotFound,
    SchedulerError,
    UnknownLoop,
    UsageError,
)
from scheduler.program import Program
from scheduler.queues.concurrency import AT_ONCE, side_by_side
from scheduler.queues.failed import FailedQueues, Parked, Selection
from scheduler.queues.outbox import Outbox
from scheduler.spelling import counted, listed
from scheduler.tasks.loops import Loop
from scheduler.timing.once import Once
from scheduler.timing.schedules import Schedule, options_of

MANY = 2
IN_BULK = 250
MOST_TOLD = 100
TICKS = 3
BY_DEFAULT = "paused from the dashboard"


@dataclass(frozen=True, slots=True)
class LoopVerb:
    """Describe an action on loops.

    Attributes:
        says: its effect, for new users.
        do: acts on loops, with a reason.
        in_bulk: whether it acts on all of the loops or none.
        undone_by: the verb that reverts it.
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
UNDOABLE = (Did.PAUSED, Did.RESUMED, Did.TRIGGERED)


@dataclass(frozen=True, slots=True)
class Question:
    """Ask for confirmation before an action.

    Attributes:
        about: the affected things, in a line each; count: how many lines there are.
        yes: the button that confirms it: the verb and the number of things.
        frozen: the counted set, as fields: the action applies to exactly these.
        doubt: what may not have been meant.
        is_grave: whether it cannot be reverted.
    """

    title: str
    says: str
    about: Sequence[str]
    count: int
    yes: str
    frozen: Mapping[str, str] = field(default_factory=dict[str, str])
    doubt: str = ""
    is_grave: bool = True


class RequestedAction(NamedTuple):
    """Describe a submitted action in words, with its function, and the next page."""

    what: str
    work: Work
    to: str = ""


class Actions:
    """Run all actions, by name."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._acts: Mapping[str, Callable[[Form], RequestedAction]] = {
            **dict.fromkeys(LOOP_VERBS, self._on_loops),
            "run": self._run_beside,
            "send": self._send,
            "start": self._start,
            "schedule-set": self._set_schedule,
            "schedule-clear": self._clear_schedule,
            "replay": self._replay,
            "edit": self._edit,
            "purge": self._purge,
            "look": self._look,
            "examine": self._examine,
            "roll-call": self._call_the_roll,
            "running": self._ask_what_runs,
            "cancel": self._cancel,
        }
        self._questions: Mapping[str, Callable[[Form], Question | None]] = {
            **dict.fromkeys(LOOP_VERBS, self._ask_of_verb),
            "start": self._ask_of_start,
            "schedule-set": self._ask_of_schedule,
            "purge": self._ask_of_purge,
            "cancel": self._ask_of_cancel,
        }

    def are_allowed(self, form: Form) -> bool:
        if form.action == "stop":
            running = self._site.operations.get(form.text("operation"))
            return running is None or form.visitor.can(running.right)
        return form.visitor.can(form.action)

    def question(self, form: Form) -> Question | None:
        """Return the confirmation to ask for; None: none.

        Raises:
            UsageError: the form is invalid.
        """
        ask = self._questions.get(form.action)
        return None if ask is None or form.is_sure else ask(form)

    async def do(self, form: Form) -> str:
        """Run the action; return the page that shows the result.

        Raises:
            UsageError: the form is invalid.
        """
        if form.action == "stop":
            return await self._stop(form)
        if (act := self._acts.get(form.action)) is None:
            raise UsageError(f"There is no action {form.action!r}.")
        begun = act(form)
        operation = await self._site.operations.begin(
            begun.what, form.visitor.name, right_of(form.action), begun.work
        )
        return form.back(operation.id, to="" if operation.is_bad else begun.to)

    async def _stop(self, form: Form) -> str:
        if (operation := self._site.operations.get(form.text("operation"))) is None:
            raise UsageError("This process of the dashboard does not run that operation.")
        await self._site.operations.stop(operation)
        return form.back(operation.id)

    # Loops

    def _on_loops(self, form: Form) -> RequestedAction:
        names, verb = form.loops(self._site.judged.standings), LOOP_VERBS[form.action]
        changes = form.changes(self._site.judged.standings)
        reasons = {each.name: each.loop.reason for each in self._site.judged.standings}

        async def work(operation: Operation) -> None:
            operation.lines += changes
            operation.expect(len(names))
            program = self._site.program
            found = await self._found(program, names, verb)
            done = list[str]()
            step = IN_BULK if verb.in_bulk else AT_ONCE
            for begin in range(0, len(names), step):
                operation.check()
                some = names[begin : begin + step]
                reports = await _do(program, verb, [found[name] for name in some], form)
                for name, report in zip(some, reports, strict=True):
                    if isinstance(report, Report):
                        operation.add_line(_text_of(report))
                        done += [name] if report.did in UNDOABLE else []
                    elif len(names) == 1:
                        raise report
                    else:
                        operation.fail(f"{name}: {report}")
                if verb.undone_by and done:
                    operation.undo = verb.undone_by, _undone(verb, done, reasons)

        is_one = len(names) == 1
        what = "resume and run now:" if verb.name == "now" else verb.name
        return RequestedAction(
            f"{what} {names[0] if is_one else counted(len(names), 'loop')}",
            self._with_reason(verb.name, names[0], work) if is_one else work,
            "/loops" if verb.ends else "",  # its page is gone with it
        )

    async def _found(
        self, program: Program, names: Sequence[str], verb: LoopVerb
    ) -> dict[str, Loop | UnknownLoop]:
        """Return the loops of these names; report missing ones."""
        if len(names) == 1:
            find = program.loops.find_or_whole if verb.of_tasks else program.loops.find
            return {names[0]: await find(names[0])}
        listing, app = await program.survey.listing(), self._site.app
        there = (*app.loops.values(), *loops_of(app, listing), *orphans_of(app, listing))
        known: dict[str, Loop | UnknownLoop] = {str(loop): loop for loop in there}
        return {name: known.get(name, UnknownLoop("The loop is gone.")) for name in names}

    def _with_reason(self, verb: str, name: str, work: Work) -> Work:
        """Report who had paused a resumed loop, and why."""
        found = self._site.standing(name)
        if found is None or not found.loop.is_paused or verb not in ("resume", "now"):
            return work
        loop = found.loop
        by = f" by {loop.listed.by}" if loop.listed and loop.listed.by else ""
        line = f"It was paused{by}: {loop.reason}"

        async def act(operation: Operation) -> None:
            await work(operation)
            operation.lines.append(line)

        return act

    def _ask_of_verb(self, form: Form) -> Question | None:
        verb, names = LOOP_VERBS[form.action], form.loops(self._site.judged.standings)
        if not verb.ends and len(names) < MANY:
            return None
        what = f"{verb.name.capitalize()} {counted(len(names), 'loop')}"
        states = Counter(
            found.state.value for name in names if (found := self._site.standing(name))
        )
        says = f"For each: {verb.says}"
        if len(names) >= MANY:
            says += f" Now {listed([f'{n} {state}' for state, n in states.items()])}."
        return Question(
            f"{what}?",
            says,
            names[:MOST_TOLD],
            len(names),
            what,
            {"loops": "\n".join(names)},
            is_grave=verb.ends,
        )

    def _run_beside(self, form: Form) -> RequestedAction:
        name = form.text("loop")
        if (found := self._site.standing(name)) is None:
            raise UsageError(f"There is no loop {name!r} any more.")
        if (spec := self._site.app.tasks.get(found.loop.id.task)) is None:
            raise UsageError(f"The task of {name} is not in this code, which would not run it.")
        args = form.arguments(spec)
        own: Mapping[str, Any] = found.loop.listed.args if found.loop.listed else {}
        spec.arguments.load({**own, **args})

        async def work(operation: Operation) -> None:
            program = self._site.program
            report = await program.verbs.run_beside(await program.loops.find(name), args)
            operation.add_line(
                f"{name}: {report.did.value} once, with {', '.join(args) or 'its own'}"
            )

        return RequestedAction(f"run {name} once", work)

    def _send(self, form: Form) -> RequestedAction:
        name, app = form.text("task"), self._site.app
        if (spec := app.tasks.get(name)) is None or not spec.called:
            raise UsageError(f"{name!r} is no task that accepts calls.")
        wire, posting = spec.arguments.dump(spec.arguments.load(form.arguments(spec))), form.time()

        async def work(operation: Operation) -> None:
            broker, clock = self._site.program.broker, self._site.clock
            outbox = Outbox(app.names, clock, lambda: broker, app.events.emit)
            outbox.use(broker, clock)
            id = await outbox.send(name, wire, posting)
            operation.add_line(f"{id} sent, and confirmed by the broker")

        return RequestedAction(f"send {name}", work)

    def _start(self, form: Form) -> RequestedAction:
        loop = form.loop(self._site.app)
        work = self._rescheduled(lambda program: program.seeding.start(loop))
        # The page of a loop that does not exist yet would not be found.
        return RequestedAction(f"start {loop}", work, f"/loops?{urlencode({'q': str(loop)})}")

    def _ask_of_start(self, form: Form) -> Question:
        loop = form.loop(self._site.app)
        verb, says = "Start", "It runs from now on, whatever is deployed, until it is removed."
        if self._site.standing(str(loop)) is not None:
            verb = "Change"
            says = "It exists already, and continues with these changes."
        arguments = f"arguments: {', '.join(loop.args) or 'none'}"
        return self._of_schedule(f"{verb} {loop}?", says, loop.schedule, arguments)

    def _set_schedule(self, form: Form) -> RequestedAction:
        name, schedule = form.text("loop"), form.schedule()

        async def do(program: Program) -> Report:
            loop = await program.loops.find(name)
            return await program.verbs.set_schedule(loop, schedule, by=form.visitor.name)

        return RequestedAction(f"reschedule {name}", self._rescheduled(do, name))

    def _ask_of_schedule(self, form: Form) -> Question:
        name, schedule = form.text("loop"), form.schedule()
        if (found := self._site.standing(name)) is None:
            raise UsageError(f"There is no loop {name!r} any more.")
        says = "This is its schedule from now on."
        if found.loop.id in self._site.app.loops:
            says = "This overrides its schedule, whatever is seeded, until it is cleared."
        until_now = f"until now: {wording.schedule_in_words(found.schedule)}"
        return self._of_schedule(f"Reschedule {name}?", says, schedule, until_now)

    def _clear_schedule(self, form: Form) -> RequestedAction:
        name = form.text("loop")

        async def do(program: Program) -> Report:
            return await program.verbs.clear_schedule(await program.loops.find(name))

        return RequestedAction(f"clear the schedule of {name}", self._rescheduled(do, name))

    def _rescheduled(self, do: Callable[[Program], Awaitable[Report]], name: str = "") -> Work:
        undo = self._earlier_schedule(name)

        async def work(operation: Operation) -> None:
            report = await do(self._site.program)
            operation.undo = undo if report.did is Did.RESCHEDULED else None
            words = wording.schedule_in_words(report.loop.schedule)
            operation.add_line(f"{_text_of(report)}; schedule: {words}")

        return work

    def _earlier_schedule(self, name: str) -> tuple[str, Mapping[str, str]] | None:
        """Return the action that restores the current schedule of a loop, and its fields."""
        if (found := self._site.standing(name)) is None or isinstance(found.schedule, Once):
            return None
        if found.loop.id in self._site.app.loops and not (
            found.loop.listed and found.loop.listed.override
        ):
            return "schedule-clear", {"loop": name}
        options = {option: str(value) for option, value in options_of(found.schedule).items()}
        return "schedule-set", {"loop": name, "sure": "yes", **options}

    def _of_schedule(self, title: str, says: str, schedule: Schedule, *more: str) -> Question:
        zone = wording.zone_name(schedule)
        ticks = wording.ticks(schedule, self._site.clock.now(), TICKS)
        times = [wording.in_full(wording.in_zone(tick, zone)) for tick in ticks]
        about = [f"from now on: {wording.schedule_in_words(schedule)}"]
        about += [*([f"next: {'; '.join(times)}"] if times else []), *more]
        doubt = wording.doubt_of(schedule)
        yes = title.removesuffix("?")
        return Question(title, says, about, len(about), yes, doubt=doubt, is_grave=False)

    # Parked messages

    def _replay(self, form: Form) -> RequestedAction:
        which = form.messages()
        replay = partial(FailedQueues.replay, rate=form.rate())
        return RequestedAction(
            f"replay {description_of(which)}", self._on_parked(which, replay, "replayed", form)
        )

    def _edit(self, form: Form) -> RequestedAction:
        which, args = form.messages(), form.args()
        self._check(form.text("task"), args)  # before typed input could be lost
        replay = partial(FailedQueues.replay, args=args, check=self._check)
        work = self._on_parked(which, replay, "replayed", form)
        return RequestedAction(
            f"replay {description_of(which)} with other arguments", work, "/failed"
        )

    def _purge(self, form: Form) -> RequestedAction:
        which = form.messages()
        work = self._on_parked(which, FailedQueues.purge, "deleted", form)

        async def wait_and_purge(operation: Operation) -> None:
            await operation.hold(self._site.clock.now())
            await work(operation)

        return RequestedAction(f"delete {description_of(which)}", wait_and_purge)

    def _ask_of_purge(self, form: Form) -> Question:
        which, count = form.messages(), form.text("count") or "1"
        about = [*(which.ids or ()), *words_of(which)]
        says = "They are deleted for good, with their arguments and tracebacks."
        if which.until is not None:
            says += f" Those parked after {wording.brief(which.until)} stay."
        what = f"Delete {count} message{'' if count == '1' else 's'}"
        return Question(f"{what}?", says, about[:MOST_TOLD], len(about), what)

    def _on_parked(
        self, which: ShownMessages, verb: Callable[..., Awaitable[object]], done: str, form: Form
    ) -> Work:
        app, count = self._site.app, form.text("count")
        tasks = [which.task] if which.task in app.tasks else [*app.tasks]

        async def work(operation: Operation) -> None:
            def tell(parked: Parked) -> None:
                operation.add_line(f"{done} {parked.id}")
                operation.check()

            if count.isdecimal():
                operation.expect(int(count))
            try:
                await verb(self._site.program.failed, tasks, which, tell=tell)
            finally:
                with suppress(BrokerError):  # the page shows older data then
                    for task in self._site.looks:
                        await self._look_again(task)
            if operation.count != operation.total and operation.total is not None:
                operation.lines.insert(
                    0, f"{operation.count} of the {count} shown; the rest were gone already."
                )
            elif not operation.count:
                raise UsageError("It is not parked any more: another visitor was faster.")

        return work

    def _check(self, task: str, args: Mapping[str, Any]) -> None:
        if (spec := self._site.app.tasks.get(task)) is None:
            return
        try:
            spec.arguments.load(args)
        except InvalidArguments as error:
            raise UsageError(f"{error} The message stays parked, as it was.") from None

    def _look(self, form: Form) -> RequestedAction:
        site, task = self._site, form.text("task")

        async def work(operation: Operation) -> None:
            look = await self._look_again(task if task in site.app.tasks else "")
            more = "" if look.is_whole else ", and there are more"
            operation.add_line(
                f"{counted(look.count, 'message')} in {len(look.groups)} groups{more}"
            )

        return RequestedAction("look at what is parked", work)

    async def _look_again(self, task: str) -> Look:
        site = self._site
        tasks = [task] if task else [*site.app.tasks]
        which = Selection(task=task or None)
        look = await look_at(site.program.failed, tasks, which, site.clock.now())
        site.looks[task] = look
        return look

    # The broker and its processors

    def _examine(self, _: Form) -> RequestedAction:
        site = self._site

        async def work(operation: Operation) -> None:
            findings = [finding async for finding in site.program.doctor.examine()]
            site.findings = site.clock.now(), findings
            wrong = sum(finding.verdict != "ok" for finding in findings)
            operation.add_line(f"{len(findings)} checks, {wrong} need attention")

        return RequestedAction("examine the broker", work)

    def _call_the_roll(self, _: Form) -> RequestedAction:
        site = self._site

        async def work(operation: Operation) -> None:
            program, known = site.program, site.picture.listing.known
            # No processor holds a waiting loop.
            loops = [each.loop.id for each in site.judged.standings if each.state not in AT_REST]
            answers = await program.survey.answers({loop: known(loop) for loop in loops})
            running = await program.cancellation.running()
            site.running = site.clock.now(), running
            site.roll = roll_of(answers, running, site.clock.now())
            operation.add_line(f"{len(answers.said)} of {answers.expected} processors responded")

        return RequestedAction("call the roll", work)

    def _ask_what_runs(self, form: Form) -> RequestedAction:
        site, stack_of = self._site, form.text("run") or None

        async def work(operation: Operation) -> None:
            running = await site.program.cancellation.running(stack_of=stack_of)
            site.running = site.clock.now(), running
            more = f", and {running.more} more" if running.more else ""
            operation.add_line(f"{counted(len(running.runs), 'run')}{more}")

        return RequestedAction("ask for the current runs", work)

    def _cancel(self, form: Form) -> RequestedAction:
        site, run, by = self._site, form.text("run"), form.visitor.name
        if not run:
            raise UsageError("No run was named.")

        async def work(operation: Operation) -> None:
            report = await site.program.cancellation.cancel(run, by=by)
            ending = report.ending or "still running, cancellation requested"
            operation.add_line(f"{report.run.id}: {ending}")
            site.running = site.clock.now(), await site.program.cancellation.running()

        return RequestedAction(f"cancel the run {run}", work)

    def _ask_of_cancel(self, form: Form) -> Question:
        says = "It is not retried; a loop continues with its next tick. Its effects so far remain."
        return Question("Cancel this run?", says, [form.text("run")], 1, "Cancel the run")


def _undone(verb: LoopVerb, names: Sequence[str], reasons: Mapping[str, str]) -> Mapping[str, str]:
    """Return the fields of the form that reverts a verb.

    Args:
        reasons: why each loop was paused before.
    """
    fields = {"loops": "\n".join(names), "sure": "yes"}
    if verb.undone_by != "pause":
        return fields
    before = {reasons.get(name, "") for name in names}
    again = "paused again: the resumption was undone"
    return fields | {"reason": before.pop() if len(before) == 1 else again}


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
