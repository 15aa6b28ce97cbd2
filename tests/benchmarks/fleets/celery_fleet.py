# pyright: basic, reportMissingImports=false
"""Loops of Celery's beat: https://docs.celeryq.dev."""

from celery import Celery
from kombu.entity import Queue
from record import LOOPS, NAME, URL, ran

app = Celery("fleet", broker=URL)
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    task_default_queue=NAME,
    task_queues=[Queue(NAME, expires=60)],
    beat_schedule={
        f"loop{number}": {"task": "loop", "schedule": 1.0, "args": (number,)}
        for number in range(LOOPS)
    },
)


@app.task(name="loop")
def loop(number):
    ran(number)
