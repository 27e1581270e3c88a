"""Before training: is a record's gradient the same whoever else is in the batch?

Clipping bounds what one record changes only if no record sees another. So a copy of the model and
its loss are tried on a few public records, in training mode and in double precision, where a leak
of a billionth is not lost among rounding errors. The reference is automatic differentiation of one
record in a batch of one. A model that the layer rules compute differently in any batch is computed
record by record (`torch.func`); one that differs there as well, that remembers, or that draws from
a generator of its own is refused.

This finds mistakes. It cannot find a model that is made to hide what it does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from udpfl.engine._bench import Batch, Bench
from udpfl.engine._modes import broken
from udpfl.engine._operators import Operators, Seen
from udpfl.engine._rows import CALM, ROWS, Rows
from udpfl.engine.generators import Answer, answered, only_torch_draws, restored
from udpfl.engine.memory import MEMORY, first_line, steady_rows
from udpfl.engine.precision import computing_in
from udpfl.errors import Unsupported

if TYPE_CHECKING:
    from udpfl.engine.lanes import LaneModel

# Ordinary rows (0, 1, 2) beside a tiny one (7), beside huge ones of either sign (4, 6), and on two
# lanes, whose parameters differ; `rows` says what a row is. The calm batch comes first and last:
# what is kept of a huge row would show in it, and nothing is saturated before. The broken batches
# have a row that is not finite (8, 9), as a finite one may become on the way.
_CALM: Batch = (CALM,)
_PAIRS: tuple[Batch, Batch] = ((0, 6),), ((4, 1),)
_LANES: Batch = ((2, 5, 0, 6), (6, 1, 3, 0))
_BROKEN: tuple[Batch, Batch] = ((0, 8, 1),), ((0, 9, 1),)
_SOME = ((1, 7, 0, 2, 5), (0, 1))
"""Rows of each lane in the calm batch and in the two lanes, without huge ones."""
_INSIDE: tuple[tuple[Batch, int], ...] = (((0, 2), (1, 3)), 3), (_LANES, 6)
"""Batches, and where the row is that is broken inside of the model; it is not compared. There are
two sizes because the first axis of a tensor may have the batch's length by chance."""
_BREAKS = (math.inf, -math.inf, math.nan, 1e30)
"""What that row is filled with."""
_OTHERS = ((0, 0, 0, 0), (0, 1, 2, 3), (3, 3, 0, 0), (5, 5, 5, 7))
"""Batches of one size: of equal rows and of different ones."""
_CROWD = 65
"""Rows of the largest batch: models may do something else from a certain number on."""

_MIXES = "samples of a batch see each other, or the forward pass does more than its layers show"
_DECIDE = "the records of a batch decide what is computed, or on which shapes"


class Verdict(NamedTuple):
    """How a model has to be computed."""

    why_alone: str | None
    """Why every record is computed alone; None where the layer rules may be used."""
    lanes_apart: bool
    """Whether lanes have to be computed one by one as well."""
    bytes_per_sample: int
    one_by_one: bool = False
    """Whether passes have to have a single record, because torch.func fails on the model."""


def tried(model: LaneModel, parameters: Tensor, inputs: Tensor, targets: Tensor) -> Verdict:
    """Try a model with parameters [d] on public records [n, ...], n >= 1.

    Guarantee: the layer rules are used only if they gave every row tried the gradient that it has
    alone, to a billionth: beside rows that are huge, tiny or zero, that have other targets or, if
    they are ids, another length, in batches of 2, 3 and 8, beside another lane, and beside a row
    that is not finite at the input or at any module's output; in a batch of 65 the losses were the
    same.
    """
    # A little away from the start, where no gradient vanishes because a layer starts at zero.
    wave = torch.arange(1, 1 + parameters.numel(), device=parameters.device, dtype=torch.float32)
    lanes = torch.stack([parameters + 0.02 * torch.sin(wave), parameters + 0.02 * torch.cos(wave)])
    device = parameters.device
    with (
        computing_in("float32", device),
        restored(device),
        only_torch_draws("the model or its loss"),
    ):
        rows, is_random = steady_rows(model, lanes[0], inputs, targets)
        why = model.why_alone
        if why is None and is_random:
            why = "the forward pass draws random numbers outside of torch's dropout layers"
        if why is None:
            bench = Bench(model.copied(torch.float64), lanes, rows, torch.float64)
            why = _why_not_together(bench) or _why_not_in_float32(model, lanes, rows)
        if why is None:
            return Verdict(None, False, bench.bytes_per_sample)
        size = 16 * parameters.numel()
        try:
            return Verdict(why, _lanes_apart(model, lanes, rows, is_random, why), size)
        except _Unavailable as error:
            if why in (_MIXES, _DECIDE):  # such a model means something else for a record alone
                raise Unsupported(
                    f"per-sample gradients are not available ({why}): {error}"
                ) from error
            _require_steady(model, lanes, rows)
            return Verdict(f"{why}, and {error}", True, size, one_by_one=True)


def _why_not_together(bench: Bench) -> str | None:
    """Why the layer rules cannot be used; None where every row was answered as if it were alone.

    A model that cannot be tried in double is computed record by record: float32 does not tell
    rounding from a leak of that size, and the leaks of all records of a batch add up.
    """
    try:
        bench.compute_alone([ROWS, _SOME[1]])
    except Exception as error:  # whatever the user's own code raises
        return f"the model cannot be tried in double precision ({first_line(error)})"
    bench.require_gradients()
    try:
        for batch in (_CALM, *_PAIRS, _LANES):
            if not bench.agrees(batch, bench.gradients(batch)):
                return _MIXES
        agrees = bench.agrees_in_a_crowd(_CROWD) and _agrees_with_the_broken(bench)
        is_same = bench.agrees(_CALM, bench.gradients(_CALM))
    except Exception as error:  # whatever the user's own code raises
        return f"the layer rules failed: {first_line(error)}"
    if not is_same:
        raise Unsupported(MEMORY)
    return None if agrees else _MIXES


