"""The loss itself as the score: members have a smaller one. The attack to beat.

References: Yeom, Giacomelli, Fredrikson, Jha, "Privacy Risk in Machine Learning: Analyzing the
Connection to Overfitting", CSF 2018, Adversary 1.
"""

from __future__ import annotations

import numpy as np

from udpfl.attacks.base import Progress
from udpfl.attacks.membership._frame import RecordAttack, Scored
from udpfl.attacks.membership._options import RecordOptions
from udpfl.attacks.membership._signals import cross_entropies
from udpfl.attacks.pool import Pool
from udpfl.attacks.target import Target


class LossThreshold(RecordAttack[RecordOptions]):
    """Flags records with a small loss."""

    name = "loss"
    what = "flags records on which the final model has a small loss; needs no shadow models"
    needs = "the final model, the record and its label"
    paper = "Yeom et al., Privacy Risk in Machine Learning, 2018"
    options_type = RecordOptions

    def scored(self, target: Target, pool: Pool, progress: Progress) -> Scored:
        progress("computing losses", 0, 1)
        losses = cross_entropies(target, target.parameters, pool.inputs, pool.targets)
        # Its own threshold is the mean loss over members, as in the paper.
        threshold = -float(np.mean(losses[pool.is_member]))
        return Scored(-losses, threshold, ("Its own threshold is the mean loss of the members.",))
