"""Runs whose noise is matched to a reference Gaussian: per client, charged as what it is."""

from __future__ import annotations

import math
import re

import pytest

from tests.commands import command
from tests.federation.samples import (
    DIMENSION,
    account_of,
    blobs,
    charged,
    network,
    noise_of,
    read,
)
from udpfl import (
    BudgetExceeded,
    Gaussian,
    PoissonSampled,
    Release,
    Repeated,
    Sensitivity,
    account,
    match,
)
from udpfl.accounting.statement import shown
from udpfl.algorithms import FedAvg
from udpfl.audit import audit_run
from udpfl.comparison.outcome import outcome_of
from udpfl.engine import MechanismNoiser
from udpfl.errors import InvalidInput
from udpfl.federation.protection import planned_protection
from udpfl.harmonizer import Matched
from udpfl.harmonizer._reference import Reference
from udpfl.ledger.ledger import Ledger
from udpfl.report import read_run, run_page

pytestmark = pytest.mark.usefixtures("one_thread")
MATCHED = {"harmonize": "match"}
CLIP = Sensitivity(1.0, "l2", DIMENSION)


class Silent(FedAvg):
    """Says nothing of what a client without records sends: it may be anywhere within the clip."""

    without_records = None


def rows_of(result):
    return read(result, "participants.json")


def cost(noise, row, sensitivity=CLIP):
    """All releases of a client with this noise, by Rényi divergences, accounted from scratch."""
    event = PoissonSampled(row["rate"], Release(noise, sensitivity))
    return account(Repeated(event, row["rounds"] * row["steps"]), 1e-5, "rdp").epsilon


def test_every_client_has_its_own_reference_and_is_charged_for_its_own_noise(federate):
    names, references = ["laplace", "staircase", "gaussian"], [2.0, 3.0, 4.0]
    result = federate({**MATCHED, "mechanism": names, "reference": references, "epsilon": 9.0})
    for row, name, reference in zip(rows_of(result), names, references, strict=True):
        expected = match(name, Gaussian(reference), CLIP)
        assert noise_of(row).noise_std == pytest.approx(expected.noise_std, rel=1e-4)
        told = Matched.from_dict(row["matched"])
        assert told.reference == reference
        assert told.other.epsilon == pytest.approx(cost(Reference(reference), row))
        assert told.own.epsilon <= told.other.epsilon * (1 + 1e-6)
        if name != "gaussian":
            assert told.own.epsilon == pytest.approx(cost(noise_of(row), row))
        for charge in charged(result, row["name"]):
            assert charge.event.event.mechanism == noise_of(row)  # never the reference
        assert result.clients[row["name"]].epsilon <= told.own.epsilon * (1 + 1e-9)
    (note,) = [note for note in result.privacy.notes if note.startswith("matched")]
    assert "noise multiplier 2 to 4" in note
    assert result.privacy.kind == "guarantee"


def test_without_a_reference_the_budget_decides_it_and_is_kept(federate):
    result = federate({**MATCHED, "epsilon": [1.0, 3.0, 9.0]})
    multipliers = []
    for row, epsilon in zip(rows_of(result), (1.0, 3.0, 9.0), strict=True):
        told = Matched.from_dict(row["matched"])
        assert 0.998 * epsilon < told.other.epsilon <= epsilon
        assert result.clients[row["name"]].epsilon <= epsilon
        assert noise_of(row) == match("laplace", Gaussian(told.reference), CLIP)
        multipliers.append(told.reference)
    assert multipliers == sorted(multipliers, reverse=True)


def test_noise_that_keeps_a_budget_is_not_matched(federate):
    result = federate()
    assert all("matched" not in row for row in rows_of(result))
    assert not any(note.startswith("matched") for note in result.privacy.notes)


def test_a_reference_that_costs_too_much_is_refused_with_one_that_fits(federate, tmp_path):
    small = {**MATCHED, "reference": 0.9, "epsilon": 2.0}
    with pytest.raises(BudgetExceeded, match=r"^client-0: noise that matches") as refused:
        federate(small)
    assert not list(tmp_path.glob("run-*"))
    fits = float(re.search(r"with noise multiplier ([0-9.]+) it would fit", str(refused.value))[1])
    assert federate({**small, "reference": fits}).privacy.epsilon <= 2.0


