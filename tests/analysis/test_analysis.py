"""`udpfl analyze`: errors of noise, convergence and its bound, curves between runs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize
from typer.testing import CliRunner

import udpfl
from udpfl import Gaussian, InvalidInput, Laplace, Staircase, Unsupported
from udpfl.analysis._convergence import Constants, Measured, line_fit, measure
from udpfl.analysis.convex import Convex
from udpfl.analysis.errors import errors, milestones
from udpfl.cli import main
from udpfl.cli.app import app

NOISES = [Gaussian(1.7), Laplace(0.8), Staircase(1.0, 1.0, 0.4)]


def said(*words: object) -> str:
    answer = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def refused(capsys, *words: object) -> str:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 2
    return capsys.readouterr().err


# Errors of noise


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_both_errors_against_draws_of_our_own(noise):
    """Another generator, other draws, a plain loop: within 3 % (four standard errors are less)."""
    rows = errors(noise, [1, 10, 100], dimension=50, scale=0.1, trials=20_000, seed=1)
    rng = np.random.default_rng(99)
    for row in rows:
        drawn = noise.sample((20_000, row.releases), rng)
        summed = 50 * 0.1 * np.abs(drawn).sum(1).mean()
        drift = 50 * 0.1 * np.abs(drawn.sum(1)).mean()
        assert row.summed == pytest.approx(summed, rel=0.02)
        assert row.summed_sampled == pytest.approx(summed, rel=0.03)
        assert row.accumulated_sampled == pytest.approx(drift, rel=0.03)
        limit = 0.03 if row.releases >= 10 or noise.name == "gaussian" else 0.2
        assert row.accumulated == pytest.approx(drift, rel=limit)
        assert row.accumulated_sampled < row.bound


def test_summed_errors_grow_like_t_and_the_models_like_its_root():
    """Two Laplace draws of scale b: E|X + Y| = 3b/2, by integrating their density."""
    rows = errors(Laplace(2.0), [1, 2, 100, 400], dimension=3, trials=40_000)
    assert rows[3].summed / rows[2].summed == pytest.approx(4)
    assert rows[3].accumulated / rows[2].accumulated == pytest.approx(2)
    assert rows[3].accumulated_sampled / rows[2].accumulated_sampled == pytest.approx(2, rel=0.03)
    assert rows[0].summed == pytest.approx(3 * 2.0)
    assert rows[1].accumulated_sampled == pytest.approx(3 * 3.0, rel=0.03)
    for row in rows:
        assert row.bound == pytest.approx(3 * math.sqrt(row.releases * 8))
        assert row.accumulated_spread < 0.02 * row.accumulated_sampled


def test_milestones():
    assert milestones(1) == [1]
    assert milestones(100) == [1, 2, 5, 10, 20, 50, 100]
    assert milestones(12) == [1, 2, 5, 10, 12]
    with pytest.raises(InvalidInput, match="rounds"):
        milestones(0)


@pytest.mark.parametrize("wrong", [{"dimension": 0}, {"scale": 0.0}, {"trials": 1}])
def test_errors_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        errors(Gaussian(1.0), [1], **{"dimension": 1, **wrong})


def test_the_command_takes_the_noise_of_plan():
    options = ["--epsilon", 4, "--rounds", 20, "--dimension", 10]
    rows = json.loads(said("analyze", "error", *options, "--json"))
    planned = udpfl.plan("all", epsilon=4, steps=20, dimension=10)
    assert [row["noise_std"] for row in rows] == [row.noise.noise_std for row in planned]
    last = rows[0]["errors"][-1]
    assert last["releases"] == 20
    assert last["summed"] == pytest.approx(20 * 10 * planned.best.noise.mean_abs)
    table = said("analyze", "error", *options, "--mechanism", "laplace", "--accounting", "scalar")
    assert "nominal" in table


# Convex problems


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
def test_constants_of_a_problem_by_brute_force(kind):
    problem = Convex.drawn(kind, clients=3, records=20, dimension=4, seed=2)

    def value(w, k=None):
        total = []
        for i in range(3):
            z = problem.x[i] @ w
            if kind == "quadratic":
                loss = 0.5 * (z - problem.y[i]) ** 2
            else:
                loss = np.log(1 + np.exp(-(2 * problem.y[i] - 1) * z))
            total.append(loss.mean() + 0.05 * w @ w)
        return np.mean(total) if k is None else total[k]

    solved = [minimize(value, np.zeros(4), args=(k,), tol=1e-12) for k in (None, 0, 1, 2)]
    np.testing.assert_allclose(problem.optimum(), solved[0].x, atol=1e-5)
    gamma = solved[0].fun - np.mean([s.fun for s in solved[1:]])
    assert problem.heterogeneity() == pytest.approx(gamma, abs=1e-8)
    assert gamma > 1e-4
    rng = np.random.default_rng(0)
    for _ in range(50):  # mu |a - b| <= |grad a - grad b| <= L |a - b|
        a, b = rng.normal(size=(2, 4))
        gaps = problem.gradients(np.tile(a, (3, 1))) - problem.gradients(np.tile(b, (3, 1)))
        sizes = np.linalg.norm(gaps, axis=1) / np.linalg.norm(a - b)
        assert (sizes <= problem.smoothness + 1e-12).all()
        assert (sizes >= problem.convexity - 1e-12).all()
    w = rng.normal(size=4)
    step = 1e-6
    slopes = [
        (value(w + step * e, 1) - value(w - step * e, 1)) / (2 * step) for e in np.eye(4)
    ]  # fmt: skip
    np.testing.assert_allclose(problem.gradients(np.tile(w, (3, 1)))[1], slopes, atol=1e-6)


def test_the_variance_of_a_poisson_sample_by_drawing():
    problem = Convex.drawn("quadratic", clients=2, records=30, dimension=3)
    w = np.ones((2, 3))
    r = problem.residuals(w)
    drawn = np.random.default_rng(0).random((40_000, 2, 30)) < 0.3
    g = np.einsum("rkn,knd->rkd", drawn * r / 0.3, problem.x) / 30 + 0.1 * w
    spread = ((g - g.mean(0)) ** 2).sum(2).mean(0)
    np.testing.assert_allclose(problem.sampling_variance(r, 0.3), spread, rtol=0.03)


def test_a_problem_that_makes_no_sense_is_refused():
    with pytest.raises(InvalidInput, match="quadratic or logistic"):
        Convex.drawn("cubic")
    with pytest.raises(InvalidInput, match="clients"):
        Convex.drawn("quadratic", clients=0)


# The recursion


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
@pytest.mark.parametrize("local_steps", [1, 4])
def test_the_recursion_holds_step_by_step_and_all_the_way(kind, local_steps):
    problem = Convex.drawn(kind, clients=4, records=30, dimension=6)
    for noise in (None, Laplace(0.4)):
        found = measure(problem, noise=noise, local_steps=local_steps, steps=300, repetitions=200)
        assert found.violations() == 0
        assert (found.distances[1:] <= found.bound[1:] + 4 * found.spreads[1:]).all()
        start = float(found.distances[0])
        closed = found.constants.solution(start, 300)
        assert (found.bound <= closed * (1 + 1e-9)).all()
        assert found.distances[-1] < start or noise is not None


def test_a_bound_without_the_noise_is_broken():
    """The same training against B of a training without noise: the check can fail."""
    problem = Convex.drawn("quadratic", clients=2, records=30, dimension=6)
    loud = measure(problem, noise=Gaussian(3.0), steps=100, repetitions=200)
    assert loud.violations() == 0
    deaf = Constants(**{**vars(loud.constants), "noise": 0.0})
    object.__setattr__(loud, "constants", deaf)
    assert loud.violations() > 0


def test_one_client_without_sampling_is_a_chain_that_can_be_written_down():
    """Gradient descent with noise on a quadratic: mean and covariance follow in closed form."""
    problem = Convex.drawn("quadratic", clients=1, records=40, dimension=3)
    noise, steps = Gaussian(0.5), 60
    found = measure(problem, noise=noise, rate=1.0, steps=steps, repetitions=4000)
    hessian = problem.x[0].T @ problem.x[0] / 40 + 0.1 * np.eye(3)
    values, vectors = np.linalg.eigh(hessian)
    away = (vectors.T @ (0 - problem.optimum())) ** 2
    wanted = [away.sum()]
    offset = max(8 * values[-1] / values[0], 1.0)
    for t in range(steps):
        eta = 2 / (values[0] * (offset + t))
        away = (1 - eta * values) ** 2 * away + eta**2 * noise.variance
        wanted.append(away.sum())
    np.testing.assert_allclose(found.distances, wanted, rtol=0.06)
    assert found.constants.noise == pytest.approx(3 * 0.25)
    assert found.constants.sampling == (0.0,)
    assert found.constants.heterogeneity == pytest.approx(0.0, abs=1e-12)
    assert found.constants.drift == pytest.approx(0.75)  # noise alone


@pytest.mark.parametrize(("decay", "ratio"), [(0.1, 2.0), (1.0, 2.09), (4.0, 3.84), (8.0, 19.5)])
def test_the_papers_variance_is_a_squared_mean(decay, ratio):
    """It prints e^l/(e^l - 1)^2, which is (E|X|)^2 of one coordinate at the best split."""
    noise = Staircase(decay, 1.0, 1 / (1 + math.exp(decay / 2)))
    printed = math.exp(decay) / (math.exp(decay) - 1) ** 2
    assert noise.mean_abs**2 == pytest.approx(printed)
    drawn = noise.sample(2_000_000, np.random.default_rng(0))
    assert drawn.var() / printed == pytest.approx(ratio, rel=0.02)


def test_b_by_hand():
    """p = (1/4, 3/4), E = 3: 1/16 (1 + 10) + 9/16 (2 + 10) + 6 * 2 * 0.5 + 8 * 4 * (5 + 10)."""
    found = Constants(2.0, 0.5, 0.5, (1.0, 2.0), 5.0, 10.0, (0.25, 0.75), 3)
    assert found.drift == pytest.approx(11 / 16 + 108 / 16 + 6 + 480)
    assert found.offset == 32.0
    assert found.rate(0) == pytest.approx(2 / (0.5 * 32))
    assert found.rate(0) <= 1 / (4 * 2.0)  # what Lemma 1 asks for
    assert found.recursion(1.0, 1)[1] == pytest.approx((1 - 0.0625) + 0.125**2 * found.drift)


def test_extra_steps_are_linear_in_the_variance():
    from udpfl.analysis.extra_rounds import study

    problem = Convex.drawn("logistic", clients=3, records=20, dimension=4)
    found = study(problem, Gaussian(1.0), 0.5, steps=600, repetitions=100, factors=(1, 2, 4, 8))
    variances = [level.constants.noise for level in found.levels]
    np.testing.assert_allclose(variances, [4 * 0.25 * f for f in (1, 2, 4, 8)])
    assert 400 < found.measured[-1] <= 600
    assert line_fit(variances, found.measured)[2] > 0.98
    assert line_fit(variances, found.bounds)[2] > 0.9999
    assert all(m <= b for m, b in zip(found.measured, found.bounds, strict=True))


def test_steps_to_a_target_are_those_after_which_it_is_kept():
    quiet = Constants(1.0, 1.0, 0.0, (0.0,), 1.0, 0.0, (1.0,), 1)
    found = Measured(quiet, np.array([5.0, 1.0, 3.0, 2.0, 1.0]), np.zeros(5), 1.0)
    assert [found.steps_to(target) for target in (9.0, 2.0, 1.0, 0.5)] == [0, 3, 4, None]


def test_line_fit():
    slope, intercept, fit = line_fit([0, 1, 2], [1, 3, 5])
    assert (slope, intercept, fit) == pytest.approx((2, 1, 1))
    assert line_fit([0, 1, 2, 3], [0, 1, 0, 1])[2] == pytest.approx(0.2)


SMALL = ["--clients", 2, "--records", 20, "--dimension", 3, "--rounds", 30, "--repetitions", 20]


def test_the_command_says_bound_and_measurement(tmp_path):
    picture = tmp_path / "c.png"
    plain = json.loads(said("analyze", "convergence", *SMALL, "--json", "--plot", picture))
    assert [level["factor"] for level in plain["levels"]] == [0, 1, 2, 4, 8]
    assert all(level["violations"] == 0 for level in plain["levels"])
    assert picture.read_bytes()[:4] == b"\x89PNG"
    table = said("analyze", "convergence", *SMALL, "--problem", "logistic", "--local-steps", 2)
    assert "steps for each unit of variance" in table


CONFIG = """
threads = 1
[data]
clients = 3
test = 0.5

