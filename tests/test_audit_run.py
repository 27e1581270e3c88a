"""A whole run under audit: guesses on canaries, and the command."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from udpfl.audit.one_run import Guesses, guessed, one_run, per_sample
from udpfl.audit.run import Target, audit_run
from udpfl.cli import main
from udpfl.config import load
from udpfl.errors import InvalidInput, Unsupported

SMALL = """
[model]
name = "logistic"
[training]
rounds = {rounds}
learning_rate = {rate}
[privacy]
{privacy}
"""


@pytest.fixture
def config(tmp_path):
    def written(rounds=3, rate=2.0, privacy="epsilon = 8.0"):
        path = tmp_path / "small.toml"
        path.write_text(SMALL.format(rounds=rounds, rate=rate, privacy=privacy))
        return path

    return written


def test_guesses_are_counted_on_both_ends():
    there = np.array([True] * 50 + [False] * 50)
    perfect = guessed(there.astype(float), there, 0.0, 0.15, "it")
    assert [(g.guesses, g.right) for g in perfect] == [(100, 100), (50, 50), (10, 10)]
    assert all(g.error == pytest.approx(0.05) for g in perfect)
    assert perfect[0].proved == pytest.approx(3.493, abs=1e-3)
    wrong = guessed(-there.astype(float), there, 0.0, 0.15, "it")
    assert [g.right for g in wrong] == [0, 0, 0]
    assert wrong[0].proved == 0


def test_what_guesses_would_have_caught_they_catch():
    few = Guesses("", 100, 100, 0, 0.0, 0.05)
    assert math.isinf(few.detectable(4.0))  # a hundred guesses cannot prove so much
    found = few.detectable(1.0)
    right = np.random.default_rng(0).binomial(100, 1 / (1 + math.exp(-found)), 1000)
    proved = [Guesses("", 100, 100, v, 0.0, 0.05).proved for v in range(101)]
    caught = [proved[v] > 1.0 for v in right]
    assert np.mean(caught) > 0.975


def test_gradients_of_canaries_are_those_of_autograd():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 1, 0, 1])

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    weights = {name: p.detach() for name, p in network.named_parameters()}
    found = per_sample(network, loss)(weights, x, y)
    for row in range(5):
        parts = torch.autograd.grad(loss(network(x[row : row + 1]), y[row : row + 1]).sum(),
                                    list(network.parameters()))  # fmt: skip
        assert torch.allclose(found[row], torch.cat([p.flatten() for p in parts]), atol=1e-6)


def test_without_privacy_the_canaries_are_given_away(config):
    """The auditor works: on a run that hides nothing, nearly every guess is right."""
    target = Target.of(config())
    bare = load(
        target.settings,
        {
            "privacy": {"mechanism": "none"},
            "training": {"rounds": 40, "local_steps": 10, "learning_rate": 1.0,
                         "sampling_rate": 1.0},
            "data": {"clients": 2},
        },
    )  # fmt: skip
    parts = [part[:60] for part in target.parts[:2]]  # few enough to learn by heart
    found = one_run(bare, target.data, parts, target.network, target.loss, 30)
    assert guessed(found.final, found.there, 0.0, 0.05, "")[0].right >= 24
    assert max(test.proved for test in found.tests(0.0, 0.05)) > 0.5


def test_a_private_run_is_not_refuted(config):
    verdicts = audit_run(config(), trials=300, canaries=40)
    assert len(verdicts) == 5
    assert not any(verdict.refuted for verdict in verdicts)
    assert verdicts[-1].epsilon == pytest.approx(8.0, rel=1e-2)
    assert len(verdicts[-1].tests) == 6


def test_scalar_staircase_is_refuted_by_its_own_training(config):
    """The nominal claim, with a record of the run's own data as the canary."""
    path = config(privacy='mechanism = "staircase"\nepsilon = 2.0\naccounting = "scalar"')
    verdicts = audit_run(path, trials=300, canaries=0)
    assert any(verdict.refuted for verdict in verdicts)


def command(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return end.value.code, said.out, said.err


def test_the_command_takes_a_configuration_and_a_run(capsys, config, tmp_path):
    path = config()
    code, out, _ = command(
        capsys, "audit", "run", path, "--trials", 200, "--canaries", 0, "--plot", tmp_path / "a.png"
    )
    assert code == 0
    assert out.count("not refuted") == 4
    assert (tmp_path / "a.png").stat().st_size > 5_000
    folder = tmp_path / "run"
    assert command(capsys, "run", path, "--out", folder)[0] == 0
    code, out, _ = command(
        capsys, "audit", "run", folder, "--trials", 200, "--canaries", 0, "--json"
    )
    assert code == 0
    assert [row["refuted"] for row in json.loads(out)] == [False] * 4


def test_what_claims_nothing_is_not_audited(config):
    with pytest.raises(Unsupported, match="nothing is claimed"):
        audit_run(config(privacy='mechanism = "none"'))
    with pytest.raises(Unsupported, match="seeded run claims nothing"):
        audit_run(config(privacy='randomness = "seeded"'))
    with pytest.raises(InvalidInput, match="canaries"):
        audit_run(config(), trials=100, canaries=5)
