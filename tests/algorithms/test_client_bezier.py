"""Curves at the clients: the closed form against a search, and the client step in plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import udpfl
from tests.algorithms.samples import agreed, messages
from udpfl.algorithms import Bezier, ClientBezier, ServerStep
from udpfl.algorithms.closed_form import ClosedForm

pytestmark = pytest.mark.usefixtures("one_thread")

NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)
PLACES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2
"""Exact for polynomials in r up to degree 15."""


def on_curve(r, v, theta, w):
    """The curve as the paper prints it."""
    return (1 - r) ** 2 * v + 2 * (r - r**2) * theta + r**2 * w


def searched(loss, dimension):
    return minimize(loss, np.zeros(dimension), method="BFGS", options={"gtol": 1e-10}).x


# The closed form


def theta(constants, w, v, smoothness, rate):
    moved = torch.from_numpy(v - w)
    return w + ClosedForm(constants).bend(moved, rate, smoothness).numpy()


@pytest.fixture
def ends():
    """w, a gradient there, and v by a step of 0.3; L = 2."""
    rng = np.random.default_rng(3)
    w, gradient = rng.normal(size=(2, 4))
    return w, gradient, w - 0.3 * gradient


def test_the_corrected_constants_make_the_mean_step_one_over_l(ends):
    """The paper's criterion, its moments by quadrature, its minimum by a search."""
    w, gradient, v = ends

    def miss(own):
        mean = sum(p * on_curve(r, v, own, w) for r, p in zip(PLACES, WEIGHTS, strict=True))
        return ((mean - w + gradient / 2) ** 2).sum()

    np.testing.assert_allclose(theta("corrected", w, v, 2.0, 0.3), searched(miss, 4), atol=1e-6)


def test_the_papers_constants_are_those_of_a_variance_for_a_second_moment(ends):
    w, gradient, v = ends

    def miss(own):
        first, second = 1 / 2, 1 / 12
        mean = (1 - 2 * first + second) * v + 2 * (first - second) * own + second * w
        return ((mean - w + gradient / 2) ** 2).sum()

    found = theta("paper", w, v, 2.0, 0.3)
    np.testing.assert_allclose(found, searched(miss, 4), atol=1e-6)
    np.testing.assert_allclose(found, 1.1 * w - 0.1 * v - 1.2 * gradient / 2, atol=1e-12)


def test_the_least_loss_is_where_autograd_finds_no_slope(ends):
    """F(x) = L/2 |x - c|^2 is the bound itself: its mean along the curve has its minimum there."""
    w, gradient, v = ends
    centre = torch.from_numpy(w - gradient / 2)

    def slope(constants):
        own = torch.from_numpy(theta(constants, w, v, 2.0, 0.3)).requires_grad_()
        tensors = torch.from_numpy(v), own, torch.from_numpy(w)
        loss = sum(
            p * (on_curve(r, *tensors) - centre).square().sum()
            for r, p in zip(PLACES, WEIGHTS, strict=True)
        )
        loss.backward()
        return float(own.grad.norm())

    assert slope("least-loss") < 1e-12
    assert slope("corrected") > 0.01
    assert slope("paper") > 0.01


def test_the_best_bend_between_fixed_ends_is_not_the_optimum():
    """The paper brings theta to w*. On a chain from 1 to 3 the loss w^2 wants it at -1, not 0."""

    def chain(p, bend):
        return 2 * (p * bend + (0.5 - p) * 1) if p <= 0.5 else 2 * ((p - 0.5) * 3 + (1 - p) * bend)

    def loss(bend):
        halves = ((PLACES / 2, WEIGHTS / 2), ((PLACES + 1) / 2, WEIGHTS / 2))
        return sum(
            weight * chain(p, bend[0]) ** 2
            for nodes, weights in halves
            for p, weight in zip(nodes, weights, strict=True)
        )

    assert searched(loss, 1) == pytest.approx([-1.0], abs=1e-6)


# The client half, with trainings that are written down


class Scripted:
    """Returns what it is told to, as if that had been released."""

    def __init__(self, round_, released, rate, steps, clients):
        self.round, self.released = round_, torch.from_numpy(released)
        self.clients = clients
        self.learning_rates = torch.full((len(clients),), rate)
        self.steps = torch.full((len(clients),), steps)
        self.started = None

    def __call__(self, start, correct=None, state=None):
        assert correct is None
        self.started = start
        return self.released


THETA = {"corrected": (2, -1, 3), "paper": (1.1, -0.1, 1.2), "least-loss": (1.75, -0.75, 2.5)}


