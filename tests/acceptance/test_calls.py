"""Calls sent by hand, scheduled, stored; what became of them; a broker that does not answer."""

import asyncio
import re
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler, Settings
from tests.acceptance.conftest import CommandLine, Done, seeded_app
from tests.rabbitmq import PrivateNode
from tests.sweep import NAMESPACES, new_namespace

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


@pytest.fixture(scope="module")
def shop(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Seeded once: a test takes back what another would meet."""
    with NAMESPACES.lent("quorum") as namespace:
        directory = tmp_path_factory.mktemp("shop")
        with seeded_app(broker_url, namespace, directory, SHOP, TASKS) as shop:
            yield shop


def attempts(history: Done) -> list[dict[str, Any]]:
    return [row for row in history.json if row["what"] != "summary"]


def ids_of(history: Done, sent: set[str]) -> list[str]:
    return [row["id"] for row in attempts(history) if row["id"] in sent]


def test_calls_sent_from_the_command_line_run_and_have_a_history(shop: CommandLine) -> None:
    nobody, ada = '{"to": "nobody"}', '{"to": "ada", "times": 2}'
    with shop.processor() as processor:
        processor.until("processing")
        failed = [shop("send", "mail", "--args", nobody, "--json").json["id"] for _ in range(2)]
        assert shop("send", "mail", "--args", ada, "--in", "1s").out.endswith(" sent\n")
        billed = shop("send", "bill", "--args", '{"order": 7}').out.split()[0]
        once = shop("send", "bill", "--args", '{"order": 8}', "--in", "1h", "--unique", "order-8")
        assert once.out == "bill.order-8 created\n"
        assert shop("scheduled", "cancel", "bill.order-8").code == 0
        moment = "--at", "2090-01-01", "--unique", "x"
        assert shop("send", "bill", "--args", '{"order": 8}', *moment).code == 0
        assert shop("scheduled", "cancel", "bill.x").code == 0
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
    assert "There is no task with calls 'mial'; did" in shop("history", "mial", "--failed").err
    status = shop("status")
    assert status.code == 1
    assert "2 x ConnectionError: the mail server is down" in status.out


def test_a_paused_task_is_left_alone_until_it_is_resumed(shop: CommandLine) -> None:
    sent = {shop("send", "bill", "--args", f'{{"order": {n}}}').out.split()[0] for n in range(3)}
    paused = shop("pause", "bill", "--reason", "stocktaking")
    assert (paused.code, paused.out) == (0, "bill: paused\n")
    with shop.processor() as processor:
        assert "stocktaking" in processor.until("bill is paused by ")
        processor.signal(signal.SIGKILL)
        processor.end()
    assert "paused: stocktaking, since" in shop("status").out
    (bill,) = [each for each in shop("status", "--json").json["tasks"] if each["task"] == "bill"]
    assert (bill["ready"], bill["pause"]["reason"]) == (3, "stocktaking")
    assert "stocktaking; 3 messages waiting" in shop("doctor").out
    with shop.processor() as processor:
        processor.until("bill is paused by ")
        resumed = shop("resume", "bill", "--json")
        assert resumed.json == {"task": "bill", "did": "resumed", "not_confirmed_by": []}
        deadline = time.monotonic() + 60
        while len(told := ids_of(shop("history", "bill", "--json"), sent)) < len(sent):
            assert time.monotonic() < deadline
    assert sorted(told) == sorted(sent)
    assert shop("resume", "bill").out == "bill: not paused\n"
    assert "only a loop is resumed at once" in shop("resume", "bill", "--now").err


def scheduled(shop: CommandLine) -> dict[str, str]:
    return {each["name"]: each["at"] for each in shop("scheduled", "list", "--json").json}


def test_a_named_one_off_is_listed_moved_and_cancelled(shop: CommandLine) -> None:
    assert shop("scheduled", "list").out == "No named one-off is scheduled.\n"
    for order in 8, 7:
        args = "--args", f'{{"order": {order}}}'
        assert shop("send", "bill", *args, "--in", f"{order}h", "--unique", f"o-{order}").code == 0
    first, *rest = shop("scheduled", "list").out.splitlines()
    assert first.split() == ["NAME", "AT", "ARGS"]
    assert [line.split()[0] for line in rest] == ["bill.o-7", "bill.o-8"]

    moved = shop("scheduled", "move", "bill.o-7", "--at", "2040-06-01T09:00")
    assert (moved.code, moved.out) == (0, "bill.o-7: rescheduled\n")
    assert scheduled(shop)["bill.o-7"] == "2040-06-01T00:00:00Z"  # nine o'clock here
    assert "schedule     once at 2040-06-01 00:00:00+00:00\n" in shop("status", "bill.o-7").out
    assert shop("scheduled", "move", "bill.o-7", "--after", "2h").code == 0
    assert scheduled(shop)["bill.o-7"] < "2040"

    gone = shop("scheduled", "cancel", "bill.o-8")
    assert (gone.code, gone.out) == (0, "bill.o-8: removed\n")
    for command in ("move", "bill.o-8", "--after", "1s"), ("cancel", "bill.o-8"):
        done = shop("scheduled", *command)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "did you mean 'bill.o-7'?" in done.err
    assert shop("scheduled", "list", "--task", "bill").out.count("\n") == 2
    assert shop("scheduled", "cancel", "bill.o-7").code == 0


def test_stored_messages_are_listed_sent_or_purged(shop: CommandLine) -> None:
    settings: Any = {"broker_url": "amqp://127.0.0.1:1/", "send_deadline": "100ms"}
    namespace, fallback = shop.environment["SHOP_NAMESPACE"], f"{shop.directory}/unsent.db"
    away = Scheduler(namespace, Settings(**settings), fallback=f"sqlite:///{fallback}")

    @away.task
    async def mail(to: str) -> None: ...

    def doctor_says() -> dict[str, str]:
        found = shop("doctor", SAFE, "--json").json
        return {each["verdict"]: each["detail"] for each in found if each["about"][:2] == "un"}

    assert shop("unsent", "list", SAFE).out == "No message is stored.\n"
    assert doctor_says() == {"ok": "none is stored"}
    assert mail.options(message_id="now").blocking.send("ada").stored
    assert mail.options(message_id="later").blocking.send_later("1h", "bob").stored
    first, *rest = shop("unsent", "list", SAFE).out.splitlines()
    assert first.split() == ["ID", "TO", "DUE", "STORED"]
    assert [line.split()[:2] for line in rest] == [["now", "mail"], ["later", "mail"]]
    assert doctor_says()["warning"].startswith("2 stored, the oldest at 20")
    sent = shop("unsent", "send", SAFE)
    assert (sent.code, sent.out) == (0, "2 sent, 0 left\n")
    assert shop("unsent", "send", SAFE, "--json").json == {"sent": 0, "left": 0}

    assert asyncio.run(away.publish("nowhere", "order.paid", b"", message_id="m")).stored
    sent = shop("unsent", "send", SAFE)
    assert (sent.code, sent.out) == (1, "0 sent, 1 left\n")
    assert "1 stored message could not be sent: The exchange 'nowhere' does not exist" in sent.err
    (row,) = shop("unsent", "list", SAFE, "--json").json
    assert (row["id"], row["task"], row["exchange"]) == ("m", None, "nowhere")
    assert shop("unsent", "purge", SAFE, answer="n\n").code == 1
    assert shop("unsent", "purge", SAFE, "--yes", "--json").json == {"purged": ["m"]}
    Path(f"{fallback}-wal").unlink(missing_ok=True)
    Path(fallback).write_bytes(b"no database" * 100)
    for command in ["list"], ["send"], ["purge", "--yes"]:
        broken = shop("unsent", *command, SAFE)
        assert (broken.code, broken.out, broken.err.count("\n")) == (1, "", 1)
        assert "The fallback store cannot be used: DatabaseError: " in broken.err
    plain = shop("unsent", "send")
    assert plain.code == 2
    assert 'give it Scheduler(..., fallback="sqlite:///unsent.db")' in plain.err


CALL = ["send", "mail", "--args", '{"to": "x"}']
SAFE = "shop.py:safe"
LOOKS = (
    *(["history"], ["history", "mail", "--failed"], ["census"], ["failed", "list"]),
    ["scheduled", "list"],
)
ACTS = (
    *(CALL, [*CALL, "--unique", "x"], ["pause", "mail"], ["resume", "mail"], ["trigger", "tidy"]),
    *(["remove", "mail.a"], ["sync", "loops.toml"], ["seed"], ["unsent", "send", SAFE]),
    *(["failed", "replay", "--all"], ["failed", "purge", "--all", "--yes"], ["cancel", "tidy"]),
    *(["schedule", "set", "tidy", "--every", "2h"], ["schedule", "clear", "tidy"]),
    *(["scheduled", "move", "mail.x", "--after", "1h"], ["scheduled", "cancel", "mail.x"]),
)
ASKS = (["status"], ["status", "tidy"], ["doctor"], ["ps"], ["failed", "show", "x"])
LOCAL = (
    *(["next"], ["unsent", "list", SAFE], ["unsent", "purge", SAFE, "--yes"], ["topology", "show"]),
    ["send", SAFE, "bill", "--args", '{"order": 1}', "--timeout", "3s"],
)
LIMIT = "set_vm_memory_high_watermark"


@pytest.fixture(scope="module")
def on_node(node: PrivateNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    directory = tmp_path_factory.mktemp("on_node")
    (directory / "loops.toml").write_text('[mail."a"]\nevery = "1h"\nargs = {to = "x"}\n')
    with seeded_app(node.url, new_namespace(), directory, SHOP, TASKS) as shop:
        yield shop


def at_once(
    shop: CommandLine, commands: Sequence[Sequence[str]], *options: str
) -> Iterator[tuple[Sequence[str], Done]]:
    """Run commands side by side."""
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(shop, *each, *options) for each in commands]
        yield from zip(commands, (each.result() for each in running), strict=True)


def test_a_command_ends_though_the_broker_does_not_answer(node: PrivateNode, on_node: CommandLine):
    node.freeze()
    try:
        for command, done in at_once(on_node, [*LOOKS, *ACTS, *ASKS], "--timeout", "1s"):
            assert (done.code, done.out) == (1, ""), command
            assert done.err.count("\n") == 1, (command, done.err)
            assert re.search("within 1 ?s", done.err), (command, done.err)
        for command, done in at_once(on_node, LOCAL):
            assert done.code == 0, (command, done.err)
    finally:
        node.thaw()


def test_an_alarm_does_not_keep_commands_from_looking(node: PrivateNode, on_node: CommandLine):
    shop = on_node
    with shop.processor() as processor:
        processor.until("processing")
        assert shop("status", "--json").json["alarm"] == ""
        node.ctl(LIMIT, "0.000001")
        try:
            while not (status := shop("status", "--json")).json["alarm"]:
                time.sleep(0.5)
            assert (status.code, status.json["alarm"]) == (1, "low on memory")
            assert "blocks publishers (low on memory)" in shop("status").out
            for command, done in at_once(shop, LOOKS):
                assert done.code == 0, (command, done.err)
            for command, done in at_once(shop, ACTS, "--timeout", "1s"):
                assert "Traceback" not in done.err, command
            doctor = shop("doctor", "--json")
            found = {each["about"]: each["verdict"] for each in doctor.json}
            assert (doctor.code, found["messages"]) == (1, "problem")
            ps = shop("ps")
            told = "processors were not asked: the broker blocks publishers (low on memory)"
            assert (ps.code, ps.out) == (1, f"Incomplete: {told}.\n")
        finally:
            node.ctl(LIMIT, "0.6")


def test_a_watch_ends_or_says_that_the_broker_does_not_answer(
    node: PrivateNode, on_node: CommandLine
) -> None:
    """One that has shown something goes on, as the broker may answer again."""
    with on_node.terminal("status", "--watch", "--timeout", "10s") as watching:
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
