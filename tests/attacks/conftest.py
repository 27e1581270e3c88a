from __future__ import annotations

import pytest

from tests.attacks.toys import noise_records, small_run


@pytest.fixture(scope="session")
def attacked_run(tmp_path_factory):
    """A small run without privacy; tests of one process share it with its shadows."""
    return small_run(tmp_path_factory.mktemp("attacked") / "run")


@pytest.fixture(scope="session")
def private_run(tmp_path_factory):
    """The same with a budget, and the updates of its first two rounds."""
    return small_run(
        tmp_path_factory.mktemp("private") / "run",
        privacy={"mechanism": "gaussian", "epsilon": 1.0, "accountant": "rdp"},
        training={"local_steps": 1},
        record_updates=[1, 2],
    )


@pytest.fixture
def data():
    return noise_records()
