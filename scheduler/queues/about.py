"""Describe a processor in a roll call."""

from datetime import datetime
from importlib import metadata
from typing import NamedTuple

DISTRIBUTION = "rabbit-scheduler"
"""The name of the distribution: `scheduler` is another project on PyPI."""


class About(NamedTuple):
    """Describe a processor, as it reports itself.

    Attributes:
        version: of this package; empty: unknown.
        since: when it started; None: unknown.
    """

    version: str = ""
    since: datetime | None = None


NOTHING_TOLD = About()


def about_this(since: datetime | None) -> About:
    """Describe this program."""
    try:
        return About(metadata.version(DISTRIBUTION), since)
    except metadata.PackageNotFoundError:  # it runs without having been installed
        return About("", since)
