"""Real brokers for the tests: one that all of them share, and private nodes to be killed.

Run as a script, this module *is* the shared broker: it keeps one running while any test process
lives.
"""

import base64
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar
from urllib.parse import quote, unquote, urlsplit

T = TypeVar("T")

IMAGE = "rabbitmq:4-management"
LOCAL = "-kernel inet_dist_use_interface {127,0,0,1}"
# Erlang's schedulers turn round and round while they wait, where others could compute.
IDLE = "+sbwt none +sbwtdcpu none +sbwtdio none"
# Each of some thousand queues has something to tell every five seconds, to nobody.
SELDOM = "[{rabbit,[{quorum_tick_interval,60000},{collect_statistics_interval,30000}]}]."
# A quorum queue that could not hand on a message, because the next queue was not up yet, tries it
# again after three minutes, unless the broker is told otherwise.
TRIES_AGAIN = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 3000}]}]."
IN_MEMORY, ROOM = Path("/dev/shm"), 4 << 30
BELOW_OUTGOING = range(10_000, 32_768)  # where Linux begins: net.ipv4.ip_local_port_range
URL_VARIABLE = "SCHEDULER_TEST_BROKER_URL"
ROOT_VARIABLE = "SCHEDULER_TEST_RABBITMQ_ROOT"

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


NO_ADMINISTRATOR = f"""\
A test makes users, and the management API of the broker of {URL_VARIABLE} does not answer:
neither at port %s nor at 15672 of its host, for the user of the URL. Enable its plugin
rabbitmq_management, and give that user the tag `administrator`; or unset the variable, for a broker
of the tests' own."""


class NoBroker(Exception):
    """There is no broker for the tests, and why."""


