"""Noise with one density for a whole vector, which falls with the vector's l1 norm alone.

The coordinates are not independent: the l1 norm of the vector (its radius) has a law of its own,
and the direction is uniform on the l1 sphere. So a density is one of vectors, noise is drawn a
vector at a time, and the mechanism has to know the dimension.

Guarantee: of all gradients within an l1 bound, one with a single coordinate is the worst, in every
divergence at once. The sets {density > t} are l1 balls. How much of a ball another one covers that
was moved by v is a log-concave function of v (Prékopa 1971), so within an l1 ball it is least at a
corner, and all corners are alike. `renyi` and `hockey_stick` are of such a shift.

References: docs/mathematics.md, section 3.6.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms.arrays import Floats, namespace
from udpfl.mechanisms.base import Mechanism, signed_uniform

Uniform = Callable[[int], Floats]
"""So many uniform numbers in [-1, 1], never 0."""
_SMALLEST = 2.0**-54
"""Of an exponential number: what lies below is lost in the rounding of its logarithm."""


class Radial(Mechanism):
    """Noise on vectors of `dimension` coordinates with a density that falls with their l1 norm.

    `log_density` is of vectors, along the last axis; `variance`, `mean_abs` and `magnitude` are of
    one coordinate; `renyi` and `hockey_stick` are of a shift of this l1 norm, at its worst.

    Example:
        >>> import numpy as np
        >>> from udpfl import StaircaseL1
        >>> StaircaseL1(1.0, 1.0, dimension=3).sample((5, 3), np.random.default_rng(0)).shape
        (5, 3)
    """

    dimension: int
    second_word: ClassVar[float] = 2.0**-20
    falls_with_l1: ClassVar[bool] = True
    one_coordinate_is_worst: ClassVar[bool] = True
    is_closed_form: ClassVar[bool] = True

    @property
    def unimodal(self) -> bool:
        return True

    def in_dimension(self, dimension: int | None) -> Self:
        known: dict[str, Any] = {} if dimension is None else {"dimension": dimension}
        return replace(self, **known)

    @abstractmethod
    def radii(self, count: int, uniform: Uniform) -> Floats:
        """The l1 norms of so many independent vectors, made of as many uniform numbers as it
        takes."""

    def directed(self, signed: Any, radii: Any) -> Any:
        """Vectors [..., d] with these l1 norms [...], from as many uniform numbers in [-1, 1].

        Exponential numbers over their sum are uniform on the simplex, whatever the sum is. The
        array may be used for the result.
        """
        xp = namespace(signed)
        size = -xp.log(xp.abs(signed))
        size = size.clip(_SMALLEST, None)  # the sum is divided by
        size *= (radii / size.sum(-1))[..., None]
        return xp.copysign(size, signed)

    def sample(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
        """Independent vectors along the last axis, in float64."""
        shape = (shape,) if isinstance(shape, int) else shape
        self._require_vectors(shape)
        radii = self.radii(int(np.prod(shape[:-1])), lambda count: signed_uniform(count, rng))
        noise: Floats = self.directed(signed_uniform(shape, rng), radii.reshape(shape[:-1]))
        return noise

    def sample_one(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
        """Noise of one coordinate: its share of the radius is what d - 1 uniform cuts leave."""
        count = int(np.prod(shape))
        radii = self.radii(count, lambda more: signed_uniform(more, rng))
        signed = signed_uniform(count, rng)
        share = (
            -np.expm1(np.log(np.abs(signed)) / (self.dimension - 1)) if self.dimension > 1 else 1.0
        )
        return np.copysign(radii * share, signed).reshape(shape)

    def _require_vectors(self, shape: tuple[int, ...]) -> None:
        if not shape or shape[-1] != self.dimension:
            raise InvalidInput(
                "dimension",
                f"{self.name} noise is for vectors of {self.dimension:,} coordinates along the "
                f"last axis, got the shape {shape}",
            )

    def from_uniform(self, u: Any) -> Any:
        raise self._not_number_by_number()

    def from_signed(self, signed: Any) -> Any:
        raise self._not_number_by_number()

    def from_bits(self, words: Any, dtype: Any = None) -> Any:
        raise self._not_number_by_number()

    def draw(self, signed: Any) -> Any:
        raise self._not_number_by_number()

    def _not_number_by_number(self) -> Unsupported:
        return Unsupported(
            f"{self.name} noise has one density for the whole vector: it cannot be drawn number by "
            "number; use sample, or radii and directed"
        )
