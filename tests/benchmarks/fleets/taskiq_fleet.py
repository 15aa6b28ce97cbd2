# pyright: basic, reportMissingImports=false
"""Loops of taskiq's scheduler: https://taskiq-python.github.io."""

from record import LOOPS, NAME, URL, ran
from taskiq import TaskiqScheduler
from taskiq.schedule_sources import LabelScheduleSource
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue

SHORT_LIVED = {"x-expires": 60_000}
broker = AioPikaBroker(
    URL,
    exchange=Exchange(name=NAME, auto_delete=True),
    task_queues=[Queue(name=NAME, arguments=SHORT_LIVED)],
    dead_letter_queue=Queue(name=f"{NAME}.dead", arguments=SHORT_LIVED),
    delay_queue=Queue(name=f"{NAME}.delay", arguments=SHORT_LIVED),
)
scheduler = TaskiqScheduler(broker, sources=[LabelScheduleSource(broker)])


@broker.task(
    task_name="loop", schedule=[{"interval": 1, "args": [number]} for number in range(LOOPS)]
)
async def loop(number: int) -> None:
    ran(number)
