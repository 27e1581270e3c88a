"""A package from outside: each of its plugins in a real run, by short name and by place."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from torch import nn
from typer.testing import CliRunner

import udpfl
from tests.plugins.example import BLOBS, PLACES, QUICK
from udpfl.accounting.serial import event_from_json
from udpfl.cli.app import app


def short(name: str) -> str:
    return name


def spelled_out(name: str) -> str:
    return PLACES[name]


both_ways = pytest.mark.parametrize("spelled", [short, spelled_out])

pytestmark = pytest.mark.usefixtures("installed")


def participants(result: udpfl.Run) -> list[dict]:
    return json.loads((result.folder / "participants.json").read_text())


def arrays(records: int = 40, features: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(records, features)), rng.integers(3, size=records)


# Each kind


@both_ways
def test_a_model(tmp_path, spelled):
    result = udpfl.run(
        {"data": {"clients": 2}, "privacy": "none"},
        model={"name": spelled("wide"), "options": {"width": 7}},
        data=arrays(),
        training=QUICK,
        out=str(tmp_path / "run"),
    )
    shapes = {name: tuple(value.shape) for name, value in result.model.state_dict().items()}
    assert shapes == {"1.weight": (7, 4), "1.bias": (7,), "3.weight": (3, 7), "3.bias": (3,)}
    assert len(result.metrics) == QUICK["rounds"]


@both_ways
def test_a_data_set(tmp_path, spelled):
    result = udpfl.run(
        data={"name": spelled("blobs"), "clients": 3, "options": BLOBS, "test": 0.5},
        model={"name": "logistic"},
        privacy="none",
        training=QUICK,
        out=str(tmp_path / "run"),
    )
    assert [tuple(value.shape) for value in result.model.state_dict().values()] == [(3, 5), (3,)]
    assert [person["declared_size"] for person in participants(result)] == [10, 10, 10]
    assert result.accuracy * 30 == pytest.approx(round(result.accuracy * 30))  # of 30 test records


def test_blobs_are_the_seeds_and_as_far_apart_as_asked():
    from udpfl_example.blobs import load

    def inputs(seed: int, **options: object) -> np.ndarray:
        made = load(seed=seed, directory=None, test=0.2, options={**BLOBS, **options})
        assert (len(made.train), len(made.test), made.classes) == (48, 12, 3)
        return made.train.inputs

    assert np.array_equal(inputs(1), inputs(1))
    assert not np.array_equal(inputs(1), inputs(2))
    assert len(np.unique(inputs(1, spread=0.0), axis=0)) == 3


@both_ways
@pytest.mark.parametrize("name", ["logistic", "power"])
def test_noise(tmp_path, spelled, name):
    result = udpfl.run(
        {"data": {"clients": 2}},
        model={"name": "logistic"},
        data=arrays(),
        privacy={"mechanism": spelled(name), "epsilon": 3.0, "accountant": "rdp"},
        training=QUICK,
        out=str(tmp_path / "run"),
    )
    for person in participants(result):
        noise = person["release"]["mechanism"]
        assert noise["class"] == PLACES[name].replace("POWER", "Power")
        assert noise["parameters"]["scale"] > 0
        assert noise["parameters"].get("power") == (1.8 if name == "power" else None)
    assert result.privacy.kind == "guarantee"
    for statement in result.clients.values():
        assert 2.9 < statement.epsilon <= 3.0
        assert statement.delta == 1e-5


def test_power_noise_meets_gaussian_and_laplace_noise_at_its_ends():
    from udpfl_example.noise import Power

    orders, shift = np.array([1.5, 4.0, 20.0]), 0.3
    gaussian = orders * shift**2  # order shift^2 / (2 variance), the variance being 1/2
    assert Power(1.0, power=2.0).renyi(orders, shift) == pytest.approx(gaussian, rel=5e-3)
    laplace = udpfl.Laplace(1.0).renyi(orders, shift)
    assert Power(1.0, power=1.0).renyi(orders, shift) == pytest.approx(laplace, rel=5e-3)
    assert not np.allclose(Power(1.0).renyi(orders, shift), laplace, rtol=0.05)


def test_the_noise_in_a_message_is_the_noise_that_is_charged(tmp_path):
    """Inputs of zero have no gradient: what a client then sends is noise and nothing else."""
    updates: list[np.ndarray] = []
    scales: list[float] = []

    class Listener(udpfl.Observer):
        def on_message(self, message: udpfl.ClientMessage) -> None:
            updates.append(message.tensors["update"].double().numpy())
            (event,) = message.events
            scales.append(event_from_json(event).event.event.mechanism.scale)

    features, sampled, rate = 4000, 0.5, 0.25
    result = udpfl.run(
        {"data": {"clients": 2, "declared_sizes": 12}},
        model=nn.Linear(features, 2, bias=False),
        data=(np.zeros((40, features)), np.arange(40) % 2),
        privacy={"mechanism": "logistic", "accountant": "rdp", "randomness": "seeded"},
        training={
            "rounds": 1,
            "local_steps": 1,
            "sampling_rate": sampled,
            "learning_rate": rate,
        },
        observers=[Listener()],
        out=str(tmp_path / "run"),
    )
    assert result.privacy.kind == "none"  # seeded noise is for tests
    planned = participants(result)[0]["release"]["mechanism"]["parameters"]["scale"]
    assert scales == [planned, planned]
    noise = -np.concatenate(updates) * sampled * 12 / rate
    assert noise.size == 2 * 2 * features
    assert stats.kstest(noise, "logistic", args=(0, planned)).pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise, "logistic", args=(0, wrong * planned)).pvalue < 1e-9
    assert 0.6 < stats.kurtosis(noise) < 1.8  # 1.2; Gaussian noise has 0, Laplace noise 3


# FedCM


def with_momentum(clients: list, start: float, rounds: int, steps: int, alpha: float) -> float:
    """Where steps of 0.1 along alpha g + (1 - alpha) D end, g that of the mean of (w x - y)^2."""
    model, common = start, 0.0
    for _ in range(rounds):
        ends = []
        for inputs, targets in clients:
            own = model
            for _ in range(steps):
                gradient = 2 * float(np.mean(inputs * (own * inputs - targets)))
                own -= 0.1 * (alpha * gradient + (1 - alpha) * common)
            ends.append(own)
        moved = np.average(ends, weights=[len(own) for own, _ in clients]) - model
        model, common = model + moved, -moved / (0.1 * steps)
    return model


@both_ways
@pytest.mark.parametrize(
    ("rounds", "steps", "alpha", "lanes"),
    [(1, 2, 0.5, "auto"), (3, 2, 0.5, "auto"), (3, 4, 0.1, "single"), (3, 1, 1.0, "stacked")],
)
def test_fedcm_ends_where_mathematics_says(tmp_path, spelled, rounds, steps, alpha, lanes):
    rng = np.random.default_rng(3)
    clients = [(rng.normal(size=n), rng.normal(size=n) + n) for n in (3, 5)]
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.7)
    result = udpfl.run(
        {"data": {"declared_sizes": "partition"}, "privacy": "none"},
        model=model,
        data=clients,
        test=(np.ones(2), np.ones(2)),
        training={
            "algorithm": spelled("fedcm"),
            "options": {"alpha": alpha},
            "rounds": rounds,
            "local_steps": steps,
            "sampling_rate": 1.0,
            "learning_rate": 0.1,
            "server_momentum": 0.0,
            "averaging": 0.0,
            "lanes": lanes,
        },
        out=str(tmp_path / "run"),
    )
    wanted = with_momentum(clients, 0.7, rounds, steps, alpha)
    assert result.model.weight.item() == pytest.approx(wanted, rel=1e-5)
    plain = with_momentum(clients, 0.7, rounds, steps, 1.0)
    assert math.isclose(wanted, plain, rel_tol=1e-3) == (alpha == 1)


def test_fedcm_adds_to_noisy_gradients_for_the_price_of_averaging(tmp_path):
    runs = {}
    for name in ("fedavg", "fedcm"):
        runs[name] = udpfl.run(
            {"data": {"clients": 2}},
            model={"name": "logistic"},
            data=arrays(),
            privacy={"mechanism": "gaussian", "accountant": "rdp"},
            training={**QUICK, "local_steps": 3, "algorithm": name},
            out=str(tmp_path / name),
        )
    plain, mixed = runs.values()
    assert mixed.privacy.epsilon == plain.privacy.epsilon
    assert 7 < plain.privacy.epsilon <= 8
    entries = [[(e.client, e.round, e.count, e.event) for e in r.ledger.history()]
               for r in runs.values()]  # fmt: skip
    assert entries[0] == entries[1]
    assert len(entries[0]) == 2 * QUICK["rounds"]


def test_the_command_lists_methods_of_packages_and_says_which_one_is_broken(installed):
    (info,) = Path(installed[1]).glob("*.dist-info")
    points = (info / "entry_points.txt").read_text()
    broken = "[udpfl.algorithms]\nlost = udpfl_example.nowhere:Lost\n"
    (info / "entry_points.txt").write_text(points.replace("[udpfl.algorithms]\n", broken))
    shown = CliRunner().invoke(app, ["methods", "--json"])
    rows = {row["name"]: row for row in json.loads(shown.stdout)}
    assert rows["fedcm"]["from"] == PLACES["fedcm"]
    assert "Xu et al. 2021" in rows["fedcm"]["paper"]
    assert rows["fedcm"]["options"] == {"alpha": 0.5}
    assert (
        "gradients with clip and noise" in rows["fedcm"]["guarantee"]
    )  # what holds for every method
    assert rows["fedcm"]["problem"] == rows["fedavg"]["problem"] == ""
    assert "nowhere" in rows["lost"]["problem"]
    table = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "200"})
    assert table.exit_code == 0
    assert "udpfl_example.fedcm:FedCM" in table.output
