"""Every way in which a record may see others, by a name."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from tests.engine.isolated import Case, Net
from tests.engine.leaking import (
    InBuffer,
    InFrozenParameter,
    MeanGradient,
    Scaled,
    after_calls,
    by_class,
    by_count,
    by_hand,
    by_largest,
    by_mean,
    centred,
    contrastive,
    counting,
    hooked,
    in_a_global,
    in_array,
    in_attribute,
    in_first,
    in_list,
    in_place,
    insists,
    minus,
    minus_finite,
    neighbours,
    noisy_targets,
    noting_equal_rows,
    of_the_first,
    otherwise_under_vmap,
    previous_batch,
    ranked,
    running,
    scaled_gradient,
    smeared,
    swapped_halves,
    unless_broken,
    wide,
)
from tests.engine.leaking_rarely import (
    Bag,
    Once,
    OwnGenerator,
    WithDropout,
    asserted_then_zeroed,
    auc,
    bounded,
    by_class_order,
    by_other_flags,
    by_other_labels,
    clamped,
    flags,
    full_sentences,
    hooked_guard,
    is_broken,
    numpy_mask,
    of_longest,
    of_one_class,
    of_one_flag,
    of_own_length,
    padded_sentences,
    python_mask,
    reseeded,
    reseeded_secretly,
    skips_broken_gradients,
    to_longest,
    to_longest_from_the_left,
    zero_if,
)
from tests.small import cross_entropy

LEAKS = {
    **{
        f"{share:g} of the mean from the {name}": Case(
            lambda p=place, s=share: Net(**{p: minus(s)})
        )
        for share in (2e-4, 1e-6, 1e-8)
        for place, name in (("x", "input"), ("h", "hidden units"), ("o", "output"))
    },
    "1e-11 of the mean of what is finite": Case(lambda: Net(minus_finite(1e-11))),
    "the median": Case(lambda: Net(lambda n, t: t - 1e-3 * t.median(0).values)),
    "batch norm by hand": Case(lambda: Net(by_hand)),
    "batch norm by function": Case(
        lambda: Net(lambda n, t: F.batch_norm(t, None, None, training=True) if len(t) > 1 else t)
    ),
    "instance norm over the batch": Case(lambda: Net(wide)),
    "statistics in an attribute": Case(lambda: Net(running(in_attribute))),
    "statistics in a buffer": Case(InBuffer),
    "statistics in a frozen parameter": Case(InFrozenParameter),
    "statistics in a list": Case(lambda: Net(running(in_list))),
    "statistics in an array": Case(lambda: Net(running(in_array))),
    "statistics in place": Case(lambda: Net(running(in_place))),
    "statistics in a global": Case(lambda: Net(running(in_a_global))),
    "statistics of the first batch": Case(lambda: Net(running(in_first))),
    "the previous batch": Case(lambda: Net(previous_batch)),
    "from the second call on": Case(lambda: Net(after_calls(1))),
    "from the fourth call on": Case(lambda: Net(after_calls(3))),
    "without a rule, from the tenth call on": Case(
        lambda: Scaled(lambda n, t: 2 * t if n.calls > 9 else t)
    ),
    "attention over the batch": Case(lambda: Net(h=lambda n, h: torch.softmax(h @ h.t(), 1) @ h)),
    "softmax over the batch": Case(lambda: Net(h=lambda n, h: h + torch.softmax(h, 0))),
    "gates from the batch": Case(lambda: Net(h=lambda n, h: h * torch.sigmoid(h.mean(0)))),
    "the batch's maximum": Case(lambda: Net(h=lambda n, h: h - 1e-4 * h.max(0).values)),
    "divided by the batch's largest": Case(lambda: Net(lambda n, t: t / t.abs().max())),
    "divided by a number": Case(lambda: Net(lambda n, t: t / float(t.abs().max()))),
    "sorted rows": Case(lambda: Net(lambda n, t: t[t[:, 0].argsort()])),
    "ranked rows": Case(lambda: Net(lambda n, t: t + 1e-3 * t[:, :1].argsort(0).argsort(0).to(t))),
    "the largest row": Case(lambda: Net(lambda n, t: t + 1e-4 * t[t.abs().sum(1).argmax()])),
    "nearest neighbours": Case(lambda: Net(neighbours)),
    "cumulative sums": Case(lambda: Net(lambda n, t: t + 1e-6 * t.cumsum(0))),
    "the row before": Case(lambda: Net(lambda n, t: t + 1e-6 * t.roll(1, 0))),
    "branches on the batch": Case(lambda: Net(lambda n, t: t - t.mean(0) if t.max() > 5 else t)),
    "branches on its mean": Case(lambda: Net(lambda n, t: -t if float(t.mean()) > 100 else t)),
    "halves swapped": Case(lambda: Net(swapped_halves)),
    "equal rows once": Case(lambda: Net(noting_equal_rows, of_the_first)),
    "lanes folded": Case(lambda: Net(h=lambda n, h: h.reshape(6, -1).t().reshape(h.shape))),
    "from 5 rows on": Case(lambda: Net(minus(1e-3, lambda n, t: len(t) > 4))),
    "from 9 rows on": Case(lambda: Net(minus(1e-3, lambda n, t: len(t) > 8))),
    "from 33 rows on": Case(lambda: Net(minus(1e-3, lambda n, t: len(t) > 32))),
    "from 65 rows on": Case(lambda: Net(minus(1e-3, lambda n, t: len(t) > 64))),
    "few rows, from the seventh call on": Case(
        lambda: Net(minus(1e-3, lambda n, t: 1 < len(t) < 9 and n.calls > 6))
    ),
    "2 and 3 rows only": Case(lambda: Net(minus(1e-3, lambda n, t: len(t) in (2, 3)))),
    "divided by the number of rows": Case(lambda: Net(h=lambda n, h: h / len(h))),
    "only in training": Case(lambda: Net(minus(1e-3, lambda n, t: n.training))),
    "only with gradients": Case(lambda: Net(minus(1e-3, lambda n, t: torch.is_grad_enabled()))),
    "a hook before a layer": Case(hooked("before")),
    "a hook after a layer": Case(hooked("after")),
    "a hook on the gradient": Case(lambda: Net(h=scaled_gradient)),
    "a gradient of its own": Case(lambda: Net(h=lambda n, h: MeanGradient.apply(h, 1))),
    "a gradient of several": Case(lambda: Net(h=lambda n, h: MeanGradient.apply(h, 6))),
    "in place": Case(lambda: Net(lambda n, t: t.sub_(t.mean(0)))),
    "in place, alone": Case(lambda: Net(lambda n, t: t.mul_(0.5))),
    "float32 only": Case(lambda: Net(insists(2e-4))),
    "float32 only, bounded": Case(lambda: Net(insists(1e-5, lambda n, t: torch.tanh(t)))),
    "loss: contrastive": Case(Net, contrastive),
    "loss: by the largest": Case(Net, by_largest),
    "loss: by the mean": Case(Net, by_mean),
    "loss: by the size": Case(Net, lambda o, y: cross_entropy(o, y) / len(o)),
    "loss: by the labels": Case(Net, by_count),
    "loss: by rank": Case(Net, ranked),
    "loss: smeared": Case(Net, smeared),
    "loss: centred targets": Case(Net, centred, values=True),
    "loss: counts its calls": Case(Net, counting()),
    "loss: leaves out broken batches": Case(Net, unless_broken),
    "loss: by class": Case(Net, by_class),
    "loss: leaves out broken batches, bounded inputs": Case(lambda: Net(bounded), unless_broken),
    "loss: leaves out broken batches, clamped inputs": Case(lambda: Net(clamped), unless_broken),
    "loss: leaves out broken batches, ids": Case(
        Bag, unless_broken, public=full_sentences, private=padded_sentences
    ),
    "hidden units of broken batches zeroed": Case(lambda: Net(bounded, zero_if(is_broken))),
    "outputs zeroed if one is not a number": Case(lambda: Net(clamped, o=zero_if(torch.isnan))),
    "outputs zeroed if one is infinite": Case(lambda: Net(clamped, o=zero_if(torch.isinf))),
    "outputs zeroed if one is below all": Case(lambda: Net(clamped, o=zero_if(torch.isneginf))),
    "outputs zeroed if one is huge": Case(
        lambda: Net(clamped, o=zero_if(lambda t: (t.abs() > 1e12) & torch.isfinite(t)))
    ),
    "inputs zeroed if one is not a number": Case(lambda: Net(zero_if(torch.isnan))),
    "broken gradients left out": Case(lambda: Net(clamped, skips_broken_gradients)),
    "a hook that zeroes broken batches": Case(hooked_guard),
    "asserts, then zeroes broken batches": Case(asserted_then_zeroed),
    "cut to the longest record": Case(
        lambda: Bag(trim=to_longest), public=full_sentences, private=padded_sentences
    ),
    "cut to the longest record from the left": Case(
        lambda: Bag(trim=to_longest_from_the_left), public=full_sentences, private=padded_sentences
    ),
    "mean over the longest length": Case(
        lambda: Bag(of_longest), public=full_sentences, private=padded_sentences
    ),
    # In double a row has the gradient that it has alone; in float32 the longest decides how it is
    # rounded.
    "cut, mean over its own length": Case(
        lambda: Bag(of_own_length, to_longest), public=padded_sentences, private=padded_sentences
    ),
    "looks at each kind of record once": Case(Once),
    "loss: pairs of two classes, sorted": Case(Net, auc, public=by_class_order),
    "loss: pairs of two classes, one of them unseen": Case(Net, auc, public=of_one_class),
    "loss: by other labels, sorted": Case(Net, by_other_labels, public=by_class_order),
    "loss: by other labels, one label": Case(Net, by_other_labels, public=of_one_class),
    "loss: by other flags, one flag": Case(Net, by_other_flags, public=of_one_flag, private=flags),
    "mask by numpy": Case(lambda: Net(h=numpy_mask)),
    "mask by random": Case(lambda: Net(h=python_mask)),
    "mask by numpy in a dropout layer": Case(WithDropout),
    "mask from a seed": Case(lambda: Net(h=reseeded)),
    "mask from a hidden seed": Case(lambda: Net(h=reseeded_secretly)),
    "loss: noise by numpy": Case(Net, noisy_targets, values=True),
    "otherwise under vmap": Case(lambda: Net(otherwise_under_vmap)),
    "its own numpy generator": Case(
        lambda: OwnGenerator(
            np.random.default_rng(0), lambda r, h: torch.from_numpy(r.normal(size=6)).to(h)
        )
    ),
    "its own torch generator": Case(
        lambda: OwnGenerator(
            torch.Generator().manual_seed(0), lambda r, h: torch.rand(6, generator=r).to(h)
        )
    ),
    "its own Python generator": Case(
        lambda: OwnGenerator(random.Random(0), lambda r, h: r.random() * h)
    ),
}
