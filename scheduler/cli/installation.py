"""Install an app in the broker, and check the installation.

`scheduler seed`, and `topology show` and `export`, declare its objects; `doctor` diagnoses them, or
one processor; `census` counts loops.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from scheduler.app import Scheduler
from scheduler.brokers.opening import nodes_of
from scheduler.cli.arguments import AppArgument, DryRun, HealthPort, command, new_group
from scheduler.cli.connecting import ask
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import LEFTOVERS, Output, console, json_of, local, no_loops
from scheduler.cli.schedules import meaning_of, schedule_of, warn_of_doubts
from scheduler.cli.tables import Table, Work, paragraph
from scheduler.control.census import Figures, count
from scheduler.control.doctor import Finding, check_addresses, require_fit
from scheduler.control.installation import Leftover
from scheduler.control.reports import Effect, Report
from scheduler.control.rows import row_of_report
from scheduler.errors import UsageError
from scheduler.events import Emit, Event, LoopSeeded, QueueDeclared
from scheduler.processor import health
from scheduler.program import Program
from scheduler.protocol.administration import rights_to_seed
from scheduler.protocol.epochs import LoopState
from scheduler.protocol.messages import summary_of
from scheduler.protocol.tokens import NO_KEYS
from scheduler.protocol.topology import Binding, Topology, definitions
from scheduler.queues.unsent import UnsentStore
from scheduler.settings import Settings
from scheduler.spelling import counted
from scheduler.timing.moments import exact
from scheduler.timing.schedules import Cron, zone_of

TIME_TO_LIVE = "x-message-ttl"
FEW = 4
MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}
INDENT = 9
COMMAND = "rabbitmqctl "
NAMED = 5  # loops that are named, of many
MOST_NAMED = 20  # keyed loops that a seed names

cli = new_group()
topology = new_group("Show or export the exchanges and queues the app uses.")
cli.add_typer(topology, name="topology")


@command(cli, "seed")
def seed(
    app: Scheduler,
    dry_run: DryRun = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove the loops in the broker that the app does not have."),
    ] = False,
    migrate: Annotated[
        bool,
        typer.Option(
            "--migrate",
            help="Recreate queues that were declared for other code or settings, with all their "
            "messages. Stop all processors first.",
        ),
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Seed a namespace that was seeded from another module: the app has moved.",
        ),
    ] = False,
    paused: Annotated[bool, typer.Option("--paused", help="Start new loops paused.")] = False,
) -> Output:
    """Declare the queues, and start loops that have not been started.

    Seed again at any time: loops that are already scheduled are left alone. A schedule that has
    changed takes effect.

    Example: scheduler seed shop:app --dry-run
    """
    warn_of_doubts(app.loops.values())

    async def seeded(program: Program) -> tuple[list[Report], list[Leftover]]:
        require_fit(program.broker)
        if dry_run:
            reports = await program.seeding.plan(prune=prune, take_over=take_over, paused=paused)
        else:
            reports = await program.seeding.seed(
                prune=prune, migrate=migrate, take_over=take_over, paused=paused
            )
        return reports, await program.installation.leftovers()

    with (
        Work("seeding queues and loops", counted=not dry_run) as work,
        app.events.listening(_count_of(app, work), QueueDeclared, LoopSeeded),
    ):
        rights = rights_to_seed(app.names, app.topology())
        reports, left = ask(app, seeded, rights, is_long=True)
    lines, (named, keyed) = list[str | Text](), folded_reports(reports)
    if named:
        schedules = [report.loop.schedule for report in named]
        lines += OF_REPORTS.shown(named)
        lines += dict.fromkeys(meaning_of(it) for it in schedules if isinstance(it, Cron))
    lines += [f"{task}: {_counts(did)}" for task, did in keyed.items()]
    if not reports:
        are, text = "would be" if dry_run else "are", no_loops(app.namespace)
        lines += [f"{text}; the queues of its tasks {are} declared: {', '.join(app.tasks)}."]
    if left:
        lines += [LEFTOVERS.format(", ".join(map(str, left)))]
    rows = [row_of_report(report) for report in named]
    return Output({"loops": rows, "keyed": keyed, "leftovers": [*map(asdict, left)]}, lines)


def folded_reports(reports: Sequence[Report]) -> tuple[list[Report], dict[str, Counter[str]]]:
    """Return the reports to show, and the number of each task's keyed loops by effect.

    Of keyed loops, only some that were changed are shown: there may be a million.
    """
    named, keyed, left = list[Report](), defaultdict[str, Counter[str]](Counter), MOST_NAMED
    for report in reports:
        if report.loop.id.key in NO_KEYS:
            named.append(report)
            continue
        keyed[report.loop.id.task][report.did.value] += 1
        if report.did is not Effect.UNCHANGED and left:
            named.append(report)
            left -= 1
    return named, dict(keyed)


def _counts(did: Counter[str]) -> str:
    by_effect = ", ".join(f"{count:,} {effect}" for effect, count in did.items())
    return f"{counted(did.total(), 'keyed loop')}, {by_effect}"


def _count_of(app: Scheduler, work: Work) -> Emit:
    """Return a listener that counts the app's queues and loops: each is slow."""
    left = {queue.name for queue in app.topology().queues} | {str(loop) for loop in app.loops}
    work.expect(len(left))

    def count(event: Event) -> None:
        match event:
            case QueueDeclared(done) | LoopSeeded(done) if str(done) in left:
                left.remove(str(done))
                work.advance()
            case _:
                pass  # a queue is declared again, or a loop is not in the code

    return count


