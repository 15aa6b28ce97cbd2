"""The Dockerfile's own steps, done without Docker: its stages share one folder as their root.

So `COPY --from` has nothing to do, and a path of the image is a path below that folder.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from tests.k8s.builds import ROOT


def instructions() -> Iterator[tuple[str, str]]:
    """Each instruction with its argument, in order."""
    text = (ROOT / "Dockerfile").read_text()
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, argument = line.partition(" ")
        yield name, " ".join(argument.split())


def in_context(path: Path) -> bool:
    """Whether .dockerignore leaves a file of the project in: the last pattern that fits decides."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    fitting = [line for line in lines if line and line[0] != "#" and _fits(line, path)]
    return not fitting or fitting[-1].startswith("!")


def _fits(line: str, path: Path) -> bool:
    pattern = line.removeprefix("!")
    above = (path, *path.parents)
    if pattern.startswith("**/"):
        return any(fnmatch(each.name, pattern[3:]) for each in above)
    return any(fnmatch(str(each), pattern) for each in above)


class Image:
    """What the Dockerfile makes, below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._workdir = "/"
        self._entrypoint: list[str] = []
        self._command: list[str] = []
        of_tests = ("PYTHON", "SCHEDULER_", "VIRTUAL_ENV")
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith(of_tests)}

    def make(self) -> None:
        """Do the steps."""
        python = self.root / "usr" / "bin" / "python"
        python.parent.mkdir(parents=True)
        # The base image has a Python that knows of no package.
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(os.path.realpath(sys.executable))} "$@"\n')
        python.chmod(0o755)
        inherited = f"{python.parent}:{self._environment['PATH']}"
        self._environment["PATH"] = inherited
        for name, argument in instructions():
            match name:
                case "FROM":
                    self._workdir, self._environment["PATH"] = "/", inherited
                case "ARG" | "ENV":
                    self._set(argument)
                case "WORKDIR":
                    self._workdir = argument
                    self._real(argument).mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(argument)
                case "RUN":
                    self._run(argument)
                case "USER":
                    pass  # the tests of the manifests read it
                case "ENTRYPOINT":
                    self._entrypoint = json.loads(argument)
                case "CMD":
                    self._command = json.loads(argument)
                case _:
                    raise AssertionError(f"teach this what {name} does")

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """Start a container: the entry point with these arguments, else with those of CMD."""
        return subprocess.Popen(
            [*self._entrypoint, *(arguments or self._command)],
            cwd=self._real(self._workdir),
            env=self._environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _real(self, path: str) -> Path:
        return self.root / (path if path.startswith("/") else f"{self._workdir}/{path}").lstrip("/")

    def _rooted(self, text: str) -> str:
        """The text with the paths of the image in it, such as /opt/x, as they are here."""
        return re.sub(r"(?<![\w./$-])/(?=opt/|app\b|build\b)", f"{self.root}/", text)

    def _set(self, argument: str) -> None:
        for each in shlex.split(argument):
            name, _, value = each.partition("=")
            self._environment[name] = self._rooted(value).replace(
                "$PATH", self._environment["PATH"]
            )

    def _copy(self, argument: str) -> None:
        *sources, target = argument.split()
        if sources[0].startswith("--from="):
            assert sources[1:] == [target], "stages share one folder here"
            return
        for source in sources:
            files = [path for path in _files(ROOT / source) if in_context(path.relative_to(ROOT))]
            assert files, f".dockerignore leaves nothing of {source}"
            for file in files:
                # A folder's content is copied, a file by its name.
                below = file.relative_to(ROOT / source)
                name = below if below.parts else Path(file.name)
                to = self._real(target) / name
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, to)

    def _run(self, argument: str) -> None:
        done = subprocess.run(
            ["sh", "-e", "-c", self._rooted(argument)],
            cwd=self._real(self._workdir),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"RUN {argument}\n{done.stdout}"


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
