"""A nominal run is stated by the accountant that planned it; what is guaranteed stays the same."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from tests.ledger.samples import charge, raw
from udpfl import (
    Gaussian,
    InvalidInput,
    Laplace,
    PoissonSampled,
    Release,
    Repeated,
    Sensitivity,
    account,
)
from udpfl.accounting import Accountant
from udpfl.audit.ledger import audit_ledger
from udpfl.errors import LedgerError
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import Seals

NOISY = PoissonSampled(0.1, Release(Laplace(2.0), Sensitivity(1.0, "l2", 40)))
ROUNDS = 5


def nominal_ledger(path, runs="one", run="nominal", **said):
    """A ledger with one nominal run of one client, closed."""
    with Ledger(path) as ledger:
        alice = ledger.account("alice", "aa", runs=runs)
        ledger.begin_run(run, randomness="entropy", accounting="scalar", description={}, **said)
        for round_ in range(ROUNDS):
            ledger.commit([charge(alice, round_, Repeated(NOISY, 4), run=run)])
    return alice


EVENT = Repeated(NOISY, 4 * ROUNDS)


@pytest.mark.parametrize("accountant", get_args(Accountant))
@pytest.mark.parametrize("runs", ["one", "many"])
def test_the_accountant_that_planned_a_run_states_it(path, accountant, runs):
    alice = nominal_ledger(path, runs, accountant=accountant)
    wanted = account(EVENT, 1e-5, accountant, "scalar")
    for read_only in (True, False):
        with Ledger(path, read_only=read_only) as ledger:
            found = ledger.statement(alice, 1e-5, nominal_run="nominal")
            proved = ledger.statement(alice, 1e-5)
            assert ledger.sealed("nominal").accountant == accountant
            assert ledger.verify() == []
        assert (found.kind, found.accountant) == ("nominal", wanted.accountant)
        assert found.epsilon == pytest.approx(wanted.epsilon, rel=1e-12)
        # What is guaranteed does not ask who planned the noise.
        assert found.vector_epsilon == proved.epsilon
        assert (proved.kind, proved.accountant) == (
            "guarantee", "filter" if runs == "many" else account(EVENT, 1e-5).accountant
        )  # fmt: skip
        if runs == "one":
            assert proved.epsilon == pytest.approx(account(EVENT, 1e-5).epsilon)
    assert audit_ledger(path).sound


def test_accountants_differ_so_it_matters_which_one_states(tmp_path):
    found = []
    for accountant in ("best", "rdp", "paper"):
        path = tmp_path / f"{accountant}.sqlite"
        alice = nominal_ledger(path, accountant=accountant)
        with Ledger(path, read_only=True) as ledger:
            found.append(ledger.statement(alice, 1e-5, nominal_run="nominal").epsilon)
    assert found == sorted(found)
    assert found[2] > 1.05 * found[1] > 1.05 * found[0]


def test_a_run_that_is_registered_again_keeps_its_accountant(path):
    alice = nominal_ledger(path, accountant="rdp")
    with Ledger(path) as ledger:
        before = len(ledger.decisions())
        ledger.begin_run(
            "nominal", randomness="entropy", accounting="scalar", accountant="paper", description={}
        )
        assert len(ledger.decisions()) == before
        assert ledger.statement(alice, 1e-5, nominal_run="nominal").accountant == "rdp"


def test_two_nominal_runs_have_a_number_each(path):
    alice = nominal_ledger(path, "many", "first", accountant="rdp")
    nominal_ledger(path, "many", "second", accountant="paper")
    with Ledger(path, read_only=True) as ledger:
        first, second = (
            ledger.statement(alice, 1e-5, nominal_run=run) for run in ("first", "second")
        )
    assert (first.accountant, second.accountant) == ("rdp", "paper")
    assert second.epsilon > first.epsilon
    assert first.vector_epsilon == second.vector_epsilon  # of both runs together


# Ledgers of earlier versions, and of later ones


def begin_as_before(self, run, files, accountant):
    """What the version before accountants were recorded wrote."""
    if files is not None:
        self._decisions.append("begin", None, {"run": run, "files": dict(files)})


@pytest.mark.parametrize("files", [None, {"config.toml": "0" * 64}])
def test_a_run_of_an_earlier_version_is_stated_as_it_was(path, monkeypatch, files):
    monkeypatch.setattr(Seals, "begin", begin_as_before)
    alice = nominal_ledger(path, accountant="rdp", files=files)
    monkeypatch.undo()
    with Ledger(path) as ledger:
        assert ledger.sealed("nominal").accountant is None
        assert ledger.sealed("nominal").begun_with == files
        found = ledger.statement(alice, 1e-5, nominal_run="nominal")
        wanted = account(EVENT, 1e-5, "best", "scalar")
        assert (found.accountant, found.epsilon) == (wanted.accountant, wanted.epsilon)
        assert ledger.verify() == []


def test_an_accountant_of_a_later_version_is_not_guessed(path, monkeypatch):
    def begin(self, run, files, accountant):
        content = {"run": run, "files": None, "accountant": "tomorrow"}
        self._decisions.append("begin", None, content)

    monkeypatch.setattr(Seals, "begin", begin)
    alice = nominal_ledger(path)
    with Ledger(path, read_only=True) as ledger:
        with pytest.raises(LedgerError, match="'tomorrow', which this version"):
            ledger.statement(alice, 1e-5, nominal_run="nominal")
        assert ledger.statement(alice, 1e-5).kind == "guarantee"


def test_another_accountant_in_the_file_is_found(path):
    """A smaller nominal number is no guarantee; it is an edit all the same."""
    nominal_ledger(path, accountant="paper")
    with raw(path) as db:
        db.execute("DROP TRIGGER decisions_never_update")
        db.execute("""UPDATE decisions SET content = replace(content, '"paper"', '"best"')""")
    with Ledger(path, read_only=True) as ledger:
        assert any("was edited" in problem for problem in ledger.verify())
    assert not audit_ledger(path).sound


# Never a guarantee


def test_a_run_with_a_guarantee_cannot_be_planned_by_the_papers_accountant(path):
    with Ledger(path) as ledger:
        with pytest.raises(InvalidInput, match="never gives a guarantee"):
            ledger.begin_run(
                "r", randomness="entropy", accounting="vector", accountant="paper", description={}
            )
        with pytest.raises(InvalidInput, match="accountant"):
            ledger.begin_run(
                "r", randomness="entropy", accounting="scalar", accountant="mine", description={}
            )
        assert not ledger.knows("r")
        assert ledger.decisions() == []


def test_a_run_with_a_guarantee_has_no_accountant_on_record(path):
    with Ledger(path) as ledger:
        alice = ledger.account("alice", "aa", runs="one")
        ledger.begin_run(
            "r",
            randomness="entropy",
            accounting="vector",
            accountant="rdp",
            description={},
            files={},
        )
        ledger.commit([charge(alice, 0, NOISY, run="r")])
        assert ledger.sealed("r").accountant is None
        assert ledger.statement(alice, 1e-5) == account(NOISY, 1e-5)


@pytest.mark.parametrize(("accountant", "delta"), [("pld", 1e-12), ("pld", 0.0), ("rdp", 0.0)])
def test_at_a_delta_that_the_accountant_cannot_answer_there_is_no_number(path, accountant, delta):
    """A person may give the account another delta than the run was planned for."""
    with Ledger(path) as ledger:
        alice = ledger.account("alice", "aa", runs="one")
        ledger.begin_run(
            "n", randomness="entropy", accounting="scalar", accountant=accountant, description={}
        )
        ledger.commit([charge(alice, 0, Release(Gaussian(2.0), Sensitivity(1.0)), run="n")])
        found = ledger.statement(alice, delta, nominal_run="n")
        proved = ledger.statement(alice, delta)
    assert (found.kind, found.epsilon, found.delta) == ("nominal", math.inf, delta)
    assert found.accountant == accountant
    assert found.notes
    assert found.vector_epsilon == proved.epsilon
