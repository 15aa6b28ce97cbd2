"""What a processor tells of itself when the roll is called."""

from datetime import datetime
from importlib import metadata
from typing import NamedTuple

DISTRIBUTION = "rabbit-scheduler"
"""What the package is installed as: the name `scheduler` is another one's on PyPI."""


class About(NamedTuple):
    """A processor, by its own account.

    Attributes:
        version: of this package; empty: it has not told.
        since: when it began; None: it has not told.
    """

    version: str = ""
    since: datetime | None = None


NOTHING_TOLD = About()


def about_this(since: datetime | None) -> About:
    """That of this program."""
    try:
        return About(metadata.version(DISTRIBUTION), since)
    except metadata.PackageNotFoundError:  # it runs without having been installed
        return About("", since)
