"""ALS-DPFL: the server shares out the local steps over the rounds, as its estimates suggest.

The authors' first version is called ALS-DPFL ("adaptive local steps"), later ones ALI-DPFL
("adaptive local iterations"). Clients run DP-SGD; a budget allows so many steps in all, and so many
rounds are affordable. From a bound on the convergence for strongly convex losses the authors derive
how many steps a round should have, and compute it anew after each:

    tau^2 = 1 + (4 / mu^2 + 3 C^2 + 2 Gamma T mu + V) / ((2 + 2 / T) (C^2 + V))

with T the steps that all rounds would have at the last tau, as far as the budget allows, C^2 the
squared length of a gradient, V that of its noise, mu the curvature, and Gamma how far the clients'
losses lie apart. The formula is in their public code.

They estimate mu and Gamma by losses and gradients on the clients' records, without noise: releases
that nobody charges. Here all four are estimated from what was released. With D the mean of the
updates of a round of tau steps at learning rate eta, and g = -D / (eta tau):

    C^2    |g|^2
    V      the spread of the clients' updates around D, over eta^2 tau
    mu     how far g has changed since the round before, over how far the model has moved
    Gamma  |<g, D>|, the change of the loss to first order

so that adapting costs nothing. What the noise does to these estimates is not taken out.

The total is settled before the run: `training.rounds` times `training.local_steps` steps, all with
the same noise. Whatever is estimated, the last round has what is left, and every round has one step
at least: so the total is the same for every outcome, and the accountants for releases that were
settled beforehand apply.

References: Ling, Fu, Wang, Liu and Chen 2023, "Adaptive local steps federated learning with
differential privacy driven by convergence analysis", arXiv 2308.10457v1; from v2 on "ALI-DPFL:
Differentially private federated learning with adaptive local iterations".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from udpfl.algorithms.base import NOISY_UPDATE, Algorithm, ServerStep, Terms, weighted_mean
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.algorithms.rows import rows_of
from udpfl.errors import InvalidInput


class AlsDpfl(Algorithm):
    """Federated averaging; rounds have as many local steps as the last estimates ask for.

    `training.local_steps` is the mean over all rounds, and what the first one has.

    Guarantee: clients take `training.rounds` times `training.local_steps` steps in all, however
    they are shared out, and each is charged; what decides about it was released.

    Args:
        server: How the server moves.
        most: Steps of a round at most.

    Raises:
        InvalidInput: `most` is not a whole number from 1.

    Example:
        >>> from udpfl.algorithms import AlsDpfl, ServerStep
        >>> AlsDpfl(ServerStep(), most=8).shares_steps
        True
    """

    name = "als-dpfl"
    paper = (
        "Ling et al. 2023, Adaptive local steps federated learning with differential privacy "
        "driven by convergence analysis (our interpretation: estimates from released updates)"
    )
    shares_steps = True
    releases = "update: how far the client moved in its local steps"
    guarantee = f"{NOISY_UPDATE}; how many steps a round has depends on released updates alone."

    def __init__(self, server: ServerStep, *, most: int = 20) -> None:
        super().__init__(server)
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InvalidInput(
                "training.options.most", f"must be a whole number from 1, got {most!r}"
            )
        self.most = most

    def agree(self, terms: Terms) -> None:
        if terms.clients_per_round < terms.clients:
            raise InvalidInput(
                "training.clients_per_round",
                f"{self.name} needs all clients in every round: the local steps are shared out "
                "over the rounds, and every client has to have as many in all",
            )
        if terms.local_steps > self.most:
            raise InvalidInput(
                "training.options.most",
                f"must be at least training.local_steps = {terms.local_steps}, got {self.most}",
            )
        super().agree(terms)

    def init(self, parameters: Tensor) -> Tensors:
        total = self.terms.rounds * self.terms.local_steps
        return {
            **self.server.init(parameters),
            "steps": torch.tensor(self.terms.local_steps),
            "left": torch.tensor(total),
            "before": parameters.clone(),
            "gradient": torch.zeros_like(parameters),
        }

    def steps(self, server: Tensors) -> int:
        return int(server["steps"])

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        round_, taken = messages[0].round, int(server["steps"])
        rate, mean = self.terms.learning_rate(round_), weighted_mean(messages, "update")
        gradient = -mean / (rate * taken)
        wanted = self._wanted(server, gradient, rows_of(messages, "update") - mean, rate)
        left, rounds = int(server["left"]) - taken, self.terms.rounds - round_
        least = max(1, left - self.most * (rounds - 1))
        most = min(self.most, left - (rounds - 1))
        steps = max(1, min(max(wanted, least), most))
        return {
            **self.server.apply(server, mean),
            "steps": torch.tensor(steps),
            "left": torch.tensor(left),
            "before": server["model"],
            "gradient": gradient,
        }

    def _wanted(self, server: Tensors, gradient: Tensor, apart: Tensor, rate: float) -> int:
        """What the authors' formula asks for, between 1 and `most`."""
        taken, clients = int(server["steps"]), len(apart)
        moved = float((server["model"] - server["before"]).double().norm())
        if clients < 2 or not moved:  # nothing to estimate from
            return taken
        square = float(gradient.double().square().sum())
        noise = float(apart.double().square().sum()) / (clients - 1) / (rate**2 * taken)
        curvature = float((gradient - server["gradient"]).double().norm()) / moved
        gap = square * rate * taken
        total = min(self.terms.rounds * taken, self.terms.rounds * self.terms.local_steps)
        above = 3 * square + 2 * gap * total * curvature + noise
        above += 4 / curvature**2 if curvature else math.inf
        below = (2 + 2 / total) * (square + noise)
        ratio = above / below if below else math.inf
        return min(self.most, max(1, round(math.sqrt(1 + min(ratio, 1e12)))))
