"""Federated methods in real runs, against mathematics that was done apart from them.

Clients hold linear regressions without error, so that each loss is exactly the quadratic
(w - a)' A (w - a) / 2 with A = 2 X'X / n and minimum a; all of their records take part in a step.
"""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
from numpy.linalg import matrix_power, solve
from scipy import stats
from torch import nn

import udpfl
from tests.algorithms.samples import ADAPTIVE
from udpfl.algorithms import BUILT_IN, ServerStep, Terms

pytestmark = pytest.mark.usefixtures("one_thread", "no_report")
RATE = 0.1


class Quadratic:
    """One client: its records, and the loss that they make."""

    def __init__(self, minimum, size, curvatures=(2.0, 2.0, 2.0), seed=0):
        rng = np.random.default_rng(seed)
        self.a = np.asarray(minimum, float)
        left = np.linalg.qr(rng.normal(size=(size, 3)))[0] * np.sqrt(
            size / 2 * np.array(curvatures)
        )
        right = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        self.x = (left @ right).astype(np.float32)
        self.y = (self.x @ self.a).astype(np.float32)
        self.A = 2 * self.x.T.astype(float) @ self.x / size

    def gradient(self, w):
        return self.A @ (w - self.a)


def different():
    """Four clients of different sizes and curvatures, far from each other."""
    minima = ([4.0, -2.0, 1.0], [-3.0, 1.0, 0.0], [0.0, 6.0, -4.0], [1.0, 1.0, 5.0])
    return [Quadratic(a, n, curvatures, n) for a, n, curvatures in zip(
        minima, (4, 9, 6, 12), itertools.permutations([1.0, 3.0, 6.0]), strict=False)]  # fmt: skip


def alike(minima):
    return [Quadratic(a, 4) for a in minima]


def sizes(clients):
    return np.array([len(own.x) for own in clients], float)


def averaged(clients, ends):
    return np.average(ends, axis=0, weights=sizes(clients))


class Watch:
    """Who answered in each round, what they sent, and the model after it."""

    def __init__(self):
        self.messages, self.models = {}, []

    def on_message(self, message):
        self.messages.setdefault(message.round, {})[message.client] = message.tensors

    def on_model(self, round_, model):
        self.models.append(model["weight"][0].double().numpy())

    def on_round(self, row):
        pass

    def chosen(self, round_):
        return [int(name.partition("-")[2]) for name in self.messages[round_]]


@pytest.fixture
def trained(tmp_path):
    """What came of a run on quadratics, every round of it."""

    def start(method, clients, rounds, steps=1, options=None, **training):
        model = nn.Linear(len(clients[0].a), 1, bias=False)
        nn.init.zeros_(model.weight)
        watch = Watch()
        udpfl.run(
            {"data": {"declared_sizes": "partition"}, "privacy": "none"},
            model=model,
            data=[(own.x, own.y) for own in clients],
            test=(clients[0].x, clients[0].y),
            training={
                "algorithm": method,
                "options": options or {},
                "rounds": rounds,
                "local_steps": steps,
                "sampling_rate": 1.0,
                "learning_rate": RATE,
                "server_momentum": 0.0,
                "averaging": 0.0,
                "evaluate_every": rounds,
                "checkpoint_every": rounds,
                **training,
            },
            observers=[watch],
            out=str(tmp_path / f"{method}-{len(list(tmp_path.iterdir()))}"),
        )
        return watch

    return start


def close(found, wanted, rel=1e-4):
    return np.linalg.norm(np.subtract(found, wanted)) <= rel * np.linalg.norm(wanted)


# Where they end


def fedavg_rest(clients, steps):
    """A local training moves w by -P (w - a), P = I - (I - eta A)^K: the means must cancel."""
    eye = np.eye(3)
    maps = [n * (eye - matrix_power(eye - RATE * own.A, steps))
            for n, own in zip(sizes(clients), clients, strict=True)]  # fmt: skip
    return solve(sum(maps), sum(p @ own.a for p, own in zip(maps, clients, strict=True)))


def fedprox_rest(clients, steps, mu):
    """With B = A + mu I a training moves w by -(I - (I - eta B)^K) B^-1 A (w - a)."""
    eye = np.eye(3)
    maps = []
    for n, own in zip(sizes(clients), clients, strict=True):
        b = own.A + mu * eye
        maps.append(n * (eye - matrix_power(eye - RATE * b, steps)) @ solve(b, own.A))
    return solve(sum(maps), sum(q @ own.a for q, own in zip(maps, clients, strict=True)))


def optimum(clients, weights):
    curvature = sum(n * own.A for n, own in zip(weights, clients, strict=True))
    return solve(curvature, sum(n * own.A @ own.a for n, own in zip(weights, clients, strict=True)))


