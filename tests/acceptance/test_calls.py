"""Calls sent by hand, and what became of them; and a broker that does not answer."""

import re
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import CommandLine, Done, seeded_app
from tests.rabbitmq import PrivateNode
from tests.sweep import new_namespace

pytestmark = pytest.mark.timeout(400)

SHOP = """
import os
from scheduler import Retry, Scheduler

app = Scheduler(os.environ["SHOP_NAMESPACE"])

@app.task(retry=Retry(0))
async def mail(to: str, times: int = 1) -> None:
    if to == "nobody":
        raise ConnectionError("the mail server is down")

@app.task(history=True)
async def bill(order: int) -> None: ...

@app.periodic(every="1h")
async def tidy() -> None: ...

safe = Scheduler(os.environ["SHOP_NAMESPACE"], fallback="sqlite:///unsent.db")

@safe.task(name="bill")
async def safe_bill(order: int) -> None: ...
"""
TASKS = "mail", "bill", "tidy"


@pytest.fixture
def shop(broker_url: str, namespace: str, tmp_path: Path) -> Iterator[CommandLine]:
    with seeded_app(broker_url, namespace, tmp_path, SHOP, TASKS) as shop:
        yield shop


def attempts(history: Done) -> list[dict[str, Any]]:
    return [row for row in history.json if row["what"] != "summary"]


def test_calls_sent_by_hand_are_run_and_their_history_is_told(shop: CommandLine) -> None:
    nobody, ada = '{"to": "nobody"}', '{"to": "ada", "times": 2}'
    with shop.processor() as processor:
        processor.until("processing")
        failed = [shop("send", "mail", "--args", nobody, "--json").json["id"] for _ in range(2)]
        assert shop("send", "mail", "--args", ada, "--in", "1s").out.endswith(" sent\n")
        billed = shop("send", "bill", "--args", '{"order": 7}').out.split()[0]
        once = shop("send", "bill", "--args", '{"order": 8}', "--in", "1h", "--unique", "order-8")
        assert once.out == "bill.order-8 created\n"
        again = shop(
            "send", "bill", "--args", '{"order": 8}', "--at", "2090-01-01", "--unique", "x"
        )
        assert again.code == 0
        for _ in failed:
            processor.until("failed for the last time")
        deadline = time.monotonic() + 60
        while "succeeded" not in shop("history", "--id", billed, "--json").out:
            assert time.monotonic() < deadline
        processor.signal()
        processor.end()  # it reports a summary
    history = shop("history", "mail", "--json")
    assert [(row["id"], row["what"], row["attempt"]) for row in attempts(history)] == [
        (each, "escalated", 1) for each in failed
    ]
    assert history.json[-1]["errors"][0]["count"] == 2
    (one,) = shop("history", "--id", billed[:8], "--json").json
    assert (one["what"], one["task"], one["by"] != "") == ("succeeded", "bill", True)
    assert len(shop("history", "--failed").rows) == 2
    status = shop("status")
    assert status.code == 1
    assert "2 x ConnectionError: the mail server is down" in status.out


def test_a_paused_task_is_left_alone_until_it_is_resumed(shop: CommandLine) -> None:
    sent = [shop("send", "bill", "--args", f'{{"order": {n}}}').out.split()[0] for n in range(3)]
    paused = shop("pause", "bill", "--reason", "stocktaking")
    assert (paused.code, paused.out) == (0, "bill: paused\n")
    with shop.processor() as processor:
        assert "stocktaking" in processor.until("bill is paused by ")
        processor.signal(signal.SIGKILL)
        processor.end()
    told = shop("status")
    assert (told.code, "paused: stocktaking, since" in told.out) == (0, True)
    (bill,) = [each for each in shop("status", "--json").json["tasks"] if each["task"] == "bill"]
    assert (bill["ready"], bill["pause"]["reason"]) == (3, "stocktaking")
    assert "stocktaking; 3 messages waiting" in shop("doctor").out
    with shop.processor() as processor:
        processor.until("bill is paused by ")
        resumed = shop("resume", "bill", "--json")
        assert resumed.json == {"task": "bill", "did": "resumed", "not_confirmed_by": []}
        deadline = time.monotonic() + 60
        while len(told := attempts(shop("history", "bill", "--json"))) < len(sent):
            assert time.monotonic() < deadline
    assert sorted(row["id"] for row in told) == sorted(sent)
    assert shop("resume", "bill").out == "bill: not paused\n"
    assert "only a loop is resumed at once" in shop("resume", "bill", "--now").err


