"""A whole run under audit: guesses on canaries, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.commands import command
from tests.small import blobs, linear
from udpfl import Gaussian, Release, Sensitivity, run
from udpfl.audit import AuditResult, Subject
from udpfl.audit._one_run import Guesses, OneRun, SurerGuesses, guessed, one_run, per_sample
from udpfl.audit.run import Target, audit_run
from udpfl.config import Config, load
from udpfl.engine import MechanismNoiser, Unclipped, noise
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.local_training import _Training
from udpfl.federation.stages.trusted_server import TrustedServer
from udpfl.mechanisms.arrays import to_unit

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
def no_lattice(monkeypatch):
    """What is said of rounding is not what these tests are about, and takes its time."""
    monkeypatch.setattr(
        "udpfl.audit.run._lattice", lambda *_: SimpleNamespace(claim="", refuted=False)
    )


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
    assert math.isinf(few.needs(4.0))  # a hundred guesses cannot prove so much
    found = few.needs(1.0)
    assert SurerGuesses((few,)).caught(1.0, 0.0).epsilon == found
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
        target.setup.config,
        {
            "privacy": {"mechanism": "none"},
            "training": {"rounds": 40, "local_steps": 10, "learning_rate": 1.0,
                         "sampling_rate": 1.0},
            "data": {"clients": 2},
        },
    )  # fmt: skip
    parts = [part[:100] for part in target.setup.parts[:2]]  # few enough to learn by heart
    found = one_run(replace(target.setup, config=bare, parts=parts), 0, 50)
    assert guessed(found.final, found.there, 0.0, 0.05, "")[0].right >= 34  # 25 by chance
    assert max(test.proved for test in found.tests(0.0, 0.05)) > 0


def test_a_private_run_is_not_refuted(config):
    verdicts = audit_run(config(), trials=300, canaries=40)
    assert len(verdicts) == 6
    assert not any(verdict.refuted for verdict in verdicts)
    assert verdicts[-2].claim == "client-0, rounding of the noise"
    assert verdicts[-1].epsilon == pytest.approx(8.0, rel=1e-2)
    assert len(verdicts[-1].tests) == 6


def test_scalar_staircase_is_refuted_by_its_own_training(config):
    """The nominal claim, with a record of the run's own data as the canary."""
    path = config(privacy='mechanism = "staircase"\nepsilon = 2.0\naccounting = "scalar"')
    verdicts = audit_run(path, trials=300, canaries=0)
    assert any(verdict.refuted for verdict in verdicts)


def test_the_command_takes_a_configuration_and_a_run(capsys, config, tmp_path):
    path = config()
    code, out, _ = command(
        capsys, "audit", "run", path, "--trials", 200, "--canaries", 0, "--plot", tmp_path / "a.png"
    )
    assert code == 0
    assert out.count(": not refuted (") == 5
    assert (tmp_path / "a.png").stat().st_size > 5_000
    folder = tmp_path / "run"
    assert command(capsys, "run", path, "--out", folder)[0] == 0
    code, out, _ = command(
        capsys, "audit", "run", folder, "--trials", 200, "--canaries", 0, "--json"
    )
    assert code == 0
    assert [row["refuted"] for row in json.loads(out)["verdicts"]] == [False] * 5


def test_an_audit_spends_nobodys_budget(config, tmp_path):
    shared = tmp_path / "shared.sqlite"
    path = config(privacy=f'epsilon = 8.0\nledger = "{shared}"')
    audit_run(path, trials=100, canaries=11)
    assert not shared.exists()


def test_small_and_odd_clients_are_audited_too(tmp_path):
    path = tmp_path / "many.toml"
    path.write_text(
        '[data]\nclients = 40\npublic = 0.1\n[model]\nname = "logistic"\n'
        "[training]\nrounds = 1\nclients_per_round = 1\n"
    )
    target = Target.of(path)
    assert target.plan.release is not None  # whoever is asked at all
    verdicts = audit_run(path, trials=100)
    assert verdicts[-1].tests[0].canaries == len(target.records) // 2


