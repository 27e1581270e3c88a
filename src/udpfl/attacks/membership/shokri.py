"""Shadow models as in the first paper: learn from them how a model speaks of what it has seen.

What each shadow says of a record, and whether that was in it, is one example. One small network for
each class learns to tell the two apart, and is asked about what the target says.

Reference: Shokri, Stronati, Song, Shmatikov, "Membership Inference Attacks Against Machine Learning
Models", IEEE S&P 2017, Section V. Features: the sorted log-probabilities, the one of the label and
whether it is the largest, as in Liu et al., "ML-Doctor", USENIX Security 2022.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from udpfl.attacks.base import Progress, silent
from udpfl.attacks.membership._evidence import Evidence
from udpfl.attacks.membership._frame import Scored, ShadowAttack
from udpfl.attacks.membership._options import ShadowOptions
from udpfl.attacks.membership._signals import log_sum_exp
from udpfl.config.section import Count, Positive
from udpfl.mechanisms.arrays import Floats

_BATCH = 64


class ShokriOptions(ShadowOptions):
    """Settings of the attack."""

    shadows: Count = Field(default=16, description="Shadow models, an even number.")
    hidden: Count = Field(default=64, description="Units of the networks that are learned.")
    epochs: Count = Field(default=30, description="Passes over the examples.")
    learning_rate: Positive = Field(default=1e-3, description="Of Adam.")


class Shokri(ShadowAttack[ShokriOptions]):
    """One network for each class that learns members' looks from shadows."""

    name = "shokri"
    what = "learns from shadow models how a model speaks of records that it was trained on"
    needs = "what the final model says, the method and its settings, and similar records"
    paper = "Shokri et al., Membership Inference Attacks Against Machine Learning Models, 2017"
    options_type = ShokriOptions

    def compared(self, evidence: Evidence, progress: Progress) -> Scored:
        note = (
            f"{self.options.shadows} shadow models on overlapping halves, where the paper has "
            "disjoint sets; the same record is seen in some of them and not in others."
        )
        return Scored(learned_scores(evidence, self.options, self.seed, progress), 0.0, (note,))


def learned_scores(
    evidence: Evidence, options: ShokriOptions, seed: int, progress: Progress = silent
) -> Floats:
    """The log-odds of "member" that the network of its class gives each record [n]."""
    labels = evidence.labels.numpy()
    x = np.stack([features(model[0], labels) for model in evidence.shadows])
    asked = features(evidence.target[0], labels)
    rows = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    examples = [
        (
            torch.from_numpy(x[:, own]).flatten(0, 1),
            torch.from_numpy(evidence.keep[:, own]).flatten(),
        )
        for own in rows
    ]
    answers = _learned(
        examples, [torch.from_numpy(asked[own]) for own in rows], options, seed, progress
    )
    found = np.empty(len(labels))
    for own, answer in zip(rows, answers, strict=True):
        found[own] = answer
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


def _learned(
    examples: Sequence[tuple[Tensor, Tensor]],
    queries: Sequence[Tensor],
    own: ShokriOptions,
    seed: int,
    progress: Progress,
) -> list[Floats]:
    """Train a network for each class, all of them side by side, and ask each its queries.

    In every epoch each network sees its examples once, in as many batches as the others: where a
    class has fewer examples its batches are smaller.
    """
    generator = torch.Generator().manual_seed(seed)
    x, asked = zip(
        *(_standardised(seen, q) for (seen, _), q in zip(examples, queries, strict=True)),
        strict=True,
    )
    inputs = nn.utils.rnn.pad_sequence(list(x), batch_first=True)  # [classes, most, features]
    is_member = nn.utils.rnn.pad_sequence([y.float() for _, y in examples], batch_first=True)
    networks = _Networks(len(examples), inputs.shape[2], own.hidden, generator)
    optimiser = torch.optim.Adam(networks.parameters(), lr=own.learning_rate)
    for epoch in range(own.epochs):
        progress("learning to attack", epoch, own.epochs)
        for rows, real in _batches([len(each) for each in x], generator):
            lanes = torch.arange(len(rows)).unsqueeze(1)
            losses = nn.functional.binary_cross_entropy_with_logits(
                networks(inputs[lanes, rows]), is_member[lanes, rows], real, reduction="none"
            )
            optimiser.zero_grad()
            (losses.sum(1) / real.sum(1).clamp(min=1)).sum().backward()
            optimiser.step()
    with torch.no_grad():
        answers = networks(nn.utils.rnn.pad_sequence(list(asked), batch_first=True)).double()
    return [row[: len(q)].numpy() for row, q in zip(answers, asked, strict=True)]


def _standardised(x: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """Both in standard deviations of the first."""
    mean, spread = x.mean(0), x.std(0).clamp(min=1e-6)
    return ((x - mean) / spread).float(), ((query - mean) / spread).float()


def _batches(counts: Sequence[int], generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """An epoch: rows of each class [classes, batch], 1 where one is there and 0 where not."""
    number = -(-max(counts) // _BATCH)
    places = torch.arange(number * _BATCH).view(_BATCH, number)
    rows = torch.zeros(len(counts), number * _BATCH, dtype=torch.int64)
    for own, count in zip(rows, counts, strict=True):
        own[:count] = torch.randperm(count, generator=generator)
    for batch in range(number):
        which = places[:, batch]
        real = (which.unsqueeze(0) < torch.tensor(counts).unsqueeze(1)).float()
        yield rows[:, which], real


class _Networks(nn.Module):
    """So many networks with one hidden layer, which share nothing."""

    def __init__(self, count: int, inputs: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()

        def uniform(fan_in: int, *shape: int) -> nn.Parameter:
            drawn = torch.rand(count, *shape, generator=generator)
            return nn.Parameter((2 * drawn - 1) / fan_in**0.5)

        self.weight, self.bias = uniform(inputs, inputs, hidden), uniform(inputs, 1, hidden)
        self.out, self.shift = uniform(hidden, hidden, 1), uniform(hidden, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Log-odds of examples [networks, n, inputs]: [networks, n]."""
        seen = torch.relu(torch.baddbmm(self.bias, x, self.weight))
        return torch.baddbmm(self.shift, seen, self.out).squeeze(2)
