"""The programs that judge the manifests: those of the machine, else out of Debian's packages."""

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.rabbitmq import locked

UNPACKED = Path(tempfile.gettempdir(), f"scheduler-tests-programs-{os.getuid()}")


class NoProgram(Exception):
    """A program is not there, and how to get it."""


@functools.cache
def promtool() -> Path:
    """Checks and tests the rules of Prometheus."""
    # Debian 12 has it in the package of the server.
    return _on_path("promtool") or _unpacked("promtool", packages=("promtool", "prometheus"))


@functools.cache
def kustomize() -> tuple[str | Path, ...]:
    """The command that builds a kustomization. kubectl (1.21 or newer) has it built in."""
    if (own := _on_path("kustomize")) is not None:
        return (own, "build")
    if (kubectl := _on_path("kubectl")) is not None:
        return (kubectl, "kustomize")
    return (_unpacked("kustomize", packages=("kustomize",)), "build")


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def _unpacked(name: str, packages: tuple[str, ...]) -> Path:
    """Only unpacked, not installed: that needs no rights, and starts no service."""
    program = UNPACKED / "usr" / "bin" / name
    UNPACKED.mkdir(mode=0o700, exist_ok=True)
    with locked(UNPACKED / "lock"):
        if not program.exists():
            said = _fetch(packages)
            if not program.exists():
                raise NoProgram(
                    f"The tests of k8s/ need {name}, and it cannot be had here: install it. "
                    f"Debian 13 and newer have a package of that name.\n{said}"
                )
    return program


def _fetch(packages: tuple[str, ...]) -> str:
    if not shutil.which("apt-get"):
        return "There is no apt-get."
    downloads = [("apt-get", "download", "-q", package) for package in packages]
    said = ""
    # The lists may be old, or not there.
    for command in (*downloads, ("apt-get", "update", "-q"), *downloads):
        said += _run(*command)
        for archive in UNPACKED.glob("*.deb"):
            said += _run("dpkg-deb", "--extract", archive, UNPACKED)
            archive.unlink()
            return said
    return said


def _run(*command: str | Path) -> str:
    done = subprocess.run(
        command,
        cwd=UNPACKED,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout
