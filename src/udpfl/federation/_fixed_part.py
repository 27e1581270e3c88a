"""The fixed part of a network, computed once per record and for each record alone."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from udpfl.engine.generators import only_torch_draws, torch_state
from udpfl.engine.memory import first_line
from udpfl.errors import InvalidInput, UdpflError, Unsupported

_BATCH = 100
_HUGE = 1e6


class FixedPart:
    """The `precompute` of a network on a device; `parameter` is what records are called."""

    def __init__(self, network: nn.Module, device: torch.device, parameter: str) -> None:
        self._fixed: Any = copy.deepcopy(network).to(device).eval()
        self._device, self._parameter = device, parameter
        self._together: Callable[[Tensor], Tensor] = vmap(self._alone)

    def features(self, records: Tensor) -> Tensor:
        """What `precompute` makes of the records [n, ...], each given to it alone.

        Guarantee: no record shows in another unless something is kept of it. The first two are
        asked for one by one, and again in the other order after they were scaled to be huge and
        after every batch: the answers have to be the same to the last bit.
        """
        buffers = [buffer.clone() for buffer in self._fixed.buffers()]
        drawn = torch_state(self._device)
        asked = [slice(i, i + 1) for i in range(min(2, len(records)))]
        with (
            torch.no_grad(),
            warnings.catch_warnings(),
            only_torch_draws("the model's `precompute`"),
        ):
            warnings.filterwarnings("ignore", "There is a performance drop")
            try:
                self._together(self._copied(records[:1]))
            except Exception:  # vmap does not know everything; one by one is as right, and slower
                self._together = self._one_by_one
            before = [self._computed(records, one) for one in asked]
            if records.is_floating_point():
                with suppress(Exception):  # what cannot be computed is not remembered either
                    self._together(_HUGE * self._copied(records[:2]))
            features = before[0].new_empty(len(records), *before[0].shape[1:])
            is_same = True
            for start in range(0, len(records), _BATCH):
                rows = slice(start, start + _BATCH)
                features[rows] = self._computed_in_full(records, rows)
                after = [self._computed(records, one) for one in reversed(asked)]
                is_same = is_same and all(map(_equal, reversed(after), before))
        is_same = is_same and all(map(torch.equal, buffers, self._fixed.buffers()))
        if not is_same or torch_state(self._device) != drawn:
            raise Unsupported(
                "the model's `precompute` gives two different results for the same record: it "
                "draws random numbers, or it keeps something of earlier records, so that one "
                "record would change the result of another"
            )
        return features

    def _computed_in_full(self, records: Tensor, rows: slice) -> Tensor:
        """Features of a batch, filled up with its last record where it is the short one.

        Products are rounded in another way in batches of another size: without this a record that
        leaves would change the features of others a little.
        """
        short = records[rows]
        missing = _BATCH - len(short)
        if not missing or self._together == self._one_by_one:
            return self._computed(records, rows)
        whole = torch.cat([short, short[-1:].expand(missing, *short.shape[1:])])
        try:
            return self._computed(whole, slice(0, len(whole)))[: len(short)]
        except Exception:
            return self._computed(records, rows)  # which names the record that cannot be computed

    def _copied(self, rows: Tensor) -> Tensor:
        """On the device, and not the user's own memory: a network may write to its input."""
        return rows.to(self._device, copy=True)

    def _alone(self, record: Tensor) -> Tensor:
        features: Tensor = self._fixed.precompute(record.unsqueeze(0)).squeeze(0)
        return features

    def _one_by_one(self, rows: Tensor) -> Tensor:
        return torch.stack([self._alone(record) for record in rows])

    def _computed(self, records: Tensor, rows: slice) -> Tensor:
        """Features of some records; names the record that has none, such as an unknown id."""
        try:
            return self._together(self._copied(records[rows]))
        except Exception:
            for number, record in enumerate(records[rows], rows.start):
                try:
                    self._alone(self._copied(record))
                except UdpflError:
                    raise
                except Exception as error:  # whatever the user's own code raises
                    raise InvalidInput(
                        self._parameter,
                        f"the model's `precompute` cannot compute record {number}: "
                        f"{first_line(error)}",
                    ) from error
            raise


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
