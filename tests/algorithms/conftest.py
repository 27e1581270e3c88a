from __future__ import annotations

import pytest


@pytest.fixture
def no_report(monkeypatch):
    monkeypatch.setattr("udpfl.running.write_report", lambda *_: None)
