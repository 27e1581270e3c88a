"""Whole runs that are killed, interrupted, starved of disk or crowded: the ledger stays true.

Every run is the real `udpfl run` in a process of its own, forked from a server that has imported
everything already, so that dozens of them take seconds. An observer in the child writes down each
message that the server receives; that record is what the ledger is held against.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import udpfl
from udpfl import Budget, Composed, PoissonSampled, Repeated, account, running
from udpfl.accounting.serial import event_from_dict
from udpfl.algorithms.message import ClientMessage, tensors_from_bytes
from udpfl.cli import main
from udpfl.federation.watchers import Checkpoints
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.outbox import Outbox
from udpfl.runs.folder import RunFolder

CLIENTS, ROUNDS, STEPS, DELTA = 3, 8, 2, 1e-5
NAMES = [f"client-{number}" for number in range(CLIENTS)]
SETTINGS = f"""
threads = 1
[data]
name = "tests.federation.test_crash:records"
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
RESUME = (
    "--resume",
    "run",
    "--trust",
    "tests.federation.test_crash:records",
)  # a folder imports no code
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
    return sha256(b"".join(tensor.numpy().tobytes() for _, tensor in tensors)).hexdigest()


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
        return (self.here / f"{self.out}.stderr").read_text()

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


@pytest.fixture(autouse=True)
def no_orphans():
    """A test that fails leaves nobody waiting."""
    yield
    for process in multiprocessing.active_children():
        process.kill()
        process.join()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "place")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A run that nothing happened to."""
    place = Place(tmp_path_factory.mktemp("reference") / "place")
    assert place.begin().ended() == 0
    place.check_finished()
    place.check_spending()
    return place


# Killed


def killed_at_random(place, kills, rounds, seed):
    """Kill within about two rounds each time, at any moment of a round; how many were alive."""
    chance, alive, pace = random.Random(seed), 0, 0.05
    place.go()
    for _ in range(kills):
        (place.here / "reached").unlink(missing_ok=True)
        before, traps = len(place.truth()), [(Checkpoints, "restore", 1, wait)]
        begun = (place.run / "run.json").exists()
        process = place.resume(traps) if begun else place.begin(f"training.rounds={rounds}", traps)
        process.until(place.reached)
        began, wanted = time.monotonic(), chance.randrange(2 * CLIENTS)
        process.until(lambda: len(place.truth()) >= before + wanted)  # noqa: B023
        if wanted > CLIENTS:  # more than one round: now it is known how long they take
            pace = time.monotonic() - began
        time.sleep(chance.uniform(0, pace))
        process.process.kill()
        alive += process.ended() == -signal.SIGKILL
        place.check()
    assert place.resume().ended() == 0
    place.check_finished(rounds)
    place.check_spending(rounds)
    return alive


def test_killed_at_any_moment(place):
    assert killed_at_random(place, kills=4, rounds=20, seed=1) == 4


@pytest.mark.slow
def test_killed_fifty_times(place):
    assert killed_at_random(place, kills=50, rounds=200, seed=2) == 50


KILLS = {
    # Where, at which call of it, and then: rounds charged, seen and saved beyond the last saved.
    "inside a commit": (Outbox, "put", CLIENTS + 2, (1, 1, 1)),
    "after a commit": (ClientMessage, "from_bytes", CLIENTS + 1, (2, 1, 1)),
    "before the metrics": (RunFolder, "append_metrics", 2, (2, 2, 1)),
    "before the checkpoint": (RunFolder, "write_checkpoint", 2, (2, 2, 1)),
    "inside the checkpoint": (Path, "replace", 3, (2, 2, 1)),
    # Its first round was charged by the process before, so it stores one, and dies in the next.
    "old messages being dropped": (Outbox, "put", CLIENTS + 1, (2, 2, 2)),
}


def test_killed_where_it_hurts_most(place):
    """Each kill comes in its process's second round or after it; together they cover a round."""
    for where, (owner, name, call, expected) in KILLS.items():
        before = place.saved() or 0
        traps = [(owner, name, call, kill)]
        process = place.resume(traps=traps) if before else place.begin(traps=traps)
        assert process.ended() == -signal.SIGKILL, where
        place.check()
        charged = max(round_ for _, round_ in place.charged)
        found = (charged - before, place.seen() - before, place.saved() - before)
        assert found == expected, where
    assert place.resume().ended() == 0
    place.check_finished()
    place.check_spending()
    # Three times the server had seen a round but not saved it: those messages came twice.
    received = Counter(key for key, _ in place.truth())
    assert sum(received.values()) == CLIENTS * (ROUNDS + 3)
    assert set(received.values()) == {1, 2}


