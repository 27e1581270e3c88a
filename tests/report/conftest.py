from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import udpfl
from tests.chromium import Chromium, executable
from tests.report import verifying
from tests.report.pages import classification, regression, train


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """A private run with a ledger of its own, one by an earlier version, and a nominal one."""
    top = tmp_path_factory.mktemp("kept")
    verifying.train(top / "private", epsilon=[1.0, 2.0, 4.0])
    verifying.train(top / "nominal", accounting="scalar")
    with verifying.sealing_nothing():
        verifying.train(top / "unsealed", epsilon=[1.0, 2.0, 4.0])
    return top


@pytest.fixture
def run(kept, tmp_path):
    return Path(shutil.copytree(kept / "private", tmp_path / "run"))


@pytest.fixture
def unsealed(kept, tmp_path):
    return Path(shutil.copytree(kept / "unsealed", tmp_path / "unsealed"))


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> dict[str, udpfl.Run]:
    """One run of every kind, with names that try to break out of the page."""
    top = tmp_path_factory.mktemp("runs")
    return {
        "private": train(top / "private", classification(), privacy={"epsilon": [1, 2, 4]}),
        "nominal": train(
            top / "nominal", classification(),
            privacy={"mechanism": "staircase", "accounting": "scalar"},
        ),
        "plain": train(top / "<i>plain", classification(), privacy="none"),
        "errors": train(top / "errors", regression()),
    }  # fmt: skip


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if executable() is None:
        pytest.skip("no chromium on PATH, and UDPFL_CHROMIUM is not set")
    found = Chromium(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
