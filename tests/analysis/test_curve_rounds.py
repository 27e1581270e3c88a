"""`udpfl analyze extra-rounds`: clients on curves against chains that can be written down."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from typer.testing import CliRunner

from udpfl import Gaussian, InvalidInput, Laplace, Staircase
from udpfl.analysis._convergence import Constants, line_fit, measure
from udpfl.analysis._curve_convergence import CurveBound, Walk, measure_curve
from udpfl.analysis.convex import Convex
from udpfl.analysis.curve_rounds import study_curves
from udpfl.cli import main
from udpfl.cli.app import app

REACHES = {"corrected": 2.0, "paper": 1.1, "least-loss": 1.75}
NAMED = list(REACHES)


@pytest.mark.parametrize(("constants", "reach"), REACHES.items())
def test_moments_of_a_walk_by_quadrature(constants, reach):
    walk = Walk.of(constants)
    assert walk.reach == pytest.approx(reach)

    def moment(n):
        return quad(lambda r: ((1 - r) ** 2 + 2 * (r - r**2) * reach) ** n, 0, 1)[0]

    assert walk.mean == pytest.approx(moment(1))
    assert walk.variance == pytest.approx(moment(2) - moment(1) ** 2)
    assert walk.mean <= 1  # what the bound asks for
    assert walk.share(np.array([0.0, 0.5, 1.0])).tolist() == pytest.approx(
        [1.0, 0.25 + 0.5 * reach, 0.0]
    )


@pytest.mark.parametrize("constants", NAMED)
@pytest.mark.parametrize("steps", ["decreasing", "fixed"])
def test_one_client_without_sampling_is_a_chain_that_can_be_written_down(constants, steps):
    """On a quadratic: E |w - w*|^2 by direction, with the moments of rho, and theta beside it."""
    problem = Convex.drawn("quadratic", clients=1, records=40, dimension=3)
    noise, rounds = Gaussian(0.5), 40
    found = measure_curve(
        problem, constants=constants, steps=steps, noise=noise, rate=1.0, rounds=rounds,
        repetitions=6000,
    )  # fmt: skip
    hessian = problem.x[0].T @ problem.x[0] / 40 + 0.1 * np.eye(3)
    values, vectors = np.linalg.eigh(hessian)
    away = (vectors.T @ (0 - problem.optimum())) ** 2
    tau = REACHES[constants]
    first, second = (1 + tau) / 3, 1 / 5 + tau / 5 + 2 * tau**2 / 15
    offset = max(8 * values[-1] / values[0], 1.0)
    wanted, bends = [away.sum()], []
    for t in range(rounds):
        eta = 1 / values[-1] if steps == "fixed" else 2 / (values[0] * (offset + t))
        bends.append(((1 - tau * eta * values) ** 2 * away + (tau * eta) ** 2 * 0.25).sum())
        kept = 1 - 2 * first * eta * values + second * (eta * values) ** 2
        away = kept * away + second * eta**2 * 0.25
        wanted.append(away.sum())
    np.testing.assert_allclose(found.distances, wanted, rtol=0.08)
    np.testing.assert_allclose(found.thetas, bends, rtol=0.08)
    assert found.above(found.bound) == found.thetas_above(found.bound) == 0


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("constants", NAMED)
def test_the_bounds_hold_for_w_and_for_theta(kind, local_steps, constants):
    problem = Convex.drawn(kind, clients=4, records=30, dimension=6)
    for noise in (None, Laplace(0.4), Staircase(1.0, 1.0, 0.4)):
        for steps in ("decreasing", "fixed"):
            if steps == "fixed" and local_steps > 1:
                continue
            found = measure_curve(
                problem, constants=constants, steps=steps, noise=noise, local_steps=local_steps,
                rounds=40, repetitions=100,
            )  # fmt: skip
            assert found.above(found.bound) == 0
            assert found.thetas_above(found.bound) == 0


def test_the_printed_bound_is_broken_and_the_corrected_one_is_not():
    """Forty coordinates on four clients; with fixed steps it is broken in ten as well."""
    wide = Convex.drawn("quadratic", clients=4, records=30, dimension=40)
    found = measure_curve(wide, noise=Laplace(0.5), rounds=80, repetitions=100)
    assert found.printed.constants.noise == pytest.approx(0.5**2)  # (E|X|)^2
    assert found.bound.constants.noise == pytest.approx(40 * 2 * 0.5**2)
    assert found.above(found.bound) == 0
    assert found.above(found.printed) > 40
    narrow = Convex.drawn("quadratic", clients=4, records=30, dimension=10)
    found = measure_curve(narrow, noise=Laplace(0.5), steps="fixed", rounds=80, repetitions=100)
    assert found.above(found.bound) == 0
    assert found.above(found.printed) > 40


def test_with_fixed_steps_noise_is_never_left_behind():
    """The distance stays at a level that is linear in the variance, near that of the bound."""
    problem = Convex.drawn("quadratic", clients=3, records=20, dimension=4)
    found = study_curves(
        problem, {"gaussian": Gaussian(1.0)}, 0.3, steps="fixed", rounds=100, repetitions=200,
        target=0.01,
    ).to_dict()  # fmt: skip
    ends = [row["distance"] for row in found["levels"]]
    bounds = [row["bound"]["distance"] for row in found["levels"]]
    assert all(
        0.4 * bound < end <= 1.05 * bound for end, bound in zip(ends[1:], bounds[1:], strict=True)
    )
    assert found["grows"] == "distance"
    assert found["measured_line"]["r_squared"] > 0.99
    assert [row["rounds"] for row in found["levels"][1:]] == [None] * 4
    assert [row["bound"]["rounds"] for row in found["levels"][1:]] == [None] * 4


def test_only_the_variance_of_a_mechanism_counts():
    problem = Convex.drawn("logistic", clients=3, records=20, dimension=4)
    noises = {"gaussian": Gaussian(1.0), "laplace": Laplace(1.5), "staircase": Staircase(1, 1, 0.4)}
    found = study_curves(problem, noises, 0.5, rounds=400, repetitions=100, factors=(1, 4))
    plain = found.to_dict()
    assert [level.mechanism for level in found.levels] == [""] + [n for n in noises for _ in "12"]
    assert plain["grows"] == "rounds"
    assert plain["measured_line"]["r_squared"] > 0.97
    assert plain["bound_line"]["r_squared"] > 0.999
    for level, row in zip(found.levels, plain["levels"], strict=True):
        assert row["rounds"] <= row["bound"]["rounds"]
        kind = noises.get(level.mechanism)
        variance = 4 * 0.25 * level.factor * kind.variance if kind else 0.0
        assert level.noise == pytest.approx(variance)
        assert row["printed"]["noise"] == pytest.approx(
            0.25 * level.factor * kind.mean_abs**2 if kind else 0.0
        )


def test_a_walk_that_goes_to_v_is_federated_averaging():
    """tau = 2 without the spread of rho: m = 1, and the recursion is that of Li et al."""
    own = Constants(2.0, 0.5, 0.5, (1.0, 2.0), 5.0, 10.0, (0.25, 0.75), 3)

    class Straight(Walk):
        variance = 0.0

    bound = CurveBound(Straight(2.0), own)
    np.testing.assert_allclose(bound.recursion(7.0, 5), own.recursion(7.0, 15)[::3])
    curved = CurveBound(Walk(2.0), own)
    rates = [own.rate(t) for t in range(3)]
    # 2/15 sum p^2 E sum eta^2 (G^2 + d Var), on top of it
    extra = 2 / 15 * (1 / 16 + 9 / 16) * 3 * sum(r**2 for r in rates) * 15.0
    assert curved.recursion(7.0, 1)[1] == pytest.approx(own.recursion(7.0, 3)[3] + extra)


@pytest.mark.parametrize(("start", "target"), [(4.0, 0.1), (4.0, 5.0), (0.5, 0.6), (0.5, 0.2)])
@pytest.mark.parametrize("steps", ["decreasing", "fixed"])
def test_rounds_to_a_target_follow_the_recursion(start, target, steps):
    """From a start below its peak the recursion rises at first."""
    own = Constants(1.0, 0.4, 0.0, (0.0,), 1.0, 6.0, (1.0,), 1)
    bound = CurveBound(Walk(2.0), own, steps)
    above = np.flatnonzero(bound.recursion(start, 3000) > target)
    wanted = above[-1] + 1 if len(above) else 0
    found = bound.rounds_to(target, start)
    assert math.isinf(found) if wanted == 3001 else found == wanted


def test_the_measured_training_without_a_curve_is_slower_by_nothing():
    """With corrected constants the mean step is that of averaging: the ends are alike."""
    problem = Convex.drawn("quadratic", clients=4, records=30, dimension=6)
    plain = measure(problem, noise=Gaussian(0.5), steps=200, repetitions=400)
    curved = measure_curve(problem, noise=Gaussian(0.5), rounds=200, repetitions=400)
    assert curved.distances[-1] / plain.distances[-1] == pytest.approx(17 / 15, rel=0.1)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"steps": "giant"}, "steps"),
        ({"steps": "fixed", "local_steps": 2}, "local_steps"),
        ({"rounds": 0}, "whole number"),
        ({"repetitions": 1}, "repetitions"),
        ({"constants": "other"}, "constants"),
    ],
)
def test_measurements_that_make_no_sense_are_refused(wrong, match):
    problem = Convex.drawn("quadratic", clients=1, records=5, dimension=2)
    with pytest.raises(InvalidInput, match=match):
        measure_curve(problem, **{"rounds": 2, "repetitions": 2, **wrong})


def test_studies_that_make_no_sense_are_refused():
    problem = Convex.drawn("quadratic", clients=1, records=5, dimension=2)
    with pytest.raises(InvalidInput, match="factors"):
        study_curves(problem, {}, 1.0, factors=[0.0])
    with pytest.raises(InvalidInput, match="target"):
        study_curves(problem, {}, 1.0, target=0.0)


CONFIG = """
threads = 1

