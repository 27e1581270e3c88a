"""A preview says what the run then does, and leaves nothing behind."""

from __future__ import annotations

import pytest

import udpfl
from tests.federation.samples import blobs
from udpfl.federation.preview import preview

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = {
    "data": {"clients": 3, "declared_sizes": 20},
    "privacy": {"mechanism": ["gaussian", "laplace"], "epsilon": [2.0, 4.0, 8.0]},
    "training": {"rounds": 4, "local_steps": 2},
    "threads": 1,
}


def test_a_preview_is_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = preview(SETTINGS, data=blobs(90), model="logistic")
    assert list(tmp_path.iterdir()) == []
    done = udpfl.run(SETTINGS, data=blobs(90), model="logistic", out="run")
    for client in found.clients:
        statement = done.clients[client.plan.name]
        assert client.statement.epsilon == pytest.approx(statement.epsilon)
        assert client.releases == 8
        assert client.plan.declared_size == 20
    assert found.parameters == sum(p.numel() for p in done.model.parameters())
    assert found.seconds > 0
    assert any("labels" in own for own in found.assumptions)


def test_a_shared_ledger_is_read_and_not_written(tmp_path):
    ledger = tmp_path / "site.sqlite"
    settings = {**SETTINGS, "privacy": {"epsilon": 4.0, "ledger": str(ledger)}}
    found = preview(settings, data=blobs(90), model="logistic", is_timed=False)
    assert not ledger.exists()
    done = udpfl.run(settings, data=blobs(90), model="logistic", out=str(tmp_path / "run"))
    for client in found.clients:  # as the ledger's own filter adds it up
        assert client.statement.epsilon == pytest.approx(done.clients[client.plan.name].epsilon)
    before = ledger.read_bytes()
    with pytest.raises(udpfl.BudgetExceeded):
        preview(settings, data=blobs(90), model="logistic", is_timed=False)
    assert ledger.read_bytes() == before


def test_without_privacy_nothing_is_charged():
    found = preview({**SETTINGS, "privacy": "none"}, data=blobs(90), model="logistic")
    assert {client.statement.kind for client in found.clients} == {"none"}
    assert {client.releases for client in found.clients} == {0}
