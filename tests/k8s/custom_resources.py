"""The custom resources, as far as the manifests use them: a strict model of each.

No package carries the schemas of RabbitMQ's operators; those for KEDA and the Prometheus Operator
let unknown fields pass. So a field that is not here is refused: look it up, then add it.

- https://github.com/kedacore/keda, config/crd/bases (2.16 and 2.20), and of the trigger's
  metadata pkg/scalers/rabbitmq_scaler.go
- https://github.com/cert-manager/cert-manager, deploy/crds (1.18)
- https://github.com/prometheus-operator/prometheus-operator, example/prometheus-operator-crd (0.93)
- https://github.com/rabbitmq/cluster-operator, config/crd/bases (2.22)
- https://github.com/rabbitmq/messaging-topology-operator, config/crd/bases (1.17 and 1.20)
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class Metadata(Model):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
    namespace: str | None = None
    labels: dict[str, str] = {}


class Resource(Model):
    metadata: Metadata


class Selector(Model):
    match_labels: dict[str, str]


class Named(Model):
    name: str


# KEDA


class ScalingPolicy(Model):
    type: Literal["Pods", "Percent"]
    value: int
    period_seconds: int


class ScalingRules(Model):
    stabilization_window_seconds: int
    policies: list[ScalingPolicy]


class Behavior(Model):
    scale_down: ScalingRules


class AutoscalerConfig(Model):
    behavior: Behavior


class Advanced(Model):
    horizontal_pod_autoscaler_config: AutoscalerConfig


class RabbitmqMetadata(Model):
    """All of it is text, also the numbers."""

    host: str
    queue_name: str
    protocol: Literal["amqp", "http", "auto"]
    mode: Literal["QueueLength", "MessageRate"]
    value: Annotated[str, Field(pattern=r"^\d+$")]
    activation_value: Annotated[str, Field(pattern=r"^\d+$")] = "0"


class Trigger(Model):
    type: Literal["rabbitmq"]
    authentication_ref: Named
    metadata: RabbitmqMetadata


class ScaledObjectSpec(Model):
    scale_target_ref: Named
    polling_interval: int
    min_replica_count: int
    max_replica_count: int
    cooldown_period: int | None = None
    advanced: Advanced
    triggers: list[Trigger]


class ScaledObject(Resource):
    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    spec: ScaledObjectSpec


class SecretTarget(Model):
    parameter: Literal["host", "username", "password", "ca", "tls"]
    name: str
    key: str


class TriggerAuthenticationSpec(Model):
    secret_target_ref: list[SecretTarget]
    config_map_target_ref: list[SecretTarget] = []


class TriggerAuthentication(Resource):
    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["TriggerAuthentication"]
    spec: TriggerAuthenticationSpec


# The Prometheus Operator


class PodEndpoint(Model):
    port: str
    path: str | None = None
    interval: Annotated[str, Field(pattern=r"^\d+(s|m)$")]
    honor_labels: bool = False
    params: dict[str, list[str]] = {}


class PodMonitorSpec(Model):
    selector: Selector
    pod_metrics_endpoints: list[PodEndpoint]


class PodMonitor(Resource):
    api_version: Literal["monitoring.coreos.com/v1"]
    kind: Literal["PodMonitor"]
    spec: PodMonitorSpec


class Alert(Model):
    """What `promtool check rules` does not say: our alerts have all of these."""

    alert: str
    expr: str
    for_: Annotated[str | None, Field(alias="for")] = None
    labels: dict[Literal["severity"], Literal["critical", "warning"]]
    annotations: dict[Literal["summary", "description", "runbook"], str]


class RuleGroup(Model):
    name: str
    rules: list[Alert]


class PrometheusRuleSpec(Model):
    groups: list[RuleGroup]


class PrometheusRule(Resource):
    api_version: Literal["monitoring.coreos.com/v1"]
    kind: Literal["PrometheusRule"]
    spec: PrometheusRuleSpec


# cert-manager


class InSecret(Model):
    secret_name: str


class IssuerSpec(Model):
    self_signed: dict[str, Any] | None = None
    ca: InSecret | None = None


class Issuer(Resource):
    api_version: Literal["cert-manager.io/v1"]
    kind: Literal["Issuer"]
    spec: IssuerSpec


class PrivateKey(Model):
    algorithm: Literal["ECDSA", "RSA", "Ed25519"]
    size: int


class CertificateSpec(InSecret):
    is_ca: Annotated[bool, Field(alias="isCA")] = False
    common_name: str | None = None
    dns_names: list[str] = []
    duration: Annotated[str | None, Field(pattern=r"^\d+h$")] = None
    private_key: PrivateKey
    issuer_ref: Named


class Certificate(Resource):
    api_version: Literal["cert-manager.io/v1"]
    kind: Literal["Certificate"]
    spec: CertificateSpec


# RabbitMQ's Cluster Operator


class Persistence(Model):
    storage: str


class RabbitmqConfiguration(Model):
    additional_config: str


class RabbitmqClusterSpec(Model):
    """Attributes: affinity and resources are those of a pod."""

    replicas: int
    image: str
    tls: InSecret
    affinity: dict[str, Any]
    persistence: Persistence
    resources: dict[str, Any]
    rabbitmq: RabbitmqConfiguration


class RabbitmqCluster(Resource):
    api_version: Literal["rabbitmq.com/v1beta1"]
    kind: Literal["RabbitmqCluster"]
    spec: RabbitmqClusterSpec


# RabbitMQ's Messaging Topology Operator


class InCluster(Model):
    rabbitmq_cluster_reference: Named


class UserSpec(InCluster):
    import_credentials_secret: Named | None = None


class User(Resource):
    api_version: Literal["rabbitmq.com/v1beta1"]
    kind: Literal["User"]
    spec: UserSpec


class Patterns(Model):
    configure: str
    write: str
    read: str


class PermissionSpec(InCluster):
    user_reference: Named
    vhost: str
    permissions: Patterns


class Permission(Resource):
    api_version: Literal["rabbitmq.com/v1beta1"]
    kind: Literal["Permission"]
    spec: PermissionSpec


class PolicySpec(InCluster):
    name: str
    vhost: str
    pattern: str
    apply_to: Literal["queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all"]
    priority: int
    definition: dict[str, Any]


class Policy(Resource):
    api_version: Literal["rabbitmq.com/v1beta1"]
    kind: Literal["Policy"]
    spec: PolicySpec


class ExchangeSpec(InCluster):
    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]


class Exchange(Resource):
    api_version: Literal["rabbitmq.com/v1beta1"]
    kind: Literal["Exchange"]
    spec: ExchangeSpec


class QueueSpec(ExchangeSpec):
    deletion_policy: Literal["delete", "retain"]


class Queue(Resource):
    api_version: Literal["rabbitmq.com/v1beta1"]
    kind: Literal["Queue"]
    spec: QueueSpec


class BindingSpec(InCluster):
    vhost: str
    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: dict[str, str]


class Binding(Resource):
    api_version: Literal["rabbitmq.com/v1beta1"]
    kind: Literal["Binding"]
    spec: BindingSpec


CustomResource = Annotated[
    ScaledObject
    | TriggerAuthentication
    | Issuer
    | Certificate
    | PodMonitor
    | PrometheusRule
    | RabbitmqCluster
    | User
    | Permission
    | Policy
    | Exchange
    | Queue
    | Binding,
    Field(discriminator="kind"),
]

GROUPS = ("cert-manager.io/", "keda.sh/", "monitoring.coreos.com/", "rabbitmq.com/")

CUSTOM_RESOURCE: TypeAdapter[CustomResource] = TypeAdapter(CustomResource)