def _schedule(report: Report) -> str:
    return "pause of the task" if report.loop.id.is_whole else schedule_of(report.loop)


def _due(report: Report) -> object:
    if report.due_at is None:
        return "paused" if report.is_paused else ""
    return local(report.due_at, zone_of(report.loop.schedule))


OF_REPORTS = Table[Report](
    {
        "LOOP": lambda report: report.loop,
        "SCHEDULE": _schedule,
        "SEED": lambda report: report.did.value,
        "DUE": _due,
    },
    brief=("LOOP", "SEED", "DUE", "SCHEDULE"),
)


@command(topology, "show", asks=False)
def topology_show(
    app: Scheduler,
    whole: Annotated[bool, typer.Option("--all", help="Show every timer queue, too.")] = False,
) -> Output:
    """Show the exchanges, queues and bindings of the app, as a tree.

    Example: scheduler topology show shop:app
    """
    wanted, shown = app.topology(), console()
    with shown.capture() as drawn:
        shown.print(_tree(wanted, whole=whole))
    return Output(asdict(wanted), [line.rstrip() for line in drawn.get().splitlines()])


@command(topology, "export", asks=False)
def topology_export(
    app: Scheduler,
    vhost: Annotated[str, typer.Option(help="The virtual host of the definitions.")] = "/",
) -> Output:
    """Print the exchanges and queues, as RabbitMQ definitions (JSON).

    Use them with `rabbitmqctl import_definitions`, or with a Kubernetes operator.

    Example: scheduler topology export shop:app > definitions.json
    """
    data = definitions(app.topology(), vhost)
    return Output(data, [json_of(data)])


def _tree(wanted: Topology, *, whole: bool) -> Tree:
    tree = Tree("exchanges, and what is bound to them")
    arguments = {each.name: each.arguments for each in (*wanted.exchanges, *wanted.queues)}
    for exchange in wanted.exchanges:
        branch = tree.add(f"{exchange.name} ({exchange.type}){_listed(exchange.arguments)}")
        bound = [binding for binding in wanted.bindings if binding.source == exchange.name]
        for _, alike in groupby(bound, lambda each: _kind_of(arguments[each.destination])):
            lines = [
                f"{_asked_of(each)} → {each.destination}{_listed(arguments[each.destination])}"
                for each in alike
            ]
            for line in lines if whole else _folded(lines):
                branch.add(line)
    return tree


def _asked_of(binding: Binding) -> str:
    asked = (f"{name}: {value}" for name, value in binding.arguments.items() if name != "x-match")
    return binding.routing_key or ", ".join(asked) or "(all)"


def _kind_of(arguments: Mapping[str, Any]) -> object:
    """Return the common description of timer queues that differ in their time alone."""
    if TIME_TO_LIVE not in arguments:
        return object()
    return sorted((name, str(arguments[name])) for name in arguments if name != TIME_TO_LIVE)


def _folded(lines: list[str]) -> list[str]:
    if len(lines) <= FEW:
        return lines
    first, *others, last = lines
    return [first, f"… {len(others)} more such timer queues (--all shows them)", last]


def _listed(arguments: Mapping[str, Any]) -> str:
    pairs = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"  [{pairs}]" if pairs else ""


