"""The loss itself as the score: members have a smaller one. The attack to beat.

References: Yeom, Giacomelli, Fredrikson, Jha, "Privacy Risk in Machine Learning: Analyzing the
Connection to Overfitting", CSF 2018, Adversary 1.
"""

from __future__ import annotations

import time

import numpy as np

from udpfl.attacks.base import Attack, AttackResult, Progress, silent
from udpfl.attacks.membership._options import RecordOptions
from udpfl.attacks.membership._signals import cross_entropies
from udpfl.attacks.membership._verdict import ONE_TRAINING, result_of
from udpfl.attacks.membership.statistics import Scores
from udpfl.attacks.pool import Pool
from udpfl.attacks.target import Target


class LossThreshold(Attack):
    """Flags records with a small loss."""

    name = "loss"
    kind = "membership"
    what = "flags records on which the final model has a small loss; needs no shadow models"
    needs = "the final model, the record and its label"
    paper = "Yeom et al., Privacy Risk in Machine Learning, 2018"
    options_type = RecordOptions

    def run(self, target: Target, progress: Progress = silent) -> AttackResult:
        began = time.perf_counter()
        assert isinstance(self.options, RecordOptions)
        pool = Pool.of(target, self.options.records, self.seed)
        progress("computing losses", 0, 1)
        losses = cross_entropies(target, target.parameters, pool.inputs, pool.targets)
        # Its own threshold is the mean loss over members, as in the paper.
        scores = Scores(-losses, pool.is_member, -float(np.mean(losses[pool.is_member])))
        return result_of(
            self,
            target.described("the final model", pool.described),
            target.privacy,
            scores,
            seconds=time.perf_counter() - began,
            notes=(ONE_TRAINING, "Its own threshold is the mean loss of the members."),
        )
