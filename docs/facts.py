"""Write pages of the reference and the runbooks from the code, at each build."""

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import SecretStr

import scheduler
from docs import imports
from docs.tables import table
from scheduler import errors as error_tree
from scheduler import events, metrics
from scheduler.cli.commands import COMMANDS, loaded
from scheduler.errors import default_message
from scheduler.protocol.hatchery import UNITS, timers
from scheduler.protocol.topology import Named, Names, Queue, Subscription, Topology, topology
from scheduler.settings import PREFIX, Settings
from scheduler.timing.durations import format_duration
from scheduler.timing.schedules import Cron, Every, to_wire

ROOT = Path(__file__).parents[1]
ALERTS = ROOT / "k8s/components/monitoring/alerts.yaml"
NAMESPACE = "NAMESPACE"
WHILE = "queue, for as long as it is needed"
FROM_CODE = "<!-- Written from the code by docs/facts.py: change it there. -->"


def pages() -> dict[str, str]:
    """Each generated page, by the name of its file."""
    return {
        "settings.md": settings_page(),
        "commands.md": commands_page(),
        "queues.md": queues_page(),
        "events.md": events_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
        "api.md": api_page(),
        "alerts.md": alerts_page(),
        "schedules.md": schedules_page(),
        "imports.md": f"{FROM_CODE}\n\n{imports.imports_page()}",
    }


# Settings


def settings_page() -> str:
    said = attribute_docstrings(Settings)
    rows = [
        [f"`{PREFIX}{name.upper()}`", f"`{_default(field.default)}`", said[name]]
        for name, field in Settings.model_fields.items()
    ]
    return "\n\n".join([FROM_CODE, table(["variable", "default", "says"], rows)]) + "\n"


def attribute_docstrings(kind: type) -> dict[str, str]:
    """What stands below each attribute of a class, on one line."""
    (body,) = [
        node for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef)
    ]
    found: dict[str, str] = {}
    for statement, below in zip(body.body, body.body[1:], strict=False):
        match statement, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found


def _default(value: object) -> str:
    match value:
        case None:
            return "none"
        case SecretStr():
            return value.get_secret_value()
        case bool():
            return "on" if value else "off"
        case timedelta():
            return format_duration(value)
        case _:
            return str(value)


# The command line


def commands() -> Iterator[tuple[str, Any]]:
    """Each command that can be typed, by its words."""
    for name in COMMANDS:
        yield from _below(f"scheduler {name}", loaded(name))


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from _below(f"{words} {name}", each)
    else:
        yield words, command


def commands_page() -> str:
    return "\n\n".join([FROM_CODE, *(_command(words, each) for words, each in commands())]) + "\n"


def _command(words: str, command: Any) -> str:
    said = inspect.cleandoc(command.help or "")
    rows = [[f"`{_spelt(each)}`", each.help or ""] for each in command.params]
    return f"## `{words}`\n\n{said}\n\n{table(['argument or option', 'says'], rows)}"


