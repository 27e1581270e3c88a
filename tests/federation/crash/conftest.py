from __future__ import annotations

import multiprocessing

import pytest

from tests.federation.crash.processes import Place


@pytest.fixture(autouse=True)
def no_orphans():
    """A test that fails leaves nobody waiting."""
    yield
    for process in multiprocessing.active_children():
        process.kill()
        process.join()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "place")


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """A run that nothing happened to."""
    place = Place(tmp_path_factory.mktemp("reference") / "place")
    assert place.begin().ended() == 0
    place.check_finished()
    place.check_spending()
    return place
