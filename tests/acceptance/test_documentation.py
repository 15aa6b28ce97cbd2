"""Follow each page to the letter, in an empty folder, with the package installed from its wheel."""

import asyncio
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from scheduler.protocol.topology import Exchange, Queue, Topology
from tests.acceptance.conftest import CommandLine
from tests.migrations.guides import GUIDES
from tests.reader import BLOCK, ROOT, Command, File, NotAsWritten, Reader, Typed, install, steps_of
from tests.sweep import alone_in, clear

PATIENCE = 90  # seconds, for a command
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if "generated" not in path.parts
    and re.search("^```(python|console)", path.read_text(encoding="utf-8"), re.MULTILINE)
}
MIGRATION = "`make migrations` follows it, with the old scheduler at work, in some minutes"
CUT_OVER = {"## Cut over": MIGRATION}
OLD_CODE = "the old scheduler is not installed; `make migrations` runs it"
NOT_RUN: dict[str, dict[str, str]] = {
    "docs/performance.md": {"$ make growth": "twelve minutes, in a clone of the repository"},
    "docs/how-to/deploy.md": {
        "$ kubectl": "needs a Kubernetes cluster; tests/k8s tries the manifests",
        "$ rabbitmqctl": "needs the cookie of a broker's node; test_policies.py tries the policy",
    },
    "docs/how-to/sharing.md": {"# shop.py": "dishka is not a dependency of the tests"},
    "docs/how-to/moving-from-celery.md": CUT_OVER | {"# checkout.py": OLD_CODE},
    "docs/how-to/moving-from-django-celery-beat.md": CUT_OVER
    | {"# shop.py": OLD_CODE, "# checkout.py": OLD_CODE},
    "docs/how-to/moving-from-taskiq.md": CUT_OVER
    | {"# shop.py": OLD_CODE, "# checkout.py": OLD_CODE},
    "docs/how-to/moving-from-cron.md": CUT_OVER | {"$ crontab": MIGRATION},
    "docs/how-to/moving-from-cronjob.md": CUT_OVER,
    "docs/how-to/moving-from-apscheduler.md": CUT_OVER | {"# old.py": OLD_CODE},
    "docs/how-to/moving-from-apscheduler-4.md": CUT_OVER
    | {"# store.py": OLD_CODE, "# shop.py": OLD_CODE, "# old.py": OLD_CODE},
}
"""What is not run, with the reason: the start of a block, or a heading and all below it."""

GIVEN = Path(__file__).parent / "given"
"""What the reader of a page has before: a page of the same name, with files and commands."""


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel once for all workers; return the folder of its programs."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    installed = folder / "installed"
    with (folder / "installed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists():
            making = folder / "installing"
            making.mkdir()
            install(making)
            installed.symlink_to(making)
    return installed / "environment/bin"


def environment_of(programs: Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SCHEDULER_", "PYTHON"))}
    path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
    return clean | {"PATH": path, "PIP_NO_INDEX": "1", "PYTHONUNBUFFERED": "1"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_as_it_says(
    page: str, programs: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = runnable(PAGES[page].read_text(encoding="utf-8"), NOT_RUN.get(page, {}))
    before = GIVEN / Path(page).name
    given = before.read_text(encoding="utf-8") if before.exists() else ""
    seeded = set(re.findall(r"^\$ scheduler seed (\S+)", given + text, re.MULTILINE))
    environment = environment_of(programs)
    url: str = request.getfixturevalue("broker_url") if seeded else ""
    if url:
        environment["SCHEDULER_BROKER_URL"] = url
    folder = tmp_path / "folder"
    folder.mkdir()
    for guide in GUIDES.values():
        if guide.page == PAGES[page]:
            shutil.copytree(guide.shared or guide.project, folder, dirs_exist_ok=True)
            shutil.copy(ROOT / "tests/migrations/record.py", folder)
    reader, modules = Reader(page, folder, environment, PATIENCE), list[str]()
    with alone_in(url, re.findall(r'Scheduler\("([\w-]+)"', given + text) if seeded else ()):
        try:
            for step in (*steps_of(given), *steps_of(text)):
                match step:
                    case File(path):
                        reader.write(step)
                        stem, _, suffix = path.partition(".")
                        if suffix == "py" and not re.search(rf"^\$ .*\b{stem}\b", text, re.M):
                            modules.append(stem)
                    case Typed(line, command):
                        reader.type(line, command)
                    case _:
                        pytest.fail(f"a page that waits is one to be left out: {step}")
            if modules:
                reader.type(0, Command(f"python -c 'import {', '.join(modules)}'", ""))
        finally:
            reader.end()
            for app in seeded:
                declared = CommandLine(folder)("topology", "export", app).json
                exchanges = tuple(Exchange(each["name"], "topic") for each in declared["exchanges"])
                queues = tuple(Queue(each["name"]) for each in declared["queues"])
                asyncio.run(clear(url, Topology(exchanges, queues)))


def runnable(text: str, left_out: Mapping[str, str]) -> str:
    """Return a page without the parts that are left out, with its lines where they were."""
    for start in left_out:
        whole = text
        if start.startswith("## "):
            text = text.partition(f"\n{start}")[0]
        else:
            for block in BLOCK.finditer(whole):
                if f"{block['text']}".startswith(start):
                    text = text.replace(block[0], "\n" * block[0].count("\n"))
        assert text != whole, f"{start!r} is left out, but not on the page"
    return text


def test_the_package_is_the_installed_one(programs: Path, tmp_path: Path) -> None:
    run = [programs / "python", "-c", "import scheduler; print(scheduler.__file__)"]
    printed = subprocess.run(
        run, cwd=tmp_path, env=environment_of(programs), check=True, capture_output=True, text=True
    )
    assert Path(printed.stdout).is_relative_to(programs.parent)


@pytest.mark.parametrize(
    "block",
    [
        "```console\n$ echo one; false\n...\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ sleep 60\n```\n",
        "```python\nassert False\n```\n",
    ],
)
def test_a_block_that_goes_wrong_is_noticed(tmp_path: Path, block: str) -> None:
    reader = Reader("page.md", tmp_path, os.environ, patience=1)
    (step,) = steps_of(f"# Page\n\n{block}")
    assert isinstance(step, Typed)
    with pytest.raises(NotAsWritten, match="^page.md, line 3: "):
        reader.type(step.line, step.command)
    reader.end()
