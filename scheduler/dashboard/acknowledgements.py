"""Record who has acknowledged a failure: the failures of one task with one kind of error.

A record in the journal, so that all processes of a dashboard show it, and a restart keeps it if it
reads the journal back so far.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from scheduler.errors import Undecodable
from scheduler.protocol.messages import WIRE, Flag, Message, Moment, parsed

ACKNOWLEDGEMENT_TYPE = "scheduler.acknowledgement"
ACKNOWLEDGED = "acknowledged"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Describe an acknowledgement: it holds until the next success, or until it is withdrawn.

    Attributes:
        kind: the error, without numbers and quoted names.
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    task: str
    kind: str
    by: str
    at: Moment
    note: str = ""
    is_withdrawn: Flag = False

    @property
    def failure(self) -> tuple[str, str]:
        return self.task, self.kind

    @property
    def rank(self) -> tuple[datetime, bool]:
        """Return its place among those of the same failure: the greatest one counts."""
        return self.at, self.is_withdrawn

    @property
    def withdrawn(self) -> "Acknowledgement":
        return replace(self, is_withdrawn=True)

    @property
    def record(self) -> Message:
        body = _ACKNOWLEDGEMENT.dump_json(self, by_alias=True)
        return Message(body, content_type="application/json", type=ACKNOWLEDGEMENT_TYPE)


_ACKNOWLEDGEMENT = TypeAdapter(Acknowledgement)


def acknowledgement_in(message: Message) -> Acknowledgement | None:
    """Return the acknowledgement that a message of the journal records; None: no readable one."""
    if message.type == ACKNOWLEDGEMENT_TYPE:
        with suppress(Undecodable):
            return parsed(_ACKNOWLEDGEMENT, message.body, "record")
    return None