def test_fedprox_rests_where_its_mathematics_says_nearer_to_the_optimum(trained):
    clients, steps, mu = different(), 8, 1.5
    wanted = fedprox_rest(clients, steps, mu)
    found = trained("fedprox", clients, 40, steps, {"mu": mu}).models[-1]
    assert close(found, wanted)
    best, plain = optimum(clients, sizes(clients)), fedavg_rest(clients, steps)
    assert np.linalg.norm(wanted - best) < 0.8 * np.linalg.norm(plain - best)
    assert not close(found, plain, 0.03)


def test_fedprox_without_a_pull_or_with_one_step_is_fedavg(trained):
    clients = different()
    plain = {steps: trained("fedavg", clients, 3, steps).models[-1] for steps in (1, 4)}
    assert close(trained("fedprox", clients, 3, 4, {"mu": 0.0}).models[-1], plain[4], 1e-6)
    assert close(trained("fedprox", clients, 3, 1, {"mu": 2.0}).models[-1], plain[1], 1e-6)
    assert not close(trained("fedprox", clients, 3, 4, {"mu": 2.0}).models[-1], plain[4], 0.01)


def test_scaffold_finds_the_optimum_from_which_fedavg_drifts(trained):
    clients, steps = different(), 8
    best = optimum(clients, np.ones(4))  # everyone counts the same
    found = trained("scaffold", clients, 60, steps).models[-1]
    assert close(found, best, 1e-3)
    drifted = trained("fedavg", clients, 40, steps).models[-1]
    assert close(drifted, fedavg_rest(clients, steps))
    assert np.linalg.norm(drifted - optimum(clients, sizes(clients))) > 0.05 * np.linalg.norm(best)
    assert not close(drifted, best, 0.05)


def scaffold(clients, rounds, steps, chosen, population, server_rate):
    """Algorithm 1 of Karimireddy et al., option II."""
    x, c = np.zeros(3), np.zeros(3)
    own_c = [np.zeros(3) for _ in clients]
    path = []
    for round_ in range(1, rounds + 1):
        moves, changes = [], []
        for i in chosen(round_):
            y = x.copy()
            for _ in range(steps):
                y = y - RATE * (clients[i].gradient(y) - own_c[i] + c)
            fresh = own_c[i] - c + (x - y) / (steps * RATE)
            moves.append(y - x)
            changes.append(fresh - own_c[i])
            own_c[i] = fresh
        x = x + server_rate * np.mean(moves, axis=0)
        c = c + len(moves) / population * np.mean(changes, axis=0)
        path.append(x)
    return path


def test_scaffold_knows_all_clients_where_only_some_are_asked(trained):
    clients, settings = different(), {"clients_per_round": 3, "server_learning_rate": 0.7}
    watch = trained("scaffold", clients, 8, 4, **settings)
    assert len({tuple(watch.chosen(round_)) for round_ in range(1, 9)}) > 1
    for found, wanted in zip(
        watch.models, scaffold(clients, 8, 4, watch.chosen, 4, 0.7), strict=True
    ):
        assert close(found, wanted, 1e-5)
    mistaken = scaffold(clients, 8, 4, watch.chosen, 3, 0.7)  # |S| / |S| in place of |S| / N
    assert not close(watch.models[-1], mistaken[-1], 5e-3)


def test_scaffold_sends_what_follows_from_its_noisy_steps(trained):
    watch = trained("scaffold", different(), 2, 4)
    common = np.mean([t["control"].numpy() for t in watch.messages[1].values()], axis=0)
    for round_, c in ((1, np.zeros(3)), (2, common)):
        for tensors in watch.messages[round_].values():
            assert set(tensors) == {"update", "control"}
            wanted = -tensors["update"].numpy() / (4 * RATE) - c
            assert tensors["control"].numpy() == pytest.approx(wanted, rel=1e-4, abs=1e-5)


# Robust means


MINIMA = np.array([[1.0, 0.2, -1.0], [1.2, 0.0, -0.8], [0.8, -0.1, -1.3], [1.1, 0.1, -0.9]])


@pytest.mark.parametrize("bad", [[], [[1e3, -1e3, 1e3]]], ids=["even", "outlier"])
def test_the_median_rests_at_the_median(trained, bad):
    minima = [*MINIMA, *bad]
    found = trained("median", alike(minima), 45).models[-1]
    assert close(found, np.median(minima, axis=0))
    mean = trained("fedavg", alike(minima), 45).models[-1]
    assert close(mean, np.mean(minima, axis=0))
    assert np.all(np.abs(found) < 2)
    assert not bad or np.all(np.abs(mean) > 100)


def test_the_trimmed_mean_leaves_out_both_ends(trained):
    minima = [*MINIMA, [1e3, -1e3, 1e3]]
    found = trained("trimmed-mean", alike(minima), 45, options={"trim": 0.2}).models[-1]
    assert close(found, stats.trim_mean(minima, 0.2))
    two = trained("trimmed-mean", alike(minima), 45, options={"trim": 0.4}).models[-1]
    assert close(two, np.median(minima, axis=0))  # two of five at either end


def test_a_declared_size_buys_no_influence_on_the_median(trained):
    large = Quadratic([50.0, 50.0, 50.0], 40)
    found = trained("median", [large, *alike(MINIMA[:2])], 45).models[-1]
    assert close(found, np.median([large.a, *MINIMA[:2]], axis=0))


