"""`scheduler --version`."""

import platform
from importlib.metadata import version

from scheduler.queues.about import DISTRIBUTION


def told() -> str:
    """This package's version, and that of the Python that runs it."""
    return f"scheduler {version(DISTRIBUTION)}, Python {platform.python_version()}"