def test_the_reference_is_in_units_of_what_is_charged(federate):
    """Of twice the clip where a whole client may move by that, and of the l2 norm under linf."""
    whole = {
        **MATCHED,
        "unit": "client",
        "reference": 3.0,
        "epsilon": 50.0,
        "mechanism": "gaussian",
    }
    for privacy, training, std in (
        (whole, {}, 3.0),
        (whole, {"algorithm": "tests.federation.test_matching:Silent"}, 6.0),
        ({**whole, "unit": "record", "clip": 0.5}, {}, 1.5),
        ({**whole, "unit": "record", "norm": "linf"}, {}, 3.0 * math.sqrt(DIMENSION)),
    ):
        (row, *_) = rows_of(federate(privacy, {"rounds": 1, **training}))
        assert noise_of(row).std == pytest.approx(std)


def test_scalar_accounting_matches_nominally(federate):
    scalar = {**MATCHED, "accounting": "scalar", "accountant": "rdp", "reference": 2.0}
    result = federate({**scalar, "epsilon": 20.0})
    (row, *_) = rows_of(result)
    assert noise_of(row) == match("laplace", Gaussian(2.0), Sensitivity(1.0, "l2", 1))
    told = Matched.from_dict(row["matched"])
    assert told.own.kind == told.other.kind == "nominal"
    assert told.own.epsilon == pytest.approx(cost(noise_of(row), row, Sensitivity(1.0, "l2", 1)))
    assert told.own.vector_epsilon > told.own.epsilon
    assert result.privacy.kind == "nominal"
    (note,) = [note for note in result.privacy.notes if note.startswith("matched")]
    assert "in one coordinate" in note
    assert "leak more" not in note  # which is not so for the gradient
    for number in (told.own, told.other):
        assert f"ε = {shown(number.epsilon)}" in note
        assert f"ε = {shown(number.vector_epsilon)}" in note
    assert told.own.vector_epsilon > told.other.vector_epsilon
    said = re.sub("<[^>]+>|&nbsp;", "", result.report.read_text())
    assert "in one coordinate (nominal ε = " in said
    assert f"{shown(told.own.vector_epsilon)} and {shown(told.other.vector_epsilon)} are" in said


def test_a_nominal_reference_that_costs_too_much_says_what_is_guaranteed(federate):
    scalar = {**MATCHED, "accounting": "scalar", "accountant": "paper", "reference": 0.5}
    with pytest.raises(BudgetExceeded, match=r"nominally costs ε = .+ \(guaranteed is ε = "):
        federate({**scalar, "epsilon": 2.0})


def test_an_adaptive_clip_goes_with_it(federate):
    result = federate({**MATCHED, "clip_quantile": 0.5, "epsilon": 6.0, "accountant": "rdp"})
    (row, *_) = rows_of(result)
    told = Matched.from_dict(row["matched"])
    assert row["count"] is not None
    assert told.own.epsilon <= told.other.epsilon <= 6.0
    assert told.other.epsilon > 1.02 * cost(Reference(told.reference), row)  # counts are paid for


class TestSharedLedger:
    def test_runs_add_up_and_fewer_rounds_of_the_same_noise_are_offered(self, federate, tmp_path):
        shared = {**MATCHED, "ledger": str(tmp_path / "l.sqlite"), "reference": 3.0, "epsilon": 4.0}
        first = federate(shared, {"rounds": 6})
        with pytest.raises(BudgetExceeded) as refused:
            federate({**shared, "epsilon": 9.0}, {"rounds": 60})
        left = int(re.search(r"; (\d+) of 60 rounds would fit", str(refused.value))[1])
        second = federate(shared, {"rounds": left})
        assert first.privacy.epsilon < second.privacy.epsilon <= 4.0
        assert noise_of(rows_of(second)[0]) == noise_of(rows_of(first)[0])
        row = rows_of(second)[0]  # costs are told of this run alone
        assert row["matched"]["own"]["epsilon"] == pytest.approx(cost(noise_of(row), row))

    def test_a_reference_that_the_budget_decides_fits_what_is_left(self, federate, tmp_path):
        shared = {**MATCHED, "ledger": str(tmp_path / "l.sqlite"), "epsilon": 4.0}
        federate({**shared, "reference": 2.5}, {"rounds": 6})
        with pytest.raises(BudgetExceeded, match=r'privacy\.exhausted = "fit"') as refused:
            federate(shared, {"rounds": 6})
        assert "of 6 rounds (" not in str(refused.value)
        fitted = federate({**shared, "exhausted": "fit"}, {"rounds": 6})
        assert fitted.privacy.epsilon <= 4.0
        noise, reference = noise_of(rows_of(fitted)[0]), rows_of(fitted)[0]["matched"]["reference"]
        assert noise == match("laplace", Gaussian(reference), CLIP)
        with Ledger(tmp_path / "l.sqlite", read_only=True) as ledger:
            assert ledger.verify() == []
            number = account_of(tmp_path / "l.sqlite", "client-0")
            own = account(ledger.held(number), 1e-5, ledger.filter(number)).epsilon
        assert own == pytest.approx(fitted.clients["client-0"].epsilon)


