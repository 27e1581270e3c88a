"""Staircase noise as the paper prints its density: one for the whole vector, in its l1 norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms._ripple import log_ripple
from udpfl.mechanisms.arrays import Floats
from udpfl.mechanisms.base import Family, PlotStyle, ShapeSearch
from udpfl.mechanisms.gaussian import Gaussian
from udpfl.mechanisms.radial import Radial, Uniform
from udpfl.mechanisms.staircase import LARGEST_DECAY, Staircase

_MOST_PERIODS = 10**5
_NORMAL = Gaussian(1.0)


@dataclass(frozen=True)
class StaircaseL1(Radial):
    """Noise with density proportional to e^{-decay (r + [fraction >= split])}, r the whole periods
    in the l1 norm of the vector.

    `decay`, `period` and `split` are lambda, Delta and nu of the paper, whose density is in |x|_1.
    A change of at most one period in l1 crosses at most one step, in any dimension, so the noise is
    decay-DP for it; independent `Staircase` noise is so in one dimension alone, where both are the
    same. The more dimensions, the less of the steps can be seen in the noise of one coordinate: it
    turns into Laplace noise of scale period / decay, which has the same pure epsilon under l1.

    Guarantee: `renyi` and `hockey_stick` are exact for the worst gradient of the given l1 norm.

    References: the UDP-FL paper, section on the Staircase mechanism; docs/mathematics.md,
    section 3.6.

    Raises:
        InvalidInput: A parameter is out of range.

    Example:
        >>> from udpfl import Release, Sensitivity, StaircaseL1, account
        >>> noise = StaircaseL1(decay=1.0, period=1.0, dimension=10)
        >>> account(Release(noise, Sensitivity(1.0, "l1", dimension=10)), delta=0).epsilon
        1.0
    """

    decay: float
    """How much the logarithm of the density falls in one period; above 0, at most 600."""
    period: float
    """Length after which the steps repeat, in the unit of the clip."""
    split: float = -1.0
    """Fraction of each period on the higher step; 1 / (1 + e^{decay/2}) unless given."""
    dimension: int = 1
    """Coordinates of a vector."""

    name: ClassVar[str] = "staircase-l1"
    summary: ClassVar[str] = (
        "steps around zero in the l1 norm of the whole vector; pure DP in any dimension"
    )
    plot_style: ClassVar[PlotStyle] = PlotStyle("#b0279c", "v", "-.")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "split", Staircase(self.decay, self.period, self.split).split)
        count: Any = self.dimension
        if not (isinstance(count, float) and count.is_integer() and 1 <= count <= 10**12):
            raise InvalidInput("dimension", f"must be a whole number from 1, got {count!r}")
        object.__setattr__(self, "dimension", int(count))

    @classmethod
    def family(cls, clip: float) -> Family:
        """Those with period = clip and the default split, as in the paper, in one dimension."""
        return lambda level: cls(min(math.sqrt(2) / level, LARGEST_DECAY), clip)

    @classmethod
    def tuned_family(cls, search: ShapeSearch) -> Family:
        """Those of the period and split with the least error."""
        from udpfl.mechanisms._staircase_shape import best_staircase_l1

        return best_staircase_l1(search)

    @classmethod
    def explain(cls, norm: str, dimension: int | None) -> str:
        if dimension == 1:
            return "In one dimension it is staircase noise."
        if norm == "l1":
            return "The more dimensions, the closer it comes to Laplace noise."
        times = "the square root of the dimension" if norm == "l2" else "the dimension"
        return f"It pays for the l1 norm of a gradient, up to {times} times the clip: clip in l1."

    def _ripple(self, place: ArrayLike) -> Floats:
        """How far sums over steps that begin at this place are from integrals, as a logarithm."""
        return log_ripple(self.dimension, np.asarray(place), self.decay)

    @property
    def rounding(self) -> float:
        """All coordinates of a vector are off together, by the sum and the radius that they share:
        measured over vectors whose radius is far from ordinary, too."""
        return 2 + 25 / math.sqrt(self.dimension)

    def log_density(self, x: ArrayLike) -> Floats:
        """Natural logarithm of the density of vectors, along the last axis."""
        vectors = np.asarray(x, dtype=np.float64)
        self._require_vectors(vectors.shape)
        periods = np.abs(vectors).sum(-1) / self.period
        whole = np.floor(periods)
        steps = whole + (periods - whole >= self.split)
        highest = math.log(self.decay / -math.expm1(-self.decay)) - self.decay * self.split
        laplace = self.dimension * math.log(2 * self.period / self.decay)
        return np.asarray(highest - laplace - float(self._ripple(self.split)) - self.decay * steps)

    def renyi(self, order: ArrayLike, shift: ArrayLike) -> Floats:
        """Exact: the privacy loss takes finitely many values, multiples of the decay."""
        orders, shifts = np.broadcast_arrays(
            np.asarray(order, dtype=np.float64), np.abs(np.asarray(shift, dtype=np.float64))
        )
        result = np.zeros(orders.shape)
        for s in np.unique(shifts[shifts > 0]):
            where = shifts == s
            result[where] = self._renyi_at(orders[where], float(s))
        return result

    def _renyi_at(self, orders: Floats, shift: float) -> Floats:
        loss, mass = self._losses(shift)
        a = np.where(np.isinf(orders) | (orders == 1), 2.0, orders)[:, None]
        up = (a - 1) * loss
        # A loss and its opposite together, as an excess over 1: nothing cancels.
        pairs = np.expm1(np.minimum(up, 30.0)) + np.exp(-loss) * np.expm1(-up)
        value = np.log1p(pairs @ mass)
        far = up[:, -1] >= 30
        if np.any(far):
            rest = max(1 - float(mass @ (1 + np.exp(-loss))), 0.0)
            losses = np.concatenate([loss, [0.0], -loss])
            masses = np.concatenate([mass, [rest], mass * np.exp(-loss)])
            value[far] = logsumexp((a[far] - 1) * losses, axis=1, b=masses)
        value /= a[:, 0] - 1
        value = np.where(orders == 1, float(mass @ (-np.expm1(-loss) * loss)), value)
        return np.where(np.isinf(orders), loss[-1], value)

    def hockey_stick(self, epsilon: ArrayLike, shift: float) -> Floats:
        """Exact: the privacy loss takes finitely many values."""
        eps = np.asarray(epsilon, dtype=np.float64)
        if shift == 0:
            return np.maximum(0.0, -np.expm1(eps))
        loss, mass = self._losses(abs(shift))
        rest = max(1 - float(mass @ (1 + np.exp(-loss))), 0.0)
        losses = np.concatenate([loss, [0.0], -loss])
        masses = np.concatenate([mass, [rest], mass * np.exp(-loss)])
        return np.asarray(-np.expm1(np.minimum(eps[..., None] - losses, 0.0)) @ masses)

    def _losses(self, shift: float) -> tuple[Floats, Floats]:
        """The losses above 0 that a shift of one coordinate can have, and their probabilities."""
        periods = shift / self.period
        if periods > _MOST_PERIODS:
            raise Unsupported(
                f"{self.name}: a shift of {periods:.3g} periods has too many loss values to list"
            )
        return _losses(self.decay, self.split, self.dimension, periods)

    @property
    def variance(self) -> float:
        return 2 * (self.period / self.decay) ** 2 * self._moment(2)

    @property
    def mean_abs(self) -> float:
        return self.period / self.decay * self._moment(1)

    def _moment(self, power: int) -> float:
        """E|x|^power of one coordinate over that of Laplace noise."""
        return _moment(self.decay, self.split, self.dimension, power)

    def magnitude(self, tail: Any) -> Any:
        """By bisection; the tail is that of Laplace noise but for the ripple."""
        wanted = np.log(np.asarray(tail, dtype=np.float64))
        start = self._ripple(self.split)
        low, high = np.zeros(wanted.shape), 1 - wanted / self.decay + 100 / self.decay
        for _ in range(100):
            middle = (low + high) / 2
            found = -self.decay * middle + self._ripple(self.split - middle) - start
            low, high = (
                np.where(found > wanted, middle, low),
                np.where(found > wanted, high, middle),
            )
        return self.period * (low + high) / 2

    def radii(self, count: int, uniform: Uniform) -> Floats:
        """Radii of Laplace noise, each kept by how far below its line the steps are.

        The radius of Laplace noise has a gamma law, drawn as Marsaglia and Tsang 2000 do. Steps of
        height e^{-decay k} lie between the line e^{-decay y} and e^{-decay} of it, both times
        e^{decay split}, so that every try is kept with probability (1 - e^{-decay}) / decay.
        """
        shape = self.dimension - 1 / 3
        spread = 1 / math.sqrt(9 * shape)
        found, left = [], count
        while left > 0:
            tries = 8 + math.ceil(1.2 * left * self.decay / -math.expm1(-self.decay))
            drawn = uniform(2 * tries)
            y = spread * _NORMAL.from_signed(drawn[:tries])
            possible = y > -1
            y = np.where(possible, y, 0.0)
            periods = shape * (1 + y) ** 3 / self.decay
            kept = shape * (3 * (np.log1p(y) - y + y * y / 2) - y**3)
            kept -= self.decay * (1 - np.mod(periods - self.split, 1.0))
            good = periods[possible & (np.log(np.abs(drawn[tries:])) < kept)][:left]
            found.append(good)
            left -= good.size
        return self.period * np.concatenate(found)

    def scaled(self, factor: float) -> Self:
        return self._rescaled(factor, "period")


@lru_cache(maxsize=1024)
def _moment(decay: float, split: float, dimension: int, power: int) -> float:
    """Cached: noise asks for its deviation whenever it is drawn."""
    more, plain = (log_ripple(dimension + p, np.asarray(split), decay) for p in (power, 0))
    return math.exp(float(more - plain))


@lru_cache(maxsize=1024)
def _losses(decay: float, split: float, dimension: int, periods: float) -> tuple[Floats, Floats]:
    """The losses above 0 of a shift by so many periods, and their probabilities.

    At epsilon = j decay the hockey-stick divergence is 1 - e^{-decay (periods - j)/2} H(x)/H(split)
    with x = split - (periods - j)/2, and 0 from j = periods on. In between it is linear in
    e^epsilon, and how steep it is says how probable each loss is.
    """
    count = math.ceil(periods)
    j = np.arange(count)
    # H has period 1 and x moves by halves: two values of it say everything.
    places = np.asarray([split - periods / 2, split - periods / 2 + 0.5, split])
    even, odd, own = log_ripple(dimension, places, decay)
    overlap = np.append(-decay * (periods - j) / 2 + np.where(j % 2, odd, even) - own, 0.0)
    falls = np.exp(overlap[1:]) * -np.expm1(-np.diff(overlap))
    above = np.append(falls[1:], 0.0)
    mass = np.maximum(falls - math.exp(-decay) * above, 0.0) / -math.expm1(-decay)
    loss = decay * np.arange(1.0, count + 1)
    for array in (loss, mass):
        array.setflags(write=False)
    return loss, mass