[data]
name = "table"
options = { path = "ages.csv", target = "ill", scale = "none" }
clients = 2

[model]
name = "logistic"

[privacy]
accountant = "rdp"

[training]
rounds = 2
"""
SMALL = ["--clients", 2, "--records", 20, "--dimension", 3, "--rounds", 30, "--repetitions", 20]


def said(*words):
    arguments = ["analyze", "extra-rounds", *map(str, [*SMALL, *words])]
    answer = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "160"})
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_the_command_compares_the_noises_of_the_paper(tmp_path):
    picture = tmp_path / "r.png"
    plain = json.loads(said("--json", "--plot", picture))
    names = [row["mechanism"] for row in plain["levels"]]
    assert names == ["", *(n for n in ("gaussian", "laplace", "staircase") for _ in range(4))]
    assert all(row["bound"]["above"] == 0 for row in plain["levels"])
    assert picture.read_bytes()[:4] == b"\x89PNG"
    table = said("--mechanism", "gaussian", "--constants", "paper", "--problem", "logistic",
                 "--steps", "fixed", "--target", 1e-9, "--plot", picture)  # fmt: skip
    assert "theta = w + 1.1 (v − w); w moves by 0.7 (v − w)" in table
    assert "never" in table
    assert "of E|w−w*|² for each unit of variance" in table


def test_a_network_is_trained_with_each_noise(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("ages.csv").write_text("age,ill\n" + "20,0\n70,1\n" * 20)
    Path("c.toml").write_text(CONFIG)
    words = ["analyze", "convergence", "c.toml", "--set", "training.algorithm=client-bezier",
             "--mechanism", "all", "--epsilon", "40", "--json", "--plot", "n.png"]  # fmt: skip
    answer = CliRunner().invoke(app, words, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    plain = json.loads(answer.stdout)
    assert [curve["name"] for curve in plain] == [
        "clipped, without noise", "gaussian, ε = 40", "laplace, ε = 40", "staircase, ε = 40",
    ]  # fmt: skip
    assert plain[0]["variance"] == 0
    for curve in plain[1:]:  # two weights and two offsets
        assert curve["variance"] == pytest.approx(4 * curve["noise_std"] ** 2)
    assert Path("n.png").read_bytes()[:4] == b"\x89PNG"
    refused = {"takes one name": ["--mechanism", "all"], "name one": ["--set", "seed=1"]}
    for said_, wrong in refused.items():
        with pytest.raises(SystemExit):
            main(["analyze", "convergence", *wrong])
        assert said_ in capsys.readouterr().err


def test_lines_through_unequal_mechanisms_do_not_fit():
    """The check above can fail: a number that ignores the variance has no line."""
    assert line_fit([1, 2, 1, 2], [1, 2, 5, 9])[2] < 0.5
