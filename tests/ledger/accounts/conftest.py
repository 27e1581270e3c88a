from __future__ import annotations

import pytest

from tests.ledger.accounts.samples import begin
from udpfl.ledger.ledger import Ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger(path) as opened:
        for run in ("first", "second", "third"):
            begin(opened, run)
        yield opened
