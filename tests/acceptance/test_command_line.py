"""What a user sees: commands, their output, their exit codes."""

import getpass
import platform
import re
import signal
import socket
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from scheduler.cli import commands
from tests.acceptance.conftest import (
    APPS,
    FINE,
    LOOPS,
    MISUSE,
    PASSWORD,
    SHOP,
    TIME_LIMIT,
    UNREACHABLE,
    WRONG,
    CommandLine,
    Done,
)

MOMENT = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d"
NOT_TAKEN = "ready", "unattended"  # once it is overdue by some seconds


def states(done: Done) -> dict[str, str]:
    return {status["loop"]: status["where"] for status in done.json["loops"]}


def did(done: Done) -> dict[str, str]:
    return {report["loop"]: report["did"] for report in done.json}


def all_are(state: str) -> dict[str, str]:
    return dict.fromkeys(LOOPS, state)


COMMANDS = {
    "dev": (f"{APPS}/quick.py:app --for 300ms --json", FINE, '"message": "beat 1"'),
    "seed": ("", FINE, "unchanged"),
    "run": ("--tasks raport", MISUSE, "did you mean 'report'?"),
    "status": ("", FINE, "waiting"),
    "census": ("", FINE, "overdue: 0"),
    "doctor": ("", FINE, "rabbitmqctl"),
    "next": ("", FINE, "report  (every 1h)"),
    "pause": ("report", FINE, "report: paused"),
    "resume": ("report --now", FINE, "report: resumed"),
    "trigger": ("sell", FINE, "sell: triggered"),
    "send": ("report", MISUSE, "gets no calls: it is a loop"),
    "remove": ("report", MISUSE, "The loop report is in the code"),
    "sync": (f"{APPS}/shop.py:app nowhere.toml", MISUSE, "nowhere.toml: it cannot be read"),
    "schedule set": ("wait_for_input --every 5m", FINE, "; code: 0 9 * * MON-FRI"),
    "schedule clear": ("wait_for_input", FINE, "wait_for_input: rescheduled"),
    "scheduled list": ("", FINE, ""),
    "scheduled move": ("pay.order-7 --after 10m", MISUSE, "pay.order-7"),
    "scheduled cancel": ("pay.order-7", MISUSE, "pay.order-7"),
    "ps": ("", FINE, "Nothing runs."),
    "cancel": ("report", WRONG, "No run 'report' is running."),
    "history": ("", FINE, "report"),
    "failed list": ("", FINE, "ERROR"),
    "failed show": ("some-id", WRONG, "no parked message 'some-id'"),
    "failed replay": ("--all", FINE, "0 replayed"),
    "failed purge": ("--all --yes", FINE, "0 purged"),
    "failed restore": ("--all", FINE, "0 restored"),
    "init": (f"{APPS}/quick.py", MISUSE, "cannot be written to"),
    "unsent list": ("", MISUSE, "stores no messages"),
    "unsent send": ("", MISUSE, "stores no messages"),
    "unsent purge": ("--yes", MISUSE, "stores no messages"),
    "topology show": ("", FINE, ".v1.hatchery.1h"),
    "topology export": ("--vhost prod", FINE, '"vhost": "prod"'),
    "import celery": ("nowhere.py", MISUSE, "nowhere.py cannot be read: No such file"),
    "import crontab": ("nowhere", MISUSE, "nowhere cannot be read: No such file"),
    "import cronjob": ("nowhere.yaml", MISUSE, "nowhere.yaml cannot be read: No such file"),
    "dashboard": ("--host 0.0.0.0", MISUSE, "Other machines can reach"),
}


def test_all_commands_are_tested(offline: CommandLine):
    def listed(*group: str) -> set[str]:
        _, _, lines = offline(*group, "--help").out.partition("Commands:\n")
        return {" ".join((*group, name)) for name in re.findall(r"^  (\w+)", lines, re.MULTILINE)}

    done = offline()
    assert (done.code, done.err.startswith("Usage: ")) == (MISUSE, True)
    groups = {"failed", "import", "schedule", "scheduled", "topology", "unsent"}
    assert listed().difference(groups).union(*map(listed, groups)) == set(COMMANDS)
    assert set(commands.ELSEWHERE.values()) <= {*COMMANDS, "--help", "--version"}


def every_command() -> Iterator[tuple[str, Any]]:
    for name in commands.COMMANDS:
        yield name, (each := commands.loaded(name))
        yield from ((f"{name} {below}", it) for below, it in getattr(each, "commands", {}).items())


