"""Audit of the engine: the same training step again and again, with a record and without it.

Privacy has to hold for every model and all other records. So nothing is trained: at fixed
parameters the real engine samples, clips, sums and adds noise, thousands of times, in as many
lanes. A correction of the step sees every noisy sum, and returns a step that leads nowhere. The
adversary knows the model, all other records and the record in question; as the others take part for
certain, it knows their sum.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from udpfl.accounting import Accountant, Accounting, Release, account
from udpfl.accounting.events import Event
from udpfl.audit._bounds import check_error
from udpfl.audit._tally import Tally, judged
from udpfl.audit.canaries import clipped
from udpfl.audit.mechanism import check_trials
from udpfl.audit.power import TooLittleNoise
from udpfl.audit.verdict import Alternative, Verdict
from udpfl.audit.worlds import by_chance, likelihood_ratio
from udpfl.engine import (
    Clipper,
    Entropy,
    Keyed,
    LaneModel,
    Lanes,
    Limits,
    Loss,
    MechanismNoiser,
    Noiser,
    NormClipper,
    Precision,
    PrivateStream,
    train_round,
)
from udpfl.engine.randomness import Key, poisson_indices
from udpfl.engine.training import LaneState
from udpfl.errors import InvalidInput
from udpfl.federation.plan import ReleasePlan
from udpfl.mechanisms.arrays import Floats

_NUMBERS = 1 << 22
"""Parameters of all lanes together that are trained at once."""


class Protection(Protocol):
    """What stands between records and releases, for a number of lanes."""

    def __call__(self, lanes: int) -> tuple[Clipper, Noiser]: ...


@dataclass(frozen=True)
class Subject:
    """What is audited: a model as it is, other records, a canary, and what is released.

    Raises:
        InvalidInput: Records are sampled or split into batches and there are other ones, or the
            release hides whole clients.

    Example:
        >>> import torch
        >>> from udpfl import Gaussian, Release, Sensitivity
        >>> from udpfl.audit import Subject
        >>> inputs, targets = torch.eye(2), torch.zeros(2, dtype=torch.long)
        >>> loss = torch.nn.CrossEntropyLoss(reduction="none")
        >>> release = Release(Gaussian(1.0), Sensitivity(1.0, dimension=6))
        >>> Subject(torch.nn.Linear(2, 2), loss, inputs, targets, release).clipped().shape
        (2, 6)
    """

    network: nn.Module
    """With the weights at which gradients are computed."""
    loss: Loss
    """Gives one number per sample."""
    inputs: Tensor
    """All records; the last one is the canary."""
    targets: Tensor
    """Of all records."""
    release: Release
    """The clip and the noise that are claimed."""
    rate: float = 1.0
    """Probability with which the canary takes part in a sample."""
    steps: int = 1
    """Releases of one trial."""
    protection: Protection | None = None
    """Clipping and noise other than what the release says, to see whether that is caught."""
    chunk: int | None = None
    """Records that are computed at once, as with `training.chunk`."""
    device: torch.device | str = "cpu"
    """Where the engine computes."""
    precision: Precision = "float32"
    """Of products, as in the run."""
    batches: int = 1
    """Into how many a sample is split; each step takes one."""
    epochs: int = 1
    """Passes over the batches of a sample, before another one is drawn."""

    def __post_init__(self) -> None:
        if self.release.unit == "client":
            raise InvalidInput("release", "must not be of clients: their steps have no noise")
        for name, alone in (("rate", self.rate < 1), ("batches", self.batches > 1)):
            if alone and len(self.inputs) > 1:
                raise InvalidInput(
                    name, "must be 1 with other records in the batch: their sum has to be known"
                )

    @property
    def plan(self) -> ReleasePlan:
        """What the engine is asked for in one trial."""
        return ReleasePlan(
            "canary", len(self.inputs), self.rate, 1, self.steps, self.release,
            batches=self.batches, epochs=self.epochs,
        )  # fmt: skip

    @property
    def samples(self) -> int:
        """How many are drawn in one trial."""
        return self.plan.sampled[1]

    @property
    def claim(self) -> Event:
        """All releases of one trial."""
        event = self.plan.event()
        assert event is not None
        return event

    def clipped(self) -> Floats:
        """Every record's clipped gradient [N, d], by automatic differentiation in double."""
        network = copy.deepcopy(self.network).double()
        trained = [p for p in network.parameters() if p.requires_grad]
        rows = []
        for x, y in zip(self.inputs.split(1), self.targets.split(1), strict=True):
            x, y = (t.double() if t.is_floating_point() else t for t in (x, y))
            parts = torch.autograd.grad(
                self.loss(network(x), y).sum(), trained, allow_unused=True, materialize_grads=True
            )
            rows.append(torch.cat([part.flatten() for part in parts]))
        return np.stack([clipped(row.numpy(), self.release.sensitivity) for row in rows])

    @cached_property
    def model(self) -> LaneModel:
        """The network as the engine trains it."""
        model = LaneModel(self.network, self.loss, self.precision)
        return model.to(torch.device(self.device))

    def released(
        self, trials: int, *, present: bool, stream: PrivateStream
    ) -> Iterator[list[Floats]]:
        """What the server could see: noisy sums [trials, d] of each step, some trials at a time."""
        records = torch.arange(len(self.inputs) - (not present), device=self.device)
        size = max(1, _NUMBERS // self.model.layout.dimension)
        for first in range(0, trials, size):
            last = min(first + size, trials)
            names = tuple(f"{present}-{trial}" for trial in range(first, last))
            steps = self._noisy_sums(names, records, stream)
            yield [step.double().cpu().numpy() for step in steps]

    def scores(
        self,
        trials: int,
        *,
        present: bool,
        stream: PrivateStream,
        told: Callable[[int], None] | None = None,
    ) -> list[Floats]:
        """For each sample how much more probable it is where the record is drawn [trials].

        `told` is called with the number of trials that are done, from time to time.
        """
        gradients = self.clipped()
        others, shift = gradients[:-1].sum(0), gradients[-1]
        noise = self.release.mechanism
        parts, done = [], 0
        for steps in self.released(trials, present=present, stream=stream):
            ratios = [likelihood_ratio(noise, seen - others, shift) for seen in steps]
            parts.append(self._of_samples(ratios))
            done += len(ratios[0])
            if told is not None:
                told(done)
        return [np.concatenate(sample) for sample in zip(*parts, strict=True)]

    def _of_samples(self, steps: Sequence[Floats]) -> list[Floats]:
        """Scores of samples from those of steps: a record is in the same batch in every epoch."""
        grid = np.stack(steps).reshape(self.samples, self.epochs, self.batches, -1)
        return [exactly_once(list(batches)) for batches in grid.sum(1)]

    def _noisy_sums(
        self, names: tuple[str, ...], records: Tensor, stream: PrivateStream
    ) -> list[Tensor]:
        """What every step releases, all of them at the same model."""
        count, noted = len(names), dict[int, list[Tensor]]()

        def note(gradient: Tensor, _: Tensor, state: LaneState) -> Tensor:
            noted.setdefault(int(state["trial"][0]), []).append(gradient)
            return torch.zeros_like(gradient)

        clipper, noiser = (self.protection or self._planned)(count)
        lanes = Lanes(
            runs=("audit",) * count,
            clients=names,
            records=(records,) * count,
            rates=(self.rate,) * count,
            denominators=torch.ones(count, device=self.device),
            learning_rates=torch.ones(count, device=self.device),
            steps=(self.steps,) * count,
            clipper=clipper,
            noiser=noiser,
            state={"trial": torch.arange(count)},
            batches=self.batches,
            epochs=self.epochs,
        )
        # Two stacks, side by side where the engine would do so.
        limits = Limits(-(-count // 2), self.chunk or max(1, len(records)), workers=2)
        start = self.model.initial().to(self.device).repeat(count, 1)
        inputs, targets = (t.to(self.device) for t in (self.inputs, self.targets))
        train_round(self.model, inputs, targets, start, lanes, 0, stream, limits, note)
        return [torch.cat(parts) for parts in zip(*(noted[i] for i in sorted(noted)), strict=True)]

    def _planned(self, lanes: int) -> tuple[Clipper, Noiser]:
        bounded = self.release.sensitivity
        clipper = NormClipper(bounded.norm, [bounded.bound] * lanes)
        return clipper, MechanismNoiser([self.release.mechanism] * lanes)


def exactly_once(scores: Sequence[Floats]) -> Floats:
    """The likelihood ratio where it takes part in one of the releases, whichever."""
    total: Floats = np.logaddexp.reduce(np.stack(scores), axis=0) - np.log(len(scores))
    return total


Worlds = dict[bool, list[Floats]]
"""Scores of every sample [trials], with the record and without it."""


def replayed(
    subject: Subject,
    trials: int,
    stream: PrivateStream,
    told: Callable[[int], None] | None = None,
) -> Worlds:
    """So many trials in either world; `told` how many are done, of twice as many."""
    check_trials(trials)

    def second(done: int) -> None:
        if told is not None:
            told(trials + done)

    there = subject.scores(trials, present=True, stream=stream, told=told)
    away = subject.scores(trials, present=False, stream=stream, told=second)
    return {True: there, False: away}


def audit_engine(
    subject: Subject,
    delta: float,
    *,
    trials: int = 20_000,
    error: float = 0.05,
    stream: PrivateStream | None = None,
    claim: str = "",
    accountant: Accountant = "best",
    accounting: Accounting = "vector",
) -> Verdict:
    """Try to refute what the accountant says of the engine's releases.

    Guarantee: a claim that is true is refuted with probability `error` at most. Where the stream is
    keyed the adversary has the key, and knows when the canary would take part.

    Args:
        subject: The model, the records and what is released.
        delta: At which the accountant is asked.
        trials: In each world; at least 100.
        error: In (0, 1).
        stream: Where randomness comes from; the operating system if left out.
        claim: The claim in words, for the verdict.
        accountant: "rdp", "pld", "best", or with scalar accounting "paper".
        accounting: "vector", or "scalar", which may well be refuted.

    Returns:
        The verdict on what the accountant says.

    Raises:
        InvalidInput: There are too few trials, or `error` is out of range.
        Unsupported: The accountant has no proved bound for the releases.

    Example:
        >>> import torch
        >>> from udpfl import Gaussian, Release, Sensitivity
        >>> from udpfl.audit import Subject, audit_engine
        >>> loss = torch.nn.CrossEntropyLoss(reduction="none")
        >>> release = Release(Gaussian(1.0), Sensitivity(1.0, dimension=6))
        >>> records = torch.ones(1, 2), torch.zeros(1, dtype=torch.long)
        >>> subject = Subject(torch.nn.Linear(2, 2), loss, *records, release)
        >>> audit_engine(subject, delta=1e-5, trials=100, error=1e-6).refuted
        False
    """
    check_error(error)
    source = stream or Entropy()
    epsilon = account(subject.claim, delta, accountant, accounting).epsilon
    worlds = replayed(subject, trials, source)
    return verdict_of(subject, worlds, source, epsilon, delta, error, claim)


def verdict_of(
    subject: Subject,
    worlds: Worlds,
    stream: PrivateStream,
    epsilon: float,
    delta: float,
    error: float,
    claim: str,
    alternative: Alternative | None = None,
) -> Verdict:
    """What every adversary makes of the replays; they share the error.

    The power is that of the first one, who knows how the record is sampled. What was calculated for
    it with the same trials and the same error can be handed in.
    """
    chance = {
        present: np.sum([by_chance(score, subject.rate) for score in samples], axis=0)
        for present, samples in worlds.items()
    }
    adversaries = [chance]
    if subject.samples > 1:
        adversaries.append({present: exactly_once(own) for present, own in worlds.items()})
    if isinstance(stream, Keyed) and subject.rate < 1:
        knowing = {p: _knowing(subject, own, p, stream) for p, own in worlds.items()}
        adversaries.append(knowing)
    share = error / len(adversaries)
    tests = [
        test
        for scores in adversaries
        for test in judged(
            Tally.of(scores[True], scores[False]), epsilon, delta, share, both=subject.rate < 1
        )
    ]
    trials = len(chance[True])
    alternative = alternative or TooLittleNoise(
        subject.release.mechanism, subject.clipped()[-1], subject.rate, subject.samples, trials,
        share, batches=subject.batches, epochs=subject.epochs,
    )  # fmt: skip
    return Verdict(claim, epsilon, delta, tuple(tests), error, alternative=alternative)


def _knowing(subject: Subject, samples: list[Floats], present: bool, stream: Keyed) -> Floats:
    """Whoever has the key looks only at the samples in which the canary would take part."""
    total = np.zeros(len(samples[0]))
    records = torch.arange(len(subject.inputs))
    for number, scores in enumerate(samples):
        first = number * subject.epochs * subject.batches
        for trial in range(len(total)):
            key = Key("audit", f"{present}-{trial}", 0, first, "sampling")
            drawn = poisson_indices(stream, key, records, subject.rate)
            total[trial] += scores[trial] if len(records) - 1 in drawn else 0.0
    return total


def per_sample(
    network: nn.Module, loss: Loss
) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """A function of parameters and records to every record's gradient [N, d]."""

    def alone(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(network, weights, (x.unsqueeze(0),)), y.unsqueeze(0)).sum()

    every = vmap(grad(alone), in_dims=(None, 0, 0), randomness="different")

    def gradients(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        found = every(weights, x, y)
        return torch.cat([found[name].flatten(1) for name in weights], dim=1)

    return gradients
