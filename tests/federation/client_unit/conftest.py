from __future__ import annotations

import itertools

import pytest

import udpfl
from tests.small import Seen, blobs, linear


@pytest.fixture
def federate(tmp_path):
    numbers = itertools.count()

    def start(privacy=None, training=None, *, net=None, clients=3, seen=None, **more):
        settings = {
            "out": str(tmp_path / f"run-{next(numbers)}"),
            "privacy": {"unit": "client", "delta": 1e-3, "mechanism": "gaussian",
                        **(privacy or {})},
            "training": {"rounds": 2, "learning_rate": 0.1, "averaging": 0.0,
                         "server_momentum": 0.0, **(training or {})},
            "data": {"clients": clients},
            **{name: more.pop(name) for name in ("record_updates",) if name in more},
        }  # fmt: skip
        seen = seen or Seen()
        result = udpfl.run(settings, data=blobs(), model=net or linear(), observers=[seen], **more)
        return result, seen

    return start
