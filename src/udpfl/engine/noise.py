"""Noisers: add a mechanism's noise to a clipped sum, on its device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from udpfl.engine._fused import Law, law_of
from udpfl.engine._kernels import noise_kernels_for
from udpfl.engine.randomness import Key, PrivateStream, Words
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Gaussian, Laplace, Mechanism, Radial
from udpfl.mechanisms.arrays import Floats, to_unit
from udpfl.mechanisms.grid import SECOND_WORD, grid_of

_COLUMNS = 1 << 17
"""Columns of noise that a CPU draws at once. A lane's noise depends on this and on its key, and not
on how many lanes there are."""
_BLUR = Laplace(1.0)


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
        """Noisy sums [L, d]. An empty batch gets the same noise as any other.

        Guarantee: noise is added in double and the result rounded to the grid of its mechanism
        (`mechanisms.grid`) before it becomes float32. Noise of whole vectors (`Radial`) comes with
        Laplace noise of one step of the grid on top of it.
        """


class MechanismNoiser(Noiser):
    """Each lane its own mechanism; neighbours that share one are drawn together."""

    def __init__(self, mechanisms: Sequence[Mechanism]) -> None:
        self.mechanisms = tuple(mechanisms)
        self._laws: dict[torch.device, list[tuple[Law, slice, Tensor]]] = {}

    def lanes(self, which: slice) -> MechanismNoiser:
        return MechanismNoiser(self.mechanisms[which])

    def std(self, device: torch.device) -> Tensor:
        return torch.tensor([m.noise_std for m in self.mechanisms], device=device)

    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        if not len(self.mechanisms) == len(sums) == len(keys):
            raise InvalidInput(
                "mechanisms", f"{len(self.mechanisms)} for {len(sums)} lanes with {len(keys)} keys"
            )
        sums = sums.contiguous()
        noisy = torch.empty_like(sums, dtype=torch.float32)
        if (kernels := noise_kernels_for(sums)) is not None:
            self._add_by_kernels(kernels, sums, noisy, stream, keys)
            return noisy
        for mechanism, lanes in self._alike(sums):
            _add_by_operators(mechanism, sums[lanes], noisy[lanes], stream, keys[lanes])
        return noisy

    def _add_by_kernels(
        self, kernels: Any, sums: Tensor, noisy: Tensor, stream: PrivateStream, keys: Sequence[Key]
    ) -> None:
        """The same on CUDA, where every number has two words: noise for which there is a kernel is
        drawn, added and rounded in one pass over memory."""
        bits = stream.keys_on(sums.device, keys)
        for law, lanes, laws in self._laws_on(sums.device):
            given = sums[lanes], noisy[lanes], bits[lanes], laws
            mechanism = self.mechanisms[lanes.start]
            if isinstance(mechanism, Radial):
                _require_vectors(mechanism, sums.shape[1])
            if law.kernel == "vectors":
                kernels.add_vectors(*given, law.dimension)
            elif law.kernel:
                kernels.add_noise(law.kernel, *given)
            elif isinstance(mechanism, Radial):
                _add_by_operators(mechanism, sums[lanes], noisy[lanes], stream, keys[lanes])
            else:
                _add_drawn(kernels, mechanism, *given)

    def _laws_on(self, device: torch.device) -> list[tuple[Law, slice, Tensor]]:
        """Neighbours that one kernel serves, and the numbers of each of them [L, n]: copied to the
        device once."""
        if device not in self._laws:
            self._laws[device], start = [], 0
            laws = [(law_of(mechanism), mechanism) for mechanism in self.mechanisms]
            for _, same in groupby(laws, _served_together):
                own = [law for law, _ in same]
                numbers = torch.tensor([law.numbers for law in own], dtype=torch.float64)
                which = slice(start, start + len(own))
                self._laws[device].append((own[0], which, numbers.to(device)))
                start = which.stop
        return self._laws[device]

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


def _add_by_operators(
    mechanism: Mechanism, sums: Tensor, noisy: Tensor, stream: PrivateStream, keys: Sequence[Key]
) -> None:
    """Noise for some lanes, each from the words of its own key."""
    words = [stream.words(key, sums.device) for key in keys]
    _add(mechanism, sums, noisy, words)


def _add(mechanism: Mechanism, sums: Tensor, noisy: Tensor, words: Sequence[Words]) -> None:
    """Noise for some lanes, a block of columns at a time.

    Noise is drawn in double and in units of the grid, the sum is added in double, and the result is
    rounded to a whole number of units. What rounds it is a function of the sum with its noise.
    """
    grid = grid_of(mechanism)
    in_units = mechanism.scaled(1 / grid)  # a power of two: exact
    lanes, columns = sums.shape
    size = _block(mechanism, sums)
    room = torch.empty(3, lanes, size, dtype=torch.float64, device=sums.device)
    for start in range(0, columns, size):
        part = slice(start, min(start + size, columns))
        signed, spare, bits = room[..., : part.stop - start]
        _draw_uniform(words, bits.view(torch.int64), signed, spare, mechanism.second_word)
        if isinstance(in_units, Radial):
            noise = _draw_vectors(in_units, words, bits.view(torch.int64), signed, spare)
        else:
            noise = in_units.draw(signed)
        noisy[:, part] = noise.add_(sums[:, part], alpha=1 / grid).round_()
    noisy *= grid


def _served_together(own: tuple[Law, Mechanism]) -> object:
    """What lanes have in common that a kernel serves at once; without a kernel, their mechanism."""
    law, mechanism = own
    return (law.kernel, law.dimension, len(law.numbers)) if law.kernel else mechanism


def _add_drawn(
    kernels: Any, mechanism: Mechanism, sums: Tensor, noisy: Tensor, keys: Tensor, laws: Tensor
) -> None:
    """Noise that no kernel draws: by torch's operators, from the same numbers."""
    in_units = mechanism.scaled(1 / grid_of(mechanism))
    noise = in_units.draw(kernels.signed_numbers(keys, sums.shape[1]))
    kernels.add_rounded(noise.contiguous(), sums, noisy, laws)


