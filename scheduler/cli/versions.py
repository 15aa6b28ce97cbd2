"""`scheduler --version`."""

import platform
from importlib.metadata import version


def told() -> str:
    """This package's version, and that of the Python that runs it."""
    return f"scheduler {version('scheduler')}, Python {platform.python_version()}"
