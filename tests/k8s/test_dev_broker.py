"""The broker of the overlay dev, started from its own files, lets each user do its part only."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.conftest import CommandLine
from tests.k8s.builds import ROOT, container, dev_definitions, environment, of_kind, one, secret
from tests.rabbitmq import PrivateNode, as_nodes_see, directory_for_nodes


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """The address of a node with the configuration and the definitions of the overlay."""
    files = secret("dev", "rabbitmq")
    mounts = container(one("dev", "StatefulSet", "rabbitmq"))["volumeMounts"]
    places = {each["subPath"]: each["mountPath"] for each in mounts if "subPath" in each}
    assert set(places) == set(files)
    assert places["definitions.json"] in files["rabbitmq.conf"]
    with directory_for_nodes() as directory:
        (definitions := directory / "definitions.json").write_text(files["definitions.json"])
        here = str(as_nodes_see(definitions))
        configuration = files["rabbitmq.conf"].replace(places["definitions.json"], here)
        with PrivateNode(configuration) as node:
            yield urlsplit(node.url).netloc.rpartition("@")[2]


def scheduler(broker: str, mounted: Path, *, user: str) -> CommandLine:
    """The command line as pods have it, with the Secret of the user mounted as files."""
    for key, value in secret("dev", f"scheduler-{user}-user-credentials").items():
        (mounted / key).write_text(value)
    return CommandLine(
        ROOT,
        SCHEDULER_APP=environment("dev")["SCHEDULER_APP"],
        SCHEDULER_BROKER_URL=f"amqp://{broker}/",
        SCHEDULER_BROKER_USER_FILE=str(mounted / "username"),
        SCHEDULER_BROKER_PASSWORD_FILE=str(mounted / "password"),
    )


@pytest.mark.timeout(240)
def test_processors_wait_for_the_seed_job_and_work_with_fewer_rights(broker: str, tmp_path: Path):
    as_processor = scheduler(broker, tmp_path, user="processor")
    unseeded = as_processor("run")
    assert unseeded.code == 1, "Kubernetes has to start it again"
    assert "seed" in unseeded.output
    refused = as_processor("seed")
    assert (refused.code, "refused" in refused.output.lower()) == (1, True)
    done = scheduler(broker, tmp_path, user="seed")("seed")
    assert done.code == 0, done.output
    with scheduler(broker, tmp_path, user="processor").processor() as processor:
        # It has sent messages through the timers of calls, and has settled the tick.
        processor.until("book #0  succeeded")
        processor.signal()
        assert processor.end().code == 0


def test_the_dev_users_are_those_of_the_secrets() -> None:
    made = {
        (login["username"], login["password"])
        for login in (
            secret("dev", each["metadata"]["name"])
            for each in of_kind("dev", "Secret")
            if each["metadata"]["name"].endswith("-user-credentials")
        )
    }
    assert made == {(user["name"], user["password"]) for user in dev_definitions()["users"]}
