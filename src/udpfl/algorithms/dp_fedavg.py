"""Federated averaging that hides whole clients: one noise on the sum of clipped updates.

Each client tosses a coin of its own, trains as it likes, clips its whole update and sends it to a
server that everyone trusts. The server adds noise to the sum, divides it by the expected number of
participants, a public constant, and publishes nothing else.

References: McMahan et al. 2018, "Learning differentially private recurrent language models",
Algorithm 1 (fixed-denominator estimator); Geyer et al. 2017, "Differentially private federated
learning: a client level perspective", Algorithm 1 (there the clip is the median norm of the round,
which is itself a use of private data; here it is a constant).
"""

from __future__ import annotations

from udpfl.algorithms.base import ServerStep
from udpfl.algorithms.fedavg import FedAvg
from udpfl.errors import InvalidInput


class DpFedAvg(FedAvg):
    """A round releases one noisy mean of whole updates, for privacy.unit = "client".

    Guarantee: whoever sees the models, and not what reaches the server, learns of a client what
    noise on a Poisson-sampled sum tells. Every client pays in every round, whether its coin let it
    take part or not.

    Args:
        server: How the server moves.
        participation: Probability in (0, 1] that a client takes part in a round.

    Raises:
        InvalidInput: `participation` is out of range.

    Example:
        >>> from udpfl.algorithms import DpFedAvg, ServerStep
        >>> DpFedAvg(ServerStep(), participation=0.5).participation
        0.5
    """

    name = "dp-fedavg"
    paper = "McMahan et al. 2018, Learning differentially private recurrent language models"
    releases = (
        "update: clipped as a whole, sent to a trusted server, which publishes one noisy mean"
    )
    unit = "client"
    guarantee = (
        "Against everyone who sees the models but not the updates that the server receives: one "
        "client is hidden by the noise on a sampled sum of clipped updates."
    )
    trusts_server = True

    def __init__(self, server: ServerStep, *, participation: float = 1.0) -> None:
        super().__init__(server)
        if isinstance(participation, bool) or not 0 < participation <= 1:
            raise InvalidInput(
                "training.options.participation",
                f"must be a probability above 0, got {participation!r}",
            )
        self.participation = float(participation)
