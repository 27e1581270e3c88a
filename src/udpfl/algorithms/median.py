"""The coordinate-wise median of what the clients learned: a few bad clients cannot move it far.

References: Yin et al. 2018, "Byzantine-robust distributed learning: optimal statistical rates",
Definition 1 and Algorithm 1 (option I). They take the median of gradients, one a round; here it is
the median of updates, which with one local step is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from udpfl.algorithms.base import NOISY_UPDATE, Algorithm
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.algorithms.rows import rows_of


class Median(Algorithm):
    """The server moves by the median of the updates in every coordinate.

    Every client counts the same, whatever its size: a declared size must not buy influence. The
    server's learning rate and momentum act on the median as they do on the mean of fedavg. Fewer
    than half of the clients cannot take a coordinate outside the range of the others. Of many
    clients with Gaussian noise the median is about 1.25 times as wide as the mean; with Laplace
    noise and one local step it is narrower.

    Guarantee: an update is a sum of clipped and noised gradients, or clipped and noised as a whole
    where clients are hidden, and costs what that costs; what the server makes of it costs nothing.
    """

    name = "median"
    paper = "Yin et al. 2018, Byzantine-robust distributed learning: optimal statistical rates"
    releases = "update: how far the client moved in its local steps"
    guarantee = f"{NOISY_UPDATE}."

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        return self.server.apply(server, _median(rows_of(messages, "update")))


def _median(rows: Tensor) -> Tensor:
    """The middle row in every coordinate; the mean of the two middle ones of an even number."""
    ordered = rows.sort(0).values
    return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2