CALL = ["send", "mail", "--args", '{"to": "x"}']
SAFE = "shop.py:safe"
LOOKS = (
    *(["history"], ["history", "mail"], ["history", "mail", "--failed"], ["census"]),
    *(["failed", "list"], ["scheduled", "list"]),
)
COMMANDS = (
    *LOOKS,
    *(["status"], ["status", "tidy"], ["doctor"], ["ps"], ["cancel", "tidy"], ["trigger", "tidy"]),
    *(["history", "--id", "x"], CALL, [*CALL, "--unique", "x"], ["pause", "mail"]),
    *(["resume", "mail"], ["pause", "tidy"], ["remove", "mail.a"], ["sync", "loops.toml"]),
    *(["seed"], ["seed", "--prune"], ["seed", "--dry-run"], ["unsent", "send", SAFE]),
    *(
        ["failed", "show", "x"],
        ["failed", "replay", "--all"],
        ["failed", "purge", "--all", "--yes"],
    ),
    *(["schedule", "set", "tidy", "--every", "2h"], ["schedule", "clear", "tidy"]),
    *(["scheduled", "move", "mail.x", "--after", "1h"], ["scheduled", "cancel", "mail.x"]),
    ["send", SAFE, "bill", "--args", '{"order": 1}', "--unique", "x"],
)
LOCAL = (
    *(["next"], ["unsent", "list", SAFE], ["unsent", "purge", SAFE, "--yes"], ["topology", "show"]),
    ["send", SAFE, "bill", "--args", '{"order": 1}', "--timeout", "3s"],
)
MEMORY, DISK = "set_vm_memory_high_watermark", "set_disk_free_limit"


@pytest.fixture(scope="module")
def on_node(node: PrivateNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    directory = tmp_path_factory.mktemp("on_node")
    (directory / "loops.toml").write_text('[mail."a"]\nevery = "1h"\nargs = {to = "x"}\n')
    with seeded_app(node.url, new_namespace(), directory, SHOP, TASKS) as shop:
        yield shop


def at_once(
    shop: CommandLine, commands: Sequence[Sequence[str]]
) -> Iterator[tuple[Sequence[str], Done]]:
    """Run commands side by side."""
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(shop, *each) for each in commands]
        yield from zip(commands, (each.result() for each in running), strict=True)


@pytest.mark.parametrize("way", ["blocked", "frozen"])
def test_a_command_ends_though_the_broker_does_not_answer(
    node: PrivateNode, on_node: CommandLine, way: str
) -> None:
    if way == "blocked":
        node.ctl(MEMORY, "0.000001")
    else:
        node.freeze()
    try:
        # That commands which look do so under an alarm, another test sees.
        commands = [each for each in COMMANDS if way == "frozen" or each not in LOOKS]
        for command, done in at_once(on_node, [[*each, "--timeout", "1s"] for each in commands]):
            assert "Traceback" not in done.err, command
            if way == "frozen":
                assert (done.code, done.out) == (1, ""), command
                assert done.err.count("\n") == 1, (command, done.err)
                assert re.search("within 1 ?s", done.err), (command, done.err)
        for command, done in at_once(on_node, LOCAL):
            assert done.code == 0, (command, done.err)
    finally:
        if way == "frozen":
            node.thaw()
        node.ctl(MEMORY, "0.6")


def test_an_alarm_does_not_keep_commands_from_looking(
    node: PrivateNode, on_node: CommandLine
) -> None:
    shop = on_node
    with shop.processor() as processor:
        processor.until("processing")
        assert shop("status", "--json").json["alarm"] == ""
        node.ctl(DISK, "100000000000000")
        try:
            while not (status := shop("status", "--json")).json["alarm"]:
                time.sleep(0.5)
            assert (status.code, status.json["alarm"]) == (1, "low on disk")
            assert "blocks publishers (low on disk)" in shop("status").out
            for command, done in at_once(shop, LOOKS):
                assert done.code == 0, (command, done.err)
            doctor = shop("doctor", "--json")
            found = {each["about"]: each["verdict"] for each in doctor.json}
            assert (doctor.code, found["messages"]) == (1, "problem")
            ps = shop("ps")
            told = "processors were not asked: the broker blocks publishers (low on disk)"
            assert (ps.code, ps.out) == (1, f"Incomplete: {told}.\n")
        finally:
            node.ctl(DISK, "50000000")


def test_a_watch_ends_or_says_that_the_broker_does_not_answer(
    node: PrivateNode, on_node: CommandLine
) -> None:
    """One that has shown something goes on, as the broker may answer again."""
    with on_node.terminal("status", "--watch", "--timeout", "5s") as watching:
        watching.until("until Ctrl-C")
        node.freeze()
        try:
            watching.until("has not responded")
            with on_node.terminal("status", "--watch", "--timeout", "1s") as terminal:
                done = terminal.end()
            assert (done.code, done.out.count("\n")) == (1, 1)
            assert "has not responded within 1s" in done.out
        finally:
            node.thaw()
        watching.until("until Ctrl-C")
        watching.interrupt()
        assert watching.end().code == 0


def test_one_interrupt_is_enough(node: PrivateNode, on_node: CommandLine) -> None:
    node.freeze()
    try:
        with on_node.terminal("status", "--timeout", "5m") as terminal:
            time.sleep(3)  # as a rule, it has connected by then
            terminal.interrupt()  # or this test times out
            assert terminal.end().code != 0
    finally:
        node.thaw()
