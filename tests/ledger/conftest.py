from __future__ import annotations

import pytest

from tests.accounting.samples import TENTH
from tests.ledger.samples import ROUND, begin, charge
from udpfl import Budget
from udpfl.ledger.ledger import Ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger(path) as opened:
        begin(opened)
        yield opened


@pytest.fixture
def used(path):
    """A closed ledger with two clients, two runs and some charges."""
    with Ledger(path) as ledger:
        begin(ledger)
        begin(ledger, "test", randomness="seeded")
        alice, bob = ledger.account("alice", "aa11", runs="one"), ledger.account("bob", "bb22")
        ledger.set_budget(alice, Budget(2.0, 1e-5))
        for round_ in range(3):
            ledger.commit([charge(alice, round_, ROUND), charge(bob, round_, TENTH, run="test")])
        assert ledger.verify() == []
    return path