def by_hand(script, options, seed):
    """What each client sends, round by round: numpy, loops, and the formulas as they are printed.

    `script` has, for each round, the model that was sent, what trainings returned, learning rate
    and steps.
    """
    a, b, c = THETA[options.get("constants", "corrected")]
    sent, kept = [], {}
    for round_, (w, released, rate, steps) in enumerate(script, 1):
        answers = []
        for name, v in zip("abc", released, strict=True):
            gradient = (w - v) / (rate * steps)
            smoothness = options.get("smoothness")
            if smoothness == "estimated":
                kept.setdefault(name, []).append((w, gradient))
                products = squares = 0.0
                for (w0, g0), (w1, g1) in zip(kept[name], kept[name][1:], strict=False):
                    products += (w1 - w0) @ (g1 - g0)
                    squares += (w1 - w0) @ (w1 - w0)
                smoothness = max(products / squares if squares else 0.0, 1 / (rate * steps))
            if smoothness is None:
                step = v - w
            elif options.get("step") == "length":
                step = (v - w) / np.linalg.norm(v - w) / smoothness
            else:
                step = -gradient / smoothness
            own = a * w + b * v + c * step
            key = [*b"curve", seed, round_, *name.encode()]
            r = options.get("r", np.random.default_rng(key).random())
            answers.append(on_curve(r, v, own, w) - w)
        sent.append(np.stack(answers))
    return sent


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"constants": "paper", "r": 0.3},
        {"constants": "least-loss", "smoothness": 4.0},
        {"smoothness": 4.0, "step": "length"},
        {"smoothness": "estimated"},
        {"smoothness": "estimated", "constants": "paper", "step": "length"},
    ],
)
def test_what_clients_send_is_what_numpy_makes_of_the_releases(options):
    rng = np.random.default_rng(0)
    script = [
        (rng.normal(size=5), rng.normal(size=(3, 5)), 0.5 / round_, 1 + round_ % 2)
        for round_ in range(1, 6)
    ]
    method = agreed(ClientBezier(ServerStep(), **options), seed=7)
    state = {}
    for round_, (wanted, (w, released, rate, steps)) in enumerate(
        zip(by_hand(script, options, 7), script, strict=True), 1
    ):
        received = {"model": torch.from_numpy(w)}
        if not state:
            fresh = method.client_init(received["model"])
            state = {name: torch.stack([own] * 3) for name, own in fresh.items()}
        train = Scripted(round_, released, rate, steps, ("a", "b", "c"))
        message, state = method.client_step(received, state, train)
        assert torch.equal(train.started, received["model"].expand(3, -1))
        assert message.keys() == {"update"}
        np.testing.assert_allclose(message["update"].numpy(), wanted, rtol=1e-5, atol=1e-6)
        assert bool(state) == (options.get("smoothness") == "estimated")


def test_one_r_for_all_makes_it_the_update_at_the_server():
    """And with a step that is linear in v. With an r for each client it is another one."""
    rng = np.random.default_rng(1)
    w, released = rng.normal(size=5), rng.normal(size=(3, 5))
    train = Scripted(3, released, 0.5, 1, ("a", "b", "c"))
    received = {"model": torch.from_numpy(w)}
    updates = [(v - w).tolist() for v in released]
    for constants in ("corrected", "paper", "least-loss"):
        at_server = Bezier(ServerStep(), constants=constants, r=0.4)
        wanted = at_server.aggregate(
            {"model": received["model"].float()}, messages(updates, [1, 2, 5])
        )["model"]
        found = {}
        for r in (0.4, None):
            method = agreed(ClientBezier(ServerStep(), constants=constants, r=r))
            sent = method.client_step(received, {}, train)[0]["update"].float()
            answers = messages([row.tolist() for row in sent], [1, 2, 5])
            found[r] = method.aggregate({"model": received["model"].float()}, answers)["model"]
        torch.testing.assert_close(found[0.4], wanted)
        assert (found[None] - wanted).norm() > 0.05


def test_each_client_draws_its_own_r_in_each_round():
    """w = 0, v = 1: the update is 1 + 2r - 3r^2, with mean 1 and variance 2/15."""
    method = agreed(ClientBezier(ServerStep()))
    names = tuple(f"client-{number}" for number in range(40))
    received, found = {"model": torch.zeros(1, dtype=torch.float64)}, []
    for round_ in range(1, 101):
        train = Scripted(round_, np.ones((40, 1)), 0.5, 1, names)
        found.append(method.client_step(received, {}, train)[0]["update"][:, 0].numpy())
    drawn = np.stack(found)
    assert len(np.unique(drawn)) > 0.99 * drawn.size  # near its peak two may be equal
    assert drawn.mean() == pytest.approx(1.0, abs=4 * np.sqrt(2 / 15 / drawn.size))
    assert drawn.var() == pytest.approx(2 / 15, rel=0.1)
    other = agreed(ClientBezier(ServerStep()), seed=1)
    train = Scripted(1, np.ones((40, 1)), 0.5, 1, names)
    assert not np.allclose(other.client_step(received, {}, train)[0]["update"][:, 0], drawn[0])


