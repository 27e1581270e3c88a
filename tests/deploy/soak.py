"""A federation of real processes, and one fault after the other while it trains.

python -m tests.deploy.soak --faults 100 --minutes 60
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from tests.deploy.processes import FEDERATION, small_app
from tests.deploy.proxies import FaultySocket, RecordingProxy
from tests.repository import ROOT
from udpfl import Ledger
from udpfl.algorithms import ClientMessage
from udpfl.deploy.local import LocalFederation, _short
from udpfl.site import Policy
from udpfl.site.connection import Parcel

DEPLOY = {
    "evaluate": "none",
    "round_timeout": 25.0,
    "start_timeout": 150.0,
    "retry_after": 1.0,
    "attempts": 3,
    "pause_after": 3,
    "enough": 1,
}
ROUNDS = 25
"""Of one run; another one begins when it ends."""


def _spoiled(change) -> Callable[[Parcel], Parcel]:
    def spoil(reply: Parcel) -> Parcel:
        message = ClientMessage.from_bytes(reply.body)
        update = change(message.tensors["update"])
        return Parcel(reply.about, replace(message, tensors={"update": update}).to_bytes())

    return spoil


def _late(reply: Parcel) -> Parcel:
    time.sleep(DEPLOY["round_timeout"] + 5)
    return reply


SPOILED: dict[str, Callable[[Parcel], Parcel]] = {
    "nan": _spoiled(lambda own: own * torch.nan),
    "wrong shape": _spoiled(lambda own: own[:-1]),
    "garbage": lambda reply: Parcel(reply.about, b"\x00\xff" * 300),
    "nonsense": lambda reply: Parcel({"hello": 1}, b""),
    "large": lambda reply: Parcel(reply.about, bytes(50_000_000)),
    "late": _late,
    "2 GB": lambda reply: Parcel(reply.about, bytes(2_000_000_000)),
}
"""What a site's reply may become on its way."""
KILLS = ("kill node", "kill service", "kill link")
OTHERS = ("stop node", "cut network", "full disk", "restored ledger", "ask twice")
EVERY = (*KILLS, *OTHERS, *(name for name in SPOILED if name != "2 GB"))
"""Those that need no more memory than a small machine has."""


