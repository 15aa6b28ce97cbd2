"""Real brokers for the tests: one that all of them share, and private nodes to be killed.

Run as a script, this module *is* the shared broker: it keeps one running while any test process
lives.
"""

import fcntl
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

IMAGE = "rabbitmq:4-management"
URL_VARIABLE = "SCHEDULER_TEST_BROKER_URL"

# Debian's wrapper in /usr/sbin insists on being root or the rabbitmq user: the script behind it
# runs as anybody.
PLACES = (
    "/usr/lib/rabbitmq/bin",
    "/opt/homebrew/opt/rabbitmq/sbin",
    "/usr/local/opt/rabbitmq/sbin",
)

NO_BROKER = f"""\
The tests need a RabbitMQ broker, and there is no way to one here. Give them one of three:
set {URL_VARIABLE} to the AMQP URL of a broker they may use; or start a Docker engine, for the
image {IMAGE}; or install the package rabbitmq-server (root on Debian or Ubuntu: this is done for
you), of which they start a private node."""


class NoBroker(Exception):
    """There is no broker for the tests, and why."""


class PrivateNode:
    """A RabbitMQ node of one's own on 127.0.0.1, gone with its data at the end.

    It starts in about 5 seconds. Its methods block: call them with `asyncio.to_thread` while a
    client is being watched.

    Args:
        config: further lines for its rabbitmq.conf.
        advanced: what cannot be said there, as the Erlang terms of its advanced.config.

    Attributes:
        url: of AMQP, before it has started too.
        management_url: of the management API; None where this RabbitMQ comes without the plugin.
    """

    def __init__(self, config: str = "", advanced: str = "[].") -> None:
        self._bin = server_directory()
        self._home = Path(tempfile.mkdtemp(prefix="rabbitmq-"))
        self._port, management_port, dist_port, epmd_port = free_ports(4)
        self._processes: subprocess.Popen[bytes] | None = None
        self._gone = -1
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}/"
        self.management_url = None
        if has_management(self._bin):
            self.management_url = f"http://guest:guest@127.0.0.1:{management_port}/"
            config += f"\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management_port}"
            (self._home / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (self._home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self._port}\n"
            "loopback_users = none\n"
            "log.console = true\n"
            "log.console.level = warning\n"
            "disk_free_limit.absolute = 50MB\n"
            "raft.wal_max_size_bytes = 32000000\n"
            f"{config}\n"
        )
        (self._home / "advanced.config").write_text(advanced)
        self._environment = {
            "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "HOME": str(self._home),  # of the Erlang cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(epmd_port),
            # Otherwise an Erlang that finds no epmd leaves one behind as a daemon.
            "ERL_FLAGS": "-start_epmd false",
            "RABBITMQ_NODENAME": f"test-{secrets.token_hex(4)}@localhost",
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(self._home / "no.conf"),
            "RABBITMQ_CONFIG_FILE": str(self._home / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(self._home / "conf.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self._home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self._home / "data"),
            "RABBITMQ_LOG_BASE": str(self._home / "log"),
            "RABBITMQ_LOGS": "-",
        }

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def start(self, timeout: float = 45) -> None:
        """Start the node, on the data that it left, and wait until it answers."""
        self._gone, held = os.pipe()
        with (self._home / "output").open("ab") as output:
            # Everything of the node is one process group, and its first shell a dead man's switch:
            # when this process ends, in whatever way, `read` returns, and group and data go.
            self._processes = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    'epmd & { "$1"; kill -9 0; } & read _; rm -rf "$2"; kill -9 0',
                    "sh",
                    self._bin / "rabbitmq-server",
                    self._home,
                ],
                cwd=self._home,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[held],
                start_new_session=True,
            )
        os.close(held)
        try:
            wait_for_amqp("127.0.0.1", self._port, timeout, alive=self._alive)
        except TimeoutError:
            self.kill()
            said = (self._home / "output").read_text(errors="replace")
            cause = said[max(said.find("[error]"), 0) :][:3000]
            raise NoBroker(f"The RabbitMQ node did not start. It said:\n{cause}") from None

    def stop(self) -> None:
        """Stop the node in good order. Its data stays."""
        self.ctl("shutdown")
        self._wait()

    def kill(self) -> None:
        """End the node without notice. Its data stays.

        But RabbitMQ 3.10 loses a quorum queue that is not yet a second old: let them settle first.
        """
        if self._processes is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._processes.pid, signal.SIGKILL)
            self._wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def ctl(self, *arguments: str) -> str:
        """What `rabbitmqctl` prints."""
        command = [self._bin / "rabbitmqctl", "--quiet", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _alive(self) -> bool:
        return self._processes is not None and self._processes.poll() is None

    def _wait(self) -> None:
        """Until the last process of the node is gone."""
        if self._processes is not None:
            os.read(self._gone, 1)  # all of them hold the other end: this returns when none does
            os.close(self._gone)
            self._processes.communicate()
            self._processes = None


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for_amqp(
    host: str, port: int, timeout: float, *, alive: Callable[[], bool] = lambda: True
) -> None:
    """Wait until a broker answers the AMQP greeting with a method frame."""
    deadline = time.monotonic() + timeout
    while alive() and time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                if connection.recv(1) == b"\x01":
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"nothing speaks AMQP on {host}:{port}")


