"""Whole runs that are killed: the ledger stays true, and a resumed run comes to the same end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import udpfl
from tests.federation.crash.processes import (
    CLIENTS,
    PATIENCE,
    RESUME,
    ROUNDS,
    SETTINGS,
    STEPS,
    Place,
    kill,
    wait,
)
from tests.repository import ROOT
from udpfl.audit.ledger import audit_ledger
from udpfl.federation import Server
from udpfl.federation._assembly import Assembly
from udpfl.ledger._outbox import Outbox
from udpfl.ledger._reservations import Reservations
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder

# Killed


def killed_at_random(place, kills, rounds, seed):
    """Kill within about two rounds each time, at any moment of a round; how many were alive."""
    chance, alive, pace = random.Random(seed), 0, 0.05
    place.go()
    for _ in range(kills):
        (place.here / "reached").unlink(missing_ok=True)
        before, traps = len(place.truth()), [(Assembly, "restore", 1, wait)]
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
    "after a commit": (Server, "receive", 2, (2, 1, 1)),
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


FOLLOWS = 'pace = "plateau"\npace_follows = "update"\npace_patience = 1\nledger = "site.sqlite"\n'


def test_killed_while_noise_follows_results(tmp_path):
    """Between an exchange of what is reserved and the charge for it, and in the middle of both."""
    place = Place(tmp_path / "place", tmp_path / "place" / "site.sqlite")
    text = SETTINGS.replace("[privacy]\n", f"[privacy]\n{FOLLOWS}")
    (place.here / "config.toml").write_text(text)
    for owner, name, call in (
        (Reservations, "make", CLIENTS + 2),  # inside the first exchange
        (Outbox, "put", CLIENTS + 2),  # inside a commit
        (Ledger, "commit", 2),  # after the exchange
        (RunFolder, "write_checkpoint", 2),
    ):
        traps = [(owner, name, call, kill)]
        process = place.resume(traps) if place.run.exists() else place.begin(traps=traps)
        assert process.ended() == -signal.SIGKILL, name
    assert place.resume().ended() == 0
    charged, digests = Counter(), {}
    with Ledger(place.ledger, read_only=True) as ledger:
        assert ledger.verify() == []
        for entry in ledger.history():
            charged[entry.client, entry.round] += entry.count
        stds = [entry.event.event.mechanism.std for entry in ledger.history(1)]
        assert all(ledger.statement(own.id).epsilon <= 5.0 for own in ledger.accounts())
        assert all(ledger.reserved(own.id) == {} for own in ledger.accounts())
    assert set(charged.values()) == {STEPS}
    assert len(charged) == CLIENTS * ROUNDS
    for key, digest in place.truth():
        assert digests.setdefault(key, digest) == digest  # sent again, not trained again
    assert digests.keys() == charged.keys()
    assert stds == sorted(stds, reverse=True)  # a crash lowers no noise and raises none
    assert len(set(stds)) > 2
    assert audit_ledger(place.ledger).sound


# The command as it is installed


@pytest.mark.slow
def test_killed_as_a_command_of_its_own(place):
    """No observer, no trap, a fresh interpreter: what a user would do."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(udpfl.__file__).parents[1]), str(ROOT)]),
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