@command(cli, "doctor")
def doctor(
    reference: AppArgument = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Only probe whether the processor of this machine is alive."),
    ] = False,
    health_port: HealthPort = None,
) -> Output:
    """Check everything that could break the guarantees.

    The exit code is 1 if there are problems.

    Examples: scheduler doctor shop:app;
    scheduler doctor --live --health-port 8000
    """
    if live:
        return _liveness(reference, health_port)
    if health_port is not None:
        raise UsageError("--health-port is for --live: give both, or none.")
    app = ready_app(reference)

    findings = ask(app, lambda program: program.doctor.examine())
    nodes = nodes_of(app.settings)
    if app.fallback is not None:
        findings.append(check_unsent(app.fallback))
    if len(nodes) > 1:
        findings.insert(0, asyncio.run(check_addresses(nodes)))
    is_fine = all(finding.verdict != "problem" for finding in findings)
    return Output([asdict(finding) for finding in findings], _lines(findings), is_fine)


def check_unsent(store: UnsentStore) -> Finding:
    """Check whether messages are stored that could not be sent."""
    about = "unsent messages"
    try:
        stored = store.read()
    except Exception as error:  # the store may be the user's
        return Finding(
            about,
            "problem",
            f"the fallback store cannot be read: {summary_of(error)}",
            "Until it can, sending raises NotSent instead of storing.",
        )
    if not stored:
        return Finding(about, "ok", "none is stored")
    oldest = min(each.stored_at for each in stored)
    return Finding(
        about,
        "warning",
        f"{len(stored)} stored, the oldest at {exact(oldest)}",
        "Processors send them every 5 s; `scheduler unsent send` sends them now.",
    )


def _lines(findings: Iterable[Finding]) -> Iterator[Text]:
    advice = ""
    for finding in findings:
        about, mark = f"{finding.about}: {finding.detail}", MARKS[finding.verdict]
        yield from paragraph(about, mark, indent=INDENT)
        if finding.advice and finding.advice != advice:
            is_command = finding.advice.startswith(COMMAND)  # easy to copy
            yield from paragraph(finding.advice, indent=INDENT, broken=not is_command)
        advice = finding.advice


def _liveness(reference: str | None, port: int | None) -> Output:
    # The app is loaded only if the port is not given.
    port = port or Settings().health_port or ready_app(reference).settings.health_port
    if port is None:
        raise UsageError(
            "No health port is set: give --health-port or SCHEDULER_HEALTH_PORT to `scheduler "
            "run`, and the same to this command."
        )
    live, why = health.ask(port)
    line = "the processor is alive" if live else f"the processor is not alive: {why}"
    return Output({"live": live, "why": why}, [line], is_fine=live)


@command(cli, "census")
def census(app: Scheduler) -> Output:
    """Count loops, and the messages in queues and timers.

    The counts of loops are those of the last round of supervision. If that is older than a minute,
    the command counts the roster, which takes a minute for a million loops. The exit code is 1 if
    loops are overdue, or have two tokens: supervision repairs them.

    Example: scheduler census shop:app
    """
    figures = ask(app, count, is_long=True)
    tally = figures.tally
    data = {
        "counted_at": figures.at,
        **tally.model_dump(),
        "ready": figures.ready,
        "timers": figures.timers,
        "later": figures.later,
        "void": figures.void,
    }
    return Output(data, _lines_of_census(figures), is_fine=not tally.overdue and not tally.doubled)


def _lines_of_census(figures: Figures) -> Iterator[str | Text]:
    tally = figures.tally
    yield from _tasks(figures).shown(sorted({*tally.loops, *figures.ready}))
    yield ""
    yield from _timers(figures).shown([*dict.fromkeys((*figures.timers, *figures.later))])
    yield ""
    if tally.paused:
        yield f"paused as a whole: {', '.join(tally.paused)}"
    yield _named("overdue", tally.overdue, tally.overdue_names)
    yield _named("doubled", tally.doubled, tally.doubled_names)
    yield f"void: at least {figures.void:,}"
    yield f"loops counted: {figures.at:%H:%M:%S %Z}"


def _tasks(figures: Figures) -> Table[str]:
    def in_state(state: LoopState) -> Callable[[str], str]:
        return lambda task: f"{figures.tally.loops.get(task, {}).get(state, 0):,}"

    return Table(
        {
            "TASK": str,
            "ACTIVE": in_state(LoopState.ACTIVE),
            "PAUSED": in_state(LoopState.PAUSED),
            "GONE": in_state(LoopState.GONE),
            "READY": lambda task: f"{figures.ready.get(task, 0):,}",
        }
    )


def _timers(figures: Figures) -> Table[str]:
    return Table(
        {
            "TIMER": str,
            "TOKENS": lambda timer: f"{figures.timers.get(timer, 0):,}",
            "CALLS": lambda timer: f"{figures.later.get(timer, 0):,}",
        }
    )


def _named(about: str, count: int, names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED]) + (", ..." if count > NAMED else "")
    return f"{about}: {count:,}" + (f" ({shown})" if count else "")