def _agrees_with_the_broken(bench: Bench) -> bool:
    """Whether ordinary rows stay as they are beside one that is not finite, or far too large.

    That row is so from the start, and then wherever a module has an output: behind a bounded
    function or a table of ids no input shows what becomes of the others.
    """
    if any(_others_change(bench, batch) for batch in _BROKEN):
        return False
    modules = bench.model.modules()
    for value in _BREAKS:
        is_seen = _is_seen(bench, modules, value)
        if is_seen is None:  # what raises at one module may do something else behind the next
            is_seen = any(_is_seen(bench, [module], value) for module in modules)
        if is_seen:
            return False
    return True


def _is_seen(bench: Bench, modules: Sequence[nn.Module], value: float) -> bool | None:
    """Whether others change where one row of these modules' outputs is `value`, in all batches."""
    for batch, place in _INSIDE:
        changes = _others_change(bench, batch, modules, place, value)
        if not changes:
            return changes
    return True


def _others_change(
    bench: Bench,
    batch: Batch,
    modules: Sequence[nn.Module] = (),
    place: int = 0,
    value: float = 0.0,
) -> bool | None:
    """Whether rows change beside a broken one; None if the model or its loss raises instead.

    Either may check for numbers that are not finite: that would end a round, not change it.
    """
    try:
        with broken(modules, sum(map(len, batch)), place, value):
            found = bench.gradients(batch)
    except Exception:  # whatever the user's own code raises
        return None
    return not bench.agrees(batch, found)


def _why_not_in_float32(model: LaneModel, lanes: Tensor, rows: Rows) -> str | None:
    """Why the layer rules fail in training itself; values were compared in double.

    Clipping needs full float32: a forward pass may ask for less (autocast), which does not show in
    double.
    """
    bench = Bench(model.copied(torch.float32), lanes, rows, torch.float32)
    try:
        bench.gradients(_LANES)
        single = [_computed(bench, (row,)) for row in ROWS]
        several = [_computed(bench, rows) for rows in _OTHERS]
    except Exception as error:  # whatever the user's own code raises
        return f"the layer rules failed: {first_line(error)}"
    same = all(own == kind[0] for kind in (single, several) for own in kind)
    return None if same else _DECIDE


def _computed(bench: Bench, rows: tuple[int, ...]) -> list[Seen]:
    """What is computed in a pass of these rows."""
    with Operators() as operators:
        bench.gradients((rows,))
    return operators.seen


class _Unavailable(Unsupported):
    """A model on which torch.func fails."""


def _require_steady(model: LaneModel, lanes: Tensor, rows: Rows) -> None:
    """Refuse a model that gives a record alone two gradients, or none that is finite."""
    bench = Bench(model.copied(torch.float32), lanes, rows, torch.float32)
    answers = [answered(partial(bench.gradients_alone, _SOME[0]), 1, bench.device) for _ in "12"]
    bench.require_gradients()
    if not bench.repeats(answers[0].value, answers[1].value):
        raise Unsupported(MEMORY)


def _lanes_apart(model: LaneModel, lanes: Tensor, rows: Rows, is_random: bool, why: str) -> bool:
    """Whether lanes have to be computed one by one by torch.func; refuses what fails either way."""
    try:
        _require_alone(model, lanes, rows, is_random, why, lanes_apart=False)
    except Unsupported:  # perhaps because of the two lanes
        _require_alone(model, lanes, rows, is_random, why, lanes_apart=True)
        return True
    return False


def _require_alone(
    model: LaneModel, lanes: Tensor, rows: Rows, is_random: bool, why: str, lanes_apart: bool
) -> None:
    """Refuse a model that torch.func computes otherwise than one record alone, or that remembers.

    There a record is alone whatever the model does, so float32 is enough where double is not to be
    had, and a model that is random is compared in evaluation mode, or not at all if it is random
    there as well.
    """

    def answers(training: bool) -> tuple[Bench, list[Answer]]:
        kept: dict[str, Any] = {"why_alone": why, "lanes_apart": lanes_apart, "training": training}
        try:
            return _by_func(Bench(model.copied(torch.float64, **kept), lanes, rows, torch.float64))
        except Exception:  # a model, or an operator of torch, that knows float32 only
            return _by_func(Bench(model.copied(torch.float32, **kept), lanes, rows, torch.float32))

    bench, (first, other, again) = answers(training=True)
    bench.require_gradients()
    if not bench.repeats(first.value, again.value):
        raise Unsupported(MEMORY)
    if is_random:
        bench, (first, other, again) = answers(training=False)
        if first.drew:
            return
    if not (bench.agrees(_CALM, first.value) and bench.agrees(_LANES, other.value)):
        raise Unsupported(
            "torch.func computes other gradients than automatic differentiation of one record, so "
            "nobody can tell what the model does with a record"
        )


def _by_func(bench: Bench) -> tuple[Bench, list[Answer]]:
    """What torch.func makes of calm rows, of two lanes, and of calm rows; rows alone beside it."""
    try:
        bench.compute_alone(_SOME)
        return bench, [
            answered(partial(bench.gradients, batch), seed, bench.device)
            for batch, seed in ((_CALM, 1), (_LANES, 2), (_CALM, 1))
        ]
    except Exception as error:  # whatever the user's own forward pass raises
        raise _Unavailable(f"torch.func fails on the model: {first_line(error)}") from error
