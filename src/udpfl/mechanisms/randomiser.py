"""Randomised response on vectors: what is sent is made of answers that are often wrong.

A mechanism adds noise to a vector. A randomiser sends none of it: it asks the vector questions with
two answers, chosen without a look at it, and turns each answer round now and then. To a question t
in [-1, 1] the answer is +1 with probability (1 + t tanh(epsilon / 2)) / 2 and -1 otherwise, so that
two vectors give an answer with probabilities of ratio e^epsilon at most: epsilon-DP, whatever the
vectors are. What is sent is unbiased.

Nothing here depends on rounding: an answer is a comparison of whole numbers (`engine.randomising`),
and every number that is sent is a public constant with the sign of an answer.

References: Warner 1965, "Randomized response"; Duchi, Jordan and Wainwright 2018, "Minimax optimal
procedures for locally private estimation" (the l2 and the linf mechanism).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import special

from udpfl.errors import InvalidInput
from udpfl.mechanisms.arrays import Floats
from udpfl.mechanisms.base import positive

_SMALLEST = 1e-6
"""The smallest epsilon of an answer."""


@dataclass(frozen=True)
class Randomiser(ABC):
    """Answers about a vector within a ball.

    Guarantee: every answer is epsilon-DP for any two vectors, so a message is so at `answers` times
    epsilon. `lean` lies below tanh(epsilon / 2) by more than a probability is rounded by.

    Raises:
        InvalidInput: A number is out of range.

    Example:
        >>> from udpfl.mechanisms import CoordinateResponse, Randomiser
        >>> own: Randomiser = CoordinateResponse(2.0, bound=1.0, dimension=4)
        >>> round(own.lean, 3)
        0.762
    """

    epsilon: float
    """Of one answer, at delta = 0."""
    bound: float
    """Norm of the longest vector."""
    dimension: int
    """Numbers of the vector."""
    answers: int = 1
    """In a message."""

    name: ClassVar[str]
    """What a run folder calls it."""
    norm: ClassVar[Literal["l2", "linf"]]
    """In which vectors are bounded."""
    discrete: ClassVar[bool]
    """Whether there are countably many messages."""
    summary: ClassVar[str]
    """What is asked, for people."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "bound"):
            positive(name, getattr(self, name))
        if self.epsilon < _SMALLEST:
            raise InvalidInput("epsilon", f"of an answer must be {_SMALLEST:g} or more")
        for name in ("dimension", "answers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(name, f"must be a whole number from 1, got {value!r}")

    @property
    def lean(self) -> float:
        """Probability of the true answer less that of the other one, where |t| = 1."""
        return math.tanh(self.epsilon / 2) - 2.0**-50

    @property
    @abstractmethod
    def size(self) -> float:
        """What an answer is multiplied by, so that the message is unbiased."""

    @property
    @abstractmethod
    def noise_std(self) -> float:
        """Root mean square of a coordinate of a message about the zero vector."""

    @abstractmethod
    def score(self, messages: Floats, one: Floats, other: Floats) -> Floats:
        """How much each message [n, d] points to one vector and not to the other, for an audit."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class CoordinateResponse(Randomiser):
    """Asks as many coordinates as there are answers, drawn without repetition, for their size.

    The question to coordinate j is x_j / bound. A message has d / answers * bound / lean at each
    coordinate that was asked, with the sign of its answer, and zero at the others.

    Raises:
        InvalidInput: A number is out of range, or there are more answers than coordinates.

    Example:
        >>> from udpfl.mechanisms import CoordinateResponse
        >>> CoordinateResponse(1.0, bound=0.5, dimension=10, answers=10).norm
        'linf'
    """

    name: ClassVar[str] = "coordinates"
    norm: ClassVar[Literal["l2", "linf"]] = "linf"
    discrete: ClassVar[bool] = True
    summary: ClassVar[str] = "one bit about each of some coordinates"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.answers > self.dimension:
            raise InvalidInput(
                "answers", f"must be at most the dimension {self.dimension}, got {self.answers}"
            )

    @property
    def size(self) -> float:
        return self.dimension / self.answers * self.bound / self.lean

    @property
    def noise_std(self) -> float:
        return self.size * math.sqrt(self.answers / self.dimension)

    def score(self, messages: Floats, one: Floats, other: Floats) -> Floats:
        """The logarithm of the likelihood ratio: no other score is better."""
        signs = np.sign(messages)
        ratio = np.log1p(signs * one / self.bound * self.lean)
        ratio -= np.log1p(signs * other / self.bound * self.lean)
        total: Floats = ratio.sum(1)
        return total


@dataclass(frozen=True)
class DirectionResponse(Randomiser):
    """Asks on which side of a random plane the vector lies, a plane for each answer.

    The question is sign(<u, x>) |x| / bound for a direction u that is uniform on the sphere. A
    message is the mean of the directions with the signs of their answers, times
    bound * sqrt(pi) Gamma((d + 1) / 2) / Gamma(d / 2) / lean: E |u_1| is the inverse of the roots
    and Gammas.

    Raises:
        InvalidInput: A number is out of range.

    Example:
        >>> from udpfl.mechanisms import DirectionResponse
        >>> round(DirectionResponse(2.0, bound=1.0, dimension=1).size, 3)
        1.313
    """

    name: ClassVar[str] = "directions"
    norm: ClassVar[Literal["l2", "linf"]] = "l2"
    discrete: ClassVar[bool] = False
    summary: ClassVar[str] = "one bit about each of some random directions"

    @property
    def size(self) -> float:
        gammas = special.gammaln((self.dimension + 1) / 2) - special.gammaln(self.dimension / 2)
        return self.bound * math.sqrt(math.pi) * math.exp(gammas) / self.lean / self.answers

    @property
    def noise_std(self) -> float:
        return self.size * math.sqrt(self.answers / self.dimension)

    def score(self, messages: Floats, one: Floats, other: Floats) -> Floats:
        """The length along the difference: with one answer, all that a message says."""
        along: Floats = messages @ (one - other)
        return along


BUILT_IN: dict[str, type[Randomiser]] = {
    kind.name: kind for kind in (CoordinateResponse, DirectionResponse)
}


def randomiser_of(plain: Mapping[str, Any]) -> Randomiser:
    """The inverse of `Randomiser.to_dict`; anything else raises."""
    kind = BUILT_IN.get(plain["name"]) if isinstance(plain.get("name"), str) else None
    if kind is None:
        raise InvalidInput("randomiser", f"must be {' or '.join(BUILT_IN)}, got {plain!r}")
    try:
        return kind(**{name: value for name, value in plain.items() if name != "name"})
    except TypeError as error:
        raise InvalidInput("randomiser", str(error)) from None
