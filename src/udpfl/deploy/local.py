"""A federation of processes on this machine: SuperLink, site services, SuperNodes, and runs.

What `udpfl deploy demo` starts, and what tests break. Every process is one that a deployment has;
only the addresses are those of this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from udpfl.deploy.keys import Keys, make_keys
from udpfl.deploy.starting import App
from udpfl.errors import MissingExtra, UdpflError

HOST = "127.0.0.1"
_CONNECTION = "federation"
_STARTS_IN = 60.0
_ENDS_IN = 10.0
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}


class ProcessFailed(UdpflError):
    """A process of the federation did not start, or ended."""


def command(name: str) -> str:
    """The path of a command of Flower, beside this Python or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise MissingExtra("flwr", "flower")
    return found


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as trial:
        trial.bind((HOST, 0))
        return int(trial.getsockname()[1])


@dataclass
class Process:
    """One process with its log; it and whatever it started end together."""

    arguments: Sequence[str]
    log: Path
    environment: dict[str, str]
    folder: Path
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, at the end of its log if it ran before."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(self.arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                cwd=self.folder,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it and all that it started: asked first, unless `how` is SIGKILL."""
        process = self._process
        if process is None:
            return
        groups = {process.pid, *_groups_below(process.pid)} - {os.getpgrp()}
        for number in dict.fromkeys((how, signal.SIGKILL)):
            for group in groups:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, number)
            ends = time.monotonic() + _ENDS_IN
            while process.poll() is None or groups & {own.group for own in _running()}:
                if time.monotonic() > ends:
                    break
                time.sleep(0.05)
        process.wait()
        self._process = None

    def send(self, number: signal.Signals) -> None:
        """Send it and all that it started a signal, such as SIGSTOP."""
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def wait(self, seconds: float) -> int:
        """Its exit code; raises `subprocess.TimeoutExpired` after that time."""
        assert self._process is not None
        return self._process.wait(seconds)

    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


class _Running(NamedTuple):
    """A process of this machine, by numbers."""

    own: int
    parent: int
    group: int