@pytest.mark.parametrize(("name", "command"), [("", get_command(commands.cli)), *every_command()])
def test_help_is_complete_and_fits_80_columns(name: str, command: Any):
    done = CliRunner(env={"COLUMNS": "80"}).invoke(commands.cli, [*name.split(), "--help"])
    assert done.exit_code == FINE
    assert [line for line in done.output.splitlines() if len(line) > 80] == []
    assert not re.search(r"^  .*\.\.\.$", done.output, re.MULTILINE)  # the first sentence, whole
    assert [each.name for each in command.params if not each.help] == []
    if name in commands.COMMANDS:
        assert commands.COMMANDS[name][1] == command.get_short_help_str(100)


def test_an_app_is_unseeded_until_a_seed_creates_each_loop_once(
    scheduler: CommandLine, namespace: str
):
    told = f"The namespace '{namespace}' has no journal yet: run `scheduler seed` first."
    history = scheduler("history")
    assert (history.code, history.out, history.err) == (WRONG, "", f"scheduler: {told}\n")
    one = scheduler("status", "report")
    assert one.code == WRONG
    assert "unseeded: in the code, but not in the broker: run `scheduler seed`" in one.out
    unseeded = scheduler("status")
    assert unseeded.code == WRONG
    assert [row[:2] for row in unseeded.rows] == [[name, "unseeded"] for name in LOOPS]
    first, second = scheduler("seed"), scheduler("seed")
    created, unchanged = first.rows[: len(LOOPS)], second.rows[: len(LOOPS)]
    assert [(row[0], "created" in row) for row in created] == [(name, True) for name in LOOPS]
    assert [(row[0], "unchanged" in row) for row in unchanged] == [(n, True) for n in LOOPS]
    assert (first.code, second.code, first.err, second.err) == (FINE, FINE, "", "")
    assert [row[-2:] for row in created] == [row[-2:] for row in unchanged]  # when it is due
    waiting = scheduler("status")
    assert waiting.code == FINE
    assert [row[:3] for row in waiting.rows] == [[name, "waiting", "#0"] for name in LOOPS]


def test_next_needs_no_broker_and_prints_coming_times(offline: CommandLine):
    done = offline("next", SHOP, "-n", "3", "--json", SCHEDULER_BROKER_URL=UNREACHABLE)
    assert done.code == FINE
    assert [each["loop"] for each in done.json] == list(LOOPS)
    times = [[datetime.fromisoformat(text) for text in each["times"]] for each in done.json]
    assert [len(each) for each in times] == [3, 3, 3]
    assert all(sorted(each) == each and each[0] > datetime.now(UTC) for each in times)
    assert times[0][2] - times[0][1] == timedelta(hours=1)
    lines = offline("next", SHOP).out.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == [
        "report  (every 1h)",
        "sell  (every 1h)",
        "wait_for_input  (0 9 * * MON-FRI in Europe/Berlin: at 09:00, Monday to Friday)",
    ]
    assert len(lines) == 3 * (1 + 5)
    # In the zone of the schedule, wherever this machine is.
    assert all(re.search(r" 09:00:00\+0[12]:00$", line) for line in lines[-5:])


