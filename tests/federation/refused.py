"""Runs that are refused before anything is charged."""

from __future__ import annotations

import numpy as np

import udpfl


def sentences(count=60, vocabulary=20):
    rng = np.random.default_rng(0)
    return rng.integers(1, vocabulary, size=(count, 5)), np.arange(count) % 3


def run(tmp_path, net, data, loss=None, test=0.2):
    return udpfl.run(
        model=net,
        data=data,
        test=test,
        loss=loss,
        training={"rounds": 1, "sampling_rate": 0.5, "local_steps": 1},
        privacy={"epsilon": 8.0, "ledger": str(tmp_path / "ledger.sqlite")},
        out=str(tmp_path / "run"),
    )


def assert_nothing_charged(tmp_path):
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ledger.sqlite").exists()
