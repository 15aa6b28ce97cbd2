"""Who answers roll calls, and has not left since."""

from collections.abc import Collection
from contextlib import aclosing

from scheduler.brokers.contract import Broker
from scheduler.protocol.messages import Message

QUESTION, ANSWER, GOODBYE = "scheduler.question", "scheduler.answer", "scheduler.goodbye"
RUNNING_QUESTION, RUNNING_ANSWER = "scheduler.running.question", "scheduler.running.answer"
QUESTIONS, ANSWERS = (QUESTION, RUNNING_QUESTION), (ANSWER, RUNNING_ANSWER)
REMEMBERED = 1_000  # of those who were killed, nobody says that they left


class Attendance:
    """What the messages of a roll call tell of who is there."""

    def __init__(self) -> None:
        self._questions = 0
        self._last_answered: dict[str, int] = {}

    def hear(self, message: Message) -> None:
        """Take note of a question, an answer, or a goodbye."""
        name = message.app_id or ""
        if message.type in QUESTIONS:
            self._questions += 1
        elif message.type in (*ANSWERS, GOODBYE):
            self._last_answered.pop(name, None)
        if message.type in ANSWERS:
            self._last_answered[name] = self._questions
            if len(self._last_answered) > REMEMBERED:
                del self._last_answered[next(iter(self._last_answered))]

    def missing(self, answered: Collection[str], many: int) -> list[str]:
        """So many who have not answered now, and did so last; more if they are equal in that."""
        others = {name: at for name, at in self._last_answered.items() if name not in answered}
        latest = sorted(others.values(), reverse=True)[:many]
        return sorted(name for name, at in others.items() if latest and at >= latest[-1])


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
