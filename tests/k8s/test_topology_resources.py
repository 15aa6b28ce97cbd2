"""Resources for the Messaging Topology Operator declare what `scheduler seed` declares."""

import json
import subprocess
import sys
from typing import Any

import pytest

from scheduler.protocol.topology import QueueType, definitions, topology
from tests.k8s import custom_resources
from tests.k8s.builds import K8S, Manifest

LIKE_EACH_OTHER = ("send_sms", "send-sms", "Send_Sms")


@pytest.fixture
def exported(queue_type: QueueType) -> dict[str, Any]:
    """As `scheduler topology export` prints it."""
    wanted = topology(
        "billing",
        LIKE_EACH_OTHER,
        called=LIKE_EACH_OTHER,
        queue_type=queue_type,
    )
    return json.loads(json.dumps(definitions(wanted), default=dict))


@pytest.fixture
def resources(exported: dict[str, Any]) -> list[Manifest]:
    done = subprocess.run(
        [sys.executable, K8S / "topology_resources.py", "--cluster", "brokers"],
        input=json.dumps(exported),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)["items"]


def test_the_operator_accepts_the_resources(resources: list[Manifest]) -> None:
    for resource in resources:
        custom_resources.check(resource)
        assert resource["spec"]["rabbitmqClusterReference"] == {"name": "brokers"}


def test_names_of_resources_are_unique(resources: list[Manifest]) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in resources]
    assert len(set(names)) == len(names)


def test_resources_declare_exactly_the_exported_topology(
    resources: list[Manifest], exported: dict[str, Any]
) -> None:
    declared: dict[str, list[dict[str, Any]]] = {"exchanges": [], "queues": [], "bindings": []}
    for resource in resources:
        declared[f"{resource['kind'].lower()}s"].append(as_exported(resource))
    assert declared == exported


def test_a_deleted_resource_leaves_its_queue(resources: list[Manifest]) -> None:
    queues = [each["spec"] for each in resources if each["kind"] == "Queue"]
    assert {queue["deletionPolicy"] for queue in queues} == {"retain"}


def as_exported(resource: Manifest) -> dict[str, Any]:
    spec = resource["spec"]
    match resource["kind"]:
        case "Exchange":
            names = ("name", "vhost", "type", "durable", "arguments")
            rest: dict[str, Any] = {"auto_delete": spec["autoDelete"], "internal": False}
        case "Queue":
            assert spec["type"] == spec["arguments"]["x-queue-type"]
            names = ("name", "vhost", "durable", "arguments")
            rest = {"auto_delete": spec["autoDelete"]}
        case _:
            names = ("vhost", "source", "destination", "arguments")
            rest = {
                "destination_type": spec["destinationType"],
                "routing_key": spec["routingKey"],
            }
    return {name: spec[name] for name in names} | rest
