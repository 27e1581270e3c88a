from __future__ import annotations

import itertools

import pytest

import udpfl
from tests.federation.stages.samples import Seen
from tests.small import blobs, linear


@pytest.fixture
def federate(tmp_path):
    numbers = itertools.count()

    def start(privacy=None, training=None, data=None, *, seen=None, net=None, **more):
        if privacy != "none":
            privacy = {"mechanism": "gaussian", "delta": 1e-3, **(privacy or {})}
        settings = {
            "out": str(tmp_path / f"run-{next(numbers)}"),
            "privacy": privacy,
            "training": {
                "rounds": 2, "learning_rate": 0.1, "averaging": 0.0, "shuffle": True,
                "evaluate_every": 1000, **(training or {}),
            },
            "data": {"clients": 3, **(data or {})},
            **more,
        }  # fmt: skip
        seen = seen or Seen()
        result = udpfl.run(settings, data=blobs(), model=net or linear(), observers=[seen])
        return result, seen

    return start
