"""Those who watch a run, in their order: what they show or keep is safe when they do."""

from __future__ import annotations

import json

import pytest
import torch

import udpfl
from tests.federation.samples import SEEDED, blobs, network
from tests.small import PowerCut, Stops
from udpfl.algorithms import ClientMessage
from udpfl.errors import LedgerError
from udpfl.federation import Observer, RunFolder, watchers


class Safe(Observer):
    """Notes which round the folder would go on from when a line of metrics is shown."""

    def __init__(self):
        self.found = []

    def on_start(self, config, folder):
        self.folder = RunFolder(folder)

    def on_message(self, message): ...

    def on_model(self, round_, model): ...

    def on_round(self, row):
        written = json.loads(self.folder.metrics.read_text().splitlines()[-1])
        saved = self.folder.read_checkpoint().round
        self.found.append((row["round"], written["round"], saved))

    def on_end(self, run): ...


def test_observers_see_a_line_of_metrics_once_its_round_is_safe(federate):
    seen = Safe()
    federate(SEEDED, observers=[seen])
    assert seen.found == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]


def test_no_line_of_metrics_is_lost_between_line_and_checkpoint(federate, tmp_path, monkeypatch):
    """The line comes first: a round without a checkpoint runs again, and its line is replaced."""

    def cut(*_):
        raise PowerCut

    def stop(self, row):
        if row["round"] == 2:
            cut()
        return append(self, row)

    append = RunFolder.append_metrics
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append_metrics", stop)
        with pytest.raises(PowerCut):
            federate(SEEDED)
    result = udpfl.run(resume=tmp_path / "run-0", data=blobs(), model=network())
    lines = [json.loads(line) for line in RunFolder(result.folder).metrics.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert [row["round"] for row in result.metrics] == [1, 2, 3]


@pytest.mark.parametrize("privacy", [None, "none"])
def test_a_run_begins_anew_only_if_no_round_was_charged(federate, tmp_path, privacy):
    """A model of the beginning with the messages of a later one would be neither run."""
    with pytest.raises(PowerCut):
        federate(privacy, observers=[Stops(2)], record_updates=[3])
    folder = tmp_path / "run-0"
    for checkpoint in (folder / "checkpoints").iterdir():
        checkpoint.unlink()
    with pytest.raises(LedgerError, match=r"no checkpoint .* already charged"):
        udpfl.run(resume=folder, data=blobs(), model=network())


@pytest.mark.parametrize("at_once", [64, 64 * 7, 1 << 26])
@pytest.mark.parametrize("order", [slice(None), slice(None, None, 2)], ids=["rows", "apart"])
def test_drift_is_the_root_mean_square_from_the_mean_update(at_once, order, monkeypatch):
    monkeypatch.setattr(watchers, "_AT_ONCE", at_once)
    updates = (torch.randn(6, 11, dtype=torch.float64) + 5)[order]
    sent = [ClientMessage(str(i), 1, {"update": own}) for i, own in enumerate(updates)]
    distances = (updates - updates.mean(0)).norm(dim=1)
    assert watchers._drift(sent) == pytest.approx(float(distances.square().mean().sqrt()))
    assert watchers._drift(sent[:1]) is None
    assert watchers._drift([ClientMessage(own.client, 1, {}) for own in sent]) is None
