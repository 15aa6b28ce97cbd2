"""Who has answered the last roll calls, and has not left since."""

from contextlib import aclosing

from scheduler.brokers.contract import Broker
from scheduler.protocol.messages import Message

QUESTION, ANSWER, GOODBYE = "scheduler.question", "scheduler.answer", "scheduler.goodbye"
REMEMBERED = 5  # questions, and who answered them


class Attendance:
    """What the messages of a roll call tell of who is there."""

    def __init__(self) -> None:
        self._answered: dict[str, set[str]] = {}

    @property
    def is_enough(self) -> bool:
        """Whether as many questions were heard as are remembered."""
        return len(self._answered) >= REMEMBERED

    @property
    def names(self) -> set[str]:
        return {name for names in self._answered.values() for name in names}

    def hear(self, message: Message) -> None:
        """Take note of a question, an answer, or a goodbye."""
        question, name = message.correlation_id or "", message.app_id or ""
        if message.type == QUESTION:
            self._answered[question] = set()
            while len(self._answered) > REMEMBERED:
                del self._answered[next(iter(self._answered))]
        elif message.type == ANSWER and question in self._answered:
            self._answered[question].add(name)
        elif message.type == GOODBYE:
            for names in self._answered.values():
                names.discard(name)


async def attendance_of(broker: Broker, roll_call: str) -> Attendance:
    """What the stream of a roll call tells.

    Raises:
        BrokerError: it cannot be read.
    """
    attendance = Attendance()
    async with aclosing(broker.read(roll_call)) as messages:
        async for message in messages:
            attendance.hear(message)
    return attendance
