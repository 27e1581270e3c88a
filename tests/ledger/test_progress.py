"""What a simulation stores in place of messages: with its charges, once, or not at all."""

from __future__ import annotations

import pytest

from tests.accounting.samples import TENTH
from tests.ledger.samples import begin, charge, raw
from udpfl import Budget, InvalidInput
from udpfl.errors import BudgetExceeded, LedgerError
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.progress import Progress


def unsent(account, round_, *events, run="run", state=b""):
    return Charge(account, run, round_, events, None, state)


def test_the_latest_state_stands_in_for_all_messages(ledger, path):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    assert ledger.progress("run") is None
    for round_ in (1, 2, 3):
        charges = [unsent(client, round_, TENTH, state=b"kept") for client in (alice, bob)]
        ledger.commit(charges, progress=Progress(round_, f"server {round_}".encode()))
    with Ledger(path, read_only=True) as elsewhere:
        assert elsewhere.progress("run") == Progress(3, b"server 3")
        assert elsewhere.message("run", alice, 3) is None
        assert elsewhere.state("run", alice) == b"kept"
        assert elsewhere.verify() == []
        assert elsewhere.statement(alice, 0.0).epsilon == pytest.approx(0.3)
    with raw(path) as db:
        assert db.execute("SELECT count(*) FROM progress").fetchone() == (1,)
    assert b"server 1" not in path.read_bytes()
    with pytest.raises(LedgerError, match="already answered round 3"):
        ledger.commit([unsent(alice, 3, TENTH)], progress=Progress(3, b"once more"))
    assert ledger.progress("run") == Progress(3, b"server 3")


def test_what_is_not_charged_is_not_stored(ledger):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    ledger.set_budget(bob, Budget(0.15, 0.0))
    ledger.commit([unsent(alice, 1, TENTH), unsent(bob, 1, TENTH)], progress=Progress(1, b"one"))
    both = [unsent(alice, 2, TENTH), unsent(bob, 2, TENTH)]
    with pytest.raises(BudgetExceeded):
        ledger.commit(both, progress=Progress(2, b"two"))
    with pytest.raises(InvalidInput, match="is of round 3, not 2"):
        ledger.commit([unsent(alice, 2, TENTH)], progress=Progress(3, b"three"))
    assert ledger.progress("run") == Progress(1, b"one")
    assert [entry.round for entry in ledger.history()] == [1, 1]


def test_every_run_has_its_own(ledger):
    begin(ledger, "other")
    alice = ledger.account("alice", "aa")
    ledger.commit([unsent(alice, 1, TENTH)], progress=Progress(1, b"one"))
    ledger.commit([unsent(alice, 4, TENTH, run="other")], progress=Progress(4, b"four"))
    assert ledger.progress("run") == Progress(1, b"one")
    ledger.end_run("other", head=ledger.head(), files={}, outcome={})
    assert ledger.progress("other") == Progress(4, b"four")  # its last checkpoint may get damaged
    assert ledger.progress("run") == Progress(1, b"one")
    assert ledger.verify() == []


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        ("UPDATE progress SET state = 'another'", "after round 1 is damaged"),
        ("UPDATE progress SET round = 2", "after round 2 was not charged"),
        ("UPDATE progress SET run = 'other'", "run other after round 1 was not charged"),
    ],
)
def test_an_edited_state_is_noticed(ledger, path, edit, complaint):
    begin(ledger, "other")
    ledger.commit([unsent(ledger.account("alice", "aa"), 1, TENTH)], progress=Progress(1, b"one"))
    ledger.close()
    with raw(path) as db:
        db.execute(edit)
    with Ledger(path, read_only=True) as found:
        (problem,) = found.verify()
        assert complaint in problem
        if "damaged" in complaint:
            with pytest.raises(LedgerError, match="damaged"):
                found.progress("run")


def test_a_ledger_without_the_table_is_read_and_gets_it(ledger, path):
    alice = ledger.account("alice", "aa")
    ledger.commit([charge(alice, 1, TENTH)])
    with Ledger(path, read_only=True) as found:
        assert found.progress("run") is None
        assert found.verify() == []
    ledger.commit([unsent(alice, 2, TENTH)], progress=Progress(2, b"two"))
    assert ledger.progress("run") == Progress(2, b"two")
    assert ledger.message("run", alice, 1) == b"answer 1"
