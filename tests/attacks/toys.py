"""A small run that has learned noise by heart, for attacks that take seconds."""

from __future__ import annotations

import numpy as np

from udpfl.data import DataSet, Records
from udpfl.federation import run
from udpfl.federation.protection import planned_protection

RECORDS, WIDTH = 60, 40


def noise_records(classes=2, records=RECORDS, seed=0):
    """Labels that have nothing to do with the inputs: whatever a model knows of them, it saw."""
    rng = np.random.default_rng(seed)

    def drawn(count):
        return Records(
            rng.normal(size=(count, WIDTH)).astype(np.float32), rng.integers(0, classes, count)
        )

    return DataSet("noise", "classification", drawn(records), drawn(records), classes)


def settings(folder, **sections):
    training = {
        "rounds": 4, "local_steps": 2, "sampling_rate": 0.5, "learning_rate": 0.5,
        "averaging": 0.0, "server_momentum": 0.0, "evaluate_every": 4, "checkpoint_every": 4,
    }  # fmt: skip
    return {
        "out": str(folder), "threads": 1, "device": "cpu", "privacy": "none",
        "data": {"clients": 2}, "model": {"name": "logistic"},
        **sections, "training": {**training, **sections.get("training", {})},
    }  # fmt: skip


def small_run(folder, data=None, **sections):
    data = noise_records() if data is None else data
    run(settings(folder, **sections), data=data)
    return folder


def with_less_noise(factor):
    """The engine with noise that is so many times as large as planned."""

    def protection(plans):
        from dataclasses import replace

        weak = [replace(p, release=p.release.scaled(noise=factor)) for p in plans]
        return planned_protection(weak)

    return protection
