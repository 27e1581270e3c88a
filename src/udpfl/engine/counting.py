"""How many records have gradients within the bound: a number per lane, to be noised and charged."""

from __future__ import annotations

import torch
from torch import Tensor

from udpfl.engine.clipping import NormClipper
from udpfl.engine.lanes import LaneModel
from udpfl.engine.precision import full_precision
from udpfl.engine.randomness import Key, PrivateStream, poisson_indices
from udpfl.engine.training import Lanes, Limits, padded
from udpfl.errors import Unsupported

SENSITIVITY = 0.5
"""A record adds 1/2 or -1/2: less than the 1 it would add to a plain count."""


def counted_within(
    model: LaneModel,
    inputs: Tensor,
    targets: Tensor,
    parameters: Tensor,
    lanes: Lanes,
    round_: int,
    stream: PrivateStream,
    limits: Limits,
) -> Tensor:
    """The sum over a Poisson sample of 1/2 for a record within its lane's bound, -1/2 beyond [L].

    Guarantee: one record changes a lane's sum by 1/2, whatever its gradient; one that is not finite
    counts as beyond.
    """
    clipper = lanes.clipper
    if not isinstance(clipper, NormClipper) or clipper.norm == "linf":
        raise Unsupported("an adaptive clip needs gradients that are clipped in l1 or l2")
    order = 1 if clipper.norm == "l1" else 2
    sums = torch.zeros(len(lanes), device=parameters.device)
    with full_precision(parameters.device):
        for lane in range(len(lanes)):
            key = Key(lanes.runs[lane], lanes.clients[lane], round_, 0, "counting")
            rows = poisson_indices(stream, key, lanes.records[lane], lanes.rates[lane])
            for part in rows.split(max(1, limits.samples)):
                index, real = padded([part], parameters.device)
                # Random layers draw here as they do in training: from nothing others could know.
                with stream.layers(key._replace(purpose="counting layers"), parameters.device):
                    gradients = model.gradients(
                        parameters[lane : lane + 1], inputs[index], targets[index], real
                    )
                    sizes = gradients.norms(order)
                within = torch.isfinite(sizes) & (sizes <= clipper.bounds[lane])
                sums[lane] += (within.float() - 0.5).sum()
    return sums
