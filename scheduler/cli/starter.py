"""Write the files of a first app: `scheduler init`."""

import re
from pathlib import Path
from typing import Annotated

import typer

from scheduler.cli.arguments import command, new_group
from scheduler.cli.printing import Output
from scheduler.errors import UsageError

cli = new_group("Write a first app.")

JOBS = '''"""Jobs: `scheduler dev jobs.py` runs them, and needs no RabbitMQ."""

from scheduler import Context, Retry, Scheduler

app = Scheduler("NAMESPACE")


@app.periodic(every="5s", retry=Retry(3, delays=["1s", "10s", "1m"]), timeout="1m")
async def count(ctx: Context) -> None:
    """Count the runs. The next run gets the carried number, in any process."""
    number = (ctx.carried or 0) + 1
    ctx.carry(number)
    await greet.send(number)


@app.task(retry=Retry(3), timeout="1m")
async def greet(number: int) -> None:
    """Run once for each message."""
    print("run", number, flush=True)
'''
TEST = '''"""Test jobs.py in virtual time, without a broker: `pip install pytest && pytest`."""

import pytest
from scheduler import Scheduler
from scheduler.testing import Kit

from jobs import app, count, greet


@pytest.fixture
def scheduler_app() -> Scheduler:
    return app


async def test_each_run_sends_a_greeting(scheduler_kit: Kit) -> None:
    await scheduler_kit.advance("1m")
    scheduler_kit.assert_ran(count, times=12)
    scheduler_kit.assert_ran(greet, times=12)
'''
COMPOSE = """# `docker compose up` starts RabbitMQ and a processor.
services:
  rabbitmq:
    image: rabbitmq:4-management
    hostname: rabbitmq  # its data is stored by this name
    ports: ["127.0.0.1:5672:5672", "127.0.0.1:15672:15672"]  # 15672: its pages, guest/guest
    volumes: ["rabbitmq:/var/lib/rabbitmq"]
    healthcheck:
      test: rabbitmq-diagnostics -q check_port_connectivity
      interval: 5s
      timeout: 10s
      retries: 20
  processor:
    build:
      context: .
      dockerfile_inline: |
        FROM python:3.13-slim
        RUN pip install --no-cache-dir rabbit-scheduler
        WORKDIR /app
        COPY jobs.py .
    command: ["sh", "-c", "scheduler seed jobs.py && exec scheduler run jobs.py"]
    environment:
      SCHEDULER_BROKER_URL: amqp://guest:guest@rabbitmq:5672/
    depends_on:
      rabbitmq: {condition: service_healthy}
    stop_grace_period: 1m
    restart: unless-stopped
volumes:
  rabbitmq:
"""


@command(cli, "init", asks=False)
def init(
    folder: Annotated[
        str, typer.Argument(metavar="[FOLDER]", help="Where to write; this folder, if omitted.")
    ] = ".",
) -> Output:
    """Write a first app, its test, and a compose file with RabbitMQ.

    The files are jobs.py, test_jobs.py and compose.yaml. The namespace of the app is the name of
    the folder. If one of the files exists, the command writes none.

    Example: scheduler init shop
    """
    written = _write(Path(folder))
    line = f"Written: {', '.join(written)}. `scheduler dev {written[0]}` runs the app."
    return Output({"written": written}, [line])


def _write(folder: Path) -> list[str]:
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name)[:64].strip("-") or "jobs"
    texts = {
        folder / "jobs.py": JOBS.replace("NAMESPACE", plain),
        folder / "test_jobs.py": TEST,
        folder / "compose.yaml": COMPOSE,
    }
    if there := [str(path) for path in texts if path.exists()]:
        raise UsageError(f"{there[0]} exists: nothing was written. Name another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error.strerror}.") from None
    return [str(path) for path in texts]
