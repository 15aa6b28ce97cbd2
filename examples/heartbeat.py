"""The five-minute start: a loop that beats every second.

Run it with no broker at all:

    scheduler dev examples/heartbeat.py:app

or on RabbitMQ, with any number of processors:

    export SCHEDULER_BROKER_URL=amqp://guest:guest@localhost:5672/
    scheduler seed examples/heartbeat.py:app
    scheduler run examples/heartbeat.py:app

You see a line per run; the count travels in the loop's token, so it goes on wherever the next
run happens.
"""

import logging

from scheduler import Context, Scheduler

app = Scheduler("heartbeat")


@app.periodic(every="1s")
async def beat(ctx: Context) -> None:
    count = (ctx.carried or 0) + 1
    logging.info("beat %d", count)
    ctx.carry(count)
