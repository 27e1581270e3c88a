"""Staircase noise: a geometric mixture of uniform distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms.arrays import Floats, namespace
from udpfl.mechanisms.base import Family, Mechanism, PlotStyle, ShapeSearch, positive
from udpfl.mechanisms.laplace import Laplace

LARGEST_DECAY = 600.0  # beyond it e^{-decay} leaves the range of floating point


def default_split(decay: float) -> float:
    """The split 1 / (1 + e^{decay/2}) that minimises E|x| for one pure-DP release."""
    return 1 / (1 + math.exp(decay / 2))


_MOST_PERIODS = 10**5


def _inverse_expm1_rest(x: Floats) -> Floats:
    """1/(e^x - 1) - 1/x, which is smooth through zero."""
    small = -0.5 + x / 12 - x**3 / 720 + x**5 / 30240
    safe = np.where(np.abs(x) < 0.05, 1.0, x)
    with np.errstate(over="ignore"):
        direct = 1 / np.expm1(safe) - 1 / safe
    return np.where(np.abs(x) < 0.05, small, direct)


@dataclass(frozen=True)
class _Pieces:
    """The line cut into sets on which both densities are constant, up to repetition.

    For a shift of n + f periods every set repeats once a period. Far from zero the repetitions
    shrink by e^{-decay}; between 0 and the shift there are `count` of them and the loss falls by
    two steps each time. Arrays have one leading axis for the pieces, then the shape of the shifts.
    """

    mass: Floats
    """Probability of the piece, all repetitions together."""
    loss: Floats
    """Privacy loss of the first repetition, in units of the decay."""
    count: Floats
    """Repetitions along which the loss falls; 1 where it stays constant."""


@dataclass(frozen=True)
class Staircase(Mechanism):
    """Noise with density a e^{-decay (r + [fraction >= split])}, r periods away from zero.

    `decay`, `period` and `split` are lambda, Delta and nu of the paper. The density is piecewise
    constant, so every divergence below is an exact finite sum. It jumps, so its divergence is
    linear (not quadratic) in small shifts: in high dimension the period has to shrink with the
    shift of a single coordinate, where Staircase noise turns into Laplace noise.

    References: Geng, Kairouz, Oh and Viswanath 2015, "The staircase mechanism in differential
    privacy"; docs/mathematics.md for the divergence at a general shift.

    Raises:
        InvalidInput: A parameter is out of range.

    Example:
        >>> from udpfl import Release, Sensitivity, Staircase, account
        >>> number = Sensitivity(1.0, dimension=1)
        >>> account(Release(Staircase(decay=1.0, period=1.0), number), delta=0).epsilon
        1.0
    """

    decay: float
    """How much the logarithm of the density falls in one period; above 0, at most 600."""
    period: float
    """Length after which the steps repeat, in the unit of the clip."""
    split: float = -1.0
    """Fraction of each period on the higher step; 1 / (1 + e^{decay/2}) unless given."""

    name: ClassVar[str] = "staircase"
    second_word: ClassVar[float] = 2.0**-20
    is_closed_form: ClassVar[bool] = True
    summary: ClassVar[str] = "steps around zero; the least for a single number under pure DP"
    plot_style: ClassVar[PlotStyle] = PlotStyle("#2a9d4a", "^", "-.")

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("decay", self.decay)
        positive("period", self.period)
        if self.decay > LARGEST_DECAY:
            raise InvalidInput("decay", f"must be at most {LARGEST_DECAY:g}, got {self.decay!r}")
        if self.split == -1.0:
            object.__setattr__(self, "split", default_split(self.decay))
        if not isinstance(self.split, float) or not 0 <= self.split <= 1:
            raise InvalidInput("split", f"must lie between 0 and 1, got {self.split!r}")
        if self.split < 1e-150:  # a step too thin for floating point is no step
            object.__setattr__(self, "split", 0.0)

    @classmethod
    def family(cls, clip: float) -> Family:
        """Those with period = clip and the default split, as in the paper."""
        return lambda level: cls(min(math.sqrt(2) / level, LARGEST_DECAY), clip)

    @classmethod
    def tuned_family(cls, search: ShapeSearch) -> Family:
        """Those of the period and split with the least error."""
        from udpfl.mechanisms._staircase_shape import best_staircase

        return best_staircase(search)

    @classmethod
    def explain(cls, norm: str, dimension: int | None) -> str:
        if norm == "l2" and dimension != 1:
            return "Its jumps need a period below the shift of one coordinate: close to Laplace."
        return Laplace.explain(norm, dimension)

    @property
    def _high_share(self) -> float:
        """split + e^{-decay} (1 - split): one period's area in units of its first step."""
        return self.split + math.exp(-self.decay) * (1 - self.split)

    @property
    def _height(self) -> float:
        """The density at zero, times the period."""
        return -math.expm1(-self.decay) / (2 * self._high_share)

    def _steps(self, y: Floats) -> Floats:
        """How many steps down the density is, y >= 0 periods away from zero."""
        whole = np.floor(y)
        return whole + (y - whole >= self.split)

    @property
    def unimodal(self) -> bool:
        return True

    @property
    def rounding(self) -> float:
        """Rounding grows on the lower steps, and the density jumps, both by up to e^decay."""
        return math.exp(self.decay)

    def log_density(self, x: ArrayLike) -> Floats:
        y = np.abs(np.asarray(x, dtype=np.float64)) / self.period
        return np.asarray(math.log(self._height / self.period) - self.decay * self._steps(y))

    def _pieces(self, shift: Floats) -> _Pieces:
        """Cut the line for shifts given in periods; see `_Pieces`."""
        n = np.floor(shift)
        f = shift - n
        nu, decay, height = self.split, self.decay, self._height
        fixed = [np.zeros_like(f), np.full_like(f, nu), np.ones_like(f)]

        def intervals(*moving: Floats) -> tuple[Floats, Floats]:
            edges = np.sort(np.stack([*fixed, *moving]), axis=0)
            return (edges[1:] + edges[:-1]) / 2, np.diff(edges, axis=0)

        # Outside (0, shift): one period, repeated for ever with ratio e^{-decay}. `y` is the
        # distance to the nearer centre, and the other centre is `shift` further away.
        y, width = intervals(1 - f, np.mod(nu - f, 1.0))
        climb = self._steps(y + f) - self._steps(y) + n
        near = height * width * np.exp(-decay * self._steps(y)) / -math.expm1(-decay)
        far = near * np.exp(-decay * climb)
        # Between the centres, t is the position within the period; the part t < f has one
        # repetition more than the rest.
        t, width = intervals(f, np.mod(f - nu, 1.0))
        ahead = np.where(t < f, self._steps(np.abs(f - t)), self._steps(1 + f - t) - 1)
        loss = n + ahead - self._steps(t)
        count = np.where(t < f, n + 1, n)
        repeats = np.expm1(-decay * count) / math.expm1(-decay)
        middle = height * width * np.exp(-decay * self._steps(t)) * repeats
        return _Pieces(
            mass=np.concatenate([near, far, middle]),
            loss=np.concatenate([climb, -climb, loss]),
            count=np.concatenate([np.ones_like(near), np.ones_like(far), count]),
        )

    def renyi(self, order: ArrayLike, shift: ArrayLike) -> Floats:
        """Exact at every shift: the sum over `_Pieces` of mass times e^{(order-1) loss}."""
        a = np.asarray(order, dtype=np.float64)
        s = np.abs(np.asarray(shift, dtype=np.float64)) / self.period
        rank = np.broadcast(a, s).ndim
        pieces = self._pieces(s.reshape((1,) * (rank - s.ndim) + s.shape))
        mass, loss, count = pieces.mass, pieces.loss, pieces.count
        decay = self.decay

        finite = np.where(np.isinf(a) | (a == 1), 2.0, a)[None]
        # Summing e^{(a-1) loss} over repetitions turns one geometric series into another.
        x = decay * (2 * finite - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            series = np.log(np.expm1(-x * count) / np.expm1(-x))
            series = series - np.log(np.expm1(-decay * count) / math.expm1(-decay))
        exponent = (finite - 1) * decay * loss + np.where(count == 1, 0.0, series)
        exponent = np.where(mass > 0, exponent, 0.0)
        peak = exponent.max(axis=0)
        excess = (mass * np.expm1(np.minimum(exponent, 30.0))).sum(axis=0)
        value = np.log1p(np.maximum(excess, 0.0))
        if np.any(peak >= 30):
            value = np.where(peak < 30, value, logsumexp(exponent, axis=0, b=mass))
        value = value / (finite[0] - 1)

        if np.any(a == 1):
            # Mean number of the repetition under a truncated geometric law.
            later = _inverse_expm1_rest(np.asarray(decay)) - count * _inverse_expm1_rest(
                decay * count
            )
            kl = (mass * decay * (loss - 2 * np.where(count > 1, later, 0.0))).sum(axis=0)
            value = np.where(a == 1, np.maximum(kl, 0.0), value)
        return np.where(np.isinf(a), decay * np.ceil(s), value)

    def kinks(self, limit: float) -> Floats:
        """The shifts in (0, limit) between which e^{(order-1) D} is affine in the shift.

        Every boundary in `_pieces` moves linearly with the shift, so only where two of them meet
        can the slope change: at fractions 0, split, 1 - split and 2 split of a period.
        """
        periods = np.arange(math.floor(limit / self.period) + 1, dtype=np.float64)
        fractions = np.unique(np.mod([0.0, self.split, 1 - self.split, 2 * self.split], 1.0))
        shifts = np.unique((periods[:, None] + fractions) * self.period)
        return np.asarray(shifts[(shifts > 0) & (shifts < limit)])

    def jumps(self, far: float, most: int) -> Floats | None:
        if 4 * far / self.period > most:
            return None
        starts = np.arange(math.ceil(far / self.period) + 1) * self.period
        right = np.concatenate([starts, starts + self.split * self.period])
        return np.concatenate([-right, right])

    def hockey_stick(self, epsilon: ArrayLike, shift: float) -> Floats:
        """Exact: the privacy loss takes finitely many values."""
        eps = np.asarray(epsilon, dtype=np.float64)
        periods = abs(shift) / self.period
        if periods > _MOST_PERIODS:
            raise Unsupported(
                f"staircase: a shift of {periods:.3g} periods has too many loss values to list"
            )
        pieces = self._pieces(np.asarray(periods))
        mass, loss = [], []
        for piece_mass, first_loss, count in zip(
            pieces.mass, pieces.loss, pieces.count, strict=True
        ):
            k = np.arange(max(int(count), 1))
            share = np.exp(-self.decay * k)
            mass.append(piece_mass * share / share.sum())
            loss.append(self.decay * (first_loss - 2 * k))
        losses, inverse = np.unique(np.concatenate(loss), return_inverse=True)
        p = np.bincount(inverse, np.concatenate(mass))
        # The sum of p (1 - e^{eps - loss}) over the losses above eps, some thousand at a time.
        result = np.empty(eps.size)
        for some in np.array_split(np.arange(eps.size), 1 + eps.size * losses.size // 10**7):
            gap = np.minimum(eps.ravel()[some, None] - losses, 0.0)
            result[some] = -np.expm1(gap) @ p
        return result.reshape(eps.shape)

    @property
    def _mean_periods(self) -> float:
        """Mean number of whole periods in the size of the noise, which is geometric."""
        return 1 / math.expm1(self.decay)

    @property
    def _period_moments(self) -> tuple[float, float]:
        """First and second moment of the position within a period."""
        b, nu = math.exp(-self.decay), self.split
        first = (nu**2 + b * (1 - nu**2)) / (2 * self._high_share)
        second = (nu**3 + b * (1 - nu**3)) / (3 * self._high_share)
        return first, second

    @property
    def variance(self) -> float:
        periods = self._mean_periods
        periods_squared = periods * (1 + 2 * periods)
        first, second = self._period_moments
        return self.period**2 * (periods_squared + 2 * periods * first + second)

    @property
    def mean_abs(self) -> float:
        return self.period * (self._mean_periods + self._period_moments[0])

    def magnitude(self, tail: Any) -> Any:
        xp = namespace(tail)
        decay, nu = self.decay, self.split
        y = -xp.log(tail) / decay
        whole = xp.floor(y)
        remaining = xp.exp(-decay * (y - whole))  # tail probability within the period, in (b, 1]
        # Mass of the period still ahead, as a share of the period: 1 at its start, 0 at its end.
        ahead = (remaining - math.exp(-decay)) / -math.expm1(-decay)
        low = math.exp(-decay) * (1 - nu) / self._high_share
        passed = -xp.expm1(-decay * (y - whole)) / -math.expm1(-decay)
        on_high = passed * self._high_share
        on_low = 1 - ahead / low * (1 - nu) if low > 0 else on_high
        return self.period * (whole + xp.where(ahead > low, on_high, on_low).clip(0.0, 1.0))

    def scaled(self, factor: float) -> Self:
        return self._rescaled(factor, "period")
