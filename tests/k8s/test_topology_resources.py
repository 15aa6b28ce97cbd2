"""Resources for the Messaging Topology Operator declare what `scheduler seed` declares."""

import json
import subprocess
import sys
from typing import Any

from scheduler.protocol.topology import QueueType, definitions, topology
from tests.k8s import custom_resources
from tests.k8s.builds import K8S, Manifest

LIKE_EACH_OTHER = ("send_sms", "send-sms", "Send_Sms")


def test_resources_declare_exactly_the_exported_topology(queue_type: QueueType) -> None:
    wanted = topology("billing", LIKE_EACH_OTHER, called=LIKE_EACH_OTHER, queue_type=queue_type)
    # As `scheduler topology export` prints it.
    exported = json.dumps(definitions(wanted), default=dict)
    done = subprocess.run(
        [sys.executable, K8S / "topology_resources.py", "--cluster", "brokers"],
        input=exported,
        capture_output=True,
        text=True,
        check=True,
    )
    resources: list[Manifest] = json.loads(done.stdout)["items"]
    declared: dict[str, list[dict[str, Any]]] = {"exchanges": [], "queues": [], "bindings": []}
    for resource in resources:
        custom_resources.check(resource)
        assert resource["spec"]["rabbitmqClusterReference"] == {"name": "brokers"}
        declared[f"{resource['kind'].lower()}s"].append(as_exported(resource))
    assert declared == json.loads(exported)
    names = [(each["kind"], each["metadata"]["name"]) for each in resources]
    assert len(set(names)) == len(names)


def as_exported(resource: Manifest) -> dict[str, Any]:
    spec = resource["spec"]
    match resource["kind"]:
        case "Exchange":
            names = ("name", "vhost", "type", "durable", "arguments")
            rest: dict[str, Any] = {"auto_delete": spec["autoDelete"], "internal": False}
        case "Queue":
            assert spec["type"] == spec["arguments"]["x-queue-type"]
            assert spec["deletionPolicy"] == "retain"  # the queue, when its resource is deleted
            names = ("name", "vhost", "durable", "arguments")
            rest = {"auto_delete": spec["autoDelete"]}
        case _:
            names = ("vhost", "source", "destination", "arguments")
            rest = {"destination_type": spec["destinationType"], "routing_key": spec["routingKey"]}
    return {name: spec[name] for name in names} | rest
