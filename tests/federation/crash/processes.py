"""Real runs in processes of their own, and what their folder and ledger say.

Every run is the real `udpfl run` in a process of its own, forked from a server that has imported
everything already, so that dozens of them take seconds. An observer in the child writes down each
message that the server receives; that record is what the ledger is held against.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from udpfl import PoissonSampled, Repeated, account, running
from udpfl.accounting.serial import event_from_dict
from udpfl.algorithms.message import ClientMessage, tensors_from_bytes
from udpfl.cli import main
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder

CLIENTS, ROUNDS, STEPS, DELTA = 3, 8, 2, 1e-5
NAMES = [f"client-{number}" for number in range(CLIENTS)]
SETTINGS = f"""
threads = 1
[data]
name = "tests.federation.crash.processes:records"
clients = {CLIENTS}
[model]
name = "logistic"
[privacy]
mechanism = "gaussian"
epsilon = 5.0
delta = {DELTA}
[training]
rounds = {ROUNDS}
local_steps = {STEPS}
"""
# A folder imports no code.
RESUME = ("--resume", "run", "--trust", "tests.federation.crash.processes:records")
PATIENCE = 60.0  # seconds until a process that should have ended is given up
NOBODY = 65534

forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(
    ["udpfl.cli", "udpfl.running", "dp_accounting.pld", "torch._dynamo", "pytest"]
)


def records(**_):
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(150, 64)).astype(np.float32)
    return inputs, np.arange(150) % 10


# In the child


class Witness:
    """Writes down every message the server receives, on disk before training goes on."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def on_message(self, message):
        line = f"{message.client} {message.round} {fingerprint(message)}\n"
        os.write(self._file, line.encode())
        os.fsync(self._file)

    def on_model(self, round_, model):
        pass

    def on_round(self, row):
        pass


def fingerprint(message):
    tensors = sorted(message.tensors.items())
    return sha256(b"".join(tensor.cpu().numpy().tobytes() for _, tensor in tensors)).hexdigest()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def wait():
    Path("reached").touch()
    give_up = time.monotonic() + PATIENCE
    while not Path("go").exists():
        assert time.monotonic() < give_up, "nobody says go"
        time.sleep(0.002)


def fill(path, more):
    """No file may grow beyond the size of this one, if there is one, and a little more."""
    size = Path(path).stat().st_size if path else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + more, resource.RLIM_INFINITY))


