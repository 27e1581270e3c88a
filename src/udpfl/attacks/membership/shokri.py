"""Shadow models as in the first paper: learn from them how a model speaks of what it has seen.

What each shadow says of a record, and whether that was in it, is one example. One small network for
each class learns to tell the two apart, and is asked about what the target says.

Reference: Shokri, Stronati, Song, Shmatikov, "Membership Inference Attacks Against Machine Learning
Models", IEEE S&P 2017, Section V. Features: the sorted log-probabilities, the one of the label and
whether it is the largest, as in Liu et al., "ML-Doctor", USENIX Security 2022.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from udpfl.attacks.base import Attack, AttackResult, Progress, silent
from udpfl.attacks.membership._evidence import Evidence, gather
from udpfl.attacks.membership._options import ShadowOptions
from udpfl.attacks.membership._signals import log_sum_exp
from udpfl.attacks.membership._verdict import ONE_TRAINING, result_of
from udpfl.attacks.membership.statistics import Scores
from udpfl.attacks.pool import Pool
from udpfl.attacks.shadows import shadow_models
from udpfl.attacks.target import Target
from udpfl.config.section import Count, Positive
from udpfl.mechanisms.arrays import Floats

_BATCH = 64


class ShokriOptions(ShadowOptions):
    """Settings of the attack."""

    shadows: Count = Field(default=16, description="Shadow models, an even number.")
    hidden: Count = Field(default=64, description="Units of the networks that are learned.")
    epochs: Count = Field(default=30, description="Passes over the examples.")
    learning_rate: Positive = Field(default=1e-3, description="Of Adam.")


class Shokri(Attack):
    """One network for each class that learns members' looks from shadows."""

    name = "shokri"
    kind = "membership"
    what = "learns from shadow models how a model speaks of records that it was trained on"
    needs = "what the final model says, the method and its settings, and similar records"
    paper = "Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017"
    options_type = ShokriOptions

    def run(self, target: Target, progress: Progress = silent) -> AttackResult:
        began = time.perf_counter()
        own = self.options
        assert isinstance(own, ShokriOptions)
        pool = Pool.of(target, own.records, self.seed)
        shadows = shadow_models(target, pool, own.shadows, self.seed, progress)
        evidence = gather(target, pool, shadows, 1, progress)
        found = learned_scores(evidence, own, self.seed, progress)
        return result_of(
            self,
            target.described("the final model", pool.described),
            target.privacy,
            Scores(found, pool.is_member, 0.0),
            seconds=time.perf_counter() - began,
            notes=(
                ONE_TRAINING,
                f"{own.shadows} shadow models on overlapping halves, where the paper has disjoint "
                "sets; the same record is seen in some of them and not in others.",
            ),
        )


def learned_scores(
    evidence: Evidence, options: ShokriOptions, seed: int, progress: Progress = silent
) -> Floats:
    """The log-odds of "member" that the network of its class gives each record [n]."""
    labels = evidence.labels.numpy()
    shown = [features(model[0], labels) for model in evidence.shadows]
    asked = features(evidence.target[0], labels)
    found = np.zeros(len(labels))
    classes = np.unique(labels)
    for number, label in enumerate(classes):
        progress("learning to attack", number, len(classes))
        rows = np.flatnonzero(labels == label)
        x = torch.from_numpy(np.concatenate([own[rows] for own in shown])).float()
        y = torch.from_numpy(np.concatenate([keep[rows] for keep in evidence.keep])).float()
        query = torch.from_numpy(asked[rows]).float()
        found[rows] = _learned(x, y, query, options, seed + int(label))
    return found


def features(scores: Floats, labels: NDArray[np.int64]) -> Floats:
    """Sorted log-probabilities, that of the label, and whether it is the largest [n, classes + 2].

    Args:
        scores: Of every class [n, classes].
        labels: [n].
    """
    logs = scores - log_sum_exp(scores)[:, None]
    own = logs[np.arange(len(labels)), labels]
    right = scores.argmax(axis=1) == labels
    return np.column_stack([-np.sort(-logs, axis=1), own, right])


def _learned(x: Tensor, y: Tensor, query: Tensor, own: ShokriOptions, seed: int) -> Floats:
    """Train one network on examples, and ask it [n]."""
    mean, spread = x.mean(0), x.std(0).clamp(min=1e-6)
    x, query = (x - mean) / spread, (query - mean) / spread
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(x.shape[1], own.hidden), nn.ReLU(), nn.Linear(own.hidden, 1)
        )
        optimiser = torch.optim.Adam(network.parameters(), lr=own.learning_rate)
        with torch.enable_grad():
            for _ in range(own.epochs):
                for rows in torch.randperm(len(x)).split(_BATCH):
                    loss = nn.functional.binary_cross_entropy_with_logits(
                        network(x[rows])[:, 0], y[rows]
                    )
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
    with torch.no_grad():
        answers: Floats = network(query)[:, 0].double().numpy()
    return answers
