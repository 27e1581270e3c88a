"""How well scores tell members from others, with intervals, beside what privacy allows.

A record is flagged where its score lies at or above a threshold. Records with equal scores are
flagged together or not at all: no threshold lies between them, and none is interpolated.

Guarantee: `Cap.rate` is the most that (ε, δ)-DP allows. Whoever flags members with probability TPR
and others with probability FPR has TPR ≤ e^ε FPR + δ, and by the mirrored test
1 - FPR ≤ e^ε (1 - TPR) + δ.

References: Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy", 2015,
Theorem 2.1 (the region); Clopper and Pearson, "The Use of Confidence or Fiducial Limits", 1934;
Carlini et al., "Membership Inference Attacks From First Principles", 2022 (low false positive
rates).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special

from udpfl.accounting import PrivacyStatement
from udpfl.attacks.base import Curve, Figure
from udpfl.errors import InvalidInput
from udpfl.mechanisms.arrays import Floats

Bools = NDArray[np.bool_]

LOW_RATES = (0.01, 0.001)
"""False positive rates at which true ones are stated."""
AUC = "AUC"
ACCURACY = "best accuracy"
OWN_TPR = "TPR at the attack's own threshold"
OWN_FPR = "FPR at the attack's own threshold"
_RESAMPLES = 1000
_POINTS = 400
"""Of a curve that is drawn."""


@dataclass(frozen=True)
class Cap:
    """What (ε, δ)-DP leaves to any test between two neighbouring data sets.

    Example:
        >>> from udpfl.attacks.membership.statistics import Cap
        >>> round(float(Cap(1.0, 0.0).rate(0.01)), 4)
        0.0272
    """

    epsilon: float
    delta: float

    @classmethod
    def of(cls, privacy: PrivacyStatement) -> Cap | None:
        """For one record; None where nothing is claimed.

        Where whole clients are hidden, a client without the record is another client: one leaves
        and another comes.
        """
        if privacy.kind == "none" or not math.isfinite(privacy.epsilon):
            return None
        if privacy.unit != "client":
            return cls(privacy.epsilon, privacy.delta)
        more = privacy.delta * (1 + math.exp(min(privacy.epsilon, 700.0)))
        return cls(2 * privacy.epsilon, min(1.0, more))

    def rate(self, false_rate: Floats | float) -> Floats:
        """The largest true positive rate at a false positive rate."""
        growth = math.exp(min(self.epsilon, 700.0))
        x = np.asarray(false_rate, dtype=np.float64)
        mirrored = 1 - (1 - x - self.delta) / growth
        return np.minimum(1.0, np.minimum(growth * x + self.delta, mirrored))

    @property
    def accuracy(self) -> float:
        """The largest ½(TPR + TNR): at the corner of the region."""
        growth = math.exp(min(self.epsilon, 700.0))
        return min(1.0, 0.5 + 0.5 * (growth - 1 + 2 * self.delta) / (growth + 1))

    @property
    def auc(self) -> float:
        """The area below the region's border, which has three straight parts."""
        growth = math.exp(min(self.epsilon, 700.0))
        corner, full = (1 - self.delta) / (1 + growth), 1 - self.delta
        x = np.array([0.0, corner, full, 1.0])
        return area(x, self.rate(x))


@dataclass(frozen=True, eq=False)
class Scores:
    """One score for each record, higher where it looks like a member.

    Args:
        values: [n].
        is_member: [n].
        threshold: From which score on the attack itself says "member"; None where it has none.

    Raises:
        InvalidInput: A score is not a number, or all records are on one side.

    Example:
        >>> import numpy as np
        >>> from udpfl.attacks.membership.statistics import Scores
        >>> scores = Scores(np.array([0.9, 0.8, 0.3, 0.1]), np.array([True, False, True, False]))
        >>> scores.auc
        0.75
    """

    values: Floats
    is_member: Bools
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.values.shape != self.is_member.shape or self.values.ndim != 1:
            raise InvalidInput("scores", "must be one number for each record")
        if np.isnan(self.values).any():
            raise InvalidInput("scores", "must be numbers, but some are NaN")
        if not 0 < self.is_member.sum() < len(self.is_member):
            raise InvalidInput("scores", "needs members and others")

    @property
    def members(self) -> int:
        """How many records were trained on."""
        return int(self.is_member.sum())

    @property
    def others(self) -> int:
        """How many were not."""
        return len(self.is_member) - self.members

    @cached_property
    def steps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """False and true positives at every threshold, from none to all flagged."""
        order = np.argsort(-self.values, kind="stable")
        values, there = self.values[order], self.is_member[order]
        last = np.append(values[1:] != values[:-1], True)  # of records with equal scores
        hits, false = np.cumsum(there)[last], np.cumsum(~there)[last]
        return np.append(0, false).astype(np.int64), np.append(0, hits).astype(np.int64)

    @property
    def rates(self) -> tuple[Floats, Floats]:
        """The receiver operating characteristic: false and true positive rates."""
        false, hits = self.steps
        return false / self.others, hits / self.members

    @property
    def auc(self) -> float:
        """Probability that a member has a higher score than another record; a tie counts half."""
        return area(*self.rates)

    @property
    def accuracy(self) -> float:
        """The largest ½(TPR + TNR) of all thresholds."""
        false, hits = self.rates
        return float((1 + hits - false).max() / 2)

    def at(self, false_rate: float) -> tuple[int, int]:
        """False and true positives at the lowest threshold with at most this false rate."""
        false, hits = self.steps
        last = int(np.flatnonzero(false <= false_rate * self.others + 1e-9)[-1])
        return int(false[last]), int(hits[last])

    def flagged(self) -> tuple[int, int]:
        """False and true positives at the attack's own threshold."""
        assert self.threshold is not None
        flagged = self.values >= self.threshold
        return int((flagged & ~self.is_member).sum()), int((flagged & self.is_member).sum())

    def curve(self, name: str, cap: Cap | None = None) -> Curve:
        """The receiver operating characteristic, to be drawn with logarithmic axes."""
        false, true = self.rates
        if len(false) > _POINTS:  # evenly in the logarithm, where low rates show
            wanted = np.geomspace(0.5 / self.others, 1.0, _POINTS)
            keep = np.unique(np.append(0, np.searchsorted(false, wanted, side="right") - 1))
            false, true = false[keep], true[keep]
        top = () if cap is None else tuple(map(float, cap.rate(false)))
        return Curve(name, tuple(map(float, false)), tuple(map(float, true)), log=True, cap=top)