def step_down():
    """Be nobody in particular: root may write what is read-only."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def trap(owner, name, call, action, *arguments):
    """Do something just before the given call of a method goes through."""
    original, calls = getattr(owner, name), iter(range(1, 10**9))

    def caught(*args, **kwargs):
        if next(calls) == call:
            action(*arguments)
        return original(*args, **kwargs)

    setattr(owner, name, caught)


def child(here, out, arguments, traps):
    os.chdir(here)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{out}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    witness, train = Witness("truth"), running.run
    running.run = lambda *args, observers=(), **kwargs: train(
        *args, observers=[*observers, witness], **kwargs
    )
    for caught in traps:
        trap(*caught)
    main(["run", *arguments])


# In the test


@dataclass
class Child:
    """One `udpfl run` in a process of its own."""

    process: multiprocessing.Process
    here: Path
    out: str

    def ended(self):
        self.process.join(PATIENCE)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
        assert code is not None, "the process hangs"
        return code

    def send(self, kind):
        os.kill(self.process.pid, kind)

    def until(self, condition):
        give_up = time.monotonic() + PATIENCE
        while not condition() and self.process.is_alive():
            assert time.monotonic() < give_up, "the process hangs"
            time.sleep(0.003)

    @property
    def stdout(self):
        return (self.here / f"{self.out}.stdout").read_text()

    @property
    def stderr(self):
        """What it said, without the line of every round."""
        lines = (self.here / f"{self.out}.stderr").read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("round "))

    def complains(self, *words):
        """One line about what went wrong, and no traceback."""
        assert self.ended() == 2, self.stderr
        (line,) = self.stderr.splitlines()
        assert line.startswith("udpfl: error: ")
        for word in words:
            assert word in line


@dataclass
class Place:
    """A folder with one run, its witness, and what may never change once it was seen."""

    here: Path
    ledger: Path | None = None
    charged: Counter = field(default_factory=Counter)
    digests: dict = field(default_factory=dict)
    children: int = 0

    def __post_init__(self):
        self.here.mkdir(exist_ok=True)
        (self.here / "config.toml").write_text(SETTINGS)
        self.run = self.here / "run"
        self.ledger = self.ledger or self.run / "ledger.sqlite"

    def start(self, arguments, traps):
        self.children += 1
        out = f"child-{self.children}"
        process = forked.Process(target=child, args=(str(self.here), out, arguments, traps))
        process.start()
        return Child(process, self.here, out)

    def begin(self, setting="seed=0", traps=()):
        arguments = ("config.toml", "--json", "--out", "run", "--set", setting)
        return self.start(arguments, traps)

    def resume(self, traps=()):
        return self.start(("--json", *RESUME), traps)

    def reached(self):
        return (self.here / "reached").exists()

    def go(self):
        (self.here / "go").touch()

    def truth(self):
        """Every message the server received: (client, round) and its fingerprint."""
        path = self.here / "truth"
        lines = path.read_text().splitlines() if path.exists() else []
        return [((line.split()[0], int(line.split()[1])), line.split()[2]) for line in lines]

    def seen(self):
        return max((round_ for (_, round_), _ in self.truth()), default=0)

    def saved(self):
        found = RunFolder(self.run).read_checkpoint()
        return None if found is None else found[0]

    def identity(self):
        return json.loads((self.run / "run.json").read_text())["id"]

    def planned(self):
        """One release of each client, as it was calibrated."""
        people = json.loads((self.run / "participants.json").read_text())
        return {
            person["name"]: PoissonSampled(person["rate"], event_from_dict(person["release"]))
            for person in people
        }

    def check(self):
        """Whatever happened: everything released is charged, and nothing changes afterwards."""
        planned, run = self.planned(), self.identity()
        charged = Counter()
        with Ledger(self.ledger, read_only=True) as ledger:
            assert ledger.verify() == []
            accounts = {found.client: found.id for found in ledger.accounts()}
            for entry in ledger.history():
                if entry.run == run:
                    charged[entry.client, entry.round] += entry.count
                    assert entry.event == planned[entry.client]
            stored = [
                (key, fingerprint(ClientMessage.from_bytes(message)))
                for key in charged
                if (message := ledger.message(run, accounts[key[0]], key[1]))
            ]
        assert set(charged.values()) <= {STEPS}  # never less, and nothing twice
        assert self.charged <= charged  # no charge is ever lost
        self.charged = charged
        for key, digest in (*self.truth(), *stored):
            assert key in charged
            assert self.digests.setdefault(key, digest) == digest  # sent again, not trained again
        for path in (self.run / "checkpoints").glob("round-*"):
            tensors_from_bytes(path.read_bytes())
        assert self.saved() is not None or not charged

    def check_finished(self, rounds=ROUNDS):
        self.check()
        everything = {(name, number) for name in NAMES for number in range(1, rounds + 1)}
        assert self.charged.keys() == everything
        assert {key for key, _ in self.truth()} == everything
        assert self.saved() == rounds
        rows = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        assert [row["round"] for row in rows] == list(range(1, rounds + 1))
        assert json.loads((self.run / "summary.json").read_text())["stopped"] is None
        assert not list((self.run / "checkpoints").glob(".*"))  # nothing half written stays

    def check_spending(self, rounds=ROUNDS):
        """The statement is what the planned releases cost, computed anew, and within the budget."""
        planned = self.planned()
        with Ledger(self.ledger, read_only=True) as ledger:
            for found in ledger.accounts():
                event = Repeated(planned[found.client], STEPS * rounds)
                statement, budget = ledger.statement(found.id), ledger.budget(found.id)
                assert statement.kind == "guarantee"
                assert statement.epsilon == pytest.approx(account(event, DELTA).epsilon)
                assert 0 < statement.epsilon <= budget.epsilon