def test_a_run_folder_has_the_noise_it_was_trained_with(config, tmp_path, capsys):
    path = config()
    folder = tmp_path / "run"
    command(capsys, "run", path, "--out", folder)
    people = json.loads((folder / "participants.json").read_text())
    noise = Target.of(folder).release.mechanism.std
    assert any(str(noise) in json.dumps(person) for person in people)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match="not finished"):
        Target.of(folder)


def test_dropout_and_unused_parameters_can_be_audited():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.used(x)

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    release = Release(Gaussian(1.0), Sensitivity(1.0, "l2", 13))
    subject = Subject(Odd(), loss, torch.ones(1, 4), torch.tensor([0]), release)
    assert subject.clipped().shape == (1, 13)
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 2))
    weights = {name: p.detach() for name, p in network.named_parameters()}
    found = per_sample(network, loss)(weights, torch.ones(2, 4), torch.tensor([0, 1]))
    assert found.shape == (2, 23)


def test_few_trials_and_strange_errors_are_refused_at_once(config):
    with pytest.raises(InvalidInput, match="trials"):
        audit_run(config(), trials=5)
    with pytest.raises(InvalidInput, match="error"):
        audit_run(config(), error=4.0)


def test_what_claims_nothing_is_not_audited(config):
    with pytest.raises(Unsupported, match="nothing is claimed"):
        audit_run(config(privacy='mechanism = "none"'))
    with pytest.raises(Unsupported, match="seeded run claims nothing"):
        audit_run(config(privacy='randomness = "seeded"'))
    with pytest.raises(InvalidInput, match="canaries"):
        audit_run(config(), trials=100, canaries=5)


def test_data_and_a_model_of_ones_own_are_handed_over(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 5)).astype(np.float32)
    data = (x, (x[:, 0] > 0).astype(np.int64))
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    before = model.weight.detach().clone()
    folder = tmp_path / "own"
    run(
        load({"data": {"clients": 2}}),
        model=model,
        data=data,
        out=str(folder),
        training={"rounds": 2},
        privacy={"epsilon": 8.0, "delta": 1e-3},
    )
    with pytest.raises(InvalidInput, match="data of this run was given in Python"):
        audit_run(folder, trials=100, canaries=0)
    verdicts = audit_run(folder, trials=100, canaries=0, data=data, model=model)
    assert len(verdicts) == 5
    assert not any(verdict.refuted for verdict in verdicts)
    assert torch.equal(model.weight, before)


def test_a_method_without_updates_is_judged_by_its_model_alone():
    found = OneRun(None, np.zeros(20), np.array([True] * 10 + [False] * 10))
    tests = found.tests(0.0, 0.06)
    assert [test.event.split(",")[0] for test in tests] == ["what the final model shows"] * 3
    assert sum(test.error for test in tests) == pytest.approx(0.06)


