"""Aggregation by mode connectivity: models merge in pairs along curves of low public loss.

The received models meet in a binary tree: disjoint pairs in an order drawn anew each round, an odd
one moves up unchanged, ceil(log2 n) levels. Each pair is joined by a curve that is trained on the
public split, and one of its points goes on to the next level. The paper pairs all with all, which
would never come to an end from three models on, and does not say where the records for the curve
come from; here they are the public split, never a client's.

References: the UDP-FL paper, Algorithm 1 ("Server model update with Mode Connectivity"); Garipov et
al. 2018, Section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, get_args

from torch import Tensor

from udpfl.algorithms.base import Algorithm, ServerStep
from udpfl.algorithms.curves import Kind, RecordLoss, Search, find_curve
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.algorithms.public import PublicData
from udpfl.errors import InvalidInput

T = TypeVar("T")
Weighted = tuple[Tensor, float]
"""A model [d] and the declared sizes that went into it."""
Point = Literal["best", "bend", "size"]


class ModeConnectivity(Algorithm):
    """Merge the clients' models w + update along trained curves; the server moves to the result.

    `point` says which point of a curve goes on:
    - "best": the one with the least loss on the public split, of `points` evenly spaced ones and
      the one of "size" (which wins a tie);
    - "size": p = n_b / (n_a + n_b) for declared sizes n_a at the start and n_b at the end. With
      `steps = 0` the curve is the straight line, and this is federated averaging;
    - "bend": the bend itself, which the paper's Algorithm 1 keeps. It lies on a chain, at p = 1/2,
      and beside a Bezier curve. Sizes play no part, and an odd model counts for more than others.

    Guarantee: only released messages and public records enter, so a round costs what federated
    averaging would; the public records are not protected.

    Args:
        server: How the server moves, to the merged model.
        curve: "bezier" or "chain".
        point: Which point goes on, as above.
        steps: Steps in which a curve is trained.
        learning_rate: Of those steps.
        batch: Public records of one step.
        points: Evenly spaced points that "best" tries, from 2.

    Raises:
        InvalidInput: An option is out of range.

    Example:
        >>> from udpfl.algorithms import ModeConnectivity, ServerStep
        >>> ModeConnectivity(ServerStep(), point="size", steps=0).needs_public
        True
    """

    name = "mode-connectivity"
    paper = "the UDP-FL paper, Algorithm 1; Garipov et al. 2018, Loss surfaces, mode connectivity"
    releases = "update: how far the client moved in its local steps"
    guarantee = (
        "Curves between released models are trained on public records, so they cost nothing more; "
        "the public records are not protected."
    )
    needs_public = True

    def __init__(
        self,
        server: ServerStep,
        *,
        curve: Kind = "bezier",
        point: Point = "best",
        steps: int = 10,
        learning_rate: float = 0.05,
        batch: int = 32,
        points: int = 5,
    ) -> None:
        super().__init__(server)
        for name, value, allowed in (("curve", curve, Kind), ("point", point, Point)):
            if value not in get_args(allowed):
                known = ", ".join(get_args(allowed))
                raise InvalidInput(f"training.options.{name}", f"must be {known}, got {value!r}")
        if isinstance(points, bool) or not isinstance(points, int) or points < 2:
            raise InvalidInput(
                "training.options.points", f"must be a whole number from 2, got {points!r}"
            )
        try:
            self.search = Search(steps, learning_rate, batch)
        except InvalidInput as error:
            raise InvalidInput(f"training.options.{error.parameter}", error.message) from None
        self.curve, self.point, self.points = curve, point, points

    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        public, round_ = self.public, messages[0].round
        model = server["model"]
        received = [(model + m.tensors["update"], m.weight) for m in messages]
        order = public.rng(round_).permutation(len(received))

        def merge(a: Weighted, b: Weighted, level: int, pair: int) -> Weighted:
            return self._merged(public, a, b, (round_, level, pair))

        (merged, _), _ = merge_in_pairs([received[i] for i in order], merge)
        return self.server.apply(server, merged - model)

    def _merged(
        self, public: PublicData, a: Weighted, b: Weighted, key: tuple[int, ...]
    ) -> Weighted:
        (start, size), (end, other) = a, b
        landscape = RecordLoss(public.model, public.inputs, public.targets, self.search.batch)
        found = find_curve(self.curve, start, end, landscape, public.rng(*key), self.search)
        total, curve = size + other, found.curve
        if self.point == "bend":
            return curve.bend, total
        by_size = other / total
        if self.point == "size":
            return curve.point(by_size), total
        places = [by_size, *(i / (self.points - 1) for i in range(self.points))]
        losses = {p: landscape.loss(curve.point(p)) for p in places}
        # A loss that is not a number is never the least one.
        best = min(losses, key=lambda p: losses[p] if losses[p] == losses[p] else float("inf"))
        return curve.point(best), total


def merge_in_pairs(
    items: Sequence[T], merge: Callable[[T, T, int, int], T]
) -> tuple[T, int]:  # fmt: skip
    """Merge neighbours, level by level, until one is left; returns it and the number of levels.

    `merge` is told the level and the pair, both counted from 0.
    """
    row, levels = list(items), 0
    while len(row) > 1:
        pairs = [
            merge(row[i], row[i + 1], levels, i // 2) for i in range(0, len(row) - 1, 2)
        ]  # fmt: skip
        row, levels = pairs + row[2 * len(pairs) :], levels + 1
    return row[0], levels
