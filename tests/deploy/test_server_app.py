"""What the ServerApp logs of a run, and when it ends with an error."""

from __future__ import annotations

import logging

import pytest

from tests.deploy.memory import federation, memory
from udpfl import InvalidInput
from udpfl.deploy import run_federation

pytest.importorskip("flwr")
from udpfl.deploy.server_app import NothingTrained, RoundLog, report, rounds_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_resumed_run_counts_its_own_rounds(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    run_federation(federation(training={"rounds": 2}), memory(tmp_path), out=tmp_path / "run")
    later = federation(training={"rounds": 80})
    assert rounds_of(later, None) == 80
    assert rounds_of(later, tmp_path / "run") == 2
    RoundLog(2).on_round({"round": 1, "participants": 3, "seconds": 0.1})
    assert "round 1 of 2: 3 answers" in caplog.text
    with pytest.raises(InvalidInput, match="does not exist"):
        rounds_of(later, tmp_path / "nowhere")


def test_a_run_in_which_nobody_trained_is_an_error(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    sites = memory(tmp_path, server={"models": [{"name": "mlp"}]})
    served = run_federation(federation(training={"rounds": 2}), sites, out=tmp_path / "run")
    with pytest.raises(NothingTrained, match="nothing was trained"):
        report(served)
    assert "model, metrics and report" not in caplog.text


def test_a_run_that_trained_says_where_everything_is(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    own = federation(training={"rounds": 2})
    report(run_federation(own, memory(tmp_path), out=tmp_path / "run"))
    assert f"model, metrics and report are in {tmp_path / 'run'}" in caplog.text
    assert (tmp_path / "run" / "report.html").is_file()