def test_a_seeded_run_comes_to_the_same_bits(place, reference, tmp_path):
    whole = Place(tmp_path / "whole")
    assert whole.begin("privacy.randomness='seeded'").ended() == 0
    for where in ("inside a commit", "after a commit", "before the checkpoint"):
        traps = [(*KILLS[where][:3], kill)]
        begun = place.run.exists()
        process = (
            place.resume(traps=traps)
            if begun
            else place.begin("privacy.randomness='seeded'", traps=traps)
        )
        assert process.ended() == -signal.SIGKILL
        place.check()
    # And a checkpoint that a bad disk cut in half: the one before it takes its place.
    done = place.saved()
    latest = max((place.run / "checkpoints").glob("round-*"))
    latest.write_bytes(latest.read_bytes()[:-100])
    assert place.saved() == done - 1
    assert place.resume().ended() == 0
    place.check_finished()
    models = [(own.run / "model.safetensors").read_bytes() for own in (place, whole, reference)]
    assert models[0] == models[1] != models[2]
    assert dict(place.truth()) == dict(whole.truth())
    rows = [
        [{**row, "seconds": 0, "simulation_only": {}} for row in RunFolder(own.run).read_metrics()]
        for own in (place, whole)
    ]
    assert rows[0] == rows[1]


# Interrupted


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_the_round(place, kind):
    process = place.begin(traps=[(Witness, "on_model", 2, wait)])
    process.until(place.reached)
    process.send(kind)
    process.until(lambda: "finishing this round" in process.stderr)
    place.go()
    assert process.ended() == 130
    assert "--resume" in process.stderr
    assert "Traceback" not in process.stderr
    place.check()
    assert place.charged.keys() == {(name, number) for name in NAMES for number in (1, 2)}
    assert place.saved() == 2
    resumed = place.resume()
    assert resumed.ended() == 0
    assert resumed.stderr == ""
    place.check_finished()
    assert len(place.truth()) == CLIENTS * ROUNDS  # nothing had to be sent again

    first, model = json.loads(resumed.stdout), (place.run / "model.safetensors").read_bytes()
    again = place.resume()  # a finished run: nothing to do
    assert again.ended() == 0
    assert again.stderr.count("\n") == 1
    assert "nothing was left to do" in again.stderr
    second = json.loads(again.stdout)
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert (place.run / "model.safetensors").read_bytes() == model
    place.check_finished()
    place.check_spending()
    assert len(place.truth()) == CLIENTS * ROUNDS


def test_a_second_interrupt_stops_at_once(place):
    process = place.begin(traps=[(Witness, "on_model", 2, wait)])
    process.until(place.reached)
    process.send(signal.SIGINT)
    process.until(lambda: "finishing this round" in process.stderr)
    process.send(signal.SIGINT)
    assert process.ended() == 130  # without go
    assert "Traceback" not in process.stderr
    place.check()
    assert (place.seen(), place.saved()) == (2, 1)
    assert place.resume().ended() == 0
    place.check_finished()
    assert len(place.truth()) == CLIENTS * (ROUNDS + 1)  # the second round was sent again


def test_one_process_at_a_time(place):
    process = place.begin(traps=[(Witness, "on_model", 2, wait)])
    process.until(place.reached)
    place.resume().complains("another process")
    place.begin().complains("exists and is not empty")
    place.check()
    assert place.seen() == 2
    place.go()
    assert process.ended() == 0
    place.check_finished()
    assert len(place.truth()) == CLIENTS * ROUNDS


# No disk