def server_directory() -> Path:
    """Where RabbitMQ's scripts are; installs them where that can be done."""
    found = find_server_directory()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with locked(Path(tempfile.gettempdir(), "scheduler-tests-install.lock")):
            found = find_server_directory() or install_server()
    if found is None:
        raise NoBroker(NO_BROKER)
    return found


def find_server_directory() -> Path | None:
    on_path = shutil.which("rabbitmq-server")
    places = [*map(Path, PLACES), *([Path(on_path).parent] if on_path else [])]
    return next((place for place in places if (place / "rabbitmq-server").exists()), None)


def has_management(server: Path) -> bool:
    installation = (server / "rabbitmq-server").resolve().parent.parent
    return any((installation / "plugins").glob("rabbitmq_management-*"))


def install_server() -> Path | None:
    install("rabbitmq-server")
    return find_server_directory()


def install(package: str) -> None:
    """Install a package of Debian or Ubuntu, without starting the service that it may bring."""
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        apt_get("update", "-q")
        apt_get("install", "-y", "-q", "--no-install-recommends", package)
    finally:
        if ours:
            policy.unlink()


def apt_get(*arguments: str) -> None:
    """Its failure is not the end: what counts is whether the server is there afterwards."""
    done = subprocess.run(
        ["apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.stderr.write(f"apt-get {arguments[0]} failed:\n{done.stdout[-2000:]}\n")


@contextmanager
def locked(path: Path) -> Generator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def shared_broker(run: str) -> str:
    """The URL of the broker that all processes of one test run share.

    It is there until the last process that called this has ended: each holds a lock that the
    system takes back from it, in whatever way it ends.
    """
    if url := os.environ.get(URL_VARIABLE):
        return url
    directory = Path(tempfile.gettempdir(), f"scheduler-tests-{run}")
    directory.mkdir(exist_ok=True)
    users = os.open(directory / "users", os.O_RDWR | os.O_CREAT)  # never closed: see above
    fcntl.flock(users, fcntl.LOCK_SH)
    with locked(directory / "start"):
        known = directory / "url"
        if not known.exists():
            known.write_text(start_keeper(directory))
        return known.read_text()


def start_keeper(directory: Path) -> str:
    """Run this module on its own, out of reach of Ctrl-C; returns what it prints: the URL."""
    keeper = subprocess.run(
        # The shell leaves it as an orphan, so that no test process has a child to wait for.
        ["sh", "-c", '"$@" &', "sh", sys.executable, "-P", __file__, directory],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    if not keeper.stdout:
        raise NoBroker(keeper.stderr.strip() or NO_BROKER)
    return keeper.stdout


def keep(directory: Path) -> None:
    """Have a broker running, print its URL, and end it when no test process is left."""
    users = os.open(directory / "users", os.O_RDWR)
    with ExitStack() as broker:
        try:
            url = start_container(broker) or broker.enter_context(PrivateNode()).url
        except NoBroker as error:
            sys.exit(str(error))
        sys.stdout.write(url)
        sys.stdout.flush()
        with Path(os.devnull).open("w") as nothing:  # whoever reads the URL reads until its end
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        fcntl.flock(users, fcntl.LOCK_EX)
    shutil.rmtree(directory)


def start_container(broker: ExitStack) -> str | None:
    """Start RabbitMQ in a container, if a Docker engine answers and has the image."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.docker_client import DockerClient

    try:
        DockerClient(timeout=3).client.ping()  # pyright: ignore[reportUnknownMemberType]
    except Exception:  # no engine: there is no common class of what it can be
        return None
    try:
        container = broker.enter_context(DockerContainer(IMAGE).with_exposed_ports(5672))
        host, port = container.get_container_host_ip(), container.get_exposed_port(5672)
        wait_for_amqp(host, port, timeout=60)
    except Exception as error:
        sys.stderr.write(f"Docker does not run {IMAGE}: {error}\n")
        return None
    return f"amqp://guest:guest@{host}:{port}/"


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
