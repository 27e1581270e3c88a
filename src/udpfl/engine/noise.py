"""Noisers: add a mechanism's noise to every coordinate of a clipped sum, on its device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from udpfl.engine.randomness import Key, PrivateStream
from udpfl.mechanisms import Mechanism

_CACHED = 1 << 16
"""Columns of noise that a CPU draws at once."""


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
    """Each lane its own mechanism; lanes that share one are drawn together."""

    def __init__(self, mechanisms: Sequence[Mechanism]) -> None:
        self.mechanisms = tuple(mechanisms)

    def lanes(self, which: slice) -> MechanismNoiser:
        return MechanismNoiser(self.mechanisms[which])

    def std(self, device: torch.device) -> Tensor:
        return torch.tensor([m.noise_std for m in self.mechanisms], device=device)

    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        noisy = torch.empty_like(sums)
        for mechanism in dict.fromkeys(self.mechanisms):
            rows = [i for i, own in enumerate(self.mechanisms) if own == mechanism]
            words = torch.empty(len(rows), sums.shape[1], dtype=torch.int64, device=sums.device)
            stream.fill(words, [keys[i] for i in rows])
            # Drawn and added in double, rounded once. Noise that is made in float32 lies on a
            # coarse lattice of its own: whoever guesses the sum can see whether it fits.
            for part in self._blocks(sums):
                noise = mechanism.draw(words[:, part], torch.float64)
                if len(rows) == len(sums):
                    noisy[:, part] = noise.add_(sums[:, part].double())
                else:
                    noisy[rows, part] = noise.add_(sums[rows, part].double()).float()
        return noisy

    @staticmethod
    def _blocks(sums: Tensor) -> Iterator[slice]:
        """Columns that are drawn at once: on a CPU as many as stay in its caches.

        How many lanes there are must not matter: a lane's noise depends on its key alone.
        """
        columns = sums.shape[1]
        size = _CACHED if sums.device.type == "cpu" else max(1, columns)
        return (slice(start, start + size) for start in range(0, columns, size))


class Noiseless(Noiser):
    """No noise, for training without privacy."""

    def lanes(self, which: slice) -> Noiseless:
        return self

    def std(self, device: torch.device) -> Tensor:
        return torch.zeros(1, device=device)

    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        return sums