def test_settings_on_top(capsys, config):
    code, out, _ = command(
        capsys, "audit", "run", config(), "--set", "privacy.epsilon=3", "--trials", 100,
        "--canaries", 40, "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["verdicts"][-1]["epsilon"] == pytest.approx(3.0, rel=0.02)


def test_without_a_configuration_it_is_the_embedded_default(capsys, monkeypatch):
    asked = []
    nothing = AuditResult((), 8.0, 1e-5)
    monkeypatch.setattr(
        "udpfl.audit.run.audit_run", lambda target, **_: asked.append(target) or nothing
    )
    assert command(capsys, "audit", "run")[0] == 0
    assert command(capsys, "audit", "run", "--set", "seed=3")[0] == 0
    assert asked == [Config(), Config(seed=3)]


METHODS = {
    "scaffold": ('algorithm = "scaffold"\nlocal_steps = 2', ""),
    "dp-fedavg": ('algorithm = "dp-fedavg"\noptions = { participation = 0.5 }', 'unit = "client"'),
    "adaptive clip": ("", "clip_quantile = 0.5\nclip_share = 0.5"),
    "pace": ("", 'pace = "increasing"'),
    "plateau": ("", 'pace = "plateau"\npace_follows = "update"\nledger = "site.sqlite"'),
}


@pytest.mark.parametrize("case", METHODS)
def test_methods_are_not_refuted(tmp_path, case):
    training, privacy = METHODS[case]
    path = tmp_path / "method.toml"
    path.write_text(
        '[model]\nname = "logistic"\n[data]\nclients = 4\n'
        f"[training]\nrounds = 4\nlearning_rate = 0.5\n{training}\n"
        f"[privacy]\nepsilon = 8.0\ndelta = 1e-5\n{privacy}\n"
    )
    verdicts = audit_run(path, trials=300, canaries=40)
    assert not any(verdict.refuted for verdict in verdicts)
    # One record of a client that stays may change all that it sends: twice the client's epsilon.
    claimed = 16.0 if case == "dp-fedavg" else 8.0
    assert verdicts[-1].epsilon == pytest.approx(claimed, rel=2e-2)
    views = {test.event.split(",")[0] for test in verdicts[-1].tests}
    assert views == {"what the server sees", "what the final model shows"}


CLIENT = (
    "[data]\nclients = 4\n[training]\n{training}\n"
    '[privacy]\nunit = "client"\nepsilon = 2.0\ndelta = 1e-2\n{privacy}\n'
)
TRUSTED = 'algorithm = "dp-fedavg"\nrounds = 3'


def audited(tmp_path, training, privacy=""):
    path = tmp_path / "client.toml"
    path.write_text(CLIENT.format(training=training, privacy=privacy))
    found = audit_run(path, trials=1_000, canaries=0, error=1e-3, data=blobs(120), model=linear())
    return [verdict for verdict in found if "as a whole" in verdict.claim]


CORRECTED = {
    "scaffold": {"training": {"algorithm": "scaffold"}},
    "penalty": {"training": {"penalty": 0.6}, "privacy": {"epsilon": [2.0, 8.0]}},
    "scaffold and penalty": {
        "training": {"algorithm": "scaffold", "penalty": 0.6},
        "privacy": {"epsilon": [2.0, 8.0]},
    },
    "plugin": {"training": {"algorithm": "examples.plugin.udpfl_example.fedcm:FedCM"}},
    "fedprox": {"training": {"algorithm": "fedprox"}},
}


def corrected(case):
    """A small federation that hides whole clients."""
    training, privacy = (CORRECTED[case].get(name, {}) for name in ("training", "privacy"))
    return load({
        "data": {"clients": 4},
        "training": {"rounds": 3, "local_steps": 3, "learning_rate": 0.5, **training},
        "privacy": {"unit": "client", "epsilon": 2.0, "delta": 1e-2, "mechanism": "gaussian",
                    **privacy},
    })  # fmt: skip


@pytest.mark.parametrize("case", CORRECTED)
def test_a_client_moves_a_release_by_its_clip_whatever_it_receives(case):
    """Through the client's own code, with everything chosen by the server."""
    worlds = Target.of(corrected(case), blobs(), linear()).whole()
    assert np.linalg.norm(worlds.shift) <= 1.0
    assert np.linalg.norm(worlds.shift) == pytest.approx(1.0, rel=2e-3)
    assert not worlds.absent.any()  # it is measured from where it would be without records


@pytest.mark.parametrize("case", ["scaffold", "penalty", "scaffold and penalty", "plugin"])
@pytest.mark.usefixtures("no_lattice")
def test_a_clip_charged_for_twice_the_clip_is_found(monkeypatch, case):
    """The update is clipped as it is, and a client without records moves as well."""

    def audited():
        own = {"data": blobs(), "model": linear(), "canaries": 0, "trials": 4_000, "error": 1e-3}
        return audit_run(corrected(case), **own)

    assert not any(verdict.refuted for verdict in audited())
    monkeypatch.setattr(_Training, "_origin", lambda self, start, lanes, correct: start)
    worlds = Target.of(corrected(case), blobs(), linear()).whole()
    assert np.linalg.norm(worlds.shift) > 1.3
    assert any(verdict.refuted for verdict in audited())


def test_noise_without_a_grid_is_found(config, monkeypatch):
    """In the engine's own place: noise is added in double and becomes float32, no more."""

    def off_the_grid(mechanism, sums, noisy, words):
        bits = torch.empty(sums.shape, dtype=torch.int64)
        for fill, row in zip(words, bits, strict=True):
            fill(row)
        noisy.copy_(mechanism.draw(to_unit(bits.double())) + sums)

    monkeypatch.setattr(noise, "_add", off_the_grid)
    for mechanism in ("gaussian", "laplace"):
        path = config(privacy=f'epsilon = 8.0\nmechanism = "{mechanism}"')
        *others, rounding = audit_run(path, trials=300, canaries=0)
        assert rounding.refuted
        assert not any(verdict.refuted for verdict in others)


def with_noise(monkeypatch, where, factor):
    """The noise of that module is this much of what is planned and charged."""

    def scaled(mechanisms):
        return MechanismNoiser([noise.scaled(factor) for noise in mechanisms])

    monkeypatch.setattr(where, scaled)


@pytest.mark.parametrize(
    ("training", "where"),
    [
        (TRUSTED, "udpfl.federation.stages.trusted_server.MechanismNoiser"),
        ("rounds = 3", "udpfl.federation.protection.MechanismNoiser"),
    ],
)
@pytest.mark.usefixtures("no_lattice")
def test_a_client_that_gets_too_little_noise_is_found(tmp_path, monkeypatch, training, where):
    """Through the server's own sum, or through the client's own protection."""
    assert not any(verdict.refuted for verdict in audited(tmp_path, training))
    with_noise(monkeypatch, where, 1 / 3)
    assert all(verdict.refuted for verdict in audited(tmp_path, training))


@pytest.mark.usefixtures("no_lattice")
def test_a_trusted_server_that_does_not_clip_is_found(tmp_path, monkeypatch):
    """The other client's update is three times the clip, and nobody sees to that."""
    monkeypatch.setattr(
        "udpfl.federation.stages.trusted_server.NormClipper", lambda norm, bounds: Unclipped()
    )
    found = audited(tmp_path, TRUSTED)
    assert any(verdict.refuted for verdict in found)


@pytest.mark.usefixtures("no_lattice")
def test_noise_that_does_not_keep_the_pace_is_found(tmp_path, monkeypatch):
    """Every round is charged by its own noise, and all have the same."""
    training, privacy = TRUSTED, 'pace = "increasing"\npace_ratio = 8.0'
    kept = audited(tmp_path, training, privacy)
    assert [verdict.claim for verdict in kept[::2]] == [
        "client-0 as a whole, round 3",
        "client-0 as a whole, round 1",
    ]
    assert not any(verdict.refuted for verdict in kept)
    whole = TrustedServer.noisy_sum

    def at_base(self, round_, updates):
        return whole(replace(self, noise=replace(self.noise, factors=())), round_, updates)

    monkeypatch.setattr(TrustedServer, "noisy_sum", at_base)
    assert any(verdict.refuted for verdict in audited(tmp_path, training, privacy))


def test_no_run_is_trained_where_nothing_is_claimed_of_a_record(tmp_path, caplog, capsys):
    """Hiding a client at epsilon 8 and delta 1e-3 says nothing of one of its records."""
    path = tmp_path / "client.toml"
    text = CLIENT.format(training=TRUSTED, privacy="").replace("epsilon = 2.0", "epsilon = 8.0")
    path.write_text(text.replace("delta = 1e-2", "delta = 1e-3"))
    verdicts = audit_run(path, trials=100, canaries=40)
    assert {verdict.claim for verdict in verdicts} == {
        "client-0 as a whole, 2 rounds",
        "client-0, rounding of the noise",
    }
    assert "implies nothing for one record" in caplog.text
    (tmp_path / "empty").mkdir()
    code, _, err = command(capsys, "audit", "run", tmp_path / "empty")
    assert code == 2
    assert "resume" not in err
    assert "is not a run folder" in err
