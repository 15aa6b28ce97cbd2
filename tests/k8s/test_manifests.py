"""The manifests agree with the code, and with each other."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer.main

from scheduler.cli.commands import cli
from scheduler.processor.processor import CLOSING_TIMEOUT
from scheduler.protocol.administration import rights_to_process, rights_to_seed, shield
from scheduler.settings import Settings
from scheduler.timing.durations import parse_duration
from tests.k8s.builds import (
    BUILDS,
    OPERATED,
    OVERLAYS,
    Manifest,
    app,
    build,
    container,
    dev_definitions,
    environment,
    of_kind,
    one,
    pods,
    processors,
    selects,
)
from tests.k8s.dockerfile import instructions

SCALERS = {"keda": "ScaledObject", "hpa": "HorizontalPodAutoscaler", "production": "ScaledObject"}
SCALED_BY_KEDA = ("keda", "production")


def options(arguments: list[str]) -> dict[str, Any]:
    """What the command line understands; it exits where it does not."""
    group: Any = typer.main.get_command(cli)
    with group.make_context("scheduler", list(arguments), resilient_parsing=True) as context:
        name, command, rest = group.resolve_command(context, arguments)
        return {"command": name, **command.make_context(name, rest).params}


def tasks_of(deployment: Manifest, name: str) -> set[str]:
    chosen = options(container(deployment)["args"])["tasks"]
    return {task.name for task in app(name).select(chosen.split(",") if chosen else None)}


@pytest.mark.parametrize("name", BUILDS)
def test_the_job_seeds_and_each_task_has_one_deployment_that_runs_it(name: str) -> None:
    assert options(container(one(name, "Job", "scheduler-seed"))["args"])["command"] == "seed"
    commands = [options(container(each)["args"])["command"] for each in processors(name)]
    assert set(commands) == {"run"}
    run = [task for deployment in processors(name) for task in tasks_of(deployment, name)]
    assert sorted(run) == sorted(app(name).tasks)


def test_only_users_reach_the_dashboard() -> None:
    deployment = one("dashboard", "Deployment", "scheduler-dashboard")
    only, spec = container(deployment), deployment["spec"]["template"]
    chosen = options(only["args"])
    assert (chosen["command"], chosen["host"]) == ("dashboard", "0.0.0.0")
    mounts = {each["name"]: each["mountPath"] for each in only["volumeMounts"]}
    assert str(chosen["basic_auth_file"]).startswith(mounts["users"])
    assert [port["containerPort"] for port in only["ports"]] == [chosen["port"]]
    labels = spec["metadata"]["labels"]
    service = one("dashboard", "Service", "scheduler-dashboard")["spec"]
    policy = one("dashboard", "NetworkPolicy", "scheduler-dashboard")["spec"]
    for selector in ({"matchLabels": service["selector"]}, policy["podSelector"]):
        assert selects(selector, labels)
        assert not any(
            selects(selector, each["spec"]["template"]["metadata"]["labels"])
            for each in processors("dashboard")
        )


@pytest.mark.parametrize("name", BUILDS)
def test_variables_are_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {f"SCHEDULER_{field.upper()}" for field in Settings.model_fields}
    assert set(environment(name)) <= {"SCHEDULER_APP", *fields}
    for variable, value in environment(name).items():
        monkeypatch.setenv(variable, value)
    Settings()


@pytest.mark.parametrize("name", BUILDS)
def test_a_pod_drains_and_its_successor_is_ready_before_it_ends(name: str) -> None:
    grace = parse_duration(environment(name)["SCHEDULER_SHUTDOWN_GRACE"])
    # For cancelling the consumers, and then the runs.
    at_most = grace + 2 * CLOSING_TIMEOUT
    for deployment in processors(name):
        assert "lifecycle" not in container(deployment), "a preStop pause is part of the sum"
        killed_after = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert timedelta(seconds=killed_after) > at_most
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize("name", BUILDS)
def test_ports_match_the_settings(name: str) -> None:
    settings = environment(name)
    for deployment in processors(name):
        only = container(deployment)
        assert {port["name"]: str(port["containerPort"]) for port in only["ports"]} == {
            "health": settings["SCHEDULER_HEALTH_PORT"],
            "metrics": settings["SCHEDULER_METRICS_PORT"],
        }
        probes = {probe: only[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness")}
        assert all(get == {"path": "/livez", "port": "health"} for get in probes.values())
        assert only["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


@pytest.mark.parametrize("name", BUILDS)
def test_pods_are_locked_down(name: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, and more."""
    (user,) = [argument for instruction, argument in instructions() if instruction == "USER"]
    for maker, template in pods(name):
        pod = template["spec"]
        if maker != "rabbitmq":
            context = pod["securityContext"]
            assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
            assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for each in pod["containers"]:
            assert each["securityContext"]["allowPrivilegeEscalation"] is False
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            # RabbitMQ's own image writes where it likes.
            assert each["securityContext"].get("readOnlyRootFilesystem") or maker == "rabbitmq"
            assert each["resources"]["requests"]
            assert each["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", BUILDS)
