"""The broker of the overlay dev, started from its own files, lets each user do its part only."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.k8s.builds import ROOT, container, dev_definitions, environment, of_kind, one, secret
from tests.rabbitmq import PrivateNode, as_nodes_see, directory_for_nodes

TIME_LIMIT = 50


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


def start(command: str, broker: str, mounted: Path, *, user: str) -> subprocess.Popen[str]:
    """As the pods do, with the Secret of the user mounted as files."""
    mounted.mkdir(exist_ok=True)
    for key, value in secret("dev", f"scheduler-{user}-user-credentials").items():
        (mounted / key).write_text(value)
    return subprocess.Popen(
        [sys.executable, "-m", "scheduler", command],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if "SCHEDULER_" not in name},
            "SCHEDULER_APP": environment("dev")["SCHEDULER_APP"],
            "SCHEDULER_BROKER_URL": f"amqp://{broker}/",
            "SCHEDULER_BROKER_USER_FILE": str(mounted / "username"),
            "SCHEDULER_BROKER_PASSWORD_FILE": str(mounted / "password"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=TIME_LIMIT)
    return process.returncode, said


def lines_until(process: subprocess.Popen[str], words: str) -> list[str]:
    assert process.stdout
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"It ended without saying {words!r}:\n{''.join(lines)}")


@pytest.mark.timeout(240)
def test_processors_wait_for_the_seed_job_and_work_with_fewer_rights(
    broker: str, tmp_path: Path
) -> None:
    code, said = ended(start("run", broker, tmp_path, user="processor"))
    assert code == 1, "Kubernetes has to start it again"
    assert "seed" in said

    code, said = ended(start("seed", broker, tmp_path, user="processor"))
    assert code == 1
    assert "refused" in said.lower()

    code, said = ended(start("seed", broker, tmp_path, user="seed"))
    assert code == 0, said

    with start("run", broker, tmp_path, user="processor") as processor:
        try:
            # It has sent messages through the timers of calls, and has settled the tick.
            lines_until(processor, "book #0  succeeded")
            processor.terminate()
            assert processor.wait(TIME_LIMIT) == 0
        finally:
            processor.kill()


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
