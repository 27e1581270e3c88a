"""A pass as a CUDA graph: recorded once, started by one call of the driver from then on.

A pass is hundreds of short kernels, and a CPU needs longer to start them than a GPU to run them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from udpfl.engine.clipping import Clipped, Clipper, NormClipper, Unclipped

log = logging.getLogger(__name__)

_MOST = 6
"""Graphs that are kept of a model: each holds the memory of what it gives."""

Compute = Callable[[Tensor, Tensor, Tensor, Clipper], Clipped]
"""A pass: parameters [L, d], indices [L, B], which are real [L, B], and how gradients are clipped;
nothing in it may read from the device."""


class Kind(NamedTuple):
    """What a recorded pass cannot change."""

    records: tuple[object, ...]
    """Where the records lie in memory, and their forms."""
    shape: tuple[int, ...]
    clipper: tuple[str, ...]
    precision: str


@dataclass
class _Recorded:
    """A pass, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    parameters: Tensor
    index: Tensor
    real: Tensor
    bounds: Tensor
    given: Clipped

    def replay(self, parameters: Tensor, index: Tensor, real: Tensor, bounds: Tensor) -> Clipped:
        """The pass with other numbers; what it gives is overwritten by the next one."""
        self.parameters.copy_(parameters)
        self.index.copy_(index)
        self.real.copy_(real)
        self.bounds.copy_(bounds)
        self.graph.replay()
        return self.given


class PassGraphs:
    """The recorded passes of one model."""

    def __init__(self) -> None:
        self._seen: dict[Kind, _Recorded | None] = {}
        self._pool: Any = None

    def run(
        self,
        compute: Compute,
        records: tuple[Tensor, ...],
        parameters: Tensor,
        index: Tensor,
        real: Tensor,
        clipper: Clipper,
        precision: str,
    ) -> Clipped:
        """The pass, by a graph from its second time on.

        A graph is used only if it gave the very bits that the pass has without one. What it gives
        is overwritten by the next pass.
        """
        kind = _kind(records, parameters, index, clipper, precision)
        if kind is None:
            return compute(parameters, index, real, clipper)
        bounds = _bounds(clipper, parameters)
        if (recorded := self._seen.get(kind)) is not None:
            return recorded.replay(parameters, index, real, bounds)
        found = compute(parameters, index, real, clipper)
        if kind not in self._seen and len(self._seen) < _MOST:
            self._seen[kind] = self._record(compute, parameters, index, real, clipper, found)
        return found

    def _record(
        self,
        compute: Compute,
        parameters: Tensor,
        index: Tensor,
        real: Tensor,
        clipper: Clipper,
        expected: Clipped,
    ) -> _Recorded | None:
        """A graph of this pass; None where it cannot be one, or gives other bits."""
        bounds = _bounds(clipper, parameters)
        held = [t.clone() for t in (parameters, index, real, bounds)]
        inputs, own = (held[0], held[1], held[2]), _with_bounds(clipper, held[3])
        torch.cuda.empty_cache()  # a graph has memory of its own
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                given = compute(*inputs, own)
        except RuntimeError as error:
            log.info("a pass is not recorded: %s", str(error).splitlines()[0])
            torch.cuda.synchronize()
            return None
        self._pool = graph.pool()
        recorded = _Recorded(graph, *inputs, held[3], given)
        replayed = recorded.replay(parameters, index, real, bounds)
        same = torch.equal(replayed.sum, expected.sum)
        if not (same and torch.equal(replayed.clipped, expected.clipped)):
            log.info("a recorded pass gives other bits, so passes are not recorded")
            return None
        return recorded


def _kind(
    records: tuple[Tensor, ...],
    parameters: Tensor,
    index: Tensor,
    clipper: Clipper,
    precision: str,
) -> Kind | None:
    """None where a pass cannot be recorded."""
    if not parameters.is_cuda or index.shape[1] == 1:
        return None
    if type(clipper) not in (NormClipper, Unclipped):
        return None
    where = tuple((t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in records)
    norm = clipper.norm if isinstance(clipper, NormClipper) else ""
    shape = (*parameters.shape, *index.shape)
    return Kind(where, shape, (type(clipper).__name__, norm), precision)


def _bounds(clipper: Clipper, like: Tensor) -> Tensor:
    if isinstance(clipper, NormClipper):
        return clipper.lowered(like.device)
    return torch.empty(0, device=like.device)


def _with_bounds(clipper: Clipper, bounds: Tensor) -> Clipper:
    """The same clipper with bounds that a graph reads from this tensor."""
    if not isinstance(clipper, NormClipper):
        return clipper
    own = NormClipper(clipper.norm, clipper.bounds)
    own.set_lowered(bounds)
    return own
