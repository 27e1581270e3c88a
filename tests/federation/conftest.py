from __future__ import annotations

import itertools

import pytest

import udpfl
from tests.federation.samples import blobs, network


@pytest.fixture
def federate(tmp_path):
    """A small run; every section goes on top of small defaults."""
    numbers = itertools.count()

    def start(privacy=None, training=None, data=None, *, given=None, net=None, **more):
        if privacy != "none":
            privacy = {"mechanism": "laplace", **(privacy or {})}
        training = {"rounds": 3, "learning_rate": 0.3, "averaging": 0.0, **(training or {})}
        settings = {
            "out": str(tmp_path / f"run-{next(numbers)}"),
            "privacy": privacy,
            "training": training,
            "data": {"clients": 3, **(data or {})},
            **{name: more.pop(name) for name in ("seed", "record_updates") if name in more},
        }
        given = blobs() if given is None else given
        return udpfl.run(settings, data=given, model=net or network(), **more)

    return start
