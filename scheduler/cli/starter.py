"""Write the files of a first app: `scheduler init`."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from scheduler.cli.arguments import command, new_group
from scheduler.cli.printing import Output
from scheduler.errors import UsageError

cli = new_group("Write a first app.")

TEXTS = files("scheduler.cli") / "first_app"
NAMES = ("jobs.py", "test_jobs.py", "compose.yaml")


@command(cli, "init", asks=False)
def init(
    folder: Annotated[
        str,
        typer.Argument(metavar="[FOLDER]", help="The folder to write to; by default, this one."),
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
        folder / name: (TEXTS / f"{name}-tpl").read_text("utf-8").replace("NAMESPACE", plain)
        for name in NAMES
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
