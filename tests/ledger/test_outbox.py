"""The outbox: a repeated request gets the same bytes, and dropped messages stay charged."""

from __future__ import annotations

import os

import pytest

from tests.accounting.samples import TENTH
from tests.ledger.samples import charge, counted, raw
from udpfl import InvalidInput
from udpfl.errors import LedgerError
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger


def test_a_repeated_request_gets_the_same_bytes(ledger, path):
    alice = ledger.account("alice", "aa")
    sent = bytes(range(256)) * 4
    assert ledger.message("run", alice, 0) is None
    assert ledger.state("run", alice) is None
    ledger.commit([charge(alice, 0, TENTH, message=sent, state=b"momentum")])
    with Ledger(path, read_only=True) as elsewhere:
        assert elsewhere.message("run", alice, 0) == sent
        assert elsewhere.state("run", alice) == b"momentum"
    with pytest.raises(LedgerError, match="has already answered round 0 of run run"):
        ledger.commit([charge(alice, 0, TENTH, message=b"other")])
    assert ledger.message("run", alice, 0) == sent
    assert counted(path) == (1, 1)


def test_a_charge_without_a_message_may_be_charged_anew(ledger, path):
    alice = ledger.account("alice", "aa")
    ledger.commit([charge(alice, 0, TENTH)])
    with raw(path) as db:
        db.execute("DELETE FROM outbox")
    ledger.commit([charge(alice, 0, TENTH)])
    assert counted(path) == (2, 1)
    assert ledger.verify() == []
    assert ledger.statement(alice, 0.0).epsilon == pytest.approx(0.2)


def test_old_messages_are_dropped_and_stay_charged(ledger, path):
    alice, bob = ledger.account("alice", "aa"), ledger.account("bob", "bb")
    for round_ in range(4):
        state = f"state {round_}".encode()
        clients = (alice, bob) if round_ < 2 else (alice,)
        ledger.commit([charge(client, round_, TENTH, state=state) for client in clients])
    ledger.commit([charge(alice, 4, TENTH, state=b"state 4")], settled=2)
    assert ledger.message("run", alice, 3) == b"answer 3"  # nothing is settled unless it is said
    with pytest.raises(LedgerError, match="already"):  # what fails drops nothing either
        ledger.commit([charge(alice, 0, TENTH)], settled=3)
    kept = [ledger.message("run", alice, round_) for round_ in range(5)]
    assert kept == [None, None, None, b"answer 3", b"answer 4"]
    assert (ledger.state("run", alice), ledger.state("run", bob)) == (b"state 4", b"state 1")
    with raw(path) as db:
        states = db.execute("SELECT account, round FROM outbox WHERE state IS NOT NULL").fetchall()
        digests = db.execute("SELECT count(digest) FROM outbox").fetchone()
    assert (sorted(states), digests) == ([(alice, 3), (alice, 4), (bob, 1)], (7,))
    with pytest.raises(LedgerError, match="already"):
        ledger.commit([charge(alice, 0, TENTH)])
    assert ledger.verify() == []
    assert ledger.statement(alice, 0.0).epsilon == pytest.approx(0.5)


def test_a_dropped_message_is_nowhere_on_disk(ledger, path):
    alice = ledger.account("alice", "aa")
    secrets = [os.urandom(size) for size in (200, 5_000, 300_000)]
    for round_, secret in enumerate(secrets):
        ledger.commit([charge(alice, round_, TENTH, message=secret, state=secret[::-1])])

    def stored():
        ledger._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        content = path.read_bytes()
        return [(secret[:100] in content, secret[:-101:-1] in content) for secret in secrets]

    assert stored() == [(True, True)] * 3
    ledger.forget("run", 2)
    assert stored() == [(False, False), (False, False), (False, True)]  # its latest state stays


def test_dropped_messages_leave_their_room_to_others(ledger, path):
    """A row that only shrinks would keep a page of its own."""
    clients = [ledger.account(name, name) for name in ("alice", "bob", "carol")]
    sizes = []
    for round_ in range(80):
        message, state = bytes(50_000 + round_), bytes(3_000)
        sent = [charge(each, round_, TENTH, message=message, state=state) for each in clients]
        ledger.commit(sent, settled=round_ - 2)
        ledger._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append(path.stat().st_size)
    assert sizes[-1] <= 1.3 * sizes[10]
    assert ledger.verify() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("round", -1), ("round", 1.0), ("round", True), ("message", "text"), ("state", None)],
)
def test_a_malformed_charge_is_refused(field, value):
    values = {"account": 1, "run": "run", "round": 0, "events": (), "message": b"", "state": b""}
    with pytest.raises(InvalidInput, match=field):
        Charge(**{**values, field: value})