def test_a_loop_is_paused_and_resumed(seeded: CommandLine):
    paused = seeded("pause", "report", "--reason", "stocktaking")
    assert (paused.code, paused.out) == (FINE, "report: paused\n")
    (status, *_) = seeded("status", "--json").json["loops"]
    assert (status["where"], status["reason"], status["due_at"]) == ("paused", "stocktaking", None)
    assert status["by"].startswith(f"{getpass.getuser()} at {socket.gethostname()}:")
    told = rf"stocktaking, since {MOMENT} by {re.escape(status['by'])}\n"
    assert re.search(told, seeded("status").out)
    assert f"stocktaking, by {status['by']}\n" in seeded("history", "report").out
    assert seeded("pause", "report").out == "report: unchanged\n"
    in_vain = seeded("trigger", "report")
    assert (in_vain.code, in_vain.out) == (WRONG, "report: is paused\n")
    resumed = seeded("resume", "report", "--json")
    assert (resumed.code, resumed.json["did"]) == (FINE, "resumed")
    due_in = datetime.fromisoformat(resumed.json["due_at"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < due_in <= timedelta(hours=1)


def test_a_triggered_loop_runs_at_once_and_its_last_run_is_shown(seeded: CommandLine):
    triggered = seeded("trigger", "report")
    assert triggered.code == FINE
    assert triggered.out.startswith("report: triggered, due ")
    assert states(seeded("status", "--json"))["report"] in NOT_TAKEN
    with seeded.processor() as processor:
        processor.until("processing")
        assert seeded("trigger", "sell").code == FINE
        processor.until("sell #0  failed in")
        processor.signal()
        done = processor.end()
    assert done.code == FINE
    assert re.search("report #0  reported Bonn\n.*report #0  succeeded", done.err, re.DOTALL)
    (status, *_) = seeded("status", "--json").json["loops"]
    assert (status["where"], status["seq"]) == ("waiting", 1)
    assert status["last"]["ending"] == "succeeded"
    assert 0 <= status["last"]["late"] < TIME_LIMIT
    done = seeded("status", "sell")
    assert done.code == FINE
    assert re.search(r"^last run +escalated$", done.out, re.MULTILINE)
    assert re.search(rf"^  started +{MOMENT} \(\d+ s ago\), ", done.out, re.MULTILINE)
    assert re.search(r"^error +ValueError: sold out$", done.out, re.MULTILINE)


def test_loops_seeded_paused_are_resumed_as_of_a_moment(scheduler: CommandLine):
    for options in ["--dry-run"], []:
        rows = scheduler("seed", "--paused", *options).rows[: len(LOOPS)]
        assert [row[-2:] for row in rows] == [["created", "paused"]] * len(LOOPS)
    assert states(scheduler("status", "--json")) == all_are("paused")
    assert "seeded paused" in scheduler("status").out
    moment = datetime.now(UTC) - timedelta(minutes=50)
    resumed = scheduler("resume", "--all", "--after", moment.isoformat(), "--json")
    assert (resumed.code, did(resumed)) == (FINE, all_are("resumed"))
    (report,) = [row for row in resumed.json if row["loop"] == "report"]  # every hour
    due_at = datetime.fromisoformat(report["due_at"])
    assert abs(due_at - moment - timedelta(hours=1)) < timedelta(seconds=1)


def test_a_run_is_listed_and_cancelled(seeded: CommandLine):
    assert seeded("trigger", "wait_for_input").code == FINE
    with seeded.processor() as processor:
        processor.until("waiting for input")
        (row,) = seeded("ps").rows
        assert row[:2] == ["wait_for_input#0", "wait_for_input"]
        (run,) = seeded("ps", "--json").json["runs"]
        assert (run["id"], run["executor"], "stack" in run) == (row[0], "coroutine", False)
        told = seeded("ps", "--stack", "wait_for_input")
        assert (told.code, told.out.startswith(f"{row[0]} in ")) == (FINE, True)
        assert "in wait_for_input\n" in told.out
        done = seeded("cancel", "wait_for_input")
        assert done.code == FINE
        assert re.fullmatch(
            r"wait_for_input#0: cancelled after \d+ s; its loop continues, unless it is paused\n",
            done.out,
        )
        assert "cancelled by" in processor.until("cancelled by")
        assert seeded("trigger", "wait_for_input").code == FINE
        processor.until("waiting for input")
        done = seeded("cancel", "wait_for_input#1", "--escalate", "--json")
        assert (done.code, done.json["ending"], done.json["as_asked"]) == (FINE, "escalated", True)
        processor.signal()
        assert processor.end().code == FINE
    assert seeded("ps", "--json").json == {
        "runs": [],
        "more": 0,
        "not_answered_by": [],
        "alarm": "",
    }
    history = seeded("history", "wait_for_input", "--json").json
    (cancelled,) = [each for each in history if each["what"] == "cancelled"]
    assert cancelled["note"].startswith("cancelled by ")
    (parked,) = seeded("failed", "list", "--json").json
    assert parked["reason"] == "cancelled"
    # In the zone of the schedule, wherever this machine is.
    assert re.search(r":\d\d\+0[12]:00 ", seeded("failed", "list", TZ="America/Lima").out)
    assert re.search(r"parked at +.*\+0[12]:00", seeded("failed", "show", parked["id"]).out)
    assert " s ago" in seeded.in_terminal("failed", "list").out


def test_a_processor_lets_its_runs_finish_unless_it_gets_a_second_signal(seeded: CommandLine):
    for loop in ("wait_for_input", "sell"):
        assert seeded("trigger", loop).code == FINE
    with seeded.processor("--tasks", "report, wait_for_input", "--concurrency", "3") as processor:
        processor.until("waiting for input")
        assert states(seeded("status", "--json"))["wait_for_input"] == "running"
        processor.signal()
        processor.until("stopping by SIGTERM: 1 running")
        processor.say("go on")
        done = processor.end()
    assert done.code == FINE
    assert "processing report, wait_for_input of " in done.err
    assert "at most 3 runs at once" in done.err
    assert "got input" in done.err
    assert "stopped by SIGTERM, 0 messages requeued" in done.err
    now = states(seeded("status", "--json"))
    assert now["wait_for_input"] == "waiting"
    assert now["sell"] in NOT_TAKEN

    assert seeded("trigger", "wait_for_input").code == FINE
    with seeded.processor("--tasks", "wait_for_input") as processor:
        processor.until("waiting for input")
        processor.signal(signal.SIGINT)
        processor.until("stopping by SIGINT: 1 running")
        processor.signal(signal.SIGINT)
        done = processor.end()
    assert done.code == FINE
    assert "stopped by SIGINT, 1 message requeued" in done.err
    assert "got input" not in done.err
    assert "Traceback" not in done.err
    assert states(seeded("status", "--json"))["wait_for_input"] in NOT_TAKEN


def test_the_exported_topology_is_what_seeding_declares(scheduler: CommandLine, namespace: str):
    exported: dict[str, list[dict[str, Any]]] = scheduler("topology", "export").json
    assert scheduler("seed").code == FINE
    assert set(exported) == {"exchanges", "queues", "bindings"}
    # The doctor declares each queue again: the same arguments, or it is a problem.
    (found,) = [each for each in scheduler("doctor", "--json").json if each["about"] == "queues"]
    assert found["detail"].startswith(f"{len(exported['queues'])}, ")
    assert {each["vhost"] for kind in exported.values() for each in kind} == {"/"}
    assert all(each["name"].startswith(f"{namespace}.v1.") for each in exported["queues"])


def test_the_version_is_printed(offline: CommandLine):
    said = offline("--version", SCHEDULER_APP="")
    assert (said.code, said.out) == (
        FINE,
        f"scheduler {version('rabbit-scheduler')}, Python {platform.python_version()}\n",
    )


def test_timer_queues_that_differ_in_their_time_alone_are_folded(offline: CommandLine):
    sms = str(Path(__file__).parents[2] / "examples" / "sms.py")
    folded, whole = offline("topology", "show", sms), offline("topology", "show", sms, "--all")
    assert "… 9 more such timer queues (--all shows them)" in folded.out
    queues = set(re.findall(r"→ (\S+\.later\.\d+x5s)  \[x-queue-type", folded.out))
    assert {queue.rpartition(".")[2] for queue in queues} == {"1x5s", "11x5s"}
    assert len(set(re.findall(r"→ (\S+\.later\.\d+x5s)  \[x-queue-type", whole.out))) == 11


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("status", WRONG, "BrokerUnavailable"),
        ("run --tasks raport", MISUSE, "UnknownLoop"),
        ("status --jsn", MISUSE, "UsageError"),
    ],
)
def test_errors_are_json_too_when_asked(offline: CommandLine, command: str, code: int, error: str):
    environment = {"SCHEDULER_APP": SHOP, "SCHEDULER_BROKER_URL": UNREACHABLE}
    done = offline(*command.split(), "--json", **environment)
    assert (done.code, done.err, done.json["error"]) == (code, "", error)
    assert done.json["message"]
    assert PASSWORD not in done.out