def test_a_ledger_that_cannot_grow_releases_nothing(place):
    traps = [(Ledger, "commit", 3, fill, "run/ledger.sqlite-wal", 100)]
    place.begin(traps=traps).complains("ledger.sqlite", "no update was released")
    place.check()
    assert (place.seen(), place.saved()) == (2, 2)
    assert max(round_ for _, round_ in place.charged) == 2
    assert place.resume().ended() == 0
    place.check_finished()
    place.check_spending()


@pytest.mark.parametrize(
    ("method", "call", "beside", "more", "blamed"),
    [
        ("write_checkpoint", 4, None, 2000, "checkpoints"),
        ("append_metrics", 4, "run/metrics.jsonl", 20, "metrics.jsonl"),
        ("write_update", 2, None, 1000, "updates"),
        ("write_model", 1, None, 1000, "model.safetensors"),
    ],
)
def test_a_folder_that_cannot_grow_can_be_resumed(place, method, call, beside, more, blamed):
    traps = [(RunFolder, method, call, fill, beside, more)]
    process = place.begin("record_updates=[3]", traps=traps)
    process.complains("cannot write", blamed)
    place.check()
    assert place.resume().ended() == 0
    place.check_finished()
    place.check_spending()


def test_no_room_to_begin(place):
    traps = [(RunFolder, "write_records", 1, fill, None, 500)]
    place.begin(traps=traps).complains("cannot write", "records.npz")
    assert not place.truth()
    assert not place.ledger.exists()


# No permission


@pytest.fixture
def open_place():
    """Where a process without privileges may go, which a test's own folder is not."""
    here = Path(tempfile.mkdtemp())
    here.chmod(0o777)
    yield here
    for path in (here, *here.iterdir()):
        path.chmod(0o777)
    shutil.rmtree(here)


@pytest.mark.parametrize(
    ("file_mode", "folder_mode"),
    [(0o444, 0o555), (0o444, 0o777), (0o666, 0o555)],
    ids=["both", "file", "folder"],
)
def test_a_ledger_that_may_not_be_written_releases_nothing(open_place, file_mode, folder_mode):
    vault = open_place / "vault"
    vault.mkdir()
    place = Place(open_place, vault / "ledger.sqlite")
    with Ledger(place.ledger) as ledger:
        ledger.set_budget(ledger.account("client-0", "some other data"), Budget(5.0, DELTA))
    before = place.ledger.read_bytes()
    place.ledger.chmod(file_mode)
    vault.chmod(folder_mode)
    # Everything is imported by then, and the ledger was seen to be writable.
    traps = [(Ledger, "__init__", 1, step_down)]
    setting = f"privacy.ledger='{place.ledger}'"
    process = place.begin(setting, traps=traps)
    process.complains("ledger.sqlite", "read-only")
    assert not place.truth()
    assert place.ledger.read_bytes() == before

    place.ledger.chmod(0o666)
    vault.chmod(0o777)
    assert place.resume().ended() == 0
    place.check_finished()