def _running() -> list[_Running]:
    """All processes that have not ended; none is known where there is no `ps`."""
    listed = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="]
    try:
        said = subprocess.run(listed, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return []
    found = [line.split() for line in said.splitlines()]
    return [_Running(*map(int, own[:3])) for own in found if not own[3].startswith("Z")]


def _groups_below(root: int) -> set[int]:
    """The process groups of all that a process has started, and of what those have.

    A SuperLink starts a process in a session of its own, and that one the server's app.
    """
    running, below = _running(), {root}
    while more := {own.own for own in running if own.parent in below} - below:
        below |= more
    return {own.group for own in running if own.own in below}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let the first SIGINT, SIGTERM or SIGHUP interrupt what is done, and ignore all others.

    Whatever has to be ended is then ended in full. A signal that was ignored before stays so, as
    SIGHUP under nohup.
    """
    kinds = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {kind: signal.getsignal(kind) for kind in kinds}
    heard = [kind for kind in kinds if before[kind] is not signal.SIG_IGN]

    def interrupt(*_: object) -> None:
        for kind in heard:
            signal.signal(kind, signal.SIG_IGN)
        raise KeyboardInterrupt

    for kind in heard:
        signal.signal(kind, interrupt)
    try:
        yield
    finally:
        for kind in heard:
            signal.signal(kind, before[kind])


@dataclass
class LocalFederation:
    """All processes of a federation, on loopback."""

    app: App
    tls: bool = True
    has_services: bool = True
    """Whether the gate of each site is a service of its own; else it runs in Flower's process."""
    port: int = field(default_factory=free_port)
    link_port: int | None = None
    """Where sites reach the server, if not at `port`: a proxy may lie between."""
    processes: dict[str, Process] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        """Everything lies here."""
        return self.app.folder

    @property
    def keys(self) -> Keys:
        """Certificates and keys, where TLS is used."""
        return Keys(self.folder / "keys")

    @property
    def logs(self) -> Path:
        """What the processes print."""
        return self.folder / "logs"

    @property
    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {**_QUIET, "FLWR_HOME": str(self.folder / "flower"), "PATH": path}

    def start(self) -> None:
        """Start the server and all sites."""
        self.start_link()
        self.register(self.app.sites)
        for site in self.app.sites:
            self.start_site(site)

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        home = self.folder / "flower"
        home.mkdir(parents=True, exist_ok=True)
        lines = [f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]']
        lines.append(f'address = "{HOST}:{self.port}"')
        if self.tls:
            hosts = [] if self.keys.certificate.exists() else [HOST, "localhost"]
            make_keys(self.keys.folder, hosts, self.app.sites)
            lines.append(f'root-certificates = "{self.keys.ca}"')
        else:
            lines.append("insecure = true")
        (home / "config.toml").write_text("\n".join(lines) + "\n")
        self._start("superlink", command("flower-superlink"), *self._link_options())
        self._wait("superlink", lambda: _is_open(self.port))

    def _link_options(self) -> list[str]:
        place = ["--host", HOST, "--port", str(self.port)]
        database = ["--database", str(self.folder / "superlink.db")]
        quick = ["--disable-runtime-dependency-installation"]
        if not self.tls:
            return [*place, *database, *quick, "--insecure"]
        keys = self.keys
        return [
            *place,
            *database,
            *quick,
            *("--ssl-ca-certfile", str(keys.ca)),
            *("--ssl-certfile", str(keys.certificate)),
            *("--ssl-keyfile", str(keys.key)),
            "--enable-supernode-auth",
        ]

    def register(self, sites: Sequence[str]) -> None:
        """Tell the SuperLink the public keys of sites, where it checks them."""
        if not self.tls:
            return
        for site in sites:
            register = [command("flwr"), "supernode", "register", str(self.keys.public(site))]
            done = subprocess.run(
                [*register, _CONNECTION, "--name", site],
                capture_output=True,
                text=True,
                env={**os.environ, **self._environment},
                cwd=self.folder,
                timeout=_STARTS_IN,
                check=False,
            )
            if "registered successfully" not in done.stdout:
                raise ProcessFailed(f"{site} was not registered: {done.stdout}{done.stderr}")

    def start_site(self, site: str) -> None:
        """Start the service of a site, and its SuperNode."""
        if self.has_services:
            self.start_service(site)
        self.start_node(site)

    def socket_of(self, site: str) -> Path:
        """The socket of a site's service; short, because sockets have short names."""
        return _short(self.folder) / f"{site}.sock"

    def start_service(self, site: str) -> None:
        """Start the service that holds the records of a site."""
        path = self.socket_of(site)
        arguments = ["-m", "udpfl", "site", "serve", str(self.app.policy(site))]
        self._start(f"{site}-service", sys.executable, *arguments, "--socket", str(path))
        self._wait(f"{site}-service", path.is_socket)

    def start_node(self, site: str, *options: str) -> None:
        """Start the SuperNode of a site."""
        if self.has_services:
            where = f'site-socket="{self.socket_of(site)}"'
        else:
            where = f'site-policy="{self.app.policy(site)}"'
        trust = ["--insecure"]
        if self.tls:
            trust = ["--root-certificates", str(self.keys.ca)]
            trust += ["--auth-supernode-private-key", str(self.keys.site(site))]
        self._start(
            f"{site}-node",
            command("flower-supernode"),
            *("--superlink", f"{HOST}:{self.link_port or self.port}"),
            *("--host", HOST, "--port", str(free_port())),
            *("--node-config", where),
            *(options or trust),
        )

    def submit(self, **settings: str) -> Process:
        """Begin a run; `set`, `out` and `resume` as in the app's configuration."""
        given = [f"{name}={value!r}" for name, value in settings.items() if value]
        config = ["-c", " ".join(given)] if given else []
        arguments = ["run", str(self.folder), _CONNECTION, "--stream", *config]
        self._start("run", command("flwr"), *arguments)
        return self.processes["run"]

    def stop(self) -> None:
        """End every process."""
        for name in reversed(list(self.processes)):
            self.processes[name].stop()
        shutil.rmtree(_short(self.folder), ignore_errors=True)

    def _start(self, name: str, *arguments: str) -> None:
        process = Process(arguments, self.logs / f"{name}.log", self._environment, self.folder)
        self.processes[name] = process
        process.start()

    def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        ends = time.monotonic() + _STARTS_IN
        while not is_ready():
            if not self.processes[name].is_running or time.monotonic() > ends:
                text = self.processes[name].text()[-2000:]
                raise ProcessFailed(f"{name} did not start:\n{text}")
            time.sleep(0.05)


def _is_open(port: int) -> bool:
    with socket.socket() as trial:
        trial.settimeout(1.0)
        return trial.connect_ex((HOST, port)) == 0


def _short(folder: Path) -> Path:
    """A folder with a short path for the sockets of a federation, the same every time."""
    from hashlib import sha256

    name = sha256(str(folder).encode()).hexdigest()[:12]
    path = Path(tempfile.gettempdir()) / f"udpfl-{os.getuid()}-{name}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path