# Servers with a memory


def gradients(clients, w):
    return averaged(clients, [own.gradient(w) for own in clients])


def decayed(round_, rounds):
    """A learning rate along half a cosine."""
    return RATE * max((1 + np.cos(np.pi * round_ / (rounds - 1))) / 2, 1e-3)


def test_fedsgd_is_gradient_descent(trained):
    clients = different()
    watch = trained("fedsgd", clients, 12, schedule="cosine", server_learning_rate=0.8,
                    server_momentum=0.5)  # fmt: skip
    w, velocity = np.zeros(3), np.zeros(3)
    for round_, found in enumerate(watch.models):
        for own, tensors in zip(clients, watch.messages[round_ + 1].values(), strict=True):
            # Steps of a thousandth, in the last round, leave few digits.
            assert tensors["gradient"].numpy() == pytest.approx(own.gradient(w), rel=0.02, abs=0.01)
        rate = decayed(round_, 12)
        velocity = 0.5 * velocity - rate * gradients(clients, w)
        w = w + 0.8 * velocity
        assert close(found, w, 1e-4)
    assert close(trained("fedsgd", clients, 60).models[-1], optimum(clients, sizes(clients)))


@pytest.mark.parametrize("method", ADAPTIVE)
def test_adaptive_servers_against_the_paper(trained, method):
    clients, eta, beta1, beta2, tau = different(), 0.2, 0.8, 0.6, 0.01
    options = {"tau": tau} if method == "fedadagrad" else {"tau": tau, "beta2": beta2}
    watch = trained(method, clients, 10, 3, options, server_learning_rate=eta,
                    server_momentum=beta1)  # fmt: skip
    x, m, v = np.zeros(3), np.zeros(3), np.full(3, tau**2)
    for found in watch.models:
        ends = []
        for own in clients:
            y = x.copy()
            for _ in range(3):
                y = y - RATE * own.gradient(y)
            ends.append(y)
        delta = averaged(clients, ends) - x
        m = beta1 * m + (1 - beta1) * delta
        if method == "fedadagrad":
            v = v + delta**2
        elif method == "fedadam":
            v = beta2 * v + (1 - beta2) * delta**2
        else:
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        x = x + eta * m / (np.sqrt(v) + tau)
        assert close(found, x, 1e-4)


def test_fedprox_says_when_its_pull_has_no_effect(caplog):
    with caplog.at_level(logging.WARNING):
        for steps, mu in ((2, 0.5), (1, 0.0)):
            BUILT_IN["fedprox"](ServerStep(), mu=mu).agree(Terms(3, 3, 4, steps, lambda _: 0.1))
        assert not caplog.records
        BUILT_IN["fedprox"](ServerStep(), mu=0.5).agree(Terms(3, 3, 4, 1, lambda _: 0.1))
    assert "fedprox has no effect with training.local_steps = 1" in caplog.text


def test_adaptive_servers_warn_of_a_rate_that_is_hardly_meant(caplog):
    with caplog.at_level(logging.WARNING):
        BUILT_IN["fedadam"](ServerStep(0.01, 0.9))
        assert not caplog.records
        BUILT_IN["fedadam"](ServerStep())
    assert "server_learning_rate = 1 " in caplog.text


@pytest.mark.parametrize("top_k", [None, 2])
def test_fedmed_attends_downhill_and_averages_uphill(trained, top_k):
    clients, sharpness = different(), 2.0
    options = {"sharpness": sharpness} | ({"top_k": top_k} if top_k else {})
    # So large a step overshoots at first; later ones, which get smaller, do not.
    watch = trained("fedmed", clients, 12, options=options, server_learning_rate=3.0,
                    schedule="cosine")  # fmt: skip
    before = w = np.zeros(3)
    taken = []
    for round_, found in enumerate(watch.models):
        rate = decayed(round_, 12)
        updates = np.array([-rate * own.gradient(w) for own in clients])
        step = averaged(clients, updates)
        falls = bool(-step @ (w - before) < 0)
        taken.append(falls)
        if falls:
            distances = np.linalg.norm(updates, axis=1)
            weights = np.exp(-sharpness * distances / distances.mean())
            if top_k:
                weights[np.argsort(distances)[top_k:]] = 0
            step = weights @ updates / weights.sum()
        assert close(found, w + 3.0 * step, 1e-4)
        before, w = w, found  # overshooting blows rounding up
    assert True in taken
    assert False in taken[1:]


def test_fedmed_can_be_told_never_to_attend(trained):
    clients = different()
    plain = trained("fedavg", clients, 6, server_learning_rate=1.0).models[-1]
    for threshold, same in ((-1.0, True), (0.0, False)):
        found = trained("fedmed", clients, 6, options={"threshold": threshold},
                        server_learning_rate=1.0).models[-1]  # fmt: skip
        assert close(found, plain, 1e-5) == same
