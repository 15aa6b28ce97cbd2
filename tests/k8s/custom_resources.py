"""The fields of custom resources, as far as the manifests use them.

No package carries the schemas of RabbitMQ's operators; those for KEDA and the Prometheus Operator
let unknown fields pass. So a field that is not here is refused: look it up, then add it.

- https://github.com/kedacore/keda, config/crd/bases (2.16 and 2.20), and of the trigger's
  metadata pkg/scalers/rabbitmq_scaler.go
- https://github.com/cert-manager/cert-manager, deploy/crds (1.18)
- https://github.com/prometheus-operator/prometheus-operator, example/prometheus-operator-crd (0.93)
- https://github.com/rabbitmq/cluster-operator, config/crd/bases (2.22)
- https://github.com/rabbitmq/messaging-topology-operator, config/crd/bases (1.17 and 1.20)
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

GROUPS = ("cert-manager.io/", "keda.sh/", "monitoring.coreos.com/", "rabbitmq.com/")
METADATA = {"name", "namespace", "labels"}
SPECS = {
    "keda.sh/v1alpha1 ScaledObject": """
        scaleTargetRef{name} minReplicaCount maxReplicaCount cooldownPeriod pollingInterval
        advanced{horizontalPodAutoscalerConfig{behavior{scaleDown{
            stabilizationWindowSeconds policies{type value periodSeconds}}}}}
        triggers{type authenticationRef{name}
            metadata{host queueName protocol mode value activationValue}}
    """,
    "keda.sh/v1alpha1 TriggerAuthentication": """
        secretTargetRef{parameter name key} configMapTargetRef{parameter name key}
    """,
    "cert-manager.io/v1 Issuer": "selfSigned{} ca{secretName}",
    "cert-manager.io/v1 Certificate": """
        secretName issuerRef{name} commonName isCA dnsNames duration privateKey{algorithm size}
    """,
    "monitoring.coreos.com/v1 PodMonitor": """
        selector{matchLabels{*}} podMetricsEndpoints{port path interval params{*} honorLabels}
    """,
    "monitoring.coreos.com/v1 PrometheusRule": """
        groups{name rules{alert expr for labels{*} annotations{*}}}
    """,
    "rabbitmq.com/v1beta1 RabbitmqCluster": """
        replicas image persistence{storage} resources{requests{*} limits{*}} tls{secretName}
        rabbitmq{additionalConfig}
        affinity{podAntiAffinity{requiredDuringSchedulingIgnoredDuringExecution{
            labelSelector{matchLabels{*}} topologyKey}}}
    """,
    "rabbitmq.com/v1beta1 User": "rabbitmqClusterReference{name}",
    "rabbitmq.com/v1beta1 Permission": """
        vhost userReference{name} permissions{configure write read} rabbitmqClusterReference{name}
    """,
    "rabbitmq.com/v1beta1 Policy": """
        name vhost pattern applyTo definition{*} priority rabbitmqClusterReference{name}
    """,
    "rabbitmq.com/v1beta1 Exchange": """
        name vhost type durable autoDelete arguments{*} rabbitmqClusterReference{name}
    """,
    "rabbitmq.com/v1beta1 Queue": """
        name vhost type durable autoDelete arguments{*} deletionPolicy
        rabbitmqClusterReference{name}
    """,
    "rabbitmq.com/v1beta1 Binding": """
        vhost source destination destinationType routingKey arguments{*}
        rabbitmqClusterReference{name}
    """,
}
Fields = dict[str, "Fields"]


def check(manifest: Mapping[str, Any]) -> None:
    """Refuse fields that are not known.

    Raises:
        ValueError: there are some.
    """
    spec = SPECS[f"{manifest['apiVersion']} {manifest['kind']}"]
    known = _read(iter(re.findall(r"[\w*]+|[{}]", spec)))
    unknown = [*manifest["metadata"].keys() - METADATA, *_unknown(manifest["spec"], known)]
    if unknown:
        raise ValueError(f"{manifest['kind']}: {', '.join(unknown)}")


def _read(words: Iterator[str]) -> Fields:
    fields: Fields = {}
    last = ""
    for word in words:
        if word == "}":
            break
        if word == "{":
            fields[last] = _read(words)
        else:
            fields[last := word] = {}
    return fields


def _unknown(value: object, known: Fields) -> Iterator[str]:
    match value:
        case dict():
            for name, each in cast("dict[str, Any]", value).items():
                if name in known:
                    yield from _unknown(each, known[name])
                elif "*" not in known:
                    yield name
        case list():
            for each in cast("list[Any]", value):
                yield from _unknown(each, known)
        case _:
            pass
