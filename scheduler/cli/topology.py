"""What the app needs in the broker: `scheduler topology show` and `export`."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.tree import Tree

from scheduler.cli.arguments import AppArgument, Json, command, new_group
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import print_json
from scheduler.cli.tables import console
from scheduler.protocol.topology import Binding, Topology, definitions

TIME_TO_LIVE = "x-message-ttl"
FEW = 4

cli = new_group("Show or export the exchanges and queues the app uses.")


@command(cli, "show", asks=False)
def topology_show(
    reference: AppArgument = None,
    whole: Annotated[
        bool, typer.Option("--all", help="Every timer queue, too, which are many.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the exchanges, queues and bindings of the app, as a tree."""
    topology = ready_app(reference).topology()
    if as_json:
        print_json(asdict(topology))
    else:
        console().print(_tree(topology, whole=whole))


@command(cli, "export", asks=False)
def topology_export(
    reference: AppArgument = None,
    vhost: Annotated[str, typer.Option(help="The virtual host that they are for.")] = "/",
    as_json: Annotated[
        bool, typer.Option("--json", help="It is JSON in any case.", show_default=False)
    ] = True,
) -> None:
    """Print the exchanges and queues, as RabbitMQ definitions (JSON).

    They are for `rabbitmqctl import_definitions`, or for an operator of Kubernetes.
    """
    print_json(definitions(ready_app(reference).topology(), vhost))


def _tree(topology: Topology, *, whole: bool) -> Tree:
    tree = Tree("exchanges, and what is bound to them")
    arguments = {each.name: each.arguments for each in (*topology.exchanges, *topology.queues)}
    for exchange in topology.exchanges:
        branch = tree.add(f"{exchange.name} ({exchange.type}){_listed(exchange.arguments)}")
        bound = [binding for binding in topology.bindings if binding.source == exchange.name]
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
    """Return what timer queues have in common that differ in their time alone."""
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
