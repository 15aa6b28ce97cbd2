"""What the shop's jobs do: here they note that they ran. Moving does not change it."""

from datetime import datetime

from record import failed_before, note


def poll(moment: datetime) -> None:
    note("poll", due=moment.timestamp())


def refresh(moment: datetime, city: str = "Bonn") -> None:
    note("refresh", due=moment.timestamp())


def close_minute(minute: datetime) -> None:
    note("close_minute", due=minute.timestamp())


def collect(run: str, moment: datetime) -> None:
    """Talks to a provider that answers only when it is asked twice."""
    if not failed_before("collect", run):
        note("collect", "failed", key=run, due=moment.timestamp())
        raise ConnectionError("the provider does not answer")
    note("collect", key=run, due=moment.timestamp())


def remind(order: int) -> None:
    note("remind", key=order)
