"""Federations of real processes for tests: small sites, and apps of one's own."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import tomli_w

from tests.repository import IMPORTS
from tests.site.samples import policy
from udpfl.deploy.local import LocalFederation
from udpfl.deploy.starting import App

needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None,
    reason="Flower is not installed: pip install -e '.[flower]'",
)
FEDERATION = {
    "data": {"clients": 3},
    "model": {"name": "logistic"},
    "training": {"rounds": 3, "sampling_rate": 0.5, "learning_rate": 0.5},
    "deploy": {"evaluate": "none", "round_timeout": 60.0, "start_timeout": 90.0},
}


def small_app(folder: Path, sites=3, federation=None, **changes) -> App:
    """A Flower app for small sites: as `udpfl deploy init` writes one, with other records."""
    from udpfl.deploy.starting import write_app

    app = write_app(folder, sizes=[60] * sites, rounds=3)
    values = {**FEDERATION, **(federation or {})}
    app.federation.write_text(tomli_w.dumps(values))
    for number, site in enumerate(app.sites):
        own = policy(app.folder, number, **changes).model_dump(exclude_none=True)
        own["state"] = "state"
        app.policy(site).write_text(tomli_w.dumps(own))
    return app


@pytest.fixture
def local(monkeypatch):
    """Makes federations whose processes know the tests, and ends all of them."""
    path = os.pathsep.join([IMPORTS, os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = []

    def make(app: App, **options) -> LocalFederation:
        made.append(LocalFederation(app, **options))
        return made[-1]

    yield make
    for own in made:
        own.stop()
