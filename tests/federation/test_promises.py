"""Wrong input leaves nothing behind; what a run may not forget, and what it may not claim."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import udpfl
from tests.federation.samples import SEEDED, Meanwhile, blobs, charged, network, read
from udpfl import Budget, InvalidInput, LedgerError
from udpfl.federation import RunFolder
from udpfl.ledger.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread")


# Wrong input, before anything is written or released


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"training": {"options": {"speed": 3}}}, r"training\.options"),
        ({"training": {"algorithm": "fedagv"}}, r"training\.algorithm.*fedavg"),
        ({"training": {"algorithm": "builtins:dict"}}, r"training\."),
        ({"privacy": {"mechanism": "gaussian", "delta": 0.0}}, r"privacy\.delta.*gaussian"),
        (  # dealt out in turn: the second client has both
            {"privacy": {"mechanism": ["laplace", "gaussian"], "delta": [1e-5, 0.0, 1e-5]}},
            r"privacy\.delta.*gaussian",
        ),
        (
            {"privacy": {"delta": 0.99}, "training": {"rounds": 1, "local_steps": 1}},
            r"privacy\.delta",
        ),
        ({"resume": "nowhere"}, "resume"),
    ],
)
def test_wrong_input_leaves_nothing_behind(federate, tmp_path, more, key):
    with pytest.raises(udpfl.UdpflError, match=key):
        federate(**more)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_left_alone(federate, tmp_path):
    taken = tmp_path / "run-0"
    taken.mkdir()
    (taken / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidInput, match="not empty"):
        federate()
    assert [path.name for path in taken.iterdir()] == ["thesis.txt"]


def test_a_model_that_mixes_records_is_refused(federate):
    mixing = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    with pytest.raises(udpfl.Unsupported, match="replace_batchnorm"):
        federate(net=mixing)


def test_a_folder_whose_run_never_began_can_be_used_again(federate, tmp_path):
    half = tmp_path / "half"
    (half / "checkpoints").mkdir(parents=True)
    (half / "config.toml").write_text("seed = 1\n")
    assert RunFolder.create(half).path == half
    (half / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="not empty"):
        RunFolder.create(half)


def test_a_damaged_latest_checkpoint_costs_nothing(federate):
    """The older one is used, and the messages since then are sent again, not charged again."""
    whole = federate(SEEDED, {"rounds": 6, "checkpoint_every": 2})
    before = [(e.client, e.round, e.count) for e in whole.ledger.history()]
    latest = max((whole.folder / "checkpoints").iterdir())
    latest.write_bytes(latest.read_bytes()[:100])
    again = udpfl.run(resume=whole.folder, model=network(), data=blobs())
    assert [(e.client, e.round, e.count) for e in again.ledger.history()] == before
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])


def test_resuming_a_finished_run_says_so_and_keeps_its_time(federate, caplog):
    whole = federate(None, {"rounds": 2})
    assert "already trained" not in caplog.text
    file = whole.folder / "summary.json"
    file.write_text(json.dumps({**read(whole, "summary.json"), "seconds": 1234.5}))
    again = udpfl.run(resume=whole.folder, model=network(), data=blobs())
    assert "all rounds are already trained: only the results are written again" in caplog.text
    assert again.seconds == read(whole, "summary.json")["seconds"] == 1234.5
    file.write_text("{}")  # whatever became of the file, the run can be resumed
    assert udpfl.run(resume=whole.folder, model=network(), data=blobs()).seconds < 1234.5


# What a run may not forget, and what it may not claim


def test_resuming_needs_the_ledger_that_holds_the_charges(federate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared = {"ledger": "budget.sqlite", "epsilon": 2.0}
    whole = federate(shared, {"rounds": 4})
    assert whole.ledger_path == tmp_path / "budget.sqlite"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = udpfl.run(resume=whole.folder, model=network(), data=blobs())
    assert again.privacy == whole.privacy
    assert not list(elsewhere.iterdir())
    whole.ledger_path.rename(tmp_path / "moved.sqlite")
    with pytest.raises(LedgerError, match="is missing: the run cannot be resumed"):
        udpfl.run(resume=whole.folder, model=network(), data=blobs())


def test_resuming_needs_the_same_data_and_model(federate):
    whole = federate(None, {"rounds": 2})
    inputs, labels = blobs()
    with pytest.raises(InvalidInput, match="not those that the run began with"):
        udpfl.run(resume=whole.folder, model=network(), data=(inputs + 1, labels))
    with pytest.raises(InvalidInput, match=r"planned for \d+ parameters"):
        udpfl.run(resume=whole.folder, model=nn.Linear(4, 3), data=blobs())


def test_one_statement_for_all_clients_holds_for_each(federate):
    result = federate({"epsilon": [3.0, 2.0, 2.0], "delta": [1e-6, 1e-2, 1e-5]})
    assert result.privacy.epsilon <= 3.0
    assert result.privacy.delta == 1e-2
    for statement in result.clients.values():
        assert statement.epsilon <= result.privacy.epsilon
        assert statement.delta <= result.privacy.delta
    nominal = federate({"accounting": "scalar", "epsilon": [2.0, 4.0, 1.0]})
    worst = max(statement.vector_epsilon for statement in nominal.clients.values())
    assert nominal.privacy.vector_epsilon == worst


def test_a_nominal_run_on_a_shared_ledger_says_what_all_runs_cost(federate, tmp_path):
    shared = {"accounting": "scalar", "epsilon": 2.0, "ledger": str(tmp_path / "b.sqlite")}
    guaranteed = [federate(shared).privacy.vector_epsilon for _ in range(2)]
    assert guaranteed[1] > 1.2 * guaranteed[0]


def test_data_known_under_another_name_gets_no_new_budget(federate, tmp_path):
    x, y = blobs()
    parts = [(x[i::3], y[i::3]) for i in range(3)]
    shared = {"ledger": str(tmp_path / "b.sqlite")}
    federate(shared, given=parts, test=blobs())
    with pytest.raises(InvalidInput, match="is known there as"):
        federate(shared, given=parts[::-1], test=blobs())


def test_what_is_read_off_ones_own_data_is_an_assumption(federate):
    notes = " ".join(federate().privacy.assumptions)
    assert "sizes of the clients" in notes
    assert "set of labels" in notes
    assert "sizes" not in " ".join(federate(None, None, {"declared_sizes": 20}).privacy.assumptions)


def test_dropout_is_not_drawn_from_the_public_seed(federate):
    """With everything else fixed, two private runs must not share their masks."""

    def masks(privacy):
        seen = []

        class Spy(nn.Module):
            def __init__(self):
                super().__init__()
                self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

            def forward(self, x):
                if torch.is_grad_enabled() and self.drop.p:  # 0 where the model is only tried
                    seen.append(self.drop(torch.ones(64)).tolist())
                return self.head(self.drop(x))

        federate(privacy, {"rounds": 1, "sampling_rate": 1.0}, net=Spy())
        return seen

    first, second = masks({"randomness": "entropy"}), masks({"randomness": "entropy"})
    assert first
    assert not {tuple(mask) for mask in first} & {tuple(mask) for mask in second}
    again = [masks({"randomness": "seeded"}) for _ in range(2)]
    assert again[0] == again[1]


def only_client_0(ledger, found):
    limit = 1e-3 if found.client == "client-0" else 50.0
    ledger.set_budget(found.id, Budget(limit, 1e-5), reason="a test")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_round_in_which_nobody_has_budget_is_skipped_not_the_end(federate, tmp_path, when):
    """Client 0 has nothing left; the rounds that ask only client 0 pass, the others go on."""
    shared = {"ledger": str(tmp_path / "b.sqlite"), "epsilon": 4.0, "exhausted": "skip"}
    plan = {"rounds": 8, "clients_per_round": 1}
    first = federate(shared, {"rounds": 1, "clients_per_round": 1}, seed=3)
    with Ledger(first.ledger_path) as ledger:
        for found in ledger.accounts():
            ledger.set_budget(found.id, Budget(50.0, 1e-5), reason="a test")
            if when == "before":
                only_client_0(ledger, found)
    watch = Meanwhile(first.ledger_path, 0 if when == "before" else 1, only_client_0)
    second = federate(shared, plan, seed=3, observers=[watch])
    asked = [row["participants"] for row in second.metrics]
    assert second.stopped is None
    assert 0 < len(asked) < 8
    assert set(asked) == {1}
    run = read(second, "run.json")["id"]
    rounds = {entry.round for entry in charged(second, "client-0") if entry.run == run}
    assert rounds == (set() if when == "before" else {1})
    assert any(row["round"] > 6 for row in second.metrics)  # which asks client 0 once more
