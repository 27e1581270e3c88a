"""A model in another state for a while: evaluating, without dropout, in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

DROPOUT = nn.modules.dropout._DropoutNd
"""What every dropout layer is."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; modules go back to the mode each was in."""
    modes = [module.training for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode


@contextmanager
def in_double(*models: nn.Module) -> Iterator[None]:
    """Parameters and buffers in double precision for a while; then the very tensors from before."""
    modules = [module for model in models for module in model.modules()]
    held = [(p, p.data) for model in models for p in model.parameters()]
    buffers = [(m, n, b) for m in modules for n, b in m._buffers.items() if b is not None]
    try:
        for parameter, data in held:
            parameter.data = data.double()
        for module, name, buffer in buffers:
            if buffer.is_floating_point():
                module._buffers[name] = buffer.double()
        yield
    finally:
        for parameter, data in held:
            parameter.data = data
        for module, name, buffer in buffers:
            module._buffers[name] = buffer


@contextmanager
def no_dropout(*models: nn.Module) -> Iterator[None]:
    """Keep training mode, but let dropout layers drop nothing: a fair comparison is not random."""
    layers = [m for model in models for m in model.modules() if isinstance(m, DROPOUT)]
    rates = [layer.p for layer in layers]
    for layer in layers:
        layer.p = 0.0
    try:
        yield
    finally:
        for layer, rate in zip(layers, rates, strict=True):
            layer.p = rate
