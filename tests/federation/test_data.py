"""Data of every kind in whole runs."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import udpfl
from tests.federation.samples import SEEDED, blobs, flat, parts_of, read
from udpfl import InvalidInput

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [([5, 6, 7], [5, 6, 7]), (12, [12] * 3), ("partition", None), ("auto", [24] * 3)],
)
def test_declared_sizes(federate, caplog, declared, wanted):
    caplog.set_level(logging.WARNING)
    result = federate("none", {"rounds": 1}, {"partition": "dirichlet", "declared_sizes": declared})
    real = [len(part) for part in parts_of(result)]
    assert len(set(real)) > 1
    found = [row["declared_size"] for row in read(result, "participants.json")]
    assert found == (wanted or real)
    assert ("every client declares the mean, 24" in caplog.text) is (declared == "auto")


def test_equal_shares_declare_their_size(federate, caplog):
    result = federate("none", {"rounds": 1})
    assert [row["declared_size"] for row in read(result, "participants.json")] == [24] * 3
    assert caplog.text == ""


def test_one_data_set_per_client(federate, caplog):
    x, y = blobs(100)
    clients = [(x[:20], y[:20]), (x[20:60], y[20:60]), (x[60:90], y[60:90]), (x[90:], y[90:])]
    result = federate(
        "none", {"rounds": 1}, {"clients": 4, "declared_sizes": "partition"}, given=clients
    )
    assert [len(part) for part in parts_of(result)] == [16, 32, 24, 8]
    assert [row["declared_size"] for row in read(result, "participants.json")] == [16, 32, 24, 8]
    assert result.config.data.clients == 4
    federate("none", {"rounds": 1}, {"clients": 4}, given=clients)
    assert "every client declares the mean, 20" in caplog.text
    with pytest.raises(InvalidInput, match=r"data\.public"):
        federate("none", {"rounds": 1}, {"clients": 4, "public": 0.1}, given=clients)


def test_regression_reports_errors_and_no_accuracy(federate):
    x, _ = blobs(120)
    y = (x @ np.array([0.5, -1.0, 0.2, 0.1], dtype=np.float32))[:, None]
    tested = (x[90:], y[90:])
    result = federate(
        "none",
        {"rounds": 8, "learning_rate": 0.05, "sampling_rate": 1.0},
        given=(x[:90], y[:90]),
        test=tested,
        net=nn.Linear(4, 1),
    )
    assert result.accuracy is None
    gap = result.model(torch.from_numpy(tested[0])).detach().numpy() - tested[1]
    last = result.metrics[-1]
    assert last["mae"] == pytest.approx(np.abs(gap).mean(), rel=1e-4)
    assert last["mse"] == pytest.approx(np.square(gap).mean(), rel=1e-4)
    assert result.loss == pytest.approx(last["mse"], rel=1e-6)
    assert last["mse"] < 0.5 * result.metrics[0]["mse"]
    summary = read(result, "summary.json")
    assert summary["accuracy"] is None
    assert summary["mae"] == last["mae"]


def test_a_table_by_configuration_alone(tmp_path):
    x, y = blobs(60)
    lines = ["site,a,b,c,d,kind"]
    lines += [
        f"s{i % 4},{','.join(map(str, row))},{'xyz'[label]}"
        for i, (row, label) in enumerate(zip(x.tolist(), y, strict=True))
    ]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    result = udpfl.run(
        {
            "out": str(tmp_path / "run"),
            "privacy": "none",
            "data": {
                "name": "table",
                "dir": str(tmp_path),
                "partition": "column",
                "by": "site",
                "clients": 4,
                "declared_sizes": 12,
                "options": {"path": "people.csv", "target": "kind", "scale": "none"},
            },
            "model": {"name": "logistic"},
            "training": {"rounds": 10, "sampling_rate": 1.0, "learning_rate": 0.5},
        }
    )
    assert sum(len(part) for part in parts_of(result)) == 48
    assert result.accuracy > 0.7
    assert sum(p.numel() for p in result.model.parameters()) == 4 * 3 + 3


def test_map_style_data_are_the_same_as_arrays(federate):
    x, y = blobs()
    arrays = federate(SEEDED, given=(x, y))
    pairs = federate(SEEDED, given=TensorDataset(torch.from_numpy(x), torch.from_numpy(y)))
    assert torch.equal(flat(arrays.model), flat(pairs.model))