@given(st.floats(0.05, 20), st.integers(1, 4), st.integers(0, 2**31))
def test_without_noise_the_estimate_is_the_curvature(curvature, rounds, seed):
    """Of a loss that curves the same in every direction."""
    rng = np.random.default_rng(seed)
    method = agreed(ClientBezier(ServerStep(), smoothness="estimated", r=0.0))
    w = rng.normal(size=3)
    state = {
        name: own[None] for name, own in method.client_init(torch.from_numpy(w)).items()
    }  # fmt: skip
    for round_ in range(1, rounds + 2):
        # r = 0 sends v; the mean over r is where the estimate shows.
        train = Scripted(round_, (w - 0.5 * curvature * w)[None], 0.5, 1, ("a",))
        _, state = method.client_step({"model": torch.from_numpy(w)}, state, train)
        w = w + rng.normal(size=3)
    products, squares = state["sums"][0].tolist()
    assert products / squares == pytest.approx(curvature, rel=1e-6)


def test_an_estimate_never_lengthens_a_step():
    """Gradients that fall along the way have a negative slope: the step is v - w then."""
    method = agreed(ClientBezier(ServerStep(), smoothness="estimated", r=0.5))
    plain = agreed(ClientBezier(ServerStep(), r=0.5))
    state = {name: own[None] for name, own in method.client_init(torch.zeros(2)).items()}
    for round_, w in enumerate(([0.0, 0.0], [1.0, 0.0], [2.0, 0.0]), 1):
        train = Scripted(round_, np.array([[2.0 * w[0] + 1, 1.0]]), 0.5, 3, ("a",))
        received = {"model": torch.tensor(w)}
        sent, state = method.client_step(received, state, train)
        wanted = plain.client_step(received, {}, train)[0]
        torch.testing.assert_close(sent["update"], wanted["update"])


def test_a_client_that_did_not_move_sends_nothing():
    for options in ({}, {"smoothness": 2.0}, {"smoothness": 2.0, "step": "length"},
                    {"smoothness": "estimated"}):  # fmt: skip
        method = agreed(ClientBezier(ServerStep(), **options))
        model = torch.tensor([1.0, -2.0])
        state = {name: own[None] for name, own in method.client_init(model).items()}
        train = Scripted(1, model[None].numpy(), 0.5, 1, ("a",))
        sent, kept = method.client_step({"model": model}, state, train)
        assert torch.equal(sent["update"], torch.zeros(1, 2))
        assert all(torch.isfinite(own).all() for own in kept.values())


# Whole runs


def blobs():
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    return (rng.normal(size=(120, 4)) + 3 * np.eye(4)[labels]).astype(np.float32), labels


def trained(folder, algorithm, unit="record", **training):
    """The messages of a run whose noise is drawn from a seed."""
    sent = []

    class Listener(udpfl.Observer):
        def on_message(self, message):
            sent.append(message)

    result = udpfl.run(
        {
            "out": str(folder),
            "threads": 1,
            "data": {"clients": 3},
            "model": {"name": "logistic"},
            "privacy": {"mechanism": "gaussian", "accountant": "rdp", "randomness": "seeded",
                        "unit": unit, "delta": 1e-3},
        },
        data=blobs(),
        training={"algorithm": algorithm, "rounds": 2, "local_steps": 2, **training},
        observers=[Listener()],
    )  # fmt: skip
    return result, sent


@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_message_is_the_released_update_times_a_public_number(tmp_path, unit):
    """The same releases as federated averaging has in its first round, and the same price."""
    plain, first = trained(tmp_path / "plain", "fedavg", unit)
    curved, second = trained(tmp_path / "curved", "client-bezier", unit)
    assert curved.privacy == plain.privacy
    for one, other in zip(first[:3], second[:3], strict=True):
        assert one.events == other.events
        r = np.random.default_rng([*b"curve", 0, 1, *one.client.encode()]).random()
        share = (1 - r) ** 2 + 4 * (r - r**2)
        torch.testing.assert_close(
            other.tensors["update"], share * one.tensors["update"], rtol=1e-5, atol=1e-6
        )
