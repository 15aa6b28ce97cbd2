"""The image, made from the Dockerfile's own steps, holds all that a processor needs."""

import asyncio
import signal
import subprocess
import tomllib
import zipfile
from pathlib import Path
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement

from tests.k8s.builds import BUILDS, ROOT, environment
from tests.k8s.dockerfile import Image, in_context
from tests.rabbitmq import free_ports
from tests.stage import an_app
from tests.sweep import clear

TIME_LIMIT = 60

# A user's own app, on top of the image.
BILLING = """\
from scheduler import Context, Scheduler

app = Scheduler({namespace!r})


@app.periodic(every="1s")
async def poll(ctx: Context) -> None: ...
"""


@pytest.mark.timeout(600)
def test_a_derived_image_processes_until_it_is_stopped(
    tmp_path: Path, namespace: str, broker_url: str
) -> None:
    image = Image(tmp_path)
    image.make()
    has_the_package_and_nothing_of_the_tests(image)
    assert "Usage: scheduler" in ended(image.start("--help"))
    assert "book" in ended(image.start("next")), "the example is the app that nobody named"

    (image.root / "app" / "billing").mkdir()
    (image.root / "app" / "billing" / "jobs.py").write_text(BILLING.format(namespace=namespace))
    billing = {"SCHEDULER_APP": "billing.jobs:app", "SCHEDULER_BROKER_URL": broker_url}
    try:
        ended(image.start("seed", **billing))
        health, metrics = map(str, free_ports(2))
        ports = {"SCHEDULER_HEALTH_PORT": health, "SCHEDULER_METRICS_PORT": metrics}
        processes(image.start(**billing, **ports), health, metrics)
    finally:
        asyncio.run(clear(broker_url, an_app(namespace, ["poll"]).topology()))


def has_the_package_and_nothing_of_the_tests(image: Image) -> None:
    assert {path.name for path in (image.root / "app").iterdir()} == {"examples"}
    (installed,) = image.root.glob("opt/scheduler/lib/python3.*/site-packages/scheduler")
    packaged = {path.relative_to(installed) for path in installed.rglob("*.py")}
    source = ROOT / "scheduler"
    assert packaged == {path.relative_to(source) for path in source.rglob("*.py")}
    # Compiled, as a processor has no right to write there.
    assert len(list(installed.glob("__pycache__/*.pyc"))) == len(list(installed.glob("*.py")))
    (wheel,) = image.root.glob("build/dist/*.whl")
    times = {member.date_time for member in zipfile.ZipFile(wheel).infolist()}
    assert times == {(2026, 1, 1, 0, 0, 0)}, "the time of its making is in the wheel"


def processes(processor: "subprocess.Popen[str]", health: str, metrics: str) -> None:
    with processor:
        try:
            assert processor.stdout
            assert any("poll #0" in line and "succeeded" in line for line in processor.stdout)
            assert "live" in page(health, "livez")
            assert 'scheduler_attempts_total{loop="poll"' in page(metrics, "metrics")
            processor.send_signal(signal.SIGTERM)
            ended(processor)
        finally:
            processor.kill()


def page(port: str, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=TIME_LIMIT) as answer:
        return answer.read().decode()


def ended(process: "subprocess.Popen[str]") -> str:
    said, _ = process.communicate(timeout=TIME_LIMIT)
    assert process.returncode == 0, said
    return said


@pytest.mark.parametrize("name", BUILDS)
def test_pods_run_an_app_that_is_in_the_image(name: str) -> None:
    path, _, _ = environment(name)["SCHEDULER_APP"].partition(":")
    assert in_context(Path(path))
    assert (ROOT / path).is_file()
    for other in ("tests/rabbitmq.py", ".git/config", "scheduler/__pycache__/x.pyc"):
        assert not in_context(Path(other))


def locked(name: str) -> dict[str, str]:
    """The versions in a list of dependencies."""
    text = (ROOT / "k8s" / "image" / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = [Requirement(line.partition(" --hash")[0].strip()) for line in lines]
    return {each.name: str(each.specifier).removeprefix("==") for each in found}


def test_locked_versions_are_allowed_by_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = {
        "runtime.txt": [
            *project["project"]["dependencies"],
            *(each for extra in ("metrics", "uvloop", "dashboard") for each in extras[extra]),
        ],
        "build.txt": project["build-system"]["requires"],
    }
    for name, requirements in wanted.items():
        versions = locked(name)
        for requirement in map(Requirement, requirements):
            assert versions[requirement.name] in requirement.specifier
