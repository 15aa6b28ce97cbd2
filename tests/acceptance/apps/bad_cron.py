"""An app with a mistake in a cron expression."""

from scheduler import Scheduler

app = Scheduler("shop")


@app.periodic(cron="0 25 * * *")
async def report() -> None: ...