def _spelt(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name
    name = ", ".join(parameter.opts)
    if getattr(parameter, "is_flag", False):
        return name
    return f"{name} {parameter.metavar or parameter.name.upper()}"


# Queues, streams and exchanges


class Row(NamedTuple):
    name: str
    kind: str
    arguments: Mapping[str, Any]
    says: str


def sample() -> Topology:
    """Return what an app of each kind of task needs, under names that stand for any."""
    return topology(
        NAMESPACE,
        ["TASK"],
        subscriptions=[Subscription("TASK", "EXCHANGE", "KEY", "topic")],
        ordered=["TASK"],
        called=["TASK"],
    )


def named() -> dict[str, str]:
    """Each name of the sample that is ours, and what it is of."""
    names = Names(NAMESPACE)
    found = {
        getattr(names, attribute): inspect.getdoc(getattr(Names, attribute)) or ""
        for attribute, kind in vars(Names).items()
        if isinstance(kind, Named)
    }
    for of_unit, first in ((Names.hatchery_exchange, 1), (Names.later_exchange, 0)):
        says = inspect.getdoc(of_unit) or ""
        found |= {of_unit(names, unit): says for unit in range(first, len(UNITS))}
    for of_timer in (Names.timer, Names.later_timer):
        says = inspect.getdoc(of_timer) or ""
        found |= {of_timer(names, timer): says for timer in timers()}
    of_task = (Names.processor_queue, Names.failed_queue, Names.head)
    found |= {each(names, "TASK"): inspect.getdoc(each) or "" for each in of_task}
    texts = {name: text.removeprefix("Return ") for name, text in found.items()}
    return {name: f"{text[:1].upper()}{text[1:]}" for name, text in texts.items()}


def rows(wanted: Topology) -> list[Row]:
    """Its exchanges and queues; of each set of timers, the first and the last alone."""
    names = Names(NAMESPACE)
    said = named()
    between = timers()[1:-1]
    folded = {name(timer) for name in (names.timer, names.later_timer) for timer in between}
    exchanges = [(each.name, f"{each.type} exchange", each.arguments) for each in wanted.exchanges]
    queues = [(each.name, _kind(each), each.arguments) for each in wanted.queues]
    declared = [*exchanges, *(each for each in queues if each[0] not in folded)]
    there = {name for name, *_ in declared}
    for_a_while = [
        Row(name, WHILE, {}, text)
        for name, text in said.items()
        if name not in there and name not in folded
    ]
    return [*(Row(*each, said.get(each[0], "")) for each in declared), *for_a_while]


def _kind(queue: Queue) -> str:
    kind = str(queue.arguments.get("x-queue-type", "classic"))
    return "stream" if kind == "stream" else f"{kind} queue"


def queues_page() -> str:
    cells = [[f"`{row.name}`", row.kind, _arguments(row), row.says] for row in rows(sample())]
    return "\n\n".join([FROM_CODE, table(["name", "is a", "arguments", "says"], cells)]) + "\n"


def _arguments(row: Row) -> str:
    return ", ".join(f"`{name}: {value}`" for name, value in row.arguments.items())


# Errors


def errors_page() -> str:
    """List the messages of all errors, class by class, as the package raises them."""
    rows = [
        [f"`{error}`", f"`{message}`", f"`{path.relative_to(ROOT).as_posix()}`"]
        for path in sorted((ROOT / "scheduler").glob("**/*.py"))
        for error, message in _raised(ast.parse(path.read_text(encoding="utf-8")))
    ]
    rows.sort(key=lambda row: row[:2])
    return "\n\n".join([FROM_CODE, table(["error", "message", "raised in"], rows)]) + "\n"


def _raised(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the errors of a module, each with its message; values are in braces."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if _is_error_class(name):
                if message := _message(first):
                    yield name, message.replace("`", "'")
            case _:
                pass


def _is_error_class(name: str) -> bool:
    error = getattr(error_tree, name, None)
    return isinstance(error, type) and issubclass(error, scheduler.SchedulerError)


def _message(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                each.value
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
                else "{...}"
                for each in values
            )
        case _:
            return None


# Events and metrics


def events_page() -> str:
    kinds = [
        each
        for each in vars(events).values()
        if inspect.isclass(each) and issubclass(each, events.Event) and not each.__subclasses__()
    ]
    rows = [[f"`{kind.__name__}`", (inspect.getdoc(kind) or "").split("\n")[0]] for kind in kinds]
    return "\n\n".join([FROM_CODE, table(["event", "says"], rows)]) + "\n"


def metrics_page() -> str:
    labels = {metrics.OF_RUNS: metrics.LABELS, metrics.OF_PROCESSES: metrics.LABELS[:1]}
    rows = [_metric(each, of) for measures, of in labels.items() for each in measures]
    return "\n\n".join([FROM_CODE, table(["metric", "kind", "labels", "says"], rows)]) + "\n"


def _metric(measure: metrics.Measure, labels: tuple[str, ...]) -> list[str]:
    kind = measure.family.__name__.removesuffix("MetricFamily").lower()
    total = "_total" if kind == "counter" else ""
    told = ", ".join((*labels, *measure.by))
    return [f"`scheduler_{measure.name}{total}`", kind, told, measure.says]


# Schedules on the wire

SCHEDULES = {
    'Every("30s")': Every("30s"),
    'Every("1h", mode="fixed_rate", offset="5m")': Every("1h", mode="fixed_rate", offset="5m"),
    'Cron("0 9 * * MON-FRI", tz="Europe/Berlin", catch_up="skip", grace="5m", jitter="10s")': Cron(
        "0 9 * * MON-FRI", tz="Europe/Berlin", catch_up="skip", grace="5m", jitter="10s"
    ),
}


def schedules_page() -> str:
    cells = [[f"`{said}`", f"`{json.dumps(to_wire(each))}`"] for said, each in SCHEDULES.items()]
    return "\n\n".join([FROM_CODE, table(["schedule", "on the wire"], cells)]) + "\n"


# The public API


WHOLE = (":members:", ":inherited-members:")
SENT = (
    "scheduler.queues.unsent.MessageId",
    "scheduler.queues.unsent.Unsent",
    "scheduler.queues.unsent.UnsentStore",
)
DECORATED = ("scheduler.sending.CallTask", "scheduler.sending.BlockingSender")
AROUND = (
    "scheduler.middleware.Sending",
    "scheduler.middleware.CallNext",
    "scheduler.middleware.SendNext",
)


def api_page() -> str:
    """Every public name, with its docstring."""
    errors = [name for name in scheduler.__all__ if _is_error(name)]
    others = [name for name in scheduler.__all__ if name not in errors]
    return "\n\n".join(
        [
            FROM_CODE,
            *(_public(name) for name in others),
            "## What a decorator returns",
            *(_directive("autoclass", name, *WHOLE) for name in DECORATED),
            "## What sending returns, and stores",
            *(_directive("autoclass", name, ":members:") for name in SENT),
            "## Around runs and messages",
            _directive("autoclass", AROUND[0], ":members:"),
            *(_directive("autodata", name, ":no-value:") for name in AROUND[1:]),
            "## Traces",
            _directive("automodule", "scheduler.tracing", ":members:"),
            "## Errors",
            _directive("automodule", "scheduler.errors"),
            "\n".join(["```text", *_tree(scheduler.SchedulerError), "```"]),
            *(_public(name) for name in errors),
            "",
        ]
    )


def _is_error(name: str) -> bool:
    value = getattr(scheduler, name)
    return isinstance(value, type) and issubclass(value, scheduler.SchedulerError)


def _tree(error: type[scheduler.SchedulerError], depth: int = 0) -> Iterator[str]:
    yield f"{'    ' * depth}{error.__name__}: {default_message(error)}"
    for each in error.__subclasses__():
        yield from _tree(each, depth + 1)


def _public(name: str) -> str:
    options = {"Scheduler": WHOLE, "Settings": ()}.get(name, (":members:",))
    return _directive("autoclass", f"scheduler.{name}", *options)


def _directive(kind: str, name: str, *options: str) -> str:
    lines = [f".. {kind}:: {name}", *(f"   {option}" for option in options)]
    return "\n".join(["```{eval-rst}", *lines, "```"])


# The runbook of each alert


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    return [rule for group in rules["spec"]["groups"] for rule in group["rules"]]


def alerts_page() -> str:
    return "\n\n".join([FROM_CODE, *map(_alert, alerts())]) + "\n"


def _alert(rule: Mapping[str, Any]) -> str:
    said = {name: " ".join(text.split()) for name, text in rule["annotations"].items()}
    return (
        f"## {rule['alert']}\n\n"
        f"*{rule['labels']['severity']}*: `{said['summary']}`\n\n"
        f"**What the system does.** {said['description']}\n\n"
        f"**What to do.** {said['runbook']}"
    )