def test_methods_that_bring_their_own_noise_refuse(federate):
    with pytest.raises(InvalidInput, match=r'privacy\.harmonize: nbafl needs "budget"'):
        federate({**MATCHED, "unit": "client", "mechanism": "gaussian"}, {"algorithm": "nbafl"})
    with pytest.raises(InvalidInput, match=r"privacy\.reference: dp-fedavg adds one noise"):
        federate(
            {**MATCHED, "unit": "client", "mechanism": "gaussian", "reference": [2.0, 3.0]},
            {"algorithm": "dp-fedavg"},
        )
    trusted = federate(
        {**MATCHED, "unit": "client", "mechanism": "laplace", "reference": 20.0},
        {"algorithm": "dp-fedavg", "options": {"participation": 0.5}},
    )
    assert noise_of(rows_of(trusted)[0]) == match("laplace", Gaussian(20.0), CLIP)


def test_the_report_says_to_what_the_noise_was_matched_and_what_both_cost(federate):
    result = federate({**MATCHED, "reference": 2.0, "epsilon": 9.0})
    record = read_run(result.folder)
    assert record.verification.state == "verified"
    told = Matched.from_dict(rows_of(result)[0]["matched"])
    page = run_page(record)
    assert (
        "matched to a Gaussian of noise multiplier 2 "
        f"(ε = {shown(told.own.epsilon)} at whole Rényi orders, {shown(told.other.epsilon)} with "
        "that Gaussian)"
    ) in page
    assert "matched: at no Rényi order does a release leak more" in page


@pytest.mark.parametrize("how", ["seeded", "replaced"])
def test_a_run_that_claims_nothing_tells_no_costs(federate, how):
    more = {"protection": planned_protection} if how == "replaced" else {}
    randomness = "entropy" if more else "seeded"
    result = federate({**MATCHED, "reference": 2.0, "randomness": randomness}, **more)
    assert result.privacy.kind == "none"
    if how == "seeded":
        assert rows_of(result)[0]["matched"]["own"]["kind"] == "none"
    page = run_page(read_run(result.folder))
    assert "matched to a Gaussian of noise multiplier 2<" in page
    assert "by Rényi divergences" not in page.replace("by Rényi divergences.", "")
    assert outcome_of(0, read_run(result.folder)).matched is None


def test_an_audit_does_not_refute_it(federate):
    result = federate({**MATCHED, "reference": 1.5, "epsilon": 50.0})
    own = {"data": blobs(), "model": network(), "trials": 150, "canaries": 0}
    assert not any(verdict.refuted for verdict in audit_run(result.folder, **own))


@pytest.mark.slow
def test_an_audit_refutes_a_fraction_of_the_matched_noise(federate, monkeypatch):
    result = federate({**MATCHED, "reference": 1.5, "epsilon": 50.0})
    honest = MechanismNoiser.__init__
    monkeypatch.setattr(
        MechanismNoiser, "__init__",
        lambda self, noises: honest(self, [noise.scaled(0.2) for noise in noises]),
    )  # fmt: skip
    own = {"data": blobs(), "model": network(), "trials": 2000, "canaries": 0}
    assert any(verdict.refuted for verdict in audit_run(result.folder, **own))


def test_the_command_refuses_with_exit_code_1(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = ["privacy.harmonize=match", "privacy.reference=0.5", "model.name=logistic",
            "training.rounds=2", "threads=1", "privacy.mechanism=laplace"]  # fmt: skip
    code, out, err = command(capsys, "run", *(part for key in keys for part in ("--set", key)))
    assert (code, out) == (1, "")
    assert "more than the budget of ε = 8; matched to a Gaussian with" in err
    assert not (tmp_path / "runs").exists()
