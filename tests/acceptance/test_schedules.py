"""Schedules beside the code: set and cleared by an operator, and who has set them is told."""

import getpass
import re
import socket

from tests.acceptance.conftest import MISUSE, WRONG, CommandLine

WHO = f"{getpass.getuser()}@{socket.gethostname()}"
TOLD = re.compile(rf"every 5m, set by {re.escape(WHO)} \d+ s ago; code: every 1h$")


def test_a_schedule_is_set_with_any_options_shown_and_cleared(seeded: CommandLine) -> None:
    done = seeded("schedule", "set", "report", "--every", "5m")
    first, second = done.out.splitlines()
    assert first.startswith("report: rescheduled, due ")
    assert TOLD.match(second)

    (note,) = [line for line in seeded("status").out.splitlines() if line.startswith("report ")]
    assert TOLD.search(note)
    whole = seeded("status", "report").out.splitlines()
    assert whole[1] == "schedule     every 5m, from the end of a run"
    assert TOLD.match(f"every 5m, {whole[2].strip()}")
    for command in (["seed"], ["seed", "--dry-run"]):
        (line,) = [each for each in seeded(*command).out.splitlines() if "report " in each]
        assert re.search(rf"every 5m, set by {WHO} .*; code: every 1h +unchanged", line)

    assert seeded("schedule", "clear", "report").out.splitlines()[1] == "every 1h"
    assert seeded("schedule", "clear", "report").out.startswith("report: not set")
    assert "set by" not in seeded("status").out

    done = seeded("schedule", "set", "report", "--cron", "0 9 * * *", "--json").json
    assert (done["did"], done["schedule"]) == ("rescheduled", "0 9 * * * in UTC")
    (row,) = [each for each in seeded("status", "--json").json["loops"] if each["override"]]
    override = {"by": WHO, "at": row["override"]["at"], "code": "every 1h"}
    assert (row["loop"], row["schedule"], row["override"]) == (
        *("report", "0 9 * * * in UTC"),
        override,
    )
    overrides = [each["override"] for each in seeded("seed", "--json").json["loops"]]
    assert overrides == [override, None, None]
    fixed = ("--every", "1h", "--fixed-rate", "--offset", "5m", "--jitter", "2s")
    done = seeded("schedule", "set", "report", *fixed, "--catch-up", "skip", "--grace", "10m")
    assert done.out.splitlines()[1].startswith("every 1h at fixed rate, offset 5m, set by ")


def test_a_schedule_of_a_missing_loop_is_refused(scheduler: CommandLine) -> None:
    done = scheduler("schedule", "set", "report", "--every", "5m")
    assert done.code == WRONG
    assert "run `scheduler seed` first" in done.err
    done = scheduler("schedule", "clear", "reports")
    assert (done.code, done.err) == (
        MISUSE,
        "scheduler: There is no loop 'reports'; did you mean 'report'?\n",
    )
