"""How many pods KEDA asks for, by the manifests."""

import math
from typing import Any

from tests.k8s.builds import Manifest, one

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
