"""How many records have gradients within the bound: a number per lane, to be noised and charged."""

from __future__ import annotations

import torch
from torch import Tensor

from udpfl.engine._batches import Batches
from udpfl.engine.clipping import NormClipper
from udpfl.engine.lanes import LaneModel
from udpfl.engine.precision import computing_in
from udpfl.engine.randomness import Key, PrivateStream, poisson_indices
from udpfl.engine.training import Lanes, Limits, gathered, widths_of
from udpfl.errors import Unsupported

SENSITIVITY = 0.5
"""A record adds 1/2 or -1/2: less than the 1 it would add to a plain count."""
WEIGHT = SENSITIVITY * (1 - 2.0**-6)
"""What a record really adds at most; the rest is spare."""
_EDGE = 0.05
"""How far around the bound, as a part of it, records count in part: a count that jumped there could
change for many records at once by rounding alone."""


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
    """The sum over a Poisson sample of `WEIGHT` for a record within its lane's bound, less that for
    one beyond [L]; in double. Within 5 % of the bound it goes from the one to the other in a line.

    Guarantee: one record changes a lane's sum by 1/2 at most, whatever its gradient; one that is
    not finite counts as beyond.
    """
    clipper = lanes.clipper
    if not isinstance(clipper, NormClipper) or clipper.norm == "linf":
        raise Unsupported("an adaptive clip needs gradients that are clipped in l1 or l2")
    order = clipper.order
    sums = torch.zeros(len(lanes), dtype=torch.float64, device=parameters.device)
    with computing_in(model.precision, parameters.device):
        widths = widths_of(model, inputs, targets, lanes, 1, limits)
        for lane in range(len(lanes)):
            key = Key(lanes.runs[lane], lanes.clients[lane], round_, 0, "counting")
            rows = poisson_indices(stream, key, lanes.records[lane], lanes.rates[lane])
            layers = key._replace(purpose="counting layers")
            batches, start = Batches([[rows]], parameters.device), 0
            while start < len(rows):
                width = widths.fit(len(rows) - start)
                index, real = batches.rows(0, start, width)
                x, y = gathered(inputs, targets, index)
                # Random layers draw here as they do in training: from nothing others could know.
                with stream.layers(layers, parameters.device):
                    gradients = model.pass_gradients(parameters[lane : lane + 1], x, y, real)
                    sizes = gradients.norms(order)
                inside = (1 - sizes / clipper.bounds[lane]) / _EDGE
                counted = inside.nan_to_num(-1.0).clamp(-1.0, 1.0) * real
                sums[lane] += WEIGHT * counted.sum()
                layers = layers._replace(step=layers.step + 1)
                start += width
    return sums
