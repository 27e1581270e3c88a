"""Several processes on one ledger: no charge is lost, and no budget is spent twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import udpfl
from tests.accounting.samples import TENTH
from tests.ledger.samples import charge, counted
from udpfl import Budget, Composed, Repeated
from udpfl.errors import BudgetExceeded, LedgerError
from udpfl.ledger.ledger import Ledger

WRITER = """
import sys, time
from pathlib import Path
from udpfl import PureDP
from udpfl.errors import BudgetExceeded
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger

path, run, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
while not path.with_name("go").exists():
    time.sleep(0.001)
with Ledger(path) as ledger:
    ledger.begin_run(run, randomness="entropy", accounting="vector", description={})
    account = ledger.account("alice", "aa")
    first = 1 + max((entry.round for entry in ledger.history(account)), default=-1)
    for number in range(first, first + rounds):
        try:
            ledger.commit([Charge(account, run, number, (PureDP(0.1),), bytes(2000))])
        except BudgetExceeded:
            continue
        print(number, flush=True)
"""


def started(path, run, rounds):
    source = str(Path(udpfl.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    command = [sys.executable, "-c", WRITER, str(path), run, str(rounds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def race(path, *runs):
    processes = [started(path, run, 50) for run in runs]
    path.with_name("go").touch()
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    return outputs


def test_two_processes_lose_no_charge(path):
    outputs = race(path, "left", "right")  # neither finds a file: both create it at once
    assert [len(output) for output in outputs] == [50, 50]
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        assert counted(path) == (100, 100)
        assert ledger.spent(1) == Composed([Repeated(TENTH, 100)])
        assert Counter(entry.run for entry in ledger.history()) == {"left": 50, "right": 50}


def test_many_may_create_the_ledger_at_once(tmp_path):
    def opened(path):
        with Ledger(path) as ledger:
            return ledger.account("alice", "aa")

    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            assert set(pool.map(opened, [tmp_path / f"{number}.sqlite"] * 8)) == {1}


def test_two_processes_share_one_budget(path):
    with Ledger(path) as ledger:
        ledger.set_budget(ledger.account("alice", "aa"), Budget(3.05, 0.0))  # thirty tenths fit
    outputs = race(path, "left", "right")
    assert sum(len(output) for output in outputs) == 30
    assert counted(path) == (30, 30)
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        assert ledger.statement(1).epsilon == pytest.approx(3.0)


@pytest.mark.parametrize("rival_round", [0, 1])
def test_a_rival_between_check_and_lock_is_seen(ledger, path, monkeypatch, rival_round):
    alice = ledger.account("alice", "aa")
    ledger.set_budget(alice, Budget(0.15, 0.0))
    writing = ledger._file.writing

    def late():
        monkeypatch.undo()
        with Ledger(path) as rival:
            rival.commit([charge(alice, rival_round, TENTH, message=b"first")])
        return writing()

    monkeypatch.setattr(ledger._file, "writing", late)
    # The same request is answered with the stored message; another one finds the budget used up.
    with pytest.raises(LedgerError if rival_round == 0 else BudgetExceeded):
        ledger.commit([charge(alice, 0, TENTH, message=b"second")])
    assert counted(path) == (1, 1)
    assert ledger.message("run", alice, rival_round) == b"first"


def test_a_killed_writer_leaves_a_sound_ledger(path):
    chance = random.Random(7)
    path.with_name("go").touch()
    acknowledged = []
    for _ in range(3):
        process = started(path, "run", 10**6)
        acknowledged.append(int(process.stdout.readline()))
        time.sleep(chance.uniform(0.0, 0.25))
        process.kill()
        acknowledged += [int(line) for line in process.communicate()[0].split()]
        with Ledger(path, read_only=True) as ledger:
            assert ledger.verify() == []
            stored = [entry.round for entry in ledger.history()]
        charges, messages = counted(path)
        assert charges == messages == len(stored)
        assert set(acknowledged) <= set(stored)  # what was confirmed is on record
    assert len(stored) - len(acknowledged) <= 3  # what was not confirmed is over-counted
