"""What KEDA makes of the queues: pods for ready messages, from none."""

import math
from typing import Any

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


async def test_ready_messages_add_pods_and_unacked_ones_do_not(broker_url: str, namespace: str):
    assert [pods_for(DEDICATED, ready) for ready in (0, 1, 101, 1_000_000)] == [0, 1, 2, 20]
    assert [pods_for(GENERAL, ready) for ready in (0, 201)] == [2, 3]
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
