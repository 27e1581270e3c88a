"""What a noise mechanism is: a symmetric density, its divergence under a shift, and a sampler.

A mechanism knows nothing of clipping, steps or clients. It adds independent noise to every
coordinate (or noise that belongs together to a whole vector: `mechanisms.radial`); what that means
for a whole gradient is the business of `udpfl.accounting`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from udpfl.errors import InvalidInput
from udpfl.mechanisms.arrays import Floats, floats, namespace, to_unit


def positive(name: str, value: float) -> None:
    """Refuse a parameter that is not a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise InvalidInput(name, f"must be a number, got {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise InvalidInput(name, f"must be a finite number above 0, got {value!r}")


def signed_uniform(shape: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Uniform numbers in [-1, 1], never 0, of 63 random bits and a sign."""
    bounds = np.iinfo(np.int64)
    words = rng.integers(bounds.min, bounds.max, size=shape, dtype=np.int64, endpoint=True)
    numbers: Floats = to_unit(floats(words, np.float64))
    return numbers


Rank = Literal["l2", "l1"]
"""Which expected error counts: root mean square, or mean absolute."""


class PlotStyle(NamedTuple):
    """How the lines of a mechanism are drawn, in the words of matplotlib.

    Example:
        >>> from udpfl.mechanisms import PlotStyle
        >>> PlotStyle("#1f77b4", dash="--").marker
        'D'
    """

    colour: str = "#8a3fa0"
    """Of line and markers."""
    marker: str = "D"
    """Its shape."""
    dash: str = ":"
    """The style of the line."""
    width: float = 1.5
    """Of the line, in points."""
    alpha: float = 1.0
    """Opacity, 1 for opaque."""


Family = Callable[[float], "Mechanism"]
"""A mechanism for every noise level: more noise for a larger argument."""


class ShapeSearch(Protocol):
    """What a search for the best shape may ask of the release that the noise is for."""

    @property
    def clip(self) -> float:
        """The bound on one record's gradient."""

    @property
    def radius(self) -> float:
        """The largest l1 norm of one record's gradient."""

    @property
    def dimension(self) -> int:
        """How many coordinates it has."""

    @property
    def shift(self) -> float:
        """How far one coordinate moves in the worst gradient for Laplace-like noise."""

    @property
    def is_pure(self) -> bool:
        """Whether the budget asks for pure DP (delta = 0)."""

    def least_level(self, family: Family, guess: float | None = None) -> float:
        """About the smallest private level of a family by Rényi accounting; may raise `Infeasible`.

        `guess` is a level to start from.
        """

    @property
    def rank(self) -> Rank:
        """Which expected error is to be small."""


def _frozen(value: Any) -> Any:
    """The same value as something that can be compared and hashed."""
    match value:
        case dict():
            return tuple(sorted((name, _frozen(own)) for name, own in value.items()))
        case list() | tuple():
            return tuple(map(_frozen, value))
        case np.ndarray():
            return value.shape, value.dtype.str, value.tobytes()
    return value


@dataclass(frozen=True, eq=False)
class Mechanism(ABC):
    """Additive noise with a density symmetric about zero.

    Class attributes up to `has_pure_guarantee` are claims about the noise. Each is proved in
    docs/mathematics.md for the mechanisms that set it, and each lets the accountant replace a
    numerical worst case by a closed form. A subclass that claims nothing is accounted numerically.
    `summary`, `plot_style` and `explain` are for people; `family` and `tuned_family` are what
    calibration searches. To define noise of your own, subclass `Tabulated`, not this.
    """

    name: ClassVar[str]
    """What configurations, the command line and stored events call it."""
    is_isotropic: ClassVar[bool] = False
    """Looks the same in all directions: a gradient counts by its l2 norm alone, in any dimension.
    Independent noise of this kind is Gaussian (Maxwell's theorem)."""
    even_spread_is_worst: ClassVar[bool] = False
    """D(sqrt(u)) is concave in u at every order: under l2 the worst gradient is spread evenly."""
    one_coordinate_is_worst: ClassVar[bool] = False
    """D(s) is convex in s at every order: under l1 the worst gradient is a single coordinate."""
    falls_with_l1: ClassVar[bool] = False
    """The density of all coordinates together falls with their l1 norm alone: under l1 a gradient
    of a single coordinate is the worst, in every divergence at once."""
    is_closed_form: ClassVar[bool] = False
    """`renyi` is exact and cheap, so that it may be asked for at every order."""
    is_log_concave: ClassVar[bool] = False
    """The logarithm of the density is concave: the privacy loss of a shift is monotone."""
    second_word: ClassVar[float] = 1.0
    """Tail probability below which noise is made of two random words: one of 63 bits leaves gaps
    there. A tail that has not been looked at gets two words everywhere."""
    draws_pairs: ClassVar[bool] = False
    """`draw` turns pairs of numbers into pairs of values, as Box and Muller do."""
    has_pure_guarantee: ClassVar[bool] = True
    """False where the privacy loss of a shift has no bound, whatever the parameters: there is no
    epsilon at delta = 0."""
    is_ranked: ClassVar[bool] = True
    """Whether "auto" and "all" try it; False where that takes long and another one always wins."""
    summary: ClassVar[str] = ""
    """What the noise is and what it is good for, in a sentence for tables."""
    plot_style: ClassVar[PlotStyle] = PlotStyle()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()
        # What is known of a noise is kept under it. Equality that somebody else made may overlook a
        # parameter (one that is not compared, or no field at all), and a small noise would then get
        # the epsilon of a large one. Set here, before @dataclass looks for them.
        cls.__eq__ = Mechanism.__eq__  # type: ignore[method-assign]
        cls.__hash__ = Mechanism.__hash__  # type: ignore[method-assign]

    def __eq__(self, other: object) -> bool:
        """The same class with the same parameters, every one of them."""
        return type(self) is type(other) and _frozen(vars(self)) == _frozen(vars(other))

    def __hash__(self) -> int:
        return hash((type(self), _frozen(vars(self))))

    def __post_init__(self) -> None:
        # Plain floats: a numpy scalar would silently turn float32 noise into float64.
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float, np.floating, np.integer)) and value is not True:
                object.__setattr__(self, field.name, float(value))

    @property
    def unimodal(self) -> bool:
        """The density never rises away from zero, so divergences never fall as the shift grows."""
        return False

    @property
    def rounding(self) -> float:
        """Root mean square of the error of `draw` in double, in units of 2^-53 deviations, and four
        times as much at most of |noise| and the deviation together. Measured against exact noise;
        it enters what is said of rounding and nothing else."""
        return 32.0

    @property
    def steepest(self) -> float:
        """A bound on |d log density / dx|; inf where there is none."""
        return math.inf

    @abstractmethod
    def log_density(self, x: ArrayLike) -> Floats:
        """Natural logarithm of the density, -inf where it vanishes."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """Variance of one coordinate."""

    @property
    @abstractmethod
    def mean_abs(self) -> float:
        """Expected absolute value of one coordinate."""

    @property
    def noise_std(self) -> float:
        """Standard deviation of one coordinate."""
        return math.sqrt(self.variance)

    def error(self, rank: Rank) -> float:
        """Expected error of one coordinate: root mean square (l2) or mean absolute (l1)."""
        return self.noise_std if rank == "l2" else self.mean_abs

    @abstractmethod
    def magnitude(self, tail: Any) -> Any:
        """The x >= 0 with P(|noise| > x) = tail, for numpy arrays or torch tensors in (0, 1]."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """The mechanism whose noise is `factor` times this one's."""

    def in_dimension(self, dimension: int | None) -> Self:
        """The same noise for vectors of so many coordinates: itself, where each has its own."""
        return self

    @classmethod
    def family(cls, clip: float) -> Family:
        """The noises of this kind that calibration searches: about `level * clip` is their std.

        By default all scalings of the one with scale 1, which is the first parameter.
        """
        make: Any = cls
        unit: Mechanism = make(1.0)
        return unit.scaled(clip / unit.noise_std).scaled

    @classmethod
    def tuned_family(cls, search: ShapeSearch) -> Family:
        """The family of the shape that suits a release best; there is one shape by default."""
        return cls.family(search.clip)

    @classmethod
    def explain(cls, norm: str, dimension: int | None) -> str:
        """Why this noise costs what it costs, for gradients that are clipped in this norm."""
        return "Accounted numerically for the worst gradient."

    def jumps(self, far: float, most: int) -> Floats | None:
        """Where the density jumps, up to that far on either side, if it is constant in between.

        None for any other density, and where there would be more than `most` of them.
        """
        return None

    @abstractmethod
    def renyi(self, order: ArrayLike, shift: ArrayLike) -> Floats:
        """Rényi divergence between the noise and itself shifted; broadcasts both arguments.

        Order 1 is the Kullback-Leibler divergence, order inf the largest privacy loss. The value
        must be exact or an upper bound: `Tabulated` gives both for any symmetric log-density.
        """

    @abstractmethod
    def hockey_stick(self, epsilon: ArrayLike, shift: float) -> Floats:
        """The integral of max(0, p(x) - e^epsilon p(x - shift)): delta of one release."""

    def from_uniform(self, u: Any) -> Any:
        """Noise from uniform draws in (0, 1) by inverting the distribution function.

        Works on numpy arrays and torch tensors and keeps their precision. Near 1 a float32 has
        24 bits only: use `from_bits` to draw float32 noise with far tails on both sides.
        """
        xp = namespace(u)
        if not xp.all((u >= 0) & (u <= 1)):
            raise InvalidInput("u", "uniform draws must lie between 0 and 1")
        lower = u < 0.5
        tail = 2 * xp.where(lower, u, 1 - u)
        tiny = 2.0**-64
        size = self.magnitude(xp.where(tail < tiny, xp.full_like(tail, tiny), tail))
        return xp.where(lower, -size, size)

    def from_signed(self, signed: Any) -> Any:
        """Noise of the sign of each number in [-1, 1], never 0, and with its size as the tail."""
        size = self.magnitude(abs(signed))
        return namespace(signed).copysign(size, signed)

    def from_bits(self, words: Any, dtype: Any = None) -> Any:
        """Noise from random signed 64-bit words: the sign takes one bit, the tail 63.

        The result is float32 unless `dtype` says otherwise, and even then its tails reach
        probabilities of 1e-19.
        """
        return self.from_signed(to_unit(floats(words, dtype or namespace(words).float32)))

    def draw(self, signed: Any) -> Any:
        """Independent noise from uniform numbers in [-1, 1], never 0, as many as there are.

        In the fastest way this mechanism knows, and it may use the array for the result. Which
        number of a row makes which value is its own business; `from_signed` goes one by one.
        """
        return self.from_signed(signed)

    def sample(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
        """Independent noise for every coordinate, in float64."""
        noise: Floats = self.from_signed(signed_uniform(shape, rng))
        return noise

    def sample_one(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
        """Noise of one coordinate in as many independent releases."""
        return self.sample(shape, rng)

    @property
    def parameters(self) -> Mapping[str, float]:
        """The constructor's arguments, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def parameters_in_words(self, digits: int = 4) -> str:
        """The same for people: "scale 0.7071"."""
        return ", ".join(
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.{digits}g}"
            for name, value in self.parameters.items()
        )

    def _rescaled(self, factor: float, *lengths: str) -> Self:
        """A copy with every parameter that is a length multiplied by `factor`."""
        positive("factor", factor)
        return replace(self, **{name: getattr(self, name) * factor for name in lengths})