[model]
name = "logistic"

[privacy]
mechanism = "gaussian"
accountant = "rdp"

[training]
rounds = 3
"""


def test_a_network_is_measured_and_has_no_bound(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(CONFIG)
    plain = json.loads(said("analyze", "convergence", file, "--epsilon", 1, "--json"))
    assert [curve["name"] for curve in plain] == ["clipped, without noise", "ε = 1"]
    assert plain[0]["noise_std"] == 0
    plan = udpfl.plan("gaussian", epsilon=1, steps=3, sampling_rate=0.5, accountant="rdp")
    wanted = plan.best.noise.noise_std / (0.5 * 833)
    assert plain[1]["noise_std"] == pytest.approx(wanted, rel=2e-3)
    assert all(curve["rounds"] == [1, 2, 3] for curve in plain)
    assert not any("bound" in key for curve in plain for key in curve)


def test_a_configuration_answers_for_itself(tmp_path, capsys):
    file = tmp_path / "c.toml"
    file.write_text(CONFIG)
    assert "--rounds" in refused(capsys, "analyze", "convergence", file, "--rounds", 3)
    text = refused(capsys, "analyze", "convergence", "--epsilon", 1, "--epsilon", 2)
    assert "takes one value" in text
    file.write_text('privacy = "none"')
    assert "turned off" in refused(capsys, "analyze", "convergence", file)
    file.write_text('[privacy]\nledger = "x.sqlite"')
    assert "privacy.ledger" in refused(capsys, "analyze", "convergence", file)


# Curves between runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def start(name, model="logistic", **more):
        settings = {
            "out": str(folder / name), "threads": 1, "privacy": "none", "model": {"name": model},
            "training": {"rounds": 4, "learning_rate": 0.1}, **more,
        }  # fmt: skip
        udpfl.run(settings)
        return folder / name

    public = {"clients": 3, "public": 0.3}
    return {
        "a": start("a", data=public),
        "b": start("b", data=public, seed=1),
        "plain": start("plain", data={"clients": 3}),
        "mlp": start("mlp", "mlp", data={"clients": 3}),
    }


def test_only_records_that_no_client_of_either_run_held_are_used(runs):
    from udpfl.analysis.between_runs import Trained, _records

    a, b = Trained.of(runs["a"]), Trained.of(runs["b"])
    training, measuring, words = _records(a, b)
    held = set()
    for path in (runs["a"], runs["b"]):
        with np.load(path / "records.npz") as parts:
            train = parts["train"]
            held |= {int(train[i]) for k in range(3) for i in parts[f"client-{k}"]}
    assert not held & set(training.positions.tolist())
    assert not held & set(measuring.positions.tolist())
    assert not set(training.positions.tolist()) & set(measuring.positions.tolist())
    assert f"{len(training)} public records of mnist5k" in words
    # Without a public split: halves of the test records, and the words say so.
    plain = Trained.of(runs["plain"])
    training, measuring, words = _records(plain, plain)
    assert len(training) == len(measuring) == 500
    assert "was used for training" in words


def test_the_words_say_why_public_records_were_not_used(runs, monkeypatch):
    from udpfl.analysis import between_runs

    a, b, plain = (between_runs.Trained.of(runs[name]) for name in ("a", "b", "plain"))
    neither = between_runs._records(plain, plain)[2]
    assert neither.endswith(f"{runs['plain']} set no public records aside (data.public is 0).")
    second = between_runs._records(plain, a)[2]
    assert f"those of {runs['a']} are used only if it is named first" in second
    found = len(between_runs._records(a, b)[0])
    monkeypatch.setattr(between_runs, "_FEWEST", found + 1)
    monkeypatch.setattr(between_runs, "_free", _at_least(between_runs._free, found + 1))
    few = between_runs._records(a, b)[2]
    assert (
        f"Of the {len(a.setup.public)} public records of {runs['a']} {found} belong to no client"
        in few
    )
    assert f"{found + 1} are needed" in few


def _at_least(free, many):
    """Enough test records, whatever is left of the public ones."""
    return lambda records, rows, taken: (
        np.arange(2 * many) % len(rows) if len(rows) == 1000 else free(records, rows, taken)
    )


def test_the_command_prints_saves_and_draws(runs, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file

    saved, picture = tmp_path / "m.safetensors", tmp_path / "c.png"
    plain = json.loads(
        said("analyze", "curve", runs["a"], runs["b"], "--steps", 60, "--points", 5, "--json",
             "--at", 0, "--save", saved, "--plot", picture)
    )  # fmt: skip
    assert [row["p"] for row in plain["line"]["points"]] == [0, 0.25, 0.5, 0.75, 1]
    for end in (0, -1):
        assert plain["line"]["points"][end] == plain["curve"]["points"][end]
    losses = [row["loss"] for row in plain["line"]["points"]]
    middle = losses[2] - (losses[0] + losses[-1]) / 2
    assert plain["line"]["barrier"] >= max(0.0, middle)
    assert plain["steps"] == 60
    first = load_file(runs["a"] / "model.safetensors")
    for name, tensor in load_file(saved).items():
        assert tensor.equal(first[name])
    with safe_open(saved, "pt") as file:
        stamp = json.loads(file.metadata()["udpfl"])
    assert "public records" in stamp["statement"]
    assert len(stamp["from"]) == 2
    assert picture.read_bytes()[:4] == b"\x89PNG"
    table = said("analyze", "curve", runs["a"], runs["b"], "--steps", 1, "--curve", "chain")
    assert "barrier" in table
    assert "search: 1 steps, not converged: it used all of --steps" in table


def test_what_cannot_be_connected_is_refused(runs, tmp_path, capsys):
    text = refused(capsys, "analyze", "curve", runs["plain"], runs["mlp"])
    assert "different architectures" in text
    assert "not a run folder" in refused(capsys, "analyze", "curve", tmp_path, runs["a"])
    both = (runs["a"], runs["b"])
    assert "--save" in refused(capsys, "analyze", "curve", *both, "--at", 0.5)
    text = refused(capsys, "analyze", "curve", *both, "--at", 2, "--save", tmp_path / "x")
    assert "between 0 and 1" in text
    assert "--plot" in refused(capsys, "analyze", "curve", *both, "--plot", tmp_path / "x.gif")
    (tmp_path / "run").mkdir()
    for name in ("config.toml", "run.json"):
        (tmp_path / "run" / name).write_bytes((runs["a"] / name).read_bytes())
    assert "not finished" in refused(capsys, "analyze", "curve", tmp_path / "run", runs["a"])


def test_too_few_free_records_are_refused(runs, monkeypatch):
    from udpfl.analysis import between_runs

    monkeypatch.setattr(between_runs, "_FEWEST", 600)
    with pytest.raises(InvalidInput, match=r"set data\.public"):
        between_runs.connect(runs["plain"], runs["plain"])


def test_noise_has_to_be_there_to_be_varied():
    from udpfl.analysis.extra_rounds import network_curves
    from udpfl.config import load

    with pytest.raises(Unsupported, match="turned off"):
        network_curves(load({"privacy": "none"}), [1.0])
