"""What a network makes of records before its last layer."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from udpfl.data.records import Array
from udpfl.errors import Unsupported

_BATCH = 1024


def embeddings(network: nn.Module, inputs: Tensor) -> Array:
    """What the last layer with weights is given [n, features], in evaluation mode on the CPU.

    Args:
        network: With the weights in question; it stays as it is.
        inputs: As it takes them [n, ...].

    Raises:
        Unsupported: The network has no layer before its last one.
    """
    network = copy.deepcopy(network).cpu().eval()
    seen: list[tuple[nn.Module, Tensor]] = []

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        seen.append((module, given[0]))

    for module in network.modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_pre_hook(note)
    parts = []
    with torch.no_grad():
        for batch in inputs.split(_BATCH):
            seen.clear()
            network(batch)
            if len({id(module) for module, _ in seen}) < 2:
                raise Unsupported(
                    "the network has one layer with weights: it is given the record itself"
                )
            parts.append(seen[-1][1].flatten(1))
    found: Array = torch.cat(parts).numpy().astype(np.float32, copy=False)
    require_finite(found)
    return found


def require_finite(answers: Array) -> None:
    """Refuse what a model says that has diverged."""
    if not np.isfinite(answers).all():
        raise Unsupported("the model has diverged: what it says is not finite")
