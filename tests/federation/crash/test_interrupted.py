"""Whole runs that are interrupted: the round is finished, and the run can go on."""

from __future__ import annotations

import json
import signal

import pytest

from tests.federation.crash.processes import CLIENTS, NAMES, ROUNDS, Witness, wait


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_the_round(place, kind):
    process = place.begin(traps=[(Witness, "on_model", 2, wait)])
    process.until(place.reached)
    process.send(kind)
    process.until(lambda: "this round is finished first" in process.stderr)
    place.go()
    assert process.ended() == 130
    assert "--resume" in process.stderr
    assert "Traceback" not in process.stderr
    place.check()
    assert place.charged.keys() == {(name, number) for name in NAMES for number in (1, 2)}
    assert place.saved() == 2
    resumed = place.resume()
    assert resumed.ended() == 0
    assert resumed.stderr == ""
    place.check_finished()
    assert len(place.truth()) == CLIENTS * ROUNDS  # nothing had to be sent again

    first, model = json.loads(resumed.stdout), (place.run / "model.safetensors").read_bytes()
    again = place.resume()  # a finished run: nothing to do
    assert again.ended() == 0
    assert again.stderr.count("\n") == 1
    assert "only the results are written again" in again.stderr
    second = json.loads(again.stdout)
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert (place.run / "model.safetensors").read_bytes() == model
    place.check_finished()
    place.check_spending()
    assert len(place.truth()) == CLIENTS * ROUNDS


def test_a_second_interrupt_stops_at_once(place):
    process = place.begin(traps=[(Witness, "on_model", 2, wait)])
    process.until(place.reached)
    process.send(signal.SIGINT)
    process.until(lambda: "this round is finished first" in process.stderr)
    process.send(signal.SIGINT)
    assert process.ended() == 130  # without go
    assert "Traceback" not in process.stderr
    place.check()
    assert (place.seen(), place.saved()) == (2, 1)
    assert place.resume().ended() == 0
    place.check_finished()
    assert len(place.truth()) == CLIENTS * (ROUNDS + 1)  # the second round was sent again


def test_one_process_at_a_time(place):
    process = place.begin(traps=[(Witness, "on_model", 2, wait)])
    process.until(place.reached)
    place.resume().complains("another process")
    place.begin().complains("exists and is not empty")
    place.check()
    assert place.seen() == 2
    place.go()
    assert process.ended() == 0
    place.check_finished()
    assert len(place.truth()) == CLIENTS * ROUNDS
