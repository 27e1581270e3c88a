"""Canary: ask the model about inputs made so that shadows with and without a record disagree most.

From random versions of a record, gradient descent looks for queries on which the score z_y of the
label is large in a shadow with the record (10 online) and small in one without it (0). Queries stay
within a small distance of where they began. All models are asked about them, and the answers are
scored as in LiRA, with one variance for all records.

Reference: Wen, Bansal, Kazemi, Borgnia, Goldblum, Geiping, Goldstein, "Canary in a Coalmine: Better
Membership Inference with Ensembled Adversarial Queries", ICLR 2023, Section 3.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from udpfl.attacks.base import Progress, silent
from udpfl.attacks.membership._evidence import Evidence, shifted
from udpfl.attacks.membership._frame import Scored, ShadowAttack
from udpfl.attacks.membership._options import ModeOptions
from udpfl.attacks.membership._signals import logits
from udpfl.attacks.membership.lira import FIVE_PERCENT, offline_scores, online_scores
from udpfl.attacks.pool import Pool
from udpfl.attacks.shadows import ShadowModels
from udpfl.attacks.target import Target
from udpfl.config.section import Count, Positive
from udpfl.errors import InvalidInput

_HIGH, _LOW = 10.0, 0.0
"""Scores of the label that are asked for with and without the record."""
_CHUNK = 512
_MOST_SHIFT = 4
"""Pixels."""


class CanaryOptions(ModeOptions):
    """Settings of the attack."""

    queries: Count = Field(default=4, description="Queries that are made for each record.")
    steps: Count = Field(default=30, description="Of gradient descent.")
    learning_rate: Positive = Field(default=0.05, description="Of AdamW.")
    radius: Positive = Field(
        default=1 / 255,
        description="How far a query may move in each input, as a share of the range of inputs.",
    )
    augment: bool = Field(
        default=False,
        description="For images: whether queries begin at versions that are mirrored and shifted "
        "at random, as in the paper, whose models were trained on such versions.",
    )


class Canary(ShadowAttack[CanaryOptions]):
    """LiRA with queries that were optimised on the shadows."""

    name = "canary"
    what = "as lira, with queries that are optimised so that the shadow models disagree most"
    needs = "as lira, and gradients of the shadow models"
    paper = "Wen et al., Canary in a Coalmine, 2023"
    options_type = CanaryOptions
    fewest_shadows = 4

    def scored(self, target: Target, pool: Pool, progress: Progress) -> Scored:
        if not pool.inputs.is_floating_point():
            raise InvalidInput("data", "canary moves inputs, and these are whole numbers")
        return super().scored(target, pool, progress)

    def asked(
        self, target: Target, pool: Pool, shadows: ShadowModels, progress: Progress
    ) -> Evidence:
        queries = optimised(target, pool, shadows, self.options, self.seed, progress)
        return asked(target, pool, shadows, queries, progress)

    def compared(self, evidence: Evidence, progress: Progress) -> Scored:
        is_online = self.options.mode == "online"
        signal, seen = evidence.log_odds()
        score = online_scores if is_online else offline_scores
        return Scored(
            score(signal, evidence.keep, seen),
            0.0 if is_online else FIVE_PERCENT,
            (f"{self.options.shadows} shadow models, {self.options.mode}.",),
        )


def asked(
    target: Target, pool: Pool, shadows: ShadowModels, queries: Tensor, progress: Progress
) -> Evidence:
    """What every model says of queries [Q, n, ...]."""
    rows = []
    for number, parameters in enumerate((*shadows.parameters, target.parameters)):
        progress("asking the models", number, len(shadows) + 1)
        rows.append(np.stack([logits(target, parameters, own) for own in queries]))
    return Evidence(shadows.keep, np.stack(rows[:-1]), rows[-1], pool.targets)


def optimised(
    target: Target,
    pool: Pool,
    shadows: ShadowModels,
    options: CanaryOptions,
    seed: int,
    progress: Progress = silent,
) -> Tensor:
    """Queries for every record [Q, n, ...], on the CPU.

    Every step takes a random pair of shadows, of which one has the record and the other has not.
    """
    generator = torch.Generator().manual_seed(seed)
    lowest, highest = float(pool.inputs.min()), float(pool.inputs.max())
    radius = options.radius * (highest - lowest)
    starts = torch.stack(
        [_version(pool.inputs, options.augment, generator) for _ in range(options.queries)]
    )
    keep = torch.from_numpy(shadows.keep)
    moved = []
    for number, rows in enumerate(torch.arange(len(pool)).split(_CHUNK)):
        progress("optimising queries", number, -(-len(pool) // _CHUNK))
        begun = starts[:, rows].flatten(0, 1).to(target.setup.device)
        labels = pool.targets[rows].repeat(options.queries).to(target.setup.device)
        there = keep[:, rows].repeat(1, options.queries).to(target.setup.device)
        bounds = (
            (begun - radius).clamp(min=lowest), (begun + radius).clamp(max=highest)
        )  # fmt: skip
        found = _descend(target, shadows, begun, labels, there, bounds, options, generator)
        moved.append(found.cpu().unflatten(0, (options.queries, len(rows))))
    return torch.cat(moved, dim=1)


def _descend(
    target: Target,
    shadows: ShadowModels,
    begun: Tensor,
    labels: Tensor,
    there: Tensor,
    bounds: tuple[Tensor, Tensor],
    options: CanaryOptions,
    generator: torch.Generator,
) -> Tensor:
    network = copy.deepcopy(target.network).to(begun.device)
    queries = begun.clone().requires_grad_()
    optimiser = torch.optim.AdamW([queries], lr=options.learning_rate, weight_decay=1e-3)
    for _ in range(options.steps):
        pair = int(torch.randint(len(shadows) // 2, (), generator=generator))
        loss = torch.zeros((), device=begun.device)
        for shadow in (2 * pair, 2 * pair + 1):
            own = _label_scores(target, network, shadows.parameters[shadow], queries, labels)
            inside = there[shadow]
            wanted = torch.where(inside, _HIGH, _LOW)
            counts = torch.ones_like(inside) if options.mode == "online" else ~inside
            loss = loss + (torch.where(counts, own - wanted, 0.0) ** 2).sum()
        (queries.grad,) = torch.autograd.grad(loss, queries)
        optimiser.step()
        with torch.no_grad():
            queries.clamp_(*bounds)
    return queries.detach()


def _label_scores(
    target: Target, network: nn.Module, parameters: Tensor, inputs: Tensor, labels: Tensor
) -> Tensor:
    """z_y of every input, with a gradient [n]."""
    weights = target.setup.model.layout.named(parameters.to(inputs.device))
    with torch.enable_grad():
        scores: Tensor = functional_call(network, weights, (inputs,)).flatten(1)
    if scores.shape[1] == 1:  # the score of the second of two classes
        return torch.where(labels == 1, scores[:, 0], -scores[:, 0])
    return scores.gather(1, labels[:, None])[:, 0]


def _version(inputs: Tensor, augment: bool, generator: torch.Generator) -> Tensor:
    """The records, or for images each mirrored and shifted at random."""
    if not augment or inputs.dim() != 4:
        return inputs
    mirror = torch.rand(len(inputs), generator=generator) < 0.5
    images = torch.where(mirror[:, None, None, None], inputs.flip(-1), inputs)
    moves = torch.randint(-_MOST_SHIFT, _MOST_SHIFT + 1, (len(inputs), 2), generator=generator)
    found = images.clone()
    for down, right in torch.unique(moves, dim=0).tolist():
        rows = (moves[:, 0] == down) & (moves[:, 1] == right)
        found[rows] = shifted(images[rows], down, right)
    return found
