"""Algorithm 1 of the paper, as printed, next to what is done here (docs/mathematics.md §8)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from udpfl import ClientMessage, Gaussian
from udpfl.algorithms import FedAvg, ServerStep
from udpfl.data.medical_mnist import SOURCE


def as_printed(noise, *, penalty=0.0, epochs=2, clip=1.0, rate=0.1):
    """The client of Algorithm 1, line by line; what it sends."""
    rng, sent = np.random.default_rng(7), []
    records = rng.normal(size=(20, 3))
    w, largest = np.zeros(3), np.ones(3)
    for _ in range(epochs):
        for x in records[rng.random(20) < 0.5]:
            g = w - x
            g = g * min(1, clip / np.linalg.norm(g))
            g + noise.sample(3, np.random.default_rng())  # "Add noise g + Noise": to nothing
            w = w - rate * (g + penalty * (w - largest))  # "Update w <- w - eta g"
        sent.append(w)  # "Send w to Server", inside the loop over local epochs
    return sent


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_the_printed_algorithm_never_applies_its_noise(penalty):
    """Neither the update nor the rule with the penalty reads the noisy gradient."""
    first, second = (as_printed(Gaussian(1e6), penalty=penalty) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert np.abs(first[-1]).max() < 2  # with a noise of a million


def test_the_printed_algorithm_sends_a_model_in_every_local_epoch():
    assert len(as_printed(Gaussian(1.0), epochs=2)) == 2
    assert len(as_printed(Gaussian(1.0), epochs=5)) == 5


def test_the_printed_weights_of_the_average_do_not_sum_to_one():
    """w <- N/n sum of p_k w_k over the chosen: clients that agree would be moved away."""
    sizes, chosen = np.array([500.0, 250.0, 250.0]), [0]
    shares = sizes / sizes.sum()
    assert len(sizes) / len(chosen) * shares[chosen].sum() == pytest.approx(1.5)
    method = FedAvg(ServerStep())
    messages = [
        ClientMessage(f"c{k}", 1, {"update": torch.full((4,), 3.0)}, (), {"declared_size": int(n)})
        for k, n in enumerate(sizes)
    ]
    for some in ([0], [1, 2], [0, 1, 2]):
        state = method.aggregate(method.init(torch.zeros(4)), [messages[k] for k in some])
        assert torch.allclose(state["model"], torch.full((4,), 3.0))


def test_the_cross_entropy_of_a_network_is_not_convex_in_its_weights():
    """Swapping two hidden units gives the same network, and the way between both is worse."""
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    for _ in range(300):
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    order = torch.arange(8).roll(3)
    own = {name: value.detach() for name, value in net.named_parameters()}
    swapped = {
        "0.weight": own["0.weight"][order],
        "0.bias": own["0.bias"][order],
        "2.weight": own["2.weight"][:, order],
        "2.bias": own["2.bias"],
    }
    between = {name: (own[name] + swapped[name]) / 2 for name in own}

    def loss(weights):
        return float(functional.cross_entropy(torch.func.functional_call(net, weights, x), y))

    assert loss(swapped) == pytest.approx(loss(own), rel=1e-4)
    assert loss(between) > 2 * loss(own)


def test_medical_mnist_is_smaller_than_printed_and_has_six_classes():
    """Not 60,000 images in 10 classes."""
    assert SOURCE.samples.startswith("58,954 grey, 6 classes")
