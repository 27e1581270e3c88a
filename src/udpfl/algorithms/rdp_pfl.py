"""RDP-PFL, as the UDP-FL paper calls it: DP-PFL, personalised learning with noise in two stages.

The authors call it DP-PFL; the R is for the Rényi divergences by which they account. A model is
sought from which a step on a client's own records leads far (meta-learning). In a round a client

    inner stage   adapts:  w' = w - alpha g(w)
    outer stage   moves:   w - beta g(w')

where g(w) is a gradient at w with clip and Gaussian noise. Both stages use records, so both are
releases; a budget is shared among them. The server averages what came of the outer stage.

What could be confirmed is the abstract: two stages of gradient descent in each local training, a
scheme that allocates the budget to the inner and the outer updates by Rényi composition, and
averaging. How the authors weigh the stages, and which part of the second derivatives in the outer
gradient they keep, could not be confirmed. So this is a reading: both stages have the same noise,
which is as much for each, and the second derivatives are left out (first-order meta-learning, as in
the cheaper variant of Per-FedAvg), because they would be a third release.

What is trained and tested is the common model. A client that wants its own takes another step on
its records, which stays with it and costs nothing as long as nobody else sees it.

References: Wei, Li, Ma, Ding, Chen, Wu, Tao and Poor 2023, "Personalized federated learning with
differential privacy and convergence guarantee", IEEE TIFS 18; Fallah, Mokhtari and Ozdaglar 2020,
"Personalized federated learning with theoretical guarantees" (Per-FedAvg).
"""

from __future__ import annotations

import math

from udpfl.algorithms.base import NOISY_UPDATE, LocalTraining, ServerStep
from udpfl.algorithms.fedavg import FedAvg
from udpfl.algorithms.message import Tensors
from udpfl.errors import InvalidInput


class RdpPfl(FedAvg):
    """Clients send how far the outer stage leads them from where the inner one ended.

    `training.learning_rate` is beta, and `training.local_steps` the steps of each stage.

    Guarantee: both stages consist of releases that are charged, and noise is planned for twice as
    many as there are local steps.

    Args:
        server: How the server moves.
        inner: How far the inner stage goes, as a part of a stage of its own: alpha / beta. With 0
            this is fedavg at twice the price.

    Raises:
        InvalidInput: `inner` is not a number from 0.

    Example:
        >>> from udpfl.algorithms import RdpPfl, ServerStep
        >>> RdpPfl(ServerStep()).trainings
        2
    """

    name = "rdp-pfl"
    paper = (
        "Wei et al. 2023, Personalized federated learning with differential privacy and "
        "convergence guarantee (our interpretation: equal noise in both stages, first order)"
    )
    trainings = 2
    without_records = "stays"
    releases = "update: how far the outer stage leads from the adapted model"
    guarantee = f"{NOISY_UPDATE}; the inner and the outer stage cost the same."

    def __init__(self, server: ServerStep, *, inner: float = 0.1) -> None:
        super().__init__(server)
        if isinstance(inner, bool) or not (math.isfinite(inner) and inner >= 0):
            raise InvalidInput("training.options.inner", f"must be a number from 0, got {inner!r}")
        self.inner = float(inner)

    def client_step(
        self, received: Tensors, state: Tensors, train: LocalTraining
    ) -> tuple[Tensors, Tensors]:
        start = received["model"].expand(len(train.clients), -1)
        adapted = start + self.inner * (train(start) - start)
        return {"update": train(adapted) - adapted}, state
