"""What releases cost at least and at most, computed a second time and by other means.

At least: what a record gives away that changes one coordinate by the whole clip, or many by their
share of it (`losses`). No smaller epsilon can be true.

At most: Rényi bounds by `dp-accounting`. Gaussian noise goes there as it is. Laplace noise of scale
b costs no more than Gaussian noise of that deviation (coordinate i is |v_i|/b-DP, hence
v_i^2/(2 b^2)-zCDP, and these add up), sampled or not, at whole orders, where sampling is a
polynomial in the unsampled moments. A pure epsilon-DP release is epsilon^2/2-zCDP. Several passes
over one sample have the moments of Gaussian noise that is smaller by the root of their number.
References: Bun and Steinke 2016, Proposition 3.3; docs/mathematics.md, section 5.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

from udpfl.audit._events import Noise, Seen
from udpfl.audit._losses import Pair, divergence, least_epsilon, pair_of, sampled, spread_pair

_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 384, 512, 1024)


def bounds(releases: Mapping[Seen, int], delta: float) -> tuple[float, float]:
    """The least and the most epsilon that all releases together can have at `delta`."""
    return _bounds(frozenset(releases.items()), float(delta))


@lru_cache(maxsize=1024)
def _bounds(releases: frozenset[tuple[Seen, int]], delta: float) -> tuple[float, float]:
    counts = sorted(releases, key=repr)
    if not counts:
        return 0.0, 0.0
    most = sum(count * pure_epsilon(seen) for seen, count in counts)
    if delta > 0:
        with _quiet():
            return _least(counts, delta), min(most, _renyi(counts, delta))
    return sum(count * _pure_least(seen) for seen, count in counts if tractable(seen)), most


def least_by_filter(
    releases: Mapping[Seen, int], delta: float, rule: Sequence[tuple[float, float]]
) -> float:
    """What a filter with these orders and shares of delta states at least.

    Its divergences are no smaller than those that one record causes in one coordinate. Pure
    epsilons that add up to less are as good.
    """
    if not releases or not rule or not delta or not all(map(tractable, releases)):
        return 0.0
    pairs = [(sampled(_pair(seen, False), seen.rate), n) for seen, n in releases.items()]
    stated = min(
        sum(count * divergence(pair, order) for pair, count in pairs)
        + math.log1p(-1 / order)
        - (math.log(share * delta) + math.log(order)) / (order - 1)
        for order, share in rule
    )
    pure = sum(count * pure_epsilon(seen) for seen, count in releases.items())
    return max(0.0, min(stated, pure))


def tractable(seen: Seen) -> bool:
    """Whether a lower bound is known: not for tabulated noise, nor behind a veil."""
    known = ("gaussian", "laplace", "staircase", "staircase-l1")
    return not seen.hidden and (seen.noise is None or seen.noise.name in known)


def _pure_least(seen: Seen) -> float:
    """An epsilon that is reached at delta = 0: Laplace noise by a spread record, else by one."""
    one = pure_epsilon(Seen(seen.noise, seen.clip, "l2", 1, seen.rate, seen.passes))
    reached = seen.noise is not None and seen.noise.name == "laplace" and seen.dimension is not None
    return pure_epsilon(seen) if reached else one


def pure_epsilon(seen: Seen) -> float:
    """An epsilon that holds at delta = 0; inf where none is known."""
    whole = seen.clip if seen.noise is None else _whole_loss(seen, seen.noise)
    whole *= seen.passes
    if seen.rate == 1 or math.isinf(whole):
        return whole
    if whole > 500:
        return whole + math.log(seen.rate)
    return math.log1p(seen.rate * math.expm1(whole))


def _whole_loss(seen: Seen, noise: Noise) -> float:
    """What a release loses at most, unsampled: by the slope of its log-density, or step by step."""
    spread = {"l1": 0.0, "l2": 0.5, "linf": 1.0}[seen.norm]
    if spread and seen.dimension is None:
        return math.inf
    size = seen.clip * math.pow(seen.dimension or 1, spread)  # the largest l1 norm
    if noise.name == "laplace":
        return size / noise.numbers[0]
    if noise.name == "r2dp":
        concentration, scale = noise.numbers
        return size * (concentration + 1) / scale
    if noise.name == "staircase-l1" or (noise.name == "staircase" and seen.dimension == 1):
        decay, period = noise.numbers[0], noise.numbers[-2]
        return decay * math.ceil(size / period)
    return math.inf


def _renyi(counts: list[tuple[Seen, int]], delta: float) -> float:
    """Epsilon by Rényi bounds, all releases added up order by order."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    exact = all(seen.noise and seen.noise.name == "gaussian" for seen, _ in counts)
    accountant = RdpAccountant() if exact else RdpAccountant(_ORDERS)
    for seen, count in counts:
        rate, multiplier = 1.0, 0.0
        if seen.noise and seen.noise.name in ("gaussian", "laplace"):
            rate = seen.rate
            multiplier = seen.noise.numbers[0] / seen.euclidean / math.sqrt(seen.passes)
        pure = pure_epsilon(seen)
        if pure < math.inf and (rate == 1 or multiplier == 0):
            multiplier = max(multiplier, 1 / pure)
        if multiplier == 0:
            return math.inf
        event = GaussianDpEvent(multiplier)
        accountant.compose(event if rate == 1 else PoissonSampledDpEvent(rate, event), count)
    return max(0.0, float(accountant.get_epsilon(delta)))


