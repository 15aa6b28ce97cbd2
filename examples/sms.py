"""A flaky provider: retries in stages, and a hook for what has failed for the last time.

Run it with no broker at all:

    scheduler dev examples/sms.py:app

After a second, four messages are sent, each to a number for which the provider behaves differently:

    ...100  takes it
    ...101  is busy twice: taken at the third attempt, after 1 s and 10 s more
    ...102  is always busy: tried again after 1 s, 10 s and 1 min, then given up
    call-me is no number: given up at once, because no retry would help

What is given up is parked with its error, and the hook is told. On RabbitMQ (see heartbeat.py) it
can be looked at, and be sent again:

    scheduler failed list examples/sms.py:app
    scheduler failed replay examples/sms.py:app --task send_sms --reason exhausted
"""

import logging
from collections import Counter

from scheduler import Context, Reject, Retry, Scheduler, StopLoop
from scheduler.events import Escalated

NUMBERS = ("+12025550100", "+12025550101", "+12025550102", "call-me")

app = Scheduler("sms")


class Busy(Exception):
    pass


class Provider:
    """Stands for somebody else's API. It takes a message with a known key only once."""

    def __init__(self) -> None:
        self._attempts: Counter[str] = Counter()

    async def deliver(self, phone: str, text: str, key: str | None) -> None:
        self._attempts[phone] += 1
        if phone.endswith("2") or (phone.endswith("1") and self._attempts[phone] < 3):
            raise Busy(f"the provider has no line to {phone}")


provider = Provider()


@app.task(retry=Retry(3, delays=["1s", "10s", "1m"], jitter=0), timeout="30s")
async def send_sms(ctx: Context, phone: str, text: str) -> None:
    if not phone.startswith("+"):
        raise Reject(f"{phone!r} is not a phone number")
    # The id is the same for each attempt, so nobody gets the text twice.
    await provider.deliver(phone, text, key=ctx.message.message_id)
    logging.info("sent to %s at attempt %d", phone, ctx.attempt)


@app.on_escalation
async def tell_support(event: Escalated) -> None:
    logging.error("support, please look at %s: %s", event.message_id, event.error)


@app.periodic(every="1s")
async def campaign() -> None:
    for phone in NUMBERS:
        await send_sms.send(phone, "Your parcel is here.")
    raise StopLoop("everybody was written to")