@dataclass(frozen=True)
class ManagementApi:
    """Makes users of a broker, through HTTP."""

    url: str

    def answers(self) -> bool:
        try:
            return "administrator" in json.loads(self.request("GET", "whoami"))["tags"]
        except (OSError, ValueError):
            return False

    def set_user(self, name: str, password: str) -> None:
        self.request("PUT", f"users/{quote(name, safe='')}", password=password, tags="")

    def set_rights(self, name: str, vhost: str, configure: str, write: str, read: str) -> None:
        path = f"permissions/{quote(vhost, safe='')}/{quote(name, safe='')}"
        self.request("PUT", path, configure=configure, write=write, read=read)

    def delete_user(self, name: str) -> None:
        self.request("DELETE", f"users/{quote(name, safe='')}")

    def request(self, method: str, path: str, **body: Any) -> bytes:
        address = urlsplit(self.url)
        secret = base64.b64encode(f"{address.username}:{address.password}".encode()).decode()
        request = urllib.request.Request(
            f"http://{address.hostname}:{address.port}/api/{path}",
            method=method,
            data=json.dumps(body).encode() if body else None,
            headers={"Authorization": f"Basic {secret}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read()


@dataclass(frozen=True)
class Rabbitmqctl:
    """The command on a node: a second or two for each call."""

    command: Sequence[str]
    environment: Mapping[str, str]

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.command, "--quiet", *arguments],
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout


class PrivateNode:
    """A RabbitMQ node of one's own on 127.0.0.1, gone with its data at the end.

    It starts in about 5 seconds. Its methods block: call them with `asyncio.to_thread` while a
    client is being watched.

    Args:
        config: further lines for its rabbitmq.conf.
        advanced: what cannot be said there, as the Erlang terms of its advanced.config.
        plugins: to be enabled, besides the management API.
        management: with the management API, if this RabbitMQ has it; it starts faster without.
        epmd_port: of an epmd that runs already; None: it starts its own.
        cookie: what the nodes of a cluster have in common.
        root: of another system, with another RabbitMQ in it, to chroot into (as root). By default
            what SCHEDULER_TEST_RABBITMQ_ROOT says, else this one.

    Attributes:
        name: of the Erlang node.
        port: of AMQP.
        url: of AMQP, before it has started too.
        management_url: of the management API; None where there is none.
        ctl: `rabbitmqctl` on this node; returns what it prints.
    """

    def __init__(
        self,
        config: str = "",
        advanced: str = "[].",
        plugins: Sequence[str] = (),
        *,
        management: bool = True,
        epmd_port: int | None = None,
        cookie: str | None = None,
        root: Path | None = None,
    ) -> None:
        self._root = root or root_of_nodes()
        self._bin = server_directory(self._root)
        self._home = Path(tempfile.mkdtemp(prefix="rabbitmq-", dir=temporary_directory(self._root)))
        if cookie is not None:
            (self._home / ".erlang.cookie").write_text(cookie)
            (self._home / ".erlang.cookie").chmod(0o400)
        self.port, management_port, dist_port, free_epmd_port = free_ports(4)
        self._epmd = "epmd" if epmd_port is None else "true"
        self._processes: subprocess.Popen[bytes] | None = None
        self._gone = -1
        self.name = f"test-{secrets.token_hex(4)}@localhost"
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self.management_url = None
        if management and has_management(self._bin):
            self.management_url = f"http://guest:guest@127.0.0.1:{management_port}/"
            config += f"\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management_port}"
            plugins = [*plugins, "rabbitmq_management"]
        (self._home / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        home = self._seen(self._home)
        (self._home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
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
            "HOME": str(home),  # of the Erlang cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(epmd_port or free_epmd_port),
            # Otherwise an Erlang that finds no epmd leaves one behind as a daemon.
            "ERL_FLAGS": "-start_epmd false",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{LOCAL} {IDLE}",
            "RABBITMQ_CONF_ENV_FILE": str(home / "no.conf"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(home / "conf.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_LOGS": "-",
        }
        ctl = [*self._inside, str(self._seen(self._bin / "rabbitmqctl"))]
        self.ctl = Rabbitmqctl(ctl, self._environment)

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
                    *self._inside,
                    "sh",
                    "-c",
                    'cd "$2"; "$3" & { "$1"; kill -9 0; } & read _; rm -rf "$2"; kill -9 0',
                    "sh",
                    self._seen(self._bin / "rabbitmq-server"),
                    self._seen(self._home),
                    self._epmd,
                ],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[held],
                start_new_session=True,
            )
        os.close(held)
        try:
            wait_for_amqp("127.0.0.1", self.port, timeout, alive=self._alive)
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
        self._signal(signal.SIGKILL)
        self._wait()

    def freeze(self) -> None:
        """Have the node stand still: its connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Have it go on."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def forget(self) -> None:
        """Delete all its data, while it is down."""
        shutil.rmtree(self._home / "data")

    @property
    def _inside(self) -> list[str]:
        return [] if self._root == Path("/") else ["chroot", str(self._root)]

    def _seen(self, path: Path) -> Path:
        """A path as the node sees it."""
        return "/" / path.relative_to(self._root)

    def _signal(self, number: signal.Signals) -> None:
        if self._processes is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._processes.pid, number)

    def _alive(self) -> bool:
        return self._processes is not None and self._processes.poll() is None

    def _wait(self) -> None:
        """Until the last process of the node is gone."""
        if self._processes is not None:
            os.read(self._gone, 1)  # all of them hold the other end: this returns when none does
            os.close(self._gone)
            self._processes.communicate()
            self._processes = None


_handed_out = set[int]()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, none of them handed out before.

    They are taken some time later. So they are none of those that the system gives to connections
    that go out, as it does with any port that a server asks it for.
    """
    ports = list[int]()
    while len(ports) < count:
        port = secrets.choice(BELOW_OUTGOING)
        if port not in _handed_out and _is_free(port):
            _handed_out.add(port)
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as server:
        try:
            server.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


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


class PrivateCluster:
    """Three nodes of one's own, joined; a minority stops its work until it sees the others again.

    Args:
        config: further lines for each rabbitmq.conf.
        advanced: what cannot be said there, as the Erlang terms of each advanced.config.
    """

    def __init__(self, config: str = "", advanced: str = "[].") -> None:
        (self._epmd_port,) = free_ports(1)
        self._epmd: subprocess.Popen[bytes] | None = None
        cookie = secrets.token_hex(8)
        self.nodes = [
            PrivateNode(
                f"cluster_partition_handling = pause_minority\n{config}",
                advanced,
                management=False,
                epmd_port=self._epmd_port,
                cookie=cookie,
            )
            for _ in range(3)
        ]

    def __enter__(self) -> Self:
        try:
            self._start_epmd()
            first, *others = self.nodes
            first.start()
            for node in others:
                node.start()
                for command in ("stop_app",), ("join_cluster", first.name), ("start_app",):
                    node.ctl(*command)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for node in self.nodes:
            node.__exit__()
        if self._epmd is not None:
            os.killpg(self._epmd.pid, signal.SIGKILL)
            self._epmd.communicate()

    def cut_off(self, node: PrivateNode) -> None:
        """Part a node from the others: each side sees the connection end, and cannot make one."""
        self._meet(node, "no_longer")

    def reconnect(self, node: PrivateNode) -> None:
        """Let it find the others again."""
        self._meet(node, "erlang:get_cookie()")

    def _meet(self, node: PrivateNode, cookie: str) -> None:
        others = ", ".join(f"'{other.name}'" for other in self.nodes if other is not node)
        node.ctl(
            "eval",
            f"[begin erlang:set_cookie(Other, {cookie}), erlang:disconnect_node(Other) end "
            f"|| Other <- [{others}]].",
        )

    def _start_epmd(self) -> None:
        # Outlives each of the nodes; it ends when this process does.
        self._epmd = subprocess.Popen(
            ["sh", "-c", 'epmd -port "$1" & read _; kill -9 0', "sh", str(self._epmd_port)],
            env={**os.environ, "ERL_EPMD_ADDRESS": "127.0.0.1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def server_directory(root: Path = Path("/")) -> Path:
    """Where RabbitMQ's scripts are; installs them where that can be done."""
    if root != Path("/"):
        for place in PLACES:
            if (found := root / place[1:] / "rabbitmq-server").exists():
                return found.parent
        raise NoBroker(f"There is no rabbitmq-server in {root}, which {ROOT_VARIABLE} names.")
    found = found_or_installed("rabbitmq-server", find_server_directory)
    if found is None:
        raise NoBroker(NO_BROKER)
    return found


def find_server_directory() -> Path | None:
    on_path = shutil.which("rabbitmq-server")
    places = [*map(Path, PLACES), *([Path(on_path).parent] if on_path else [])]
    return next((place for place in places if (place / "rabbitmq-server").exists()), None)


def temporary_directory(root: Path) -> Path:
    """In memory for tests, if there is room: what a killed node has written stays there as well.

    Benchmarks and storms need a disk.
    """
    if root != Path("/"):
        return root / "tmp"
    if "PYTEST_VERSION" not in os.environ:
        return Path(tempfile.gettempdir())
    has_room = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM
    return IN_MEMORY if has_room else Path(tempfile.gettempdir())


def root_of_nodes() -> Path:
    """Of the system that nodes are started in, unless they are told another one."""
    return Path(os.environ.get(ROOT_VARIABLE, "/"))


@contextmanager
def directory_for_nodes() -> Generator[Path]:
    """A directory for files that nodes are to read."""
    with tempfile.TemporaryDirectory(dir=temporary_directory(root_of_nodes())) as directory:
        yield Path(directory)


def as_nodes_see(path: Path) -> Path:
    """The path of such a file, for their configuration."""
    return "/" / path.relative_to(root_of_nodes())


def has_management(server: Path) -> bool:
    installation = (server / "rabbitmq-server").resolve().parent.parent
    return any((installation / "plugins").glob("rabbitmq_management-*"))


def found_or_installed(package: str, find: Callable[[], T | None]) -> T | None:
    """Find a program; if there is none, install its package where that can be done."""
    found = find()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with locked(Path(tempfile.gettempdir(), "scheduler-tests-install.lock")):
            if find() is None:
                install(package)
            found = find()
    return found


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


def lock(file: TextIO | int, *, shared: bool = False) -> None:
    """Lock a file, until it is closed; or as one of those that may have it at once."""
    import fcntl  # Windows has none: no broker is started there

    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


@contextmanager
def locked(path: Path) -> Generator[None]:
    with path.open("a") as file:
        lock(file)
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
    lock(users, shared=True)
    with locked(directory / "start"):
        known = directory / "url"
        if not known.exists():
            known.write_text(start_keeper(directory))
        return known.read_text()


def administrator(run: str, url: str) -> ManagementApi:
    """Who makes users of the broker that `shared_broker` gave."""
    if os.environ.get(URL_VARIABLE):
        return find_administrator(url)
    directory = Path(tempfile.gettempdir(), f"scheduler-tests-{run}")
    if not (known := (directory / "administrator").read_text()):
        raise NoBroker("The RabbitMQ of the tests has no plugin rabbitmq_management.")
    return ManagementApi(known)


@functools.cache
def find_administrator(url: str) -> ManagementApi:
    """Who makes users of a broker of which only the URL is known."""
    address = urlsplit(url)
    login = f"{address.username or 'guest'}:{address.password or 'guest'}"
    near = f"1{address.port or 5672}"
    for port in (near, "15672"):
        api = ManagementApi(f"http://{login}@{address.hostname}:{port}/")
        if int(port) < 2**16 and api.answers():
            return api
    raise NoBroker(NO_ADMINISTRATOR % near)


class Users:
    """The users that a test makes, gone at its end.

    Args:
        url: of the broker, for somebody who may do everything.
    """

    def __init__(self, administrator: ManagementApi, url: str) -> None:
        self._administrator = administrator
        self._address = urlsplit(url)
        self._names: set[str] = set()

    @property
    def vhost(self) -> str:
        return unquote(self._address.path[1:]) or "/"

    def add(
        self, password: str = "swordfish", *, configure: str = "", write: str = "", read: str = ""
    ) -> str:
        """A new user with these rights, of which there are none unless they are given; its URL."""
        name = f"test-{secrets.token_hex(4)}"
        self._names.add(name)
        self.set_password(name, password)
        self._administrator.set_rights(name, self.vhost, configure, write, read)
        host = f"{self._address.hostname}:{self._address.port or 5672}"
        return self._address._replace(netloc=f"{name}:{quote(password, safe='')}@{host}").geturl()

    def set_password(self, name: str, password: str) -> None:
        self._administrator.set_user(name, password)

    def delete_all(self) -> None:
        for name in self._names:
            self._administrator.delete_user(name)


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
            url, administrator = start_container(broker) or start_node(broker)
        except NoBroker as error:
            sys.exit(str(error))
        (directory / "administrator").write_text(administrator)
        sys.stdout.write(url)
        sys.stdout.flush()
        with Path(os.devnull).open("w") as nothing:  # whoever reads the URL reads until its end
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        lock(users)
    shutil.rmtree(directory)


def start_node(broker: ExitStack) -> tuple[str, str]:
    node = broker.enter_context(PrivateNode(advanced=SELDOM))
    return node.url, node.management_url or ""


def start_container(broker: ExitStack) -> tuple[str, str] | None:
    """Start RabbitMQ in a container, if a Docker engine answers and has the image."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.docker_client import DockerClient

    try:
        DockerClient(timeout=3).client.ping()  # pyright: ignore[reportUnknownMemberType]
    except Exception:  # no engine: there is no common class of what it can be
        return None
    try:
        container = broker.enter_context(DockerContainer(IMAGE).with_exposed_ports(5672, 15672))
        host, port = container.get_container_host_ip(), container.get_exposed_port(5672)
        management = f"{host}:{container.get_exposed_port(15672)}"
        wait_for_amqp(host, port, timeout=60)
    except Exception as error:
        sys.stderr.write(f"Docker does not run {IMAGE}: {error}\n")
        return None
    url = f"amqp://guest:guest@{host}:{port}/"
    return url, f"http://guest:guest@{management}/"


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
