"""200 loops under load: most are well, some fail, some run at night."""

import asyncio
from random import Random

from scheduler import Context, Reject, Retry, Scheduler

app = Scheduler("store")
dice = Random(7)
TASKS = ("billing", "mail", "stock", "report", "sync", "search", "cache", "export", "crawl", "poll")
SHOPS = ("berlin", "lyon", "malmo", "oslo", "porto", "quito", "riga", "tokyo", "turin")


@app.task(retry=Retry(1, delays=["1s"]))
async def send_sms(phone: str, text: str) -> None:
    if dice.random() < 0.6:
        raise ConnectionError(f"no provider takes {phone!r}")


@app.task(retry=Retry(0))
async def refund(order: int) -> None:
    raise Reject(f"order {order} was refunded already")


def loop(name: str, every: str) -> None:
    async def work(ctx: Context) -> None:
        await asyncio.sleep(dice.random() * 0.4)
        if name == "crawl-tokyo":
            raise TimeoutError("tokyo.example has not answered for 10 s")
        if name.startswith("crawl") and dice.random() < 0.2:
            raise ConnectionError(f"the shop answered {dice.randint(500, 504)}")
        ctx.carry({"cursor": dice.randint(1, 9_999)})

    app.periodic(name=name, every=every, retry=Retry(2, delays=["1s"]))(work)


for task in TASKS:
    for shop in SHOPS:
        loop(f"{task}-{shop}", f"{dice.randint(3, 20)}s")
        loop(f"{task}-{shop}-archive", f"{dice.randint(20, 90)}s")


def nightly(name: str, cron: str) -> None:
    @app.periodic(name=name, cron=cron, tz="Europe/Berlin")
    async def work() -> None: ...

    del work


for number, shop in enumerate(SHOPS):
    nightly(f"close-books-{shop}", "0 2 * * *")
    nightly(f"weekly-report-{shop}", f"{number * 5} 6 * * MON")


@app.periodic(every="5s", timeout="5m")
async def rebuild_index(ctx: Context) -> None:
    for part in range(100):
        ctx.progress(part / 100, f"part {part} of 100")
        await asyncio.sleep(0.05 if ctx.seq < 2 else 1.2)


@app.periodic(every="7s")
async def campaign(ctx: Context) -> None:
    if ctx.seq < 5:
        await send_sms.send(f"+4930{ctx.seq:04}", "Sale!")
        await refund.send(1_000 + ctx.seq)
