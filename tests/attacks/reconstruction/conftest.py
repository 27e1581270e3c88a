"""Runs that several tests attack."""

from __future__ import annotations

import pytest

from tests.attacks.reconstruction.bars import finished


@pytest.fixture(scope="session")
def open_run(tmp_path_factory):
    """Without privacy; both rounds recorded, every record in every step."""
    return finished(
        tmp_path_factory.mktemp("runs") / "open",
        privacy="none",
        record_updates=[1, 2],
        training={"rounds": 2, "sampling_rate": 1.0, "local_steps": 3},
    )


@pytest.fixture(scope="session")
def private_run(tmp_path_factory):
    """At epsilon = 8, the first round recorded."""
    return finished(
        tmp_path_factory.mktemp("runs") / "private",
        privacy={"epsilon": 8.0, "delta": 1e-5},
        record_updates=[1],
    )
