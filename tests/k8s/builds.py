"""What kustomize makes of k8s/: each overlay, and each component on the base."""

import functools
import json
import os
import shutil
import subprocess
import tempfile
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from scheduler import Scheduler
from scheduler.cli.loading import load_app
from tests.rabbitmq import found_or_installed

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = tuple(sorted(path.name for path in (K8S / "overlays").iterdir()))
# keda brings scaling for the Deployment of dedicated.
COMPONENTS = {
    "dashboard": ("dashboard",),
    "dedicated": ("dedicated",),
    "hpa": ("hpa",),
    "keda": ("dedicated", "keda"),
    "monitoring": ("monitoring",),
}
BUILDS = ("base", *COMPONENTS, *OVERLAYS)

Manifest = dict[str, Any]

# As the RabbitMQ Cluster Operator labels the pods of a cluster with this name
# (https://github.com/rabbitmq/cluster-operator, internal/metadata/label.go).
OPERATED = {"app.kubernetes.io/name": "rabbitmq", "app.kubernetes.io/component": "rabbitmq"}


def program(name: str, package: str) -> str:
    """The path of a program, whose package is installed where that can be done."""
    found = found_or_installed(package, lambda: shutil.which(name))
    assert found, f"The tests of k8s/ need {name}, and it cannot be had here: install it."
    return found


@functools.cache
def build(name: str) -> tuple[Manifest, ...]:
    """The manifests of the base, of a component on it, or of an overlay."""
    if name in OVERLAYS:
        return _built(K8S / "overlays" / name)
    if name == "base":
        return _built(K8S / "base")
    with tempfile.TemporaryDirectory() as folder:
        # kustomize takes no absolute paths.
        near = os.path.relpath(K8S, os.path.realpath(folder))
        components = [f"{near}/components/{component}" for component in COMPONENTS[name]]
        wanted = {"resources": [f"{near}/base"], "components": components}
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(wanted))
        return _built(Path(folder))


def of_kind(name: str, *kinds: str) -> list[Manifest]:
    return [manifest for manifest in build(name) if manifest["kind"] in kinds]


def one(name: str, kind: str, called: str) -> Manifest:
    (found,) = [each for each in of_kind(name, kind) if each["metadata"]["name"] == called]
    return found


def environment(name: str) -> Mapping[str, str]:
    """The settings that all pods of the scheduler get."""
    (found,) = [
        each["data"] for each in of_kind(name, "ConfigMap") if "SCHEDULER_APP" in each["data"]
    ]
    return found


def app(name: str) -> Scheduler:
    """The app that the manifests are about."""
    path, _, attribute = environment(name)["SCHEDULER_APP"].partition(":")
    return load_app(f"{ROOT / path}:{attribute}")


def pods(name: str) -> Iterator[tuple[str, Manifest]]:
    """Each pod template, as a pod, with the name of what makes it."""
    for manifest in of_kind(name, "Deployment", "StatefulSet", "Job"):
        yield manifest["metadata"]["name"], manifest["spec"]["template"]


def processors(name: str) -> list[Manifest]:
    """The Deployments whose pods run tasks."""
    return [each for each in of_kind(name, "Deployment") if _runs_tasks(each)]


def _runs_tasks(deployment: Manifest) -> bool:
    component: str = deployment["metadata"]["labels"]["app.kubernetes.io/component"]
    return component.startswith("processor")


def container(manifest: Manifest) -> Manifest:
    """The one container of what makes pods."""
    (only,) = manifest["spec"]["template"]["spec"]["containers"]
    return only


def dev_definitions() -> dict[str, Any]:
    """What the broker of the overlay dev starts with."""
    return json.loads(secret("dev", "rabbitmq")["definitions.json"])


def secret(name: str, called: str) -> dict[str, str]:
    """What is in a Secret."""
    data = one(name, "Secret", called)["data"]
    return {key: b64decode(value).decode() for key, value in data.items()}


def selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}, "teach this what matchExpressions are"
    return all(labels.get(key) == value for key, value in selector["matchLabels"].items())


def _built(folder: Path) -> tuple[Manifest, ...]:
    if (kubectl := shutil.which("kubectl")) is not None:  # it has kustomize built in
        command = [kubectl, "kustomize"]
    else:
        command = [program("kustomize", "kustomize"), "build"]  # of Debian 13 and newer
    done = subprocess.run([*command, folder], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return tuple(cast(Iterator[Manifest], yaml.safe_load_all(done.stdout)))
