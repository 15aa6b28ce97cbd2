"""Parked messages, as an operator deals with them: listed, shown, replayed, edited, purged."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.protocol.calls import new_call, placed, task_key
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names, Subscription, topology
from scheduler.queues.failed import ParkedMessage, Reason
from scheduler.tasks.tasks import SUPERVISION
from tests.acceptance.conftest import APPS, FINE, MISUSE, WRONG, CommandLine, Done
from tests.stage import failed_of
from tests.sweep import NAMESPACES, clear, empty

DESK = f"{APPS}/desk.py:app"
TASKS = ("sms", "mail", "audit")
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


class Desk:
    """The command line, and what is in the queues behind it."""

    def __init__(self, url: str, namespace: str, directory: Path) -> None:
        self.url = url
        self.names = Names(namespace)
        self.run = CommandLine(
            directory,
            SCHEDULER_BROKER_URL=url,
            SCHEDULER_APP=DESK,
            SHOP_NAMESPACE=self.names.namespace,
        )

    def __call__(self, *arguments: str, answer: str = "") -> Done:
        return self.run("failed", *arguments, answer=answer)

    @property
    def parked(self) -> list[ParkedMessage]:
        async def browse() -> list[ParkedMessage]:
            async with AmqpBroker(self.url) as broker:
                return await failed_of(self.names, broker).browse(TASKS)

        return asyncio.run(browse())

    @property
    def left(self) -> list[str]:
        """The message ids of all that are parked."""
        return [each.message.message_id or "" for each in self.parked]

    def id_of(self, message_id: str) -> str:
        (found,) = [each.id for each in self.parked if each.message.message_id == message_id]
        return found

    def waiting(self, task: str) -> list[Message]:
        """Take what was replayed."""

        async def take() -> list[Message]:
            found = list[Message]()
            async with AmqpBroker(self.url) as broker:
                while delivery := await broker.get(self.names.processor_queue(task)):
                    found.append(delivery.message)
                    await delivery.ack()
            return found

        return asyncio.run(take())

    async def reset(self) -> None:
        """Leave five messages: two of a task, one of each other, one of a task that is gone."""
        async with AmqpBroker(self.url) as broker:
            names = self.names
            queues = [*map(names.processor_queue, TASKS), *map(names.failed_queue, TASKS)]
            for queue in (*queues, names.unrouted, names.later_unrouted, names.failed):
                await empty(broker, queue)
            failed = failed_of(self.names, broker)
            for name, task, reason, args in [
                ("m1", "sms", Reason.EXHAUSTED, {"phone": "1"}),
                ("m2", "sms", Reason.REJECTED, {"phone": "2"}),
                ("m3", "mail", Reason.EXHAUSTED, {"to": "ada"}),
            ]:
                await failed.park(
                    self._call(name, task, args), task_key(task), reason, failure(name)
                )
            order = Message(b"\xff", {"traceparent": "00-ab"}, message_id="m4")
            order = placed(order, f"{self.names.namespace}.orders", "order.paid")
            await failed.park(order, task_key("audit"), Reason.BROKEN, failure("m4"))
            gone = self._call("m5", "gone", {})
            await broker.publish(gone, exchange=self.names.rerouted, routing_key="task.gone")

    def _call(self, name: str, task: str, args: Mapping[str, Any]) -> Message:
        call = new_call(
            self.names.namespace, task, args, message_id=name, sent_at=NOW, due_at=NOW,
            expires_at=NOW, correlation_id="c",
        )  # fmt: skip
        headers = {"scheduler-attempt": 4, "scheduler-first-failed-at-ms": 1_780_315_200_000}
        return replace(call, headers={**call.headers, **headers})


def failure(text: str) -> Exception:
    """An error with a traceback."""
    try:
        raise ValueError(f"boom {text}")
    except ValueError as error:
        return error


@pytest.fixture(scope="module")
def seeded(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with NAMESPACES.lent("quorum") as namespace:
        desk = Desk(broker_url, namespace, tmp_path_factory.mktemp("desk"))
        try:
            done = desk.run("seed")
            assert done.code == FINE, done.output
            yield desk
        finally:
            orders = Subscription("audit", f"{namespace}.orders", "order.#", "topic")
            tasks = (*TASKS, SUPERVISION.task)
            wanted = topology(namespace, tasks, subscriptions=[orders], called=TASKS)
            asyncio.run(clear(broker_url, wanted))


@pytest.fixture
def desk(seeded: Desk) -> Desk:
    asyncio.run(seeded.reset())
    return seeded


def refused(done: Done) -> str:
    """What is said in one line on stderr, and nothing on stdout."""
    assert done.out == ""
    (line,) = done.err.splitlines()
    return line


def test_an_app_without_loops_is_seeded_for_its_tasks(desk: Desk):
    no_loops = f"The app of namespace {desk.names.namespace!r} has no loops"
    queues = f"{no_loops}; the queues of its tasks are declared: sms, mail, audit.\n"
    assert (desk.run("seed").code, desk.run("seed").out) == (FINE, queues)
    assert desk.run("seed", "--dry-run").out == queues.replace("are declared", "would be declared")
    assert desk.run("seed", "--json").json == {"loops": [], "keyed": {}, "leftovers": []}
    upcoming = desk.run("next")
    when = "its tasks run when they are sent messages: sms, mail, audit."
    assert (upcoming.code, upcoming.out) == (FINE, f"{no_loops}; {when}\n")


def test_the_status_counts_messages_of_tasks(desk: Desk):
    assert desk("replay", desk.id_of("m2")).code == FINE
    done = desk.run("status")
    assert done.code == FINE
    _, _, head, *rows, _, parked = done.out.splitlines()
    assert head.split()[:5] == ["TASK", "READY", "OLDEST", "PROCESSORS", "PARKED"]
    assert [row.split()[:4] for row in rows] == [
        ["sms", "1", "0", "1"],
        ["mail", "0", "0", "1"],
        ["audit", "0", "0", "1"],
    ]
    assert parked == "4 parked: see `scheduler failed list`"
    status = desk.run("status", "--json").json
    assert {"loops": [], "parked": 4, "delayed": 0, "orphans": []}.items() <= status.items()
    of_task = {"task": "sms", "ready": 1, "processors": 0, "parked": 1}
    assert status["tasks"][0].items() >= of_task.items()


def test_parked_messages_are_listed_in_a_table(desk: Desk):
    done = desk("list", DESK)
    assert done.code == FINE
    words = [(row[0].partition("@")[0], *row[1:4], *row[6:]) for row in done.rows]
    assert words[0] == ("m1", "sms", "-", "exhausted", "ValueError:", "boom", "m1")
    assert [row[1] for row in done.rows] == ["sms", "sms", "mail", "audit", "gone"]
    assert "no queue of a task is bound for its routing key" in done.out
    assert desk("list", "--limit", "2").out.endswith("3 more: raise --limit to see them\n")
    assert "3 more: raise --limit" in desk("list", "--limit", "2", "--json").err
    for verb in (["list"], ["list", "--trash"], ["replay"], ["purge", "--yes"], ["restore"]):
        done = desk(*verb, "--task", "smss")
        assert (verb, done.code) == (verb, MISUSE)
        assert "There is no task 'smss'; did you mean 'sms'?" in refused(done)


def test_a_terminal_shows_as_much_of_an_id_as_a_verb_needs(desk: Desk):
    shown = desk.run.in_terminal("failed", "list", NO_COLOR="1")
    head, *rows = shown.out.splitlines()
    assert head.replace("\x1b[1m", "").replace("\x1b[0m", "").split() == [
        *("ID", "TASK", "REASON", "PARKED", "ERROR")
    ]
    ids = [row.split()[0] for row in rows]
    assert ids[:2] == [desk.id_of("m1")[:8], desk.id_of("m2")[:8]]
    assert desk("show", ids[1], "--json").json["id"] == desk.id_of("m2")
    ambiguous = desk("purge", "--yes", "m")
    assert ambiguous.code == MISUSE
    matches = ", ".join(map(desk.id_of, ["m1", "m2", "m3"]))
    assert f"Ambiguous ID prefix 'm': matches {matches}" in refused(ambiguous)
    done = desk("replay", "nobody", *ids[:2])
    assert done.code == WRONG
    assert "not found: nobody" in done.out
    assert done.out.endswith("2 replayed\n")
    assert desk.left == ["m3", "m4", "m5"]


def test_purging_asks_first_and_can_be_undone(desk: Desk):
    ids = [desk.id_of("m1"), desk.id_of("m2")]
    assert desk("purge", "--task", "sms", answer="n\n").code == WRONG
    assert desk.left == ["m1", "m2", "m3", "m4", "m5"]
    purged = desk("purge", "--task", "sms", answer="y\n")
    assert (purged.code, purged.out.splitlines()[-1]) == (FINE, "2 purged")
    assert desk.left == ["m3", "m4", "m5"]
    assert [row["id"] for row in desk("list", "--trash", "--json").json] == ids
    assert desk("restore", ids[1][:8]).out.splitlines() == [f"restored {ids[1]}", "1 restored"]
    assert sorted(desk.left) == ["m2", "m3", "m4", "m5"]
    done = desk("restore", ids[1])
    assert (done.code, done.out.splitlines()) == (1, [f"not found: {ids[1]}", "0 restored"])
    gone = ("--task", "gone")  # it is neither in the code nor in the broker
    (lost,) = desk("list", *gone, "--json").json
    assert desk("purge", *gone, "--yes").out.splitlines() == [f"purged {lost['id']}", "1 purged"]
    assert len(desk("list", "--trash", *gone, "--json").json) == 1
    assert desk("restore", *gone).out.splitlines()[-1] == "1 restored"
    assert desk("restore", "--task", "sms").out.splitlines()[-1] == "1 restored"
    assert desk("restore", "--task", "sms").out.splitlines() == ["0 restored"]
    assert desk("replay", "--all").out.splitlines()[-1] == "5 replayed"
    assert desk.left == []


def test_a_parked_message_is_shown_with_error_and_traceback(desk: Desk):
    done = desk("show", desk.id_of("m1"))
    assert done.code == FINE
    for words in (
        "error        ValueError: boom m1",
        "attempts     4",
        "first failed 2026-06-01",
        "header       scheduler-task = 'sms'",
        'body         {"args":{"phone":"1"}}',
        "Traceback (most recent call last)",
        "in failure",
    ):
        assert words in done.out
    foreign = desk("show", desk.id_of("m4"), "--json").json
    assert (foreign["body_base64"], foreign["routing_key"]) == ("/w==", "task.audit")
    assert foreign["headers"]["scheduler-key"] == "order.paid"


def test_a_message_is_replayed_with_other_arguments_that_fit(desk: Desk):
    name, foreign = desk.id_of("m1"), desk.id_of("m4")
    for message, args, told in (
        (name, {"nope": 1}, "do not fit sms: phone: Field required"),
        (name, {"phone": "1", "times": "many"}, "do not fit sms: times: "),
        (foreign, {}, "'m4' has no arguments to change: it was not sent by a scheduler"),
    ):
        done = desk("replay", message, "--args", json.dumps(args))
        assert (done.code, told in refused(done)) == (MISUSE, True), done.err
    assert (desk.id_of("m1"), desk.id_of("m4")) == (name, foreign)
    other = {"phone": "3", "times": 2}
    assert desk("replay", name, "--args", json.dumps(other)).code == FINE
    (message,) = desk.waiting("sms")
    assert json.loads(message.body) == {"args": other}
    assert message.message_id == "m1"
