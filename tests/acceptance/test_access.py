"""Every command on its way to the broker: it gets there, or says why not, and shows no secret."""

import asyncio
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.acceptance.conftest import FINE, LOOPS, SHOP, WRONG, CommandLine, Done
from tests.acceptance.test_command_line import COMMANDS
from tests.rabbitmq import Users, free_ports
from tests.stage import an_app
from tests.sweep import clear

pytestmark = pytest.mark.timeout(300)

# Percent-encoded or not, whole or cut at a special character: the word stays.
WORD = "sesame"
PASSWORD = f"{WORD}/{WORD}?100%#{WORD}"
FAILURES = {
    "wrong password": "refused access for user",
    "wrong virtual host": "refused access to the virtual host",
    "unreachable": "Cannot connect to amqp://",
    "unencoded password": "The broker URL cannot be",
}
STYLES = {"text": [], "json": ["--json"]}


@pytest.fixture(scope="module")
def user(users: Users) -> str:
    """The URL of a user with the password, percent-encoded."""
    return users.add(PASSWORD, configure=".*", write=".*", read=".*")


@pytest.fixture
def ways(
    broker_url: str, user: str, namespace: str, tmp_path: Path
) -> Iterator[dict[str, CommandLine]]:
    """The command line with each way to the broker, and with all of its log."""
    address = urlsplit(user)
    name, host = address.username or "", f"{address.hostname}:{address.port}"
    wrong = quote(f"not {PASSWORD}", safe="")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    (port,) = free_ports(1)
    separate = {
        "SCHEDULER_BROKER_USER": name,
        "SCHEDULER_BROKER_PASSWORD_FILE": str(tmp_path / "password"),
    }

    def way(url: str, **environment: str) -> CommandLine:
        noisy = {"SCHEDULER_APP": SHOP, "SCHEDULER_LOG_LEVEL": "debug"}
        environment |= {"SHOP_NAMESPACE": namespace, "SCHEDULER_BROKER_URL": url}
        return CommandLine(tmp_path, **noisy, **environment)

    yield {
        "url": way(user),
        "password file": way(f"amqp://{host}{address.path}", **separate),
        "wrong password": way(f"amqp://{name}:{wrong}@{host}/"),
        "wrong virtual host": way(address._replace(path="/elsewhere").geturl()),
        "unreachable": way(user.replace(host, f"127.0.0.1:{port}")),
        "unencoded password": way(f"amqp://{name}:{PASSWORD}@{host}/"),
    }
    asyncio.run(clear(broker_url, an_app(namespace, LOOPS).topology()))


def done_by(scheduler: CommandLine, command: str, style: str) -> Done:
    """What a command did, which printed no part of the password."""
    done = scheduler(*shlex.split(command), *STYLES[style], SCHEDULER_LOG_FORMAT=style)
    assert WORD not in done.output
    return done


def test_each_command_does_as_it_says_and_shows_no_secret(ways: dict[str, CommandLine]) -> None:
    for style in STYLES:
        assert done_by(ways["password file"], "seed", style).code == FINE
    for name, (arguments, code, words) in COMMANDS.items():
        if code == FINE or name == "dashboard":  # the words of other errors are the same in JSON
            done = done_by(ways["url"], f"{name} {arguments}", "text")
            assert (done.code, words in done.output) == (code, True), (name, done.output)
    for name, (arguments, code, words) in COMMANDS.items():
        if name == "dashboard":
            continue  # it prints no JSON
        done = done_by(ways["url"], f"{name} {arguments}", "json")
        in_vain = name == "trigger"  # the second time
        assert done.code == (WRONG if in_vain else code), (name, done.output)
        if code != FINE:
            assert words in done.json["message"], name
        elif name != "dev":  # which prints its log
            assert done.json is not None, name


@pytest.mark.parametrize("way", FAILURES)
def test_commands_that_fail_say_why_and_show_no_secret(ways: dict[str, CommandLine], way: str):
    for command, style in (("seed", "text"), ("doctor", "json"), ("run", "json")):
        if command == "run" and way == "unreachable":
            continue  # it waits for the broker
        done = done_by(ways[way], command, style)
        assert FAILURES[way] in done.output
        assert "Traceback" not in done.output
        assert done.code in (1, 2)


@pytest.mark.parametrize(("way", "style"), [("url", "json"), ("unreachable", "text")])
def test_a_processor_shows_no_secret(ways: dict[str, CommandLine], way: str, style: str) -> None:
    scheduler = ways[way]
    if way == "url":
        assert scheduler("seed").code == FINE
    with scheduler.processor(SCHEDULER_LOG_FORMAT=style) as processor:
        assert "Trying again" in processor.until(FAILURES.get(way, "processing")) or way == "url"
        processor.signal()
        done = processor.end()
    assert done.code == FINE
    assert "Traceback" not in done.output
    assert WORD not in done.output


def test_a_user_without_rights_is_shown_the_command_that_grants_them(
    scheduler: CommandLine, namespace: str, users: Users
) -> None:
    assert scheduler("seed").code == 0
    nobody = users.add()
    ours, nothing = rf"'^{namespace}\.v1\.'", "'^$'"
    give = f"rabbitmqctl set_permissions -p {users.vhost} {urlsplit(nobody).username}"
    for command, configure in [("seed", ours), ("pause report", nothing), ("run", nothing)]:
        done = scheduler(*command.split(), SCHEDULER_BROKER_URL=nobody)
        assert (done.code, done.out) == (1, "")
        line = done.err.splitlines()[-1]
        assert "Traceback" not in done.err
        assert "ACCESS_REFUSED" in line
        assert line.endswith(f"{give} {configure} {ours} {ours}")