def test_a_folder_that_may_not_be_written_is_not_resumed(open_place):
    place = Place(open_place)
    process = place.begin(traps=[(RunFolder, "write_checkpoint", 3, kill)])
    assert process.ended() == -signal.SIGKILL
    place.check()
    before = len(place.truth())
    for path in (place.run, *place.run.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    place.resume(traps=[(RunFolder, "locked", 1, step_down)]).complains("cannot write", ".lock")
    place.check()
    assert len(place.truth()) == before


# Two runs on one ledger


def accounts_in(path):
    with Ledger(path, read_only=True) as ledger:
        return [(found.client, ledger.versions(found.id)) for found in ledger.accounts()]


def rivals(tmp_path, reference, budget, *meeting):
    """Two runs with the same clients and data on one ledger, certainly at this place together."""
    path = tmp_path / "shared.sqlite"
    accounts = accounts_in(reference.ledger)
    assert [name for name, _ in accounts] == NAMES
    with Ledger(path) as ledger:
        for name, (data,) in accounts:
            ledger.set_budget(ledger.account(name, data), Budget(budget, DELTA))
    places = [Place(tmp_path / name, path) for name in ("left", "right")]
    processes = [
        place.begin(f"privacy.ledger='{path}'", traps=[(*meeting, 1, wait)]) for place in places
    ]
    for place, process in zip(places, processes, strict=True):
        process.until(place.reached)
        assert place.reached(), process.stderr
    for place in places:
        place.go()
    codes = [process.ended() for process in processes]
    for place in places:
        place.check()
    assert places[0].planned() == places[1].planned()
    assert accounts_in(path) == accounts
    return places, processes, codes


def test_two_runs_lose_no_charge(tmp_path, reference):
    places, processes, codes = rivals(tmp_path, reference, 100.0, Witness, "on_model")
    assert codes == [0, 0]
    assert [process.stderr for process in processes] == ["", ""]
    for place in places:
        place.check_finished()
    planned = places[0].planned()
    with Ledger(places[0].ledger, read_only=True) as ledger:
        entries = list(ledger.history())
        assert len(entries) == 2 * CLIENTS * ROUNDS
        assert len({place.identity() for place in places}) == 2
        for found in ledger.accounts():
            rule, epsilon = ledger.filter(found.id), ledger.statement(found.id).epsilon
            alone = Repeated(planned[found.client], STEPS * ROUNDS)
            assert epsilon == pytest.approx(account(Composed([alone] * 2), DELTA, rule).epsilon)
            assert account(alone, DELTA, rule).epsilon * 1.1 < epsilon < 100.0


def test_of_two_runs_that_one_budget_does_not_hold_only_one_begins(tmp_path, reference):
    """Both have looked at the budget and found enough before either reserves its plan."""
    places, processes, codes = rivals(tmp_path, reference, 6.0, Ledger, "transaction")
    assert sorted(codes) == [0, 1]
    (first, done), (second, refused) = sorted(
        zip(places, processes, strict=True), key=lambda pair: codes[places.index(pair[0])]
    )
    assert done.stderr == ""
    first.check_finished()
    assert not second.truth()
    assert not second.charged
    (line,) = refused.stderr.splitlines()
    assert line.startswith("udpfl: error: client-0, client-1, client-2: the plan of this run does")
    assert refused.stdout == ""

    def spent(runs):
        """What so many runs come to, and what the ledger says they did."""
        event = Repeated(first.planned()["client-0"], STEPS * ROUNDS * runs)
        with Ledger(first.ledger, read_only=True) as ledger:
            assert ledger.verify() == []
            assert {len(ledger.reserved(found.id)) for found in ledger.accounts()} == {0}
            rules = {ledger.filter(found.id) for found in ledger.accounts()}
            stated = {ledger.statement(found.id).epsilon for found in ledger.accounts()}
        return account(event, DELTA, rules.pop()).epsilon, *stated

    wanted, stated = spent(1)
    assert stated == pytest.approx(wanted)
    assert stated <= 6.0 < spent(2)[0]
    assert second.resume().ended() == 1  # as long as there is no more to spend
    assert not second.truth()
    with Ledger(first.ledger) as ledger:
        for found in ledger.accounts():
            ledger.set_budget(found.id, Budget(100.0, DELTA), reason="for the second run")
    for place in places:
        assert place.resume().ended() == 0
        place.check_finished()
    wanted, stated = spent(2)
    assert stated == pytest.approx(wanted)


# The command as it is installed


@pytest.mark.slow
def test_killed_as_a_command_of_its_own(place):
    """No observer, no trap, a fresh interpreter: what a user would do."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(udpfl.__file__).parents[1]), str(Path(__file__).parents[2])]
        ),
    }
    command = [sys.executable, "-c", "from udpfl.cli import main; main()", "run"]
    options = {"cwd": place.here, "env": environment, "text": True}
    process = subprocess.Popen(
        [*command, "config.toml", "--out", "run", "--set", "training.rounds=10000"], **options
    )
    give_up = time.monotonic() + PATIENCE
    while (place.run / "checkpoints").is_dir() is False or (place.saved() or 0) < 3:
        assert time.monotonic() < give_up
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    place.check()
    before = sum(place.charged.values())
    process = subprocess.Popen([*command, *RESUME], stderr=subprocess.PIPE, **options)
    done = place.saved()
    while place.saved() < done + 3:
        assert time.monotonic() < give_up
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in said
    place.check()
    assert sum(place.charged.values()) > before
