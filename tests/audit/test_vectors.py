"""Noise with one density for a whole vector under audit: tight claims, wrong noise caught."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import udpfl
from tests.commands import command
from tests.small import blobs, linear
from udpfl import Laplace, Sensitivity, Setting, Staircase, StaircaseL1, Unsupported, calibrate
from udpfl.audit import Releases, audit_lattice, audit_releases, canary
from udpfl.audit.ledger import audit_ledger
from udpfl.audit.power import TooLittleNoise
from udpfl.audit.run import audit_run
from udpfl.audit.worlds import likelihood_ratio
from udpfl.config import load
from udpfl.engine import Entropy, Key, MechanismNoiser


def planned(dimension, epsilon=1.0):
    sensitivity = Sensitivity(1.0, "l1", dimension)
    noise = calibrate("staircase-l1", Setting(epsilon, 0.0, 1, sensitivity)).mechanism
    return Releases(noise, canary("dirac", sensitivity)), sensitivity


@pytest.mark.parametrize("dimension", [1, 2, 10])
def test_the_pure_epsilon_is_proved_to_a_tenth_and_not_refuted(dimension):
    releases, _ = planned(dimension)
    found = audit_releases(releases, 1.0, 0.0, trials=40_000)
    assert not found.refuted
    assert found.proved > 0.9


@pytest.mark.parametrize("dimension", [1, 2, 10])
def test_less_noise_than_claimed_is_refuted(dimension):
    releases, _ = planned(dimension)
    for factor in (0.5, 0.8):
        less = MechanismNoiser([releases.mechanism.scaled(factor)])
        assert audit_releases(releases, 1.0, 0.0, trials=40_000, noiser=less).refuted


def test_independent_staircase_noise_in_its_place_is_refuted():
    """The same parameters on every coordinate by itself: each can cross a step."""
    releases, sensitivity = planned(10)
    dense = Releases(releases.mechanism, canary("dense", sensitivity))
    noise = releases.mechanism
    wrong = MechanismNoiser([Staircase(noise.decay, noise.period, noise.split)])
    scored = Releases(wrong.mechanisms[0], dense.shift)
    assert audit_releases(scored, 1.0, 0.0, trials=20_000, noiser=wrong).refuted
    assert not audit_releases(dense, 1.0, 0.0, trials=20_000).refuted


def test_scores_are_of_whole_vectors():
    noise = StaircaseL1(1.0, 1.0, dimension=4)
    rows = np.asarray([[0.1, 0.2, 0.0, 0.0], [3.0, 0.0, -2.0, 1.0]])
    shift = np.asarray([1.0, 0.0, 0.0, 0.0])
    wanted = noise.log_density(rows - shift) - noise.log_density(rows)
    np.testing.assert_array_equal(likelihood_ratio(noise, rows, shift), wanted)
    assert Releases(noise, shift).scores(7, present=True).shape == (7,)
    assert set(np.round(Releases(noise, shift).scores(500, present=False))) <= {-1.0, 0.0, 1.0}


def test_the_power_of_an_audit_of_vectors():
    """What is said to be caught is caught: drawn once more, at that part of the noise."""
    releases, _ = planned(2)
    alternative = TooLittleNoise(releases.mechanism, releases.shift, 1.0, 1, 10_000, 0.05)
    assert alternative.always_refuted(0.7, 1.0, 0.0)
    assert not alternative.always_refuted(0.95, 1.0, 0.0)
    assert alternative.epsilon(0.7, 0.0) == pytest.approx(2 * releases.mechanism.decay)
    less = MechanismNoiser([releases.mechanism.scaled(0.7)])
    verdicts = [audit_releases(releases, 1.0, 0.0, trials=10_000, noiser=less) for _ in range(5)]
    assert all(verdict.refuted for verdict in verdicts)


def test_the_lattice_of_vectors_is_not_looked_at():
    with pytest.raises(Unsupported, match="made of the words of a whole vector"):
        audit_lattice(StaircaseL1(1.0, 1.0, dimension=5), 10, 1.0)


@pytest.mark.slow
def test_the_command_audits_it(capsys):
    code, out, error = command(
        capsys, "audit", "mechanism", "--mechanism", "staircase-l1", "--epsilon", 1, "--delta", 0,
        "--dimension", "10", "--norm", "l1", "--canary", "dirac", "--trials", "4000", "--json",
    )  # fmt: skip
    assert code == 0, error
    (verdict,) = json.loads(out)
    assert not verdict["refuted"]
    assert verdict["power"]["scale"] < 1


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_run_is_audited_and_reported(unit, tmp_path):
    settings = {
        "out": str(tmp_path / "run"),
        "data": {"clients": 2},
        "privacy": {"mechanism": "staircase-l1", "norm": "l1", "unit": unit, "epsilon": 20.0,
                    "delta": 0.001},
        "training": {"rounds": 2, "averaging": 0.0},
    }  # fmt: skip
    result = udpfl.run(settings, data=blobs(), model=linear())
    assert result.privacy.kind == "guarantee"
    assert "dimension 10" in result.report.read_text()
    verdicts = audit_run(
        load({k: v for k, v in settings.items() if k != "out"}),
        data=blobs(), model=linear(), trials=400, canaries=0, error=1e-3,
    )  # fmt: skip
    assert verdicts
    assert not any(verdict.refuted for verdict in verdicts)
    assert all(math.isfinite(verdict.proved) for verdict in verdicts)
    assert audit_ledger(result.folder, 1e-3).sound


def test_noise_of_one_kind_next_to_another():
    """Lanes with vectors and lanes without: each its own."""
    noises = [StaircaseL1(1.0, 1.0, dimension=20_000), Laplace(1.0)]
    keys = [Key("run", lane, 0, 0) for lane in "ab"]
    sums = torch.zeros(2, 20_000, dtype=torch.float64)
    noisy = MechanismNoiser(noises).add(sums, Entropy(), keys)
    assert noisy.std(1).tolist() == pytest.approx([math.sqrt(2)] * 2, rel=0.05)
