"""What a model says of records, as numbers that an attack can work with, in double precision."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from udpfl.attacks.target import Target
from udpfl.mechanisms.arrays import Floats

_BATCH = 1024


def logits(target: Target, parameters: Tensor, inputs: Tensor) -> Floats:
    """Scores of every class [n, classes], of a model given as one vector [d]."""
    model, device = target.setup.model, target.setup.device
    moved = parameters.to(device)
    parts = [
        model.outputs(moved, inputs[i : i + _BATCH].to(device)).double().cpu()
        for i in range(0, len(inputs), _BATCH)
    ]
    outputs = torch.cat(parts).flatten(1)
    if outputs.shape[1] == 1:  # the score of the second of two classes
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    found: Floats = outputs.numpy()
    return found


def log_sum_exp(values: Floats) -> Floats:
    """log Σ exp over the last axis, without overflow."""
    top = values.max(axis=-1, keepdims=True)
    found: Floats = np.log(np.exp(values - top).sum(axis=-1)) + top[..., 0]
    return found


def log_probabilities(scores: Floats, labels: Tensor) -> Floats:
    """log p_y of scores [..., n, classes], of labels [n]."""
    own = scores[..., np.arange(len(labels)), labels.numpy()]
    found: Floats = own - log_sum_exp(scores)
    return found


def log_odds(scores: Floats, labels: Tensor) -> Floats:
    """log p_y - log (1 - p_y) = z_y - log Σ_{k≠y} exp z_k of scores [..., n, classes].

    Carlini et al. 2022, Section VI-A: these are close to normal over models. Computed from the
    scores, it does not round to 0 or 1 in between.
    """
    rows, own = np.arange(len(labels)), labels.numpy()
    others = np.array(scores, dtype=np.float64, copy=True)
    others[..., rows, own] = -np.inf
    found: Floats = scores[..., rows, own] - log_sum_exp(others)
    return found


def cross_entropies(target: Target, parameters: Tensor, inputs: Tensor, labels: Tensor) -> Floats:
    """-log p_y of every record [n]."""
    return -log_probabilities(logits(target, parameters, inputs), labels)