def test_output_of_the_module_of_the_app_is_not_part_of_the_json(
    offline: CommandLine, tmp_path: Path
):
    (tmp_path / "jobs.py").write_text(f"print('loading')\n{SECONDS_FIRST}")
    done = offline("next", "jobs.py", "--json")
    assert [row["loop"] for row in done.json] == ["nightly"]
    assert done.err.startswith("loading\n")
    assert offline("next", "jobs.py").out.startswith("loading\n")


SECONDS_FIRST = """
from scheduler import Scheduler

app = Scheduler("shop")

@app.periodic(cron="0 0 9 * * *", tz="Europe/Berlin")
async def nightly() -> None: ...
"""


def test_a_cron_that_seems_to_begin_with_seconds_is_warned_of(offline: CommandLine, tmp_path: Path):
    (tmp_path / "jobs.py").write_text(SECONDS_FIRST)
    done = offline("next", "jobs.py")
    assert done.code == FINE
    assert (
        "scheduler: Warning: of the six fields of nightly, '0 0 9 * * *', the last is the second: "
        "every second of the minute 00:00, on day 9 of the month. If you meant the first one, "
        "write '0 9 * * *': at 09:00 every day.\n"
    ) in done.err
    assert done.out.startswith("nightly  (0 0 9 * * * in Europe/Berlin: every second of")


def test_seeding_explains_cron_expressions(scheduler: CommandLine, tmp_path: Path):
    daily = SECONDS_FIRST.replace("0 0 9", "0 9").replace('"shop"', f'"t{uuid.uuid4().hex[:8]}"')
    (tmp_path / "jobs.py").write_text(daily)
    done = scheduler("seed", f"{tmp_path}/jobs.py")
    assert (done.code, done.err) == (FINE, "")
    assert done.out.endswith("\n0 9 * * * in Europe/Berlin: at 09:00 every day\n")