@dataclass
class Soak:
    """The federation, its proxies, and what was done to it."""

    folder: Path
    seed: int = 0
    done: Counter = field(default_factory=Counter)
    runs: list[Path] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    aggregated: int = 0
    """Rounds of all runs, when it ended."""

    def __post_init__(self):
        self.random = random.Random(self.seed)
        federation = {**FEDERATION, "deploy": DEPLOY}
        federation["training"] = {**FEDERATION["training"], "rounds": ROUNDS}
        limits = {"releases": {"in_all": 4000, "per_round": 1}, "budget": {"epsilon": 8.0}}
        self.app = small_app(self.folder / "app", federation=federation, **limits)
        self.own = LocalFederation(self.app, tls=False)
        self.proxy = RecordingProxy(self.own.port)
        self.own.link_port = self.proxy.port
        self.sockets: dict[str, FaultySocket] = {}
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self.began:7.1f} s  {text}"
        self.log.append(line)
        print(line, flush=True)  # noqa: T201

    # The federation

    def start(self) -> None:
        self.own.start_link()
        for site in self.app.sites:
            self._start_service(site)
            near = self.own.socket_of(site)
            self.sockets[site] = FaultySocket(near, self._service_socket(site))
            self.own.start_node(site)

    def _service_socket(self, site: str) -> Path:
        return _short(self.own.folder) / f"{site}-real.sock"

    def _start_service(self, site: str) -> None:
        path = self._service_socket(site)
        path.unlink(missing_ok=True)
        policy = str(self.app.policy(site))
        arguments = ["-m", "udpfl", "site", "serve", policy, "--socket", str(path)]
        self.own._start(f"{site}-service", sys.executable, *arguments)
        self.own._wait(f"{site}-service", path.is_socket)

    def train(self) -> None:
        """Begin a run, or go on with the last one if it has not ended."""
        if self.runs and not self.has_ended:
            self.say(f"resume {self.runs[-1].name}")
            words = ["deploy", "resume", str(self.runs[-1]), "--app", str(self.app.folder)]
            self.own._start("run", sys.executable, "-m", "udpfl", *words)
            return
        self.runs.append(self.folder / f"run-{len(self.runs)}")
        self.say(f"begin {self.runs[-1].name}")
        self.own.submit(out=str(self.runs[-1]))

    @property
    def has_ended(self) -> bool:
        return bool(self.runs) and (self.runs[-1] / "summary.json").is_file()

    @property
    def rounds(self) -> int:
        """Rounds that were aggregated, in all runs."""
        files = [path / "metrics.jsonl" for path in self.runs]
        return sum(len(path.read_text().splitlines()) for path in files if path.is_file())

    def keep_training(self) -> None:
        """Begin anew what has stopped: a run that ended or paused, or one whose run was lost."""
        if self.own.processes["run"].is_running:
            return
        folder = self.runs[-1]
        if not (folder / "run.json").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            self.runs.pop()
        self.train()

    def wait_for_rounds(self, count: int, limit: float) -> bool:
        """Whether so many more rounds were aggregated in time."""
        wanted, ends = self.rounds + count, time.monotonic() + limit
        while time.monotonic() < ends:
            if self.rounds >= wanted:
                return True
            self.keep_training()
            time.sleep(0.5)
        return False

    # Faults

    def inject(self, name: str) -> None:
        site = self.random.choice(list(self.app.sites))
        self.say(f"fault {sum(self.done.values()) + 1}: {name} ({site})")
        if name in SPOILED:
            self.sockets[site].faults.append(SPOILED[name])
        else:
            getattr(self, "_" + name.replace(" ", "_"))(site)
        self.done[name] += 1

    def _kill_node(self, site: str) -> None:
        self.own.processes[f"{site}-node"].stop(signal.SIGKILL)
        time.sleep(self.random.uniform(0, 2))
        self.own.start_node(site)

    def _kill_service(self, site: str) -> None:
        self.own.processes[f"{site}-service"].stop(signal.SIGKILL)
        time.sleep(self.random.uniform(0, 2))
        self._start_service(site)

    def _kill_link(self, site: str) -> None:
        self.own.processes["superlink"].stop(signal.SIGKILL)
        self.own.processes["run"].stop()
        time.sleep(self.random.uniform(0, 2))
        self.own.start_link()

    def _stop_node(self, site: str) -> None:
        node = self.own.processes[f"{site}-node"]
        node.send(signal.SIGSTOP)
        time.sleep(self.random.uniform(2, 8))
        node.send(signal.SIGCONT)

    def _cut_network(self, site: str) -> None:
        self.proxy.cut(self.random.uniform(1, 6))

    def _full_disk(self, site: str) -> None:
        """The state folder of a site lies on a disk without a free block, for a while."""
        state = Path(Policy.read(self.app.policy(site)).state)
        if not _is_mounted(state):
            self.own.processes[f"{site}-service"].stop()
            if not _mount(state):
                self.say("  a small disk cannot be mounted here: the folder stays as it is")
            self._start_service(site)
        filler = state / "filler"
        try:
            with filler.open("wb") as file:
                while True:
                    file.write(bytes(1 << 20))
        except OSError:
            pass
        time.sleep(self.random.uniform(3, 8))
        filler.unlink(missing_ok=True)

    def _restored_ledger(self, site: str) -> None:
        """A site goes on with a copy of yesterday, until somebody puts the true one back."""
        state = Path(Policy.read(self.app.policy(site)).state)
        service = self.own.processes[f"{site}-service"]
        service.stop()
        old, now = self.folder / f"{site}-old", self.folder / f"{site}-now"
        shutil.copytree(state, old, dirs_exist_ok=True)
        self._start_service(site)
        self.wait_for_rounds(1, 60)
        self.own.processes[f"{site}-service"].stop()
        if _charges(state) > _charges(old):  # else nothing was lost by putting it back
            shutil.copytree(state, now)
            _replace(state, old)
            self._start_service(site)
            self.wait_for_rounds(1, 60)
            self.own.processes[f"{site}-service"].stop()
            assert _charges(state) == _charges(old), f"{site} was charged to an old ledger"
            _replace(state, now)
            shutil.rmtree(now)
        shutil.rmtree(old)
        self._start_service(site)

    def _ask_twice(self, site: str) -> None:
        """The answer is lost at the node, so the server asks again: the same bytes come back."""

        def lose(reply: Parcel) -> Parcel:
            raise ConnectionError("lost")

        self.sockets[site].faults.append(lose)

    # What has to hold

    def check(self) -> dict[str, int]:
        """Every ledger is sound, within its budget, and has a charge for every message seen."""
        found = {}
        for site in self.app.sites:
            policy = Policy.read(self.app.policy(site))
            done = subprocess.run(
                [sys.executable, "-m", "udpfl", "budget", "verify", str(policy.ledger)],
                capture_output=True, text=True, cwd=ROOT, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            with Ledger(policy.ledger, read_only=True) as ledger:
                (account,) = ledger.accounts()
                spent = ledger.statement(account.id).epsilon
                assert spent <= policy.budget.epsilon, (site, spent)
                charges = ledger.head()[0]
            seen = self.proxy.distinct(site)
            assert charges >= seen > 0, (site, charges, seen)
            self.say(f"{site}: {charges} charges, {seen} messages seen, ε = {spent:.3f}")
            found[site] = charges - seen
        text = self.own.processes["run"].text()
        assert "Traceback" not in text.replace("RunPaused", ""), text[-3000:]
        return found

    def stop(self) -> None:
        self.own.stop()
        self.proxy.close()
        for own in self.sockets.values():
            own.close()
        for site in self.app.sites:
            state = self.app.policy(site).parent / "state"
            if _is_mounted(state):
                subprocess.run(["umount", str(state)], check=False)


def _charges(state: Path) -> int:
    with Ledger(state / "ledger.sqlite", read_only=True) as ledger:
        return ledger.head()[0]


def _replace(state: Path, source: Path) -> None:
    """Put the content of another folder into the state folder, which may be a disk of its own."""
    for own in state.iterdir():
        shutil.rmtree(own) if own.is_dir() else own.unlink()
    shutil.copytree(source, state, dirs_exist_ok=True)


def _is_mounted(path: Path) -> bool:
    return path.is_mount()


def _mount(state: Path) -> bool:
    """A small disk in the place of a folder, with what was in it."""
    kept = state.with_name("state-kept")
    shutil.move(state, kept)
    state.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(state)],
        capture_output=True,
        check=False,
    )
    shutil.copytree(kept, state, dirs_exist_ok=True)
    shutil.rmtree(kept)
    return done.returncode == 0


