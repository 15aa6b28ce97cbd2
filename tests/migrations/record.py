"""What the jobs of a project note: a line for each run, in one file.

It is laid into each project, and needs nothing but Python's own library.
"""

import json
import os
import sys
import time
from pathlib import Path

RECORD = os.environ.get("RUN_RECORD", "record.jsonl")


def note(job: str, did: str = "ran", *, key: object = None, due: float | None = None) -> None:
    """One line.

    Args:
        did: "ran"; "failed", if it is to be tried again; of a call, "sent".
        key: what tells one run, or one call, from another, where attempts are noted too.
        due: the moment that the run stands for, in seconds since the Unix epoch, if it is known.
    """
    line = {
        "job": job,
        "side": side(),
        "did": did,
        "at": time.time(),  # noqa: TID251
        "due": due,
        "key": None if key is None else str(key),
    }
    with Path(RECORD).open("a") as file:  # of a line, and so whole, whoever else appends
        file.write(json.dumps(line) + "\n")


def failed_before(job: str, key: object) -> bool:
    """Whether this run has failed already: so a job can fail once in each run."""
    lines = [json.loads(line) for line in Path(RECORD).read_text().splitlines()]
    return any(
        (line["job"], line["key"], line["did"]) == (job, str(key), "failed") for line in lines
    )


def side() -> str:
    """Who runs this: scheduler, or what the project was made for."""
    program = Path(sys.argv[0]).name
    return os.environ.get("RUN_SIDE") or (
        program if program == "scheduler" else os.environ.get("RUN_PROJECT", program)
    )
