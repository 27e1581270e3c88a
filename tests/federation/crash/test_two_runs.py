"""Two runs on one ledger: no charge is lost, and no budget is spent twice."""

from __future__ import annotations

import pytest

from tests.federation.crash.processes import (
    CLIENTS,
    DELTA,
    NAMES,
    ROUNDS,
    STEPS,
    Place,
    Witness,
    wait,
)
from udpfl import Budget, Composed, Repeated, account
from udpfl.ledger.ledger import Ledger


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
