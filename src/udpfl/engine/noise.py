"""Noisers: add a mechanism's noise to every coordinate of a clipped sum, on its device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from udpfl.engine.randomness import Key, PrivateStream, Words
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Mechanism

_COLUMNS = 1 << 19
"""Columns of noise that a CPU draws at once. A lane's noise depends on this and on its key, and not
on how many lanes there are."""


class Noiser(ABC):
    """Adds noise to the sums of several lanes."""

    @abstractmethod
    def lanes(self, which: slice) -> Noiser:
        """The same noiser for some of the lanes."""

    @abstractmethod
    def std(self, device: torch.device) -> Tensor:
        """Standard deviation of the noise per lane [L]."""

    @abstractmethod
    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        """Noisy sums [L, d]. An empty batch gets the same noise as any other."""


class MechanismNoiser(Noiser):
    """Each lane its own mechanism; neighbours that share one are drawn together."""

    def __init__(self, mechanisms: Sequence[Mechanism]) -> None:
        self.mechanisms = tuple(mechanisms)

    def lanes(self, which: slice) -> MechanismNoiser:
        return MechanismNoiser(self.mechanisms[which])

    def std(self, device: torch.device) -> Tensor:
        return torch.tensor([m.noise_std for m in self.mechanisms], device=device)

    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        if not len(self.mechanisms) == len(sums) == len(keys):
            raise InvalidInput(
                "mechanisms", f"{len(self.mechanisms)} for {len(sums)} lanes with {len(keys)} keys"
            )
        noisy = torch.empty_like(sums)
        for mechanism, lanes in self._alike(sums):
            words = [stream.words(key, sums.device) for key in keys[lanes]]
            _add(mechanism, sums[lanes], noisy[lanes], words)
        return noisy

    def _alike(self, sums: Tensor) -> Iterator[tuple[Mechanism, slice]]:
        """Neighbours with one mechanism: on a CPU as many as stay in its caches."""
        most = max(1, 2 * _COLUMNS // max(1, sums.shape[1]))
        most = most if sums.device.type == "cpu" else len(sums)
        start = 0
        for mechanism, same in groupby(self.mechanisms):
            end = start + len(list(same))
            for first in range(start, end, most):
                yield mechanism, slice(first, min(first + most, end))
            start = end


def _add(mechanism: Mechanism, sums: Tensor, noisy: Tensor, words: Sequence[Words]) -> None:
    """Noise for some lanes, a block of columns at a time.

    Drawn and added in double, rounded once. Noise that is made in float32 lies on a coarse lattice
    of its own: whoever guesses the sum can see whether it fits.
    """
    lanes, columns = sums.shape
    size = max(1, min(columns, _COLUMNS) if sums.device.type == "cpu" else columns)
    buffer = torch.empty(lanes, size, dtype=torch.int64, device=sums.device)
    exact = torch.empty(lanes, size, dtype=torch.float64, device=sums.device)
    for start in range(0, columns, size):
        part = slice(start, min(start + size, columns))
        drawn, own = (t[:, : part.stop - start] for t in (buffer, exact))
        for fill, row in zip(words, drawn, strict=True):
            fill(row)
        own.copy_(sums[:, part])
        noisy[:, part] = mechanism.draw(drawn, torch.float64).add_(own)


class Noiseless(Noiser):
    """No noise, for training without privacy."""

    def lanes(self, which: slice) -> Noiseless:
        return self

    def std(self, device: torch.device) -> Tensor:
        return torch.zeros(1, device=device)

    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        return sums
