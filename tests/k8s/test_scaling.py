"""What KEDA makes of the queues: pods for ready messages, from none."""

import math
from typing import Any

import pytest

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.calls import task_key
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names, topology
from tests.contract.wire import Inbox, has_depth
from tests.k8s.builds import Manifest, one
from tests.sweep import sweep as delete_all

DEDICATED = one("keda", "ScaledObject", "scheduler-processor-remind")
GENERAL = one("keda", "ScaledObject", "scheduler-processor")


def pods_for(scaler: Manifest, ready: int) -> int:
    """How many pods KEDA asks for at so many ready messages.

    From none to one by KEDA itself (https://keda.sh/docs/latest/scalers/rabbitmq-queue/, mode
    QueueLength), further by the autoscaler: the messages over the value, rounded up
    (https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details).
    """
    spec: Any = scaler["spec"]
    value = int(spec["triggers"][0]["metadata"]["value"])
    if ready == 0:
        return spec["minReplicaCount"]
    return min(max(math.ceil(ready / value), spec["minReplicaCount"], 1), spec["maxReplicaCount"])


@pytest.mark.parametrize(
    ("scaler", "ready", "pods"),
    [
        (DEDICATED, 0, 0),
        (DEDICATED, 1, 1),
        (DEDICATED, 101, 2),
        (DEDICATED, 1_000_000, 20),
        (GENERAL, 0, 2),
        (GENERAL, 201, 3),
    ],
)
def test_pods_scale_with_the_backlog(scaler: Manifest, ready: int, pods: int) -> None:
    assert pods_for(scaler, ready) == pods


async def test_unacked_messages_add_no_pod(broker_url: str, namespace: str) -> None:
    names = Names(namespace)
    queue = names.processor_queue("remind")
    async with AmqpBroker(broker_url) as broker:
        wanted = topology(namespace, ["remind"], called=["remind"])
        await broker.declare(wanted)
        try:
            for _ in range(250):
                message = Message(b"{}")
                await broker.publish(
                    message, exchange=names.delayed, routing_key=task_key("remind")
                )
            # KEDA asks as we do: it declares the queue passively.
            await has_depth(broker, queue, ready=250)
            assert pods_for(DEDICATED, 250) == 3
            pod = await Inbox.open(broker, queue, prefetch=100)
            await has_depth(broker, queue, ready=150)
            assert pods_for(DEDICATED, 150) == 2
            await pod.consumer.cancel()
        finally:
            await delete_all(broker, (each.name for each in wanted.queues))