def _block(mechanism: Mechanism, sums: Tensor) -> int:
    """Columns that are drawn at once; vectors are not cut."""
    columns = sums.shape[1]
    size = max(1, min(columns, _COLUMNS) if sums.device.type == "cpu" else columns)
    if not isinstance(mechanism, Radial):
        return size
    _require_vectors(mechanism, columns)
    return mechanism.dimension * max(1, size // mechanism.dimension)


def _require_vectors(mechanism: Radial, columns: int) -> None:
    """Refuse a row that is no whole number of vectors."""
    dimension = mechanism.dimension
    if columns % dimension:
        raise InvalidInput(
            "dimension",
            f"{mechanism.name} noise is for vectors of {dimension:,} coordinates, got {columns:,}",
        )


def _draw_vectors(
    noise: Radial, words: Sequence[Words], bits: Tensor, signed: Tensor, spare: Tensor
) -> Tensor:
    """Noise of whole vectors, side by side in each lane, from uniform numbers in its place.

    Their coordinates share a radius, so the rounding of one shows in all of them. Independent
    Laplace noise of one unit on top of it, less than a hundred-thousandth of the variance, blurs
    every coordinate by itself: docs/mathematics.md, section 9.
    """
    vectors = signed.unflatten(1, (-1, noise.dimension))
    count, device = vectors.shape[1], signed.device
    radii = [noise.radii(count, partial(_uniform, own, device)) for own in words]
    directed = noise.directed(vectors, torch.from_numpy(np.stack(radii)).to(device))
    blur = torch.empty_like(signed)
    _draw_uniform(words, bits, blur, spare)
    return directed.flatten(1).add_(_BLUR.draw(blur))


def _uniform(words: Words, device: torch.device, count: int) -> Floats:
    """Uniform numbers in [-1, 1], never 0, of two words each."""
    both = torch.empty(2, count, dtype=torch.int64, device=device)
    words(both)
    drawn = (both[0].double() + _fraction(both[1])) * 2.0**-63
    numbers: Floats = drawn.cpu().numpy()
    return numbers


def _draw_uniform(
    words: Sequence[Words],
    bits: Tensor,
    signed: Tensor,
    spare: Tensor,
    below: float = SECOND_WORD,
) -> None:
    """Fill `signed` with uniform numbers in [-1, 1], never 0: their size is the tail of the noise.

    A word w has 63 bits for it. Numbers `below` get those of a second word as well, so that no gaps
    show far out: with a fraction f in (0, 1) of that the number is (w + f) 2^-63, and w + 1/2 in
    place of w + f for the others. On an accelerator all get one, as that costs less than a look.
    """
    if bits.device.type != "cpu":
        both = torch.empty(len(words), 2, *bits.shape[1:], dtype=torch.int64, device=bits.device)
        for fill, rows in zip(words, both, strict=True):
            fill(rows)
        torch.add(both[:, 0].double(), _fraction(both[:, 1]), out=signed)
        signed *= 2.0**-63
        return
    for fill, row in zip(words, bits, strict=True):
        fill(row)
    signed.copy_(bits)
    to_unit(signed)
    if bool(torch.abs(signed, out=spare).amin() >= below):
        return
    places = (spare < below).nonzero(as_tuple=True)
    second = torch.empty_like(places[1])
    counts = places[0].bincount(minlength=len(words)).tolist()
    for fill, own in zip(words, second.split(counts), strict=True):
        fill(own)
    signed[places] = (bits[places] + _fraction(second)) * 2.0**-63


def _fraction(words: Tensor) -> Tensor:
    """Uniform numbers that are never 0 or 1, however they are rounded."""
    return words.double().mul_(2.0**-64 * (1 - 2.0**-50)).add_(0.5)


def draw_normal(words: Words, like: Tensor) -> Tensor:
    """Standard normal numbers, as many as a vector in double has, from the words of one key."""
    signed, spare, bits = torch.empty(3, 1, len(like), dtype=torch.float64, device=like.device)
    _draw_uniform([words], bits.view(torch.int64), signed, spare)
    drawn: Tensor = Gaussian(1.0).draw(signed)
    return drawn[0]


class Noiseless(Noiser):
    """No noise, for training without privacy."""

    def lanes(self, which: slice) -> Noiseless:
        return self

    def std(self, device: torch.device) -> Tensor:
        return torch.zeros(1, device=device)

    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        return sums