def test_credentials_are_where_the_settings_look_for_them(name: str) -> None:
    wanted = {environment(name)[f"SCHEDULER_BROKER_{each}_FILE"] for each in ("USER", "PASSWORD")}
    for maker in (*processors(name), *of_kind(name, "Job")):
        user = "seed" if maker["kind"] == "Job" else "processor"
        (mount,) = [each for each in container(maker)["volumeMounts"] if each["name"] == "broker"]
        (volume,) = [
            each
            for each in maker["spec"]["template"]["spec"]["volumes"]
            if each["name"] == "broker"
        ]
        assert volume["secret"]["secretName"] == f"scheduler-{user}-user-credentials"
        assert wanted == {f"{mount['mountPath']}/{key}" for key in ("username", "password")}


@pytest.mark.parametrize("name", BUILDS)
def test_deployments_and_their_budgets_do_not_share_pods(name: str) -> None:
    deployments = {each["metadata"]["name"]: each["spec"] for each in processors(name)}
    for called, spec in deployments.items():
        labels = spec["template"]["metadata"]["labels"]
        own = [other for other, each in deployments.items() if selects(each["selector"], labels)]
        assert own == [called]
        budgets = [
            each["metadata"]["name"]
            for each in of_kind(name, "PodDisruptionBudget")
            if selects(each["spec"]["selector"], labels)
        ]
        assert budgets == [called]
        for constraint in spec["template"]["spec"]["topologySpreadConstraints"]:
            assert selects(constraint["labelSelector"], labels)


