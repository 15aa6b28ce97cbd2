"""Every manifest is what Kubernetes, and the operators, take."""

import copy

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
from kubernetes_validate.utils import all_versions  # pyright: ignore[reportMissingTypeStubs]

from tests.k8s import custom_resources
from tests.k8s.builds import BUILDS, Manifest, build, of_kind

# The newest three, which get updates (https://kubernetes.io/releases/). All are listed twice.
VERSIONS = all_versions()[-6::2]
REFUSED = (kubernetes_validate.ValidationError, ValueError)


def check(manifest: Manifest, version: str) -> None:
    if manifest["apiVersion"].startswith(custom_resources.GROUPS):
        custom_resources.check(manifest)
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", BUILDS)
def test_manifests_are_valid(name: str, version: str) -> None:
    assert build(name)
    for manifest in build(name):
        check(manifest, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pod_template_of_the_broker_cluster_is_valid(version: str) -> None:
    (cluster,) = of_kind("production", "RabbitmqCluster")
    spec = cluster["spec"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "rabbitmq"},
        "spec": {
            "affinity": spec["affinity"],
            "containers": [{"name": "rabbitmq", "resources": spec["resources"]}],
        },
    }
    kubernetes_validate.validate(pod, version, strict=True)


def test_a_misspelt_field_is_found() -> None:
    for manifest in copy.deepcopy(build("production")):
        # ConfigMaps and Secrets have no spec.
        manifest.get("spec", manifest)["misspelt"] = True
        with pytest.raises(REFUSED, match="misspelt"):
            check(manifest, VERSIONS[-1])
