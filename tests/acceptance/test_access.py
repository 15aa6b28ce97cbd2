"""Every command on its way to the broker: it gets there, or says why not, and tells no secret."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from scheduler import Scheduler, Settings
from scheduler.brokers.opening import broker_of
from scheduler.errors import SchedulerError
from tests.acceptance.conftest import LOOPS, SHOP, WRONG, CommandLine
from tests.acceptance.test_command_line import COMMANDS
from tests.leaks import everything_about
from tests.rabbitmq import Users, free_ports
from tests.stage import an_app
from tests.sweep import clear

pytestmark = pytest.mark.timeout(300)

# Percent-encoded or not, whole or cut at a special character: the word stays.
WORD = "sesame"
PASSWORD = f"{WORD}/{WORD}?100%#{WORD}"

# One process for many commands: an interpreter takes longer to start than a command to be done.
EACH_IN_TURN = """\
import json, os, sys
from scheduler.cli.commands import cli

for command, environment in json.loads(sys.argv[1]):
    os.environ.update(environment)
    print(f"\\n>>> {command}", flush=True)
    try:
        cli(command.split())
    except SystemExit as ended:
        print(f"\\n<<< {ended.code}", flush=True)
"""


@dataclass(frozen=True)
class Way:
    """A way to the broker, as environment variables, and what is said of it."""

    environment: dict[str, str]
    told: str = ""

    def run(self, directory: Path, *commands: str) -> str:
        """Run commands, each with both formats of logs and with `--json`; all that they printed."""
        text, structured = ({"SCHEDULER_LOG_FORMAT": style} for style in ("text", "json"))
        each = [(command, text) for command in commands]
        each += [(f"{command} --json", structured) for command in commands]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SCHEDULER_")}
        noisy = {"SCHEDULER_LOG_LEVEL": "debug"}
        done = subprocess.run(
            [sys.executable, "-c", EACH_IN_TURN, json.dumps(each)],
            cwd=directory,
            env=clean | noisy | {"SCHEDULER_APP": SHOP} | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=250,
        )
        assert (done.returncode, done.stdout.count("<<< ")) == (0, len(each)), done.stdout
        return done.stdout


def codes(output: str) -> list[int]:
    return [int(part.split()[0]) for part in output.split("\n<<< ")[1:]]


@pytest.fixture(scope="module")
def user(users: Users) -> str:
    """The URL of a user with the password, percent-encoded."""
    return users.add(PASSWORD, configure=".*", write=".*", read=".*")


@pytest.fixture
def ways(broker_url: str, user: str, namespace: str, tmp_path: Path) -> Iterator[dict[str, Way]]:
    address = urlsplit(user)
    wrong = quote(f"not {PASSWORD}", safe="")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    (port,) = free_ports(1)
    name, host = address.username or "", f"{address.hostname}:{address.port}"

    def way(url: str, told: str = "", **environment: str) -> Way:
        return Way({"SHOP_NAMESPACE": namespace, "SCHEDULER_BROKER_URL": url, **environment}, told)

    yield {
        "url": way(user, "processing"),
        "password file": way(
            f"amqp://{host}{address.path}",
            SCHEDULER_BROKER_USER=name,
            SCHEDULER_BROKER_PASSWORD_FILE=str(tmp_path / "password"),
        ),
        "wrong password": way(f"amqp://{name}:{wrong}@{host}/", "refused access for user"),
        "wrong virtual host": way(
            address._replace(path="/elsewhere").geturl(), "refused access to the virtual host"
        ),
        "unreachable": way(user.replace(host, f"127.0.0.1:{port}"), "Cannot connect to amqp://"),
        "tls to a plain port": way(user.replace("amqp:", "amqps:"), "does not speak TLS"),
        "unencoded password": way(f"amqp://{name}:{PASSWORD}@{host}/", "The broker URL cannot be"),
    }
    asyncio.run(clear(broker_url, an_app(namespace, LOOPS).topology()))


def test_each_command_does_as_it_says_and_tells_no_secret(
    ways: dict[str, Way], tmp_path: Path
) -> None:
    output = ways["password file"].run(tmp_path, "seed")
    assert (WORD in output, codes(output)) == (False, [0, 0])
    commands = {f"{name} {arguments}": code for name, (arguments, code, _) in COMMANDS.items()}
    output = ways["url"].run(tmp_path, *commands)
    assert WORD not in output
    in_vain = {"trigger sell": WRONG}  # the second time, with --json
    assert codes(output) == [*commands.values(), *(commands | in_vain).values()], output
    for (_, _, words), part in zip(COMMANDS.values(), output.split("\n>>> ")[1:], strict=False):
        assert words in part


@pytest.mark.parametrize(
    "way",
    [
        "wrong password",
        "wrong virtual host",
        "unreachable",
        "tls to a plain port",
        "unencoded password",
    ],
)
def test_commands_that_fail_say_why_and_tell_no_secret(
    ways: dict[str, Way], way: str, tmp_path: Path
) -> None:
    waits = way in ("unreachable", "tls to a plain port")
    output = ways[way].run(tmp_path, "seed", "doctor", *(() if waits else ("run",)))
    assert WORD not in output
    for part in output.split("\n>>> ")[1:]:
        assert ways[way].told in part
        assert "Traceback" not in part
    assert set(codes(output)) <= {1, 2}


@pytest.mark.parametrize(
    ("way", "style"), [("url", "json"), ("unreachable", "text"), ("tls to a plain port", "json")]
)
def test_a_processor_tells_no_secret(
    ways: dict[str, Way], way: str, style: str, tmp_path: Path
) -> None:
    noisy = {"SCHEDULER_LOG_LEVEL": "debug"}
    scheduler = CommandLine(
        tmp_path, SCHEDULER_APP=SHOP, SCHEDULER_LOG_FORMAT=style, **ways[way].environment, **noisy
    )
    if way == "url":
        assert scheduler("seed").code == 0
    with scheduler.processor() as processor:
        assert "Trying again" in processor.until(ways[way].told) or way == "url"
        processor.signal(signal.SIGTERM)
        done = processor.end()
    assert done.code == 0
    assert "Traceback" not in done.output
    assert WORD not in done.output


@pytest.mark.parametrize(
    "way",
    ["wrong password", "wrong virtual host", "unreachable", "tls to a plain port"],
)
async def test_errors_and_events_hold_no_secret(
    ways: dict[str, Way], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ways[way].environment.items():
        monkeypatch.setenv(name, value)
    app = Scheduler("access", Settings())
    with pytest.raises(SchedulerError, match=ways[way].told) as refused:
        async with broker_of(app.settings, emit=app.events.emit):
            pass
    assert WORD not in everything_about(refused.value)
    assert WORD not in f"{app.settings} {app.settings!r} {vars(app)!r}"


# Rights


def test_who_lacks_rights_is_told_which(
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
