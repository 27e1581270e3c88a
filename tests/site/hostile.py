"""Ways to break a policy: what a hostile server may try, each with a part of the refusal.

The numbers are drawn far and near beyond the limits of `samples.policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from numpy.random import Generator

from tests.site.samples import DIMENSION, with_privacy, with_section
from udpfl.site import SiteRequest

Way = Callable[[SiteRequest, Generator], SiteRequest]


def _training(sent, **keys):
    return with_section(sent, "training", **keys)


def _model(sent, change):
    model = sent.tensors.get("model", torch.zeros(DIMENSION))
    return replace(sent, tensors={**sent.tensors, "model": change(model)})


def _pick(rng, *values):
    return values[int(rng.integers(len(values)))]


def _beyond(rng, limit):
    """A number above the limit: hardly, or by far."""
    return float(limit * _pick(rng, 1 + 1e-9, 1.01, 2.0, 10.0, 1e6))


BROKEN: dict[str, tuple[Way, str]] = {
    "more rounds": (
        lambda sent, rng: _training(sent, rounds=int(_pick(rng, 21, 50, 10**9))),
        "rounds",
    ),
    "more steps": (
        lambda sent, rng: _training(sent, local_steps=int(_pick(rng, 3, 20, 10**12))),
        "local_steps",
    ),
    "more releases in all": (
        lambda sent, rng: _training(sent, rounds=int(_pick(rng, 15, 20)), local_steps=2),
        "releases",
    ),
    "more epochs": (
        lambda sent, rng: _training(_without_steps(sent), local_epochs=int(rng.integers(3, 9))),
        "local_steps",
    ),
    "larger budget": (
        lambda sent, rng: with_privacy(sent, epsilon=_beyond(rng, 4.0)),
        "than the budget of 4 allows",
    ),
    "larger delta": (lambda sent, rng: with_privacy(sent, delta=_pick(rng, 1e-4, 0.5)), "delta"),
    "smaller delta": (lambda sent, rng: with_privacy(sent, delta=_pick(rng, 1e-6, 0.0)), "delta"),
    "all of the budget at once": (
        lambda sent, rng: _training(
            with_privacy(sent, epsilon=4.0), rounds=int(rng.integers(1, 9))
        ),
        "privacy.epsilon",
    ),
    "less noise by a reference": (
        lambda sent, rng: with_privacy(
            sent, harmonize="match", reference=_pick(rng, 1e-3, 0.3, 0.5), mechanism="gaussian"
        ),
        "",
    ),
    "larger clip": (lambda sent, rng: with_privacy(sent, clip=_beyond(rng, 1.0)), "privacy.clip"),
    "another norm": (lambda sent, rng: with_privacy(sent, norm=_pick(rng, "l1", "linf")), "norm"),
    "another rate": (
        lambda sent, rng: _training(sent, sampling_rate=_pick(rng, 1e-9, 0.1, 0.499, 0.51, 1.0)),
        "sampling_rate",
    ),
    "more batches": (
        lambda sent, rng: _training(sent, local_epochs=1, batches=_pick(rng, 10_001, 12_000)),
        "local_steps",
    ),
    "less noise in some rounds": (
        lambda sent, rng: with_privacy(sent, pace=_pick(rng, "increasing", "decaying")),
        "privacy.pace",
    ),
    "scalar accounting": (
        lambda sent, rng: with_privacy(sent, accounting="scalar"),
        "privacy.accounting",
    ),
    "the paper's accountant": (
        lambda sent, rng: with_privacy(sent, accounting="scalar", accountant="paper"),
        "accounting",
    ),
    "another unit": (lambda sent, rng: with_privacy(sent, unit="client"), "privacy.unit"),
    "another mechanism": (
        lambda sent, rng: with_privacy(sent, mechanism=_pick(rng, "r2dp", "os:system", "none!")),
        "is not noise of the policy",
    ),
    "no privacy": (lambda sent, rng: with_privacy(sent, mechanism="none"), ""),
    "noise of a seed": (
        lambda sent, rng: with_privacy(sent, randomness="seeded"),
        "noise from a seed is not private",
    ),
    "another model": (
        lambda sent, rng: with_section(sent, "model", name=_pick(rng, "mlp", "os:system", "cnn")),
        "model.name",
    ),
    "options of a model": (
        lambda sent, rng: with_section(sent, "model", options={"hidden": 10**9}),
        "model.name",
    ),
    "another method": (
        lambda sent, rng: _training(sent, algorithm=_pick(rng, "nbafl", "ldp-fed", "os:system")),
        "training.algorithm",
    ),
    "a ledger of the server's": (
        lambda sent, rng: with_privacy(sent, ledger="other.sqlite"),
        "not for a server to decide",
    ),
    "records of the server's choice": (
        lambda sent, rng: with_section(sent, "data", name="mnist5k"),
        "not for a server to decide",
    ),
    "a device": (
        lambda sent, rng: replace(sent, settings={**sent.settings, "out": "/etc"}),
        "not for a server to decide",
    ),
    "an unknown key": (lambda sent, rng: with_privacy(sent, noise=0.0), "decide"),
    "few sites": (lambda sent, rng: replace(sent, cohort=1), "sites"),
    "many clients": (
        lambda sent, rng: with_section(sent, "data", clients=10**9),
        "clients",
    ),
    "a client that is not there": (
        lambda sent, rng: replace(sent, client=int(_pick(rng, 3, 10**9))),
        "client",
    ),
    "a round that is not there": (
        lambda sent, rng: replace(sent, round=int(_pick(rng, 5, 10**9))),
        "round",
    ),
    "a learning rate of zero": (
        lambda sent, rng: replace(sent, learning_rate=_pick(rng, 0.0, -1.0)),
        "learning rate",
    ),
    "steps of its own": (
        lambda sent, rng: replace(sent, steps=int(_pick(rng, 1, 2, 10**6))),
        "local steps",
    ),
    "a larger model": (
        lambda sent, rng: _model(sent, lambda own: torch.zeros(len(own) + 1)),
        "model",
    ),
    "a model of another shape": (lambda sent, rng: _model(sent, lambda own: own[None]), "model"),
    "a model in double": (lambda sent, rng: _model(sent, lambda own: own.double()), "model"),
    "a model that is not finite": (
        lambda sent, rng: _model(sent, lambda own: own + _pick(rng, torch.nan, torch.inf)),
        "finite",
    ),
    "no model": (lambda sent, rng: replace(sent, tensors={}), "missing"),
    "a tensor too many": (
        lambda sent, rng: replace(sent, tensors={**sent.tensors, "pace": torch.tensor(0.01)}),
        "pace",
    ),
    "a charge that was never made": (
        lambda sent, rng: replace(sent, head=type(sent.head)(10**6, "a" * 64)),
        "lacks charge",
    ),
}
WAYS: Sequence[str] = sorted(BROKEN)


def _without_steps(sent):
    section = {k: v for k, v in sent.settings["training"].items() if k != "local_steps"}
    return replace(sent, settings={**sent.settings, "training": section})


def broken(sent: SiteRequest, ways: Sequence[str], rng: Generator) -> SiteRequest:
    """The request, broken in all these ways."""
    for way in ways:
        sent = BROKEN[way][0](sent, rng)
    return sent