def soak(
    folder: Path, faults: int, seconds: float, names=EVERY, seed: int = 0, at_once: int = 1
) -> Soak:
    """Train while so many faults are injected, a few between two rounds; raises where something
    did not hold."""
    own = Soak(folder, seed)
    ends = time.monotonic() + seconds
    try:
        own.start()
        own.train()
        assert own.wait_for_rounds(1, 240), "the federation did not begin to train"
        order = [names[number % len(names)] for number in range(faults)]
        own.random.shuffle(order)
        for name in order:
            assert time.monotonic() < ends, f"only {sum(own.done.values())} faults in time"
            own.inject(name)
            if sum(own.done.values()) % at_once:
                continue
            own.keep_training()
            # A round may have to end by its timeout before the next one begins.
            limit = 6 * DEPLOY["round_timeout"] + 60
            assert own.wait_for_rounds(1, limit), f"no round after {name}"
        assert own.wait_for_rounds(2, 300), "it did not go on after the last fault"
        own.own.processes["run"].stop()
        for site in own.app.sites:
            own.own.processes[f"{site}-service"].stop()
        own.check()
        own.aggregated = own.rounds
    finally:
        own.stop()
    return own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        found = soak(Path(folder), given.faults, 60 * given.minutes, seed=given.seed)
    result = {
        "faults": dict(found.done),
        "rounds": found.aggregated,
        "runs": len(found.runs),
        "seconds": round(time.monotonic() - found.began, 1),
    }
    print(json.dumps(result))  # noqa: T201
    if given.out:
        given.out.write_text(json.dumps({**result, "log": found.log}, indent=1))


if __name__ == "__main__":
    main()
