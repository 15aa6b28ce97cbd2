"""What the package is installed as: at each place that names it."""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

from scheduler.queues.about import DISTRIBUTION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_distribution_has_its_name_and_installs_its_command():
    assert PROJECT["name"] == DISTRIBUTION
    commands = entry_points(group="console_scripts", name="scheduler")
    assert DISTRIBUTION in {command.dist.name for command in commands if command.dist}


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_each_extra_is_named_with_the_distribution(extra: str):
    texts = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    texts += [*ROOT.glob("scheduler/**/*.py"), *ROOT.glob("k8s/**/*.*")]
    named = {
        found for path in texts for found in re.findall(rf"([-\w]+)\[{extra}\]", path.read_text())
    }
    assert named <= {DISTRIBUTION}


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").iterdir()))
def test_a_workflow_may_only_read(path: Path):
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_only_the_job_that_publishes_gets_an_identity_token():
    workflow = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())
    allowed = {name: job.get("permissions") for name, job in workflow["jobs"].items()}
    assert allowed == {"build": None, "publish": {"id-token": "write"}}
    assert workflow["jobs"]["publish"]["environment"]["url"].endswith(f"/{DISTRIBUTION}")


def test_the_version_has_an_entry_in_the_changelog():
    assert f"## [{PROJECT['version']}] - " in (ROOT / "CHANGELOG.md").read_text()