def area(x: Floats, y: Floats) -> float:
    """Below straight lines between points."""
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The two-sided interval of a probability.

    Example:
        >>> from udpfl.attacks.membership.statistics import clopper_pearson
        >>> [round(end, 4) for end in clopper_pearson(5, 100)]
        [0.0164, 0.1128]
    """
    half = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(special.betaincinv(hits, trials - hits + 1, half))
    high = 1.0 if hits == trials else float(special.betaincinv(hits + 1, trials - hits, 1 - half))
    return low, high


def resampled(
    scores: Scores, seed: int = 0, confidence: float = 0.95
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Intervals of AUC and best accuracy: percentiles of a bootstrap within either side."""
    rng = np.random.default_rng([*b"bootstrap", seed])
    order = np.argsort(-scores.values, kind="stable")
    values, there = scores.values[order], scores.is_member[order]
    last = np.append(values[1:] != values[:-1], True)
    found = np.empty((_RESAMPLES, 2))
    for i in range(_RESAMPLES):
        counts = np.zeros(len(values))
        for side in (there, ~there):
            rows = np.flatnonzero(side)
            counts[rows] = np.bincount(rng.integers(0, len(rows), len(rows)), minlength=len(rows))
        true = np.append(0.0, np.cumsum(counts * there)[last]) / scores.members
        false = np.append(0.0, np.cumsum(counts * ~there)[last]) / scores.others
        found[i] = area(false, true), (1 + true - false).max() / 2
    ends = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return (float(ends[0, 0]), float(ends[1, 0])), (float(ends[0, 1]), float(ends[1, 1]))


def exceeds(
    false: int, others: int, hits: int, members: int, cap: Cap, error: float = 0.05
) -> bool:
    """Whether the true rate is above the cap of the false rate by more than chance explains.

    The cap has the mirrored test in it, so whoever flags the others looks at the same. Either rate
    has half of the error. A threshold that is an order statistic of the others' scores leaves the
    interval of the false rate as it is: the probability above the (k+1)-th of n has the
    distribution Beta(k + 1, n - k), of which its upper end is a quantile.
    """
    low = clopper_pearson(hits, members, 1 - error)[0]
    high = clopper_pearson(false, others, 1 - error)[1]
    return low > float(cap.rate(high))


def figures(scores: Scores, cap: Cap | None, seed: int = 0) -> tuple[Figure, ...]:
    """AUC, best accuracy, and true positive rates at low false ones, each beside its cap.

    The tests of all caps share an error of 5 %.
    """
    between, accuracy = resampled(scores, seed)
    points = [(name_at(rate), rate, *scores.at(rate)) for rate in LOW_RATES]
    found = [
        Figure(AUC, scores.auc, *between, cap=None if cap is None else cap.auc),
        Figure(ACCURACY, scores.accuracy, *accuracy, cap=None if cap is None else cap.accuracy),
    ]
    if scores.threshold is not None:
        false, hits = scores.flagged()
        points.append((OWN_TPR, false / scores.others, false, hits))
    for name, rate, false, hits in points:
        ends = clopper_pearson(hits, scores.members)
        top = None if cap is None else float(cap.rate(rate))
        counts = (false, scores.others, hits, scores.members)
        past = cap is not None and exceeds(*counts, cap, 0.05 / len(points))
        found.append(Figure(name, hits / scores.members, *ends, cap=top, exceeds=past))
    if scores.threshold is not None:
        false, _ = scores.flagged()
        found.append(Figure(OWN_FPR, false / scores.others, *clopper_pearson(false, scores.others)))
    return tuple(found)


def name_at(false_rate: float) -> str:
    """What the true positive rate at a false one is called."""
    return f"TPR at {100 * false_rate:g} % FPR"
