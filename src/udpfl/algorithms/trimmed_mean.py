"""The mean of what the clients learned without the most extreme of them, in every coordinate.

References: Yin et al. 2018, "Byzantine-robust distributed learning: optimal statistical rates",
Definition 2 and Algorithm 1 (option II), there for gradients, one a round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from udpfl.algorithms.base import NOISY_UPDATE, Algorithm, ServerStep, Terms
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.algorithms.rows import rows_of
from udpfl.errors import InvalidInput


class TrimmedMean(Algorithm):
    """In every coordinate the `trim` share of the largest and of the smallest updates is left out.

    Of m updates that is the whole part of trim times m at either end; the others count the same,
    whatever their size. The server's learning rate and momentum act as they do in fedavg. Close to
    the median for `trim` near 1/2, and less wide under Gaussian noise the smaller it is.

    Guarantee: an update is a sum of clipped and noised gradients, or clipped and noised as a whole
    where clients are hidden, and costs what that costs; what the server makes of it costs nothing.
    """

    name = "trimmed-mean"
    paper = "Yin et al. 2018, Byzantine-robust distributed learning: optimal statistical rates"
    releases = "update: how far the client moved in its local steps"
    guarantee = f"{NOISY_UPDATE}."

    def __init__(self, server: ServerStep, *, trim: float = 0.1) -> None:
        super().__init__(server)
        if not 0 < trim < 0.5:
            raise InvalidInput(
                "training.options.trim", f"must be a number between 0 and 1/2, got {trim!r}"
            )
        self.trim = trim

    def agree(self, terms: Terms) -> None:
        if not self._left_out(terms.clients_per_round):
            raise InvalidInput(
                "training.options.trim",
                f"{self.trim:g} of {terms.clients_per_round} clients per round is less than one "
                f"client: nothing would be left out",
            )
        super().agree(terms)

    def _left_out(self, clients: int) -> int:
        """How many at either end; a product that is whole but for rounding counts as whole."""
        return math.floor(self.trim * clients + 1e-9)

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        ordered = rows_of(messages, "update").sort(0).values
        least = self._left_out(len(messages))
        return self.server.apply(server, ordered[least : len(messages) - least].mean(0))
