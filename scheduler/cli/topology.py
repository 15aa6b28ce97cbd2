"""What the app needs in the broker: `scheduler topology show` and `export`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.tree import Tree

from scheduler.cli.loading import ready_app
from scheduler.cli.printing import print_json
from scheduler.cli.tables import print_tree
from scheduler.protocol.topology import Topology, definitions


def show(reference: str | None, *, as_json: bool) -> None:
    topology = ready_app(reference).topology()
    if as_json:
        print_json(asdict(topology))
    else:
        print_tree(_tree(topology))


def export(reference: str | None, *, vhost: str) -> None:
    print_json(definitions(ready_app(reference).topology(), vhost))


def _tree(topology: Topology) -> Tree:
    tree = Tree("exchanges, and what is bound to them")
    arguments = {each.name: each.arguments for each in (*topology.exchanges, *topology.queues)}
    for exchange in topology.exchanges:
        branch = tree.add(f"{exchange.name} ({exchange.type}){_listed(exchange.arguments)}")
        for binding in topology.bindings:
            if binding.source == exchange.name:
                bound = f"{binding.destination}{_listed(arguments[binding.destination])}"
                branch.add(f"{binding.routing_key or '(all)'} → {bound}")
    return tree


def _listed(arguments: Mapping[str, Any]) -> str:
    pairs = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"  [{pairs}]" if pairs else ""