def broker_labels(name: str) -> Mapping[str, str]:
    if of_kind(name, "RabbitmqCluster"):
        return OPERATED
    return one(name, "StatefulSet", "rabbitmq")["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_broker_is_where_the_settings_say(name: str) -> None:
    url = urlsplit(environment(name)["SCHEDULER_BROKER_URL"])
    # The operator makes a Service of the name of the cluster.
    assert one(name, "Service" if name == "dev" else "RabbitmqCluster", str(url.hostname))
    assert url.username is None
    for service in of_kind(name, "Service"):
        assert selects({"matchLabels": service["spec"]["selector"]}, broker_labels(name))
        assert url.port in {port["port"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_network_lets_processors_reach_the_broker(name: str) -> None:
    policy = one(name, "NetworkPolicy", "scheduler")["spec"]
    for maker, template in pods(name):
        is_ours = selects(policy["podSelector"], template["metadata"]["labels"])
        assert is_ours == (maker != "rabbitmq")
    (to_broker,) = [each for each in policy["egress"] if "podSelector" in each["to"][0]]
    assert selects(to_broker["to"][0]["podSelector"], broker_labels(name))
    port = urlsplit(environment(name)["SCHEDULER_BROKER_URL"]).port
    assert to_broker["ports"] == [{"protocol": "TCP", "port": port}]


def open_to(ports: set[int]) -> list[Manifest]:
    """Whom the broker of production lets in at any of these ports."""
    policy = one("production", "NetworkPolicy", "rabbitmq")["spec"]
    assert selects(policy["podSelector"], OPERATED)
    assert policy["policyTypes"] == ["Ingress"]
    return [
        peer
        for rule in policy["ingress"]
        if ports & {port["port"] for port in rule["ports"]}
        for peer in rule["from"]
    ]


def namespace_of(peer: Manifest) -> str:
    (selected,) = peer["namespaceSelector"]["matchLabels"].items()
    assert selected[0] == "kubernetes.io/metadata.name"
    return selected[1]


def test_only_pods_that_need_the_broker_reach_it() -> None:
    ours, *others = open_to({5671})
    for _, template in pods("production"):
        assert selects(ours["podSelector"], template["metadata"]["labels"])
    assert not selects(ours["podSelector"], OPERATED)
    assert [namespace_of(peer) for peer in others] == ["keda"]
    assert [namespace_of(peer) for peer in open_to({15691, 15692})] == ["monitoring"]
    assert [namespace_of(peer) for peer in open_to({15671, 15672})] == ["rabbitmq-system"]
    (node,) = open_to({4369, 25672})
    assert selects(node["podSelector"], OPERATED)
    assert open_to({5672}) == []


def test_processors_and_their_broker_speak_tls() -> None:
    url = urlsplit(environment("production")["SCHEDULER_BROKER_URL"])
    assert (url.scheme, url.port) == ("amqps", 5671)
    shown = one("production", "RabbitmqCluster", str(url.hostname))["spec"]["tls"]["secretName"]
    certificate = one("production", "Certificate", "rabbitmq")["spec"]
    assert certificate["secretName"] == shown
    (namespace,) = of_kind("production", "Namespace")
    called = {str(url.hostname), f"{url.hostname}.{namespace['metadata']['name']}.svc"}
    assert called <= set(certificate["dnsNames"])
    issuers = {each["metadata"]["name"]: each["spec"] for each in of_kind("production", "Issuer")}
    authority = one("production", "Certificate", "authority")["spec"]
    assert issuers[certificate["issuerRef"]["name"]] == {
        "ca": {"secretName": authority["secretName"]}
    }
    assert authority["isCA"]
    assert issuers[authority["issuerRef"]["name"]] == {"selfSigned": {}}
    for maker in (*processors("production"), *of_kind("production", "Job")):
        mounts = {each["name"]: each["mountPath"] for each in container(maker)["volumeMounts"]}
        trusted = environment("production")["SCHEDULER_TLS_CA_FILE"]
        assert trusted == f"{mounts['authority']}/ca.crt"
        volumes = maker["spec"]["template"]["spec"]["volumes"]
        (secret,) = [each["secret"] for each in volumes if each["name"] == "authority"]
        assert secret["secretName"] == shown
        assert secret["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "not the key of the broker"


def test_foreign_images_are_pinned_by_version_and_digest() -> None:
    operated = one("production", "RabbitmqCluster", "rabbitmq")["spec"]["image"]
    alone = container(one("dev", "StatefulSet", "rabbitmq"))["image"]
    bases = {base.split()[0] for name, base in instructions() if name == "FROM"}
    assert len(bases) == 1
    for image in {operated, alone, *bases}:
        tag, _, digest = image.partition("@")
        assert re.fullmatch(r"[a-z/.]+:\d+\.\d+[\w.-]*", tag), "it names no version"
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest), "a tag may be moved"
    assert operated == alone


@pytest.mark.parametrize("name", OVERLAYS)
def test_everything_is_in_one_namespace_with_the_secrets_of_its_users(name: str) -> None:
    (namespace,) = of_kind(name, "Namespace")
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    others = [each["metadata"]["namespace"] for each in build(name) if each is not namespace]
    assert set(others) == {namespace["metadata"]["name"]}
    # The topology operator makes one for each User, of this name.
    made = {f"{each['metadata']['name']}-user-credentials" for each in of_kind(name, "User")}
    made |= {each["metadata"]["name"] for each in of_kind(name, "Secret")}
    assert {f"scheduler-{user}-user-credentials" for user in ("seed", "processor")} <= made


def granted(name: str) -> dict[str, dict[str, str]]:
    """The patterns of each user."""
    if name == "production":
        return {
            each["spec"]["userReference"]["name"]: each["spec"]["permissions"]
            for each in of_kind(name, "Permission")
        }
    return {
        each["user"]: {right: each[right] for right in ("configure", "write", "read")}
        for each in dev_definitions()["permissions"]
    }


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_policy_shields_the_queues(name: str) -> None:
    wanted = shield(app(name).namespace)
    if name in OPERATED:
        (found,) = [each["spec"] for each in of_kind(name, "Policy")]
        found = {**found, "apply-to": found["applyTo"]}
    else:
        (found,) = dev_definitions()["policies"]
    assert {each: found[each] for each in ("name", "pattern", "priority", "definition")} == {
        "name": wanted.name,
        "pattern": wanted.pattern,
        "priority": wanted.priority,
        "definition": wanted.definition,
    }
    assert (found["apply-to"], found["vhost"]) == (wanted.apply_to, "/")


@pytest.mark.parametrize("name", OVERLAYS)
def test_users_have_the_rights_that_the_code_needs(name: str) -> None:
    names, topology = app(name).names, app(name).topology()
    assert granted(name) == {
        "scheduler-seed": asdict(rights_to_seed(names, topology)),
        "scheduler-processor": asdict(rights_to_process(names)),
    }


@pytest.mark.parametrize("name", SCALERS)
def test_scaled_deployments_have_no_fixed_replicas(name: str) -> None:
    scaled = {each["spec"]["scaleTargetRef"]["name"] for each in of_kind(name, SCALERS[name])}
    assert scaled == {each["metadata"]["name"] for each in processors(name)}
    assert not [each for each in processors(name) if "replicas" in each["spec"]]


@pytest.mark.parametrize("name", SCALED_BY_KEDA)
def test_keda_counts_queues_of_the_scaled_tasks_and_its_last_pod_outlives_a_run(name: str) -> None:
    names = app(name).names
    for scaler in of_kind(name, "ScaledObject"):
        spec = scaler["spec"]
        tasks = tasks_of(one(name, "Deployment", spec["scaleTargetRef"]["name"]), name)
        counted = [each["metadata"]["queueName"] for each in spec["triggers"]]
        assert sorted(counted) == sorted(map(names.processor_queue, tasks))
        longest = max(app(name).tasks[task].timeout for task in tasks)
        assert spec["minReplicaCount"] or timedelta(seconds=spec["cooldownPeriod"]) > longest


def test_keda_uses_the_broker_of_the_processors() -> None:
    settings = urlsplit(environment("production")["SCHEDULER_BROKER_URL"])
    (namespace,) = of_kind("production", "Namespace")
    (login,) = of_kind("production", "TriggerAuthentication")
    for each in of_kind("production", "ScaledObject"):
        for trigger in each["spec"]["triggers"]:
            host = urlsplit(str(trigger["metadata"]["host"]))
            assert host.scheme == settings.scheme
            assert host.hostname == f"{settings.hostname}.{namespace['metadata']['name']}.svc"
            assert (host.port, host.path) == (settings.port, settings.path)
            assert trigger["authenticationRef"]["name"] == login["metadata"]["name"]
    taken = {
        target["parameter"]: (target["name"], target["key"])
        for target in login["spec"]["secretTargetRef"]
    }
    user = "scheduler-processor-user-credentials"
    tls = one("production", "RabbitmqCluster", "rabbitmq")["spec"]["tls"]["secretName"]
    assert taken == {
        "username": (user, "username"),
        "password": (user, "password"),
        "ca": (tls, "ca.crt"),
    }
    (switch,) = login["spec"]["configMapTargetRef"]
    assert one("production", "ConfigMap", switch["name"])["data"][switch["key"]] == "enable"
