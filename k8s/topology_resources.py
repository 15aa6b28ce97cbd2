"""RabbitMQ definitions as resources of the Messaging Topology Operator (1.17 or newer).

    scheduler topology export APP | python k8s/topology_resources.py > topology.json
    kubectl apply --namespace scheduler -f topology.json

For clusters where only that operator declares: instead of the Job that seeds, and of its user.
Processors then start the loops by themselves, within two minutes, because supervision finds that
they were not seeded. A changed schedule takes `scheduler seed` even so.

Expect some 600 resources, and 1,200 with one-off messages: each timer is a queue, with bindings.
Deleting a Queue resource leaves the queue, as what waits for its time is in it. For another number
of shards of a task, run `scheduler seed`: the old bindings must go before the new ones come.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from typing import Any


def resources(definitions: dict[str, Any], cluster: str) -> Iterator[dict[str, Any]]:
    """A resource for each exchange, queue and binding."""

    def resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        return {
            "apiVersion": "rabbitmq.com/v1beta1",
            "kind": kind,
            "metadata": {"name": resource_name(name)},
            "spec": spec | {"rabbitmqClusterReference": {"name": cluster}},
        }

    for exchange in definitions["exchanges"]:
        yield resource(
            "Exchange",
            exchange["name"],
            {
                "name": exchange["name"],
                "vhost": exchange["vhost"],
                "type": exchange["type"],
                "durable": exchange["durable"],
                "autoDelete": exchange["auto_delete"],
                "arguments": exchange["arguments"],
            },
        )
    for queue in definitions["queues"]:
        yield resource(
            "Queue",
            queue["name"],
            {
                "name": queue["name"],
                "vhost": queue["vhost"],
                "type": queue["arguments"]["x-queue-type"],
                "durable": queue["durable"],
                "autoDelete": queue["auto_delete"],
                "arguments": queue["arguments"],
                "deletionPolicy": "retain",
            },
        )
    for binding in definitions["bindings"]:
        ends = [binding["source"], binding["destination"], binding["routing_key"]]
        asked = [f"{name} {value}" for name, value in binding["arguments"].items()]
        yield resource(
            "Binding",
            " ".join(ends + asked),
            {
                "vhost": binding["vhost"],
                "source": binding["source"],
                "destination": binding["destination"],
                "destinationType": binding["destination_type"],
                "routingKey": binding["routing_key"],
                "arguments": binding["arguments"],
            },
        )


def resource_name(name: str) -> str:
    """A name that Kubernetes allows; the digest tells apart what looks the same in it."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:200]
    return f"{readable}-{digest}"


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--cluster", default="rabbitmq", help="name of the RabbitmqCluster")
    cluster = options.parse_args().cluster
    items = list(resources(json.load(sys.stdin), cluster))
    # YAML understands JSON, so kubectl does.
    json.dump({"apiVersion": "v1", "kind": "List", "items": items}, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