@contextmanager
def _quiet() -> Iterator[None]:
    """`dp-accounting` logs which orders it leaves out; the others decide."""
    absl = logging.getLogger("absl")
    absl.addFilter(_nothing)
    try:
        yield
    finally:
        absl.removeFilter(_nothing)


def _nothing(_: logging.LogRecord) -> bool:
    return False


def _least(counts: list[tuple[Seen, int]], delta: float) -> float:
    """The larger of what two records give away: one in one coordinate, one spread over many."""
    known = [(seen, count) for seen, count in counts if tractable(seen)]
    least = _given_away(known, delta, spread=False)
    if any(_coordinates(seen) > 1 for seen, _ in known):
        least = max(least, _given_away(known, delta, spread=True))
    return least


def _coordinates(seen: Seen) -> int:
    """Over how many coordinates to spread; Gaussian noise knows no difference, and noise that is
    radial in l1 gives away most in one."""
    if seen.noise is None or seen.noise.name in ("gaussian", "staircase-l1"):
        return 1
    return min(seen.dimension or 1, 1 << (10 if seen.norm == "linf" else 14))


def _pair(seen: Seen, spread: bool) -> Pair:
    """All passes over one sample, in each of which the record adds the same."""
    if seen.noise and seen.noise.name == "gaussian":
        return pair_of(seen.noise, _gaussian_shift(seen))
    many = _coordinates(seen) if spread else 1
    power = {"l1": 1.0, "l2": 0.5, "linf": 0.0}[seen.norm]
    parts, size = many * seen.passes, seen.clip / float(many) ** power
    return pair_of(seen.noise, size) if parts == 1 else spread_pair(seen.noise, size, parts)


def _gaussian_shift(seen: Seen) -> float:
    """Of all passes together, which are one release with that much more of a shift."""
    one = seen.clip if math.isinf(seen.euclidean) else seen.euclidean
    return one * math.sqrt(seen.passes)


def _given_away(counts: list[tuple[Seen, int]], delta: float, spread: bool) -> float:
    removed: list[tuple[Pair, int]] = []
    together = 0.0  # unsampled Gaussian releases are one Gaussian release
    for seen, count in counts:
        if seen.noise and seen.noise.name == "gaussian" and seen.rate == 1:
            together += count * (_gaussian_shift(seen) / seen.noise.numbers[0]) ** 2
        else:
            removed.append((sampled(_pair(seen, spread), seen.rate), count))
    if together:
        removed.append((pair_of(Noise("gaussian", (1.0,)), math.sqrt(together)), 1))
    if not removed:
        return 0.0
    least = least_epsilon(removed, delta)
    if all(seen.rate == 1 for seen, _ in counts):  # adding and removing are mirror images
        return least
    added = [((without, with_), count) for (with_, without), count in removed]
    return max(least, least_epsilon(added, delta))
