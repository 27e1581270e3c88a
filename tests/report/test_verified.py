"""A report vouches for what it has checked against the ledger, and for nothing else."""

from __future__ import annotations

import shutil

import pytest

import udpfl
from tests.report.verifying import contradicted, edit, is_green, outcome, report, restamp
from tests.small import blobs, linear
from udpfl.accounting import PrivacyStatement
from udpfl.ledger.ledger import Ledger


@pytest.mark.parametrize("name", ["private", "nominal"])
def test_an_untouched_run_is_verified(capsys, kept, tmp_path, name):
    folder = shutil.copytree(kept / name, tmp_path / "run")
    state, reasons, said, page = outcome(capsys, folder)
    assert (state, reasons) == ("verified", "")
    assert "Verified: every client’s ε was recomputed from the ledger" in said
    assert is_green(page)
    assert ">Verified</span>" in (kept / name / "report.html").read_text()


METHODS = {
    "paced": {"privacy": {"pace": "increasing"}},
    "adaptive clip": {"privacy": {"clip_quantile": 0.5}},
    "trusted server": {"training": {"algorithm": "dp-fedavg"}, "privacy": {"unit": "client"}},
    "shuffled": {"training": {"shuffle": True}},
    "some clients": {"training": {"clients_per_round": 1, "rounds": 2}},
    "seeded": {"privacy": {"randomness": "seeded"}},
    "plain": {"privacy": "none"},
}


@pytest.mark.parametrize("name", METHODS)
def test_runs_of_every_kind_agree_with_their_ledger(capsys, tmp_path, name):
    chosen = {"out": str(tmp_path / "run"), "threads": 1, **METHODS[name]}
    privacy = chosen.pop("privacy", {})
    if privacy != "none":
        privacy = {"epsilon": 4.0, "delta": 1e-3, "mechanism": "gaussian", **privacy}
    training = {"rounds": 3, **chosen.pop("training", {})}
    settings = {"data": {"clients": 3}, "training": training, "privacy": privacy, **chosen}
    folder = udpfl.run(settings, data=blobs(), model=linear()).folder
    state, reasons, said, page = outcome(capsys, folder)
    assert (state, reasons) == ("verified", "")
    private = name not in ("seeded", "plain")
    assert is_green(page) == private
    assert ("Not private" in said) != private


def test_the_statement_is_the_recomputed_one(capsys, run):
    _, (found,), _, _ = report(capsys, run)
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        most = max(ledger.statement(own.id).epsilon for own in ledger.accounts())
    assert PrivacyStatement.from_dict(found["statement"]).epsilon == most


def test_several_runs_are_one_object_each(capsys, run, kept):
    edit(run / "summary.json", lambda s: s["privacy"].update(epsilon=0.01))
    code, found, page, err = report(capsys, run, kept / "nominal")
    assert [own["state"] for own in found] == ["contradicted", "verified"]
    assert code == 1
    assert f"{run} is contradicted by its ledger" in err
    assert "Contradicted" in page


@pytest.mark.parametrize("factor", [0.5, 2.0, 1 + 1e-7])
def test_an_edited_epsilon_of_a_client_is_found(capsys, run, factor):
    def change(summary):
        own = summary["clients"]["client-1"]
        own["epsilon"] *= factor

    edit(run / "summary.json", change)
    contradicted(capsys, run, "summary.json for client-1 says ε = ")


def test_the_last_digits_may_differ(capsys, run):
    def change(summary):
        summary["clients"]["client-1"]["epsilon"] *= 1 + 1e-12

    edit(run / "summary.json", change)
    assert outcome(capsys, run)[0] == "verified"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("epsilon", 0.1, "summary.json for the run says ε = 0.1"),
        ("delta", 1e-9, "summary.json for the run says δ = 1e-09"),
        ("unit", "client", "says unit “client”, but recomputed it is “record”"),
        ("kind", "nominal", "says kind “nominal”, but recomputed it is “guarantee”"),
    ],
)
def test_an_edited_statement_of_the_run_is_found(capsys, run, field, value, reason):
    edit(run / "summary.json", lambda summary: summary["privacy"].update({field: value}))
    contradicted(capsys, run, reason)


def test_a_delta_that_no_budget_has_is_found(capsys, run):
    edit(run / "summary.json", lambda s: s["clients"]["client-0"].update(delta=0.5, epsilon=0.0))
    contradicted(capsys, run, "δ = 0.5 of client-0 in summary.json is not that of its budget")


def test_a_nominal_run_is_no_guarantee(capsys, kept, tmp_path):
    folder = shutil.copytree(kept / "nominal", tmp_path / "run")

    def change(summary):
        for own in (summary["privacy"], *summary["clients"].values()):
            own["kind"] = "guarantee"

    edit(folder / "summary.json", change)
    contradicted(capsys, folder, "says kind “guarantee”, but recomputed it is “nominal”")


def test_a_client_cannot_be_left_out(capsys, unsealed):
    edit(unsealed / "participants.json", lambda people: people.pop(2))
    edit(unsealed / "summary.json", lambda summary: summary["clients"].pop("client-2"))
    contradicted(capsys, unsealed, "client-2 was charged in this run, but is not one of its")


def test_an_edited_header_of_the_model_is_found(capsys, unsealed):
    restamp(unsealed, lambda stamp: stamp["privacy"].update(epsilon=0.5))
    contradicted(capsys, unsealed, "the header of the model says ε = 0.5")


def test_an_edited_sentence_in_the_model_is_found(capsys, unsealed):
    restamp(unsealed, lambda stamp: stamp.update(statement="(ε = 0.1, δ = 0)-DP"))
    contradicted(capsys, unsealed, "the header of the model has another statement")


def test_a_model_has_to_say_what_it_cost(capsys, unsealed):
    restamp(unsealed, lambda stamp: stamp.pop("privacy"))
    contradicted(capsys, unsealed, "the header of the model has no statement")


def test_model_and_summary_end_with_the_same_charge(capsys, run):
    edit(run / "summary.json", lambda summary: summary.pop("head"))
    contradicted(capsys, run, "name different last charges")


def test_a_damaged_model_is_not_verified(capsys, unsealed):
    (unsealed / "model.safetensors").write_bytes(b"\xff" * 100)
    state, reasons, _, page = outcome(capsys, unsealed)
    assert state == "not verified"
    assert "its header is cut off" in reasons
    assert not is_green(page)


def test_a_summary_from_before_the_run_went_on_is_found(capsys, run):
    """The head of the first round, and what it cost then."""
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        accounts = {own.client: own.id for own in ledger.accounts()}
        (chain,) = ledger._file.rows("SELECT chain FROM charges WHERE id = 3")
        early = {name: ledger.statement(own, up_to=3).to_dict() for name, own in accounts.items()}
    most = max(early.values(), key=lambda own: own["epsilon"])
    earlier = {"head": [3, *chain], "privacy": most}
    edit(run / "summary.json", lambda summary: summary.update(**earlier, clients=early))
    restamp(run, lambda stamp: stamp.update(**earlier))
    contradicted(capsys, run, "the last charge of the run is 6, but its summary ends with")
