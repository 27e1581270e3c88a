"""The Bezier update by hand, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.algorithms.samples import agreed, messages, prepared
from udpfl.algorithms import Bezier, ServerStep

pytestmark = pytest.mark.usefixtures("one_thread")


# The Bezier update, by hand: w = (1, 2), updates (3, 0) and (0, 8) of sizes 1 and 1, so the mean is
# (1.5, 4), v = (2.5, 6), |v - w| = sqrt(18.25)


@pytest.mark.parametrize(
    ("options", "theta"),
    [
        # 2w - v + 3 (v - w) = 2v - w
        ({}, (4.0, 10.0)),
        # 1.1 w - 0.1 v + 1.2 (v - w) = 1.1 v - 0.1 w
        ({"constants": "paper"}, (2.65, 6.4)),
        # 1.75 w - 0.75 v + 2.5 (v - w) = 1.75 v - 0.75 w
        ({"constants": "least-loss"}, (3.625, 9.0)),
        # 2w - v + 3/2 u, u = (1.5, 4) / 4.272001873
        (
            {"smoothness": 2.0, "step": "length"},
            (-0.5 + 1.5 * 0.351123442, -2.0 + 1.5 * 0.936329178),
        ),
        # 1.1 w - 0.1 v + 0.6 u
        (
            {"smoothness": 2.0, "step": "length", "constants": "paper"},
            (0.85 + 0.6 * 0.351123442, 1.6 + 0.6 * 0.936329178),
        ),
        # Four steps of 0.25 make v - w minus the mean gradient: 2w - v + 3/2 (v - w)
        ({"smoothness": 2.0}, (1.75, 4.0)),
    ],
)
@pytest.mark.parametrize("r", [0.0, 0.25, 1.0])
def test_the_bezier_update_by_hand(options, theta, r):
    method = agreed(Bezier(ServerStep(), r=r, **options), rate=0.25, local_steps=4)
    found = method.aggregate(
        {"model": torch.tensor([1.0, 2.0])}, messages([[3.0, 0.0], [0.0, 8.0]], [5, 5])
    )["model"]
    of_v, of_theta, of_w = {0.0: (1, 0, 0), 0.25: (0.5625, 0.375, 0.0625), 1.0: (0, 0, 1)}[r]
    wanted = [
        of_v * v + of_theta * t + of_w * w
        for v, t, w in zip((2.5, 6.0), theta, (1.0, 2.0), strict=True)
    ]
    assert found.tolist() == pytest.approx(wanted, rel=1e-5)


def test_the_mean_over_r_is_the_step_with_the_corrected_constants_only():
    """Simpson's rule is exact for a quadratic in r: the weights are 1/6, 4/6, 1/6."""
    sent = messages([[3.0, 4.0]], [1])
    means = {}
    for constants in ("corrected", "paper"):
        ends = []
        for r in (0.0, 0.5, 1.0):
            method = Bezier(ServerStep(), constants=constants, smoothness=0.5, step="length", r=r)
            ends.append(agreed(method).aggregate({"model": torch.zeros(2)}, sent)["model"])
        means[constants] = (ends[0] + 4 * ends[1] + ends[2]) / 6
    assert means["corrected"].tolist() == pytest.approx([1.2, 1.6])  # length 2 = 1/L along (3, 4)
    assert means["paper"].norm() != pytest.approx(2.0, rel=0.05)


def test_r_is_drawn_from_the_round_and_uniform():
    method = prepared(Bezier(ServerStep()))
    server = {"model": torch.zeros(1)}
    found = []
    for round_ in range(1, 2001):
        sent = messages([[1.0]], [1], round_)
        found.append(float(method.aggregate(server, sent)["model"]))
    # w = 0, v = 1 and theta = 2: (1 - r)^2 + 4 (r - r^2) = 1 + 2r - 3r^2, from 0 to 4/3
    assert 0 <= min(found) < 0.01
    assert 1.33 < max(found) < 4 / 3 + 1e-6
    again = float(method.aggregate(server, messages([[1.0]], [1], 7))["model"])
    assert again == found[6]
    # Its mean is 1, its variance 4/12 + 9 * 4/45 - 12 * (1/4 - 1/6) = 2/15.
    assert np.mean(found) == pytest.approx(1.0, abs=4 * math.sqrt(2 / 15 / 2000))
    assert np.var(found) == pytest.approx(2 / 15, rel=0.15)


def test_an_update_of_nothing_stays():
    method = agreed(Bezier(ServerStep(), smoothness=1.0, step="length", r=0.5))
    found = method.aggregate({"model": torch.tensor([2.0])}, messages([[0.0]], [1]))["model"]
    assert found.tolist() == [2.0]
