"""`scheduler --version`."""

import platform
from importlib.metadata import version

DISTRIBUTION = "rabbit-scheduler"
"""What it is installed as: the name `scheduler` is another package's on PyPI."""


def told() -> str:
    """This package's version, and that of the Python that runs it."""
    return f"scheduler {version(DISTRIBUTION)}, Python {platform.python_version()}"
