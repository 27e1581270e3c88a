"""One round of local training on every lane: sample, clip, sum, add noise, divide, step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from udpfl.engine._allocation import keep_freed_memory
from udpfl.engine._batches import Batches
from udpfl.engine._widths import SingleRows, Widths
from udpfl.engine.clipping import LARGEST_BATCH, LONGEST_PASS, Clipped, Clipper
from udpfl.engine.lanes import LaneModel
from udpfl.engine.noise import Noiser
from udpfl.engine.precision import DoubleSum, computing_in
from udpfl.engine.randomness import Key, PrivateStream, poisson_samples, random_batches
from udpfl.errors import Unsupported

_DRAWN_AT_ONCE = 1 << 22
"""Records, counted once for every step, whose samples are drawn together."""

T = TypeVar("T")
LaneState = Mapping[str, Tensor]
Correct = Callable[[Tensor, Tensor, LaneState], Tensor]
"""Post-processing of a released gradient: (noisy gradient [L, d], parameters [L, d], lane state
[L, ...]) to the direction of the step. It sees nothing that was not released."""


@dataclass(frozen=True)
class Lanes:
    """Everything that differs between lanes. Tensors have a leading lane axis."""

    runs: tuple[str, ...]
    clients: tuple[str, ...]
    records: tuple[Tensor, ...]
    """Indices of each lane's records in the data tensors."""
    rates: tuple[float, ...]
    denominators: Tensor
    """rate * declared public size / batches: what the noisy sum is divided by [L]."""
    learning_rates: Tensor
    steps: tuple[int, ...]
    """Of each lane, whole samples: a sample has `epochs * batches` steps."""
    clipper: Clipper
    noiser: Noiser
    state: LaneState = field(default_factory=dict)
    batches: int = 1
    """Into how many a sample is split at random, the same way in every epoch."""
    epochs: int = 1
    """Passes over the batches of a sample, before another one is drawn."""
    first_step: int = 0
    """Number of the first step in its round, so that no two steps share a random key."""
    apart: bool = False
    """Whether the size of one lane's sample must not change how another lane is rounded: passes
    have one width then. Where records are clipped and noised by themselves that does not matter."""

    def __len__(self) -> int:
        return len(self.clients)

    def with_state(self, state: LaneState, first_step: int) -> Lanes:
        """The same lanes for one call of local training."""
        return replace(self, state=state, first_step=first_step)

    def part(self, which: slice) -> Lanes:
        """Some of the lanes."""
        return replace(
            self,
            runs=self.runs[which],
            clients=self.clients[which],
            records=self.records[which],
            rates=self.rates[which],
            denominators=self.denominators[which],
            learning_rates=self.learning_rates[which],
            steps=self.steps[which],
            clipper=self.clipper.lanes(which),
            noiser=self.noiser.lanes(which),
            state={name: tensor[which] for name, tensor in self.state.items()},
        )


@dataclass(frozen=True)
class Limits:
    """How much is computed at once. Results do not depend on it beyond rounding."""

    lanes: int
    samples: int
    """Most samples of one lane in one pass, of which there are never more than `LONGEST_PASS`;
    larger batches are split and accumulated."""
    workers: int = 1
    """Threads that train lanes side by side, where the model allows it."""


@dataclass(frozen=True)
class Trained:
    """New parameters, and diagnostics that a real client would keep to itself."""

    parameters: Tensor
    clipped_fraction: Tensor
    """Simulation only: share of sampled records that were clipped, per lane."""
    signal_to_noise: Tensor
    """Simulation only: l2 norm of the clipped sum over that of the noise, per lane."""

    def part(self, which: slice) -> Trained:
        """Of some of the lanes."""
        return Trained(
            self.parameters[which], self.clipped_fraction[which], self.signal_to_noise[which]
        )


def train_round(
    model: LaneModel,
    inputs: Tensor,
    targets: Tensor,
    parameters: Tensor,
    lanes: Lanes,
    round_: int,
    stream: PrivateStream,
    limits: Limits,
    correct: Correct | None = None,
) -> Trained:
    """Train every lane for its number of steps, from parameters [L, d].

    Guarantee: every use of a record is a release of the form that `lanes.clipper` and
    `lanes.noiser` declare, one per step of its lane whatever the batch holds. Records are drawn by
    Poisson sampling, once for `lanes.epochs` epochs. A record of the sample is in one batch, which
    nothing but a draw of its own decides, so it takes part in one release of each of the epochs.
    """
    stacks = [slice(start, start + limits.lanes) for start in range(0, len(lanes), limits.lanes)]
    # Threads would record and replay the same passes on a GPU, which one thread keeps busy.
    several = model.reentrant and not parameters.is_cuda
    workers = min(limits.workers, len(stacks)) if several else 1

    def trained(which: slice) -> tuple[Tensor, Tensor, Tensor]:
        own = lanes.part(which)
        part = _Part(model, inputs, targets, own, round_, stream, limits, shared=workers > 1)
        return part.train(parameters[which], correct)

    if parameters.device.type == "cpu":
        keep_freed_memory()
    # torch's generators are shared by all threads. Nothing here is known to draw from them; if
    # something does, it shall not be from a seed that others know.
    at_once = workers > 1 or (model.reentrant and parameters.is_cuda)
    first = _keys(lanes, round_, 0, "layers")[0]
    seeded = stream.layers(first, parameters.device) if at_once else nullcontext()
    with computing_in(model.precision, parameters.device), seeded:
        if workers > 1:
            parts = _side_by_side(trained, stacks, workers)
        else:
            parts = [trained(which) for which in stacks]
    return Trained(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _side_by_side(work: Callable[[slice], T], stacks: Sequence[slice], workers: int) -> list[T]:
    """Threads with a core each: small operators keep one core busy, hardly ever several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // workers))
    try:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(work, stacks))
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Part:
    """The lanes that are computed together."""

    model: LaneModel
    inputs: Tensor
    targets: Tensor
    lanes: Lanes
    round: int
    stream: PrivateStream
    limits: Limits
    shared: bool
    """Whether other threads compute at the same time."""

    def train(self, parameters: Tensor, correct: Correct | None) -> tuple[Tensor, Tensor, Tensor]:
        lanes, device = self.lanes, parameters.device
        parameters = parameters.contiguous()  # as widths are tried
        # Every index set of the round is drawn before its first step.
        batches = Batches(_drawn_batches(lanes, self.round, self.stream), device)
        clipped, ratios = (torch.zeros(len(lanes), device=device) for _ in range(2))
        steps = torch.tensor(lanes.steps, device=device)
        noise_size = lanes.noiser.std(device) * self.model.layout.dimension**0.5
        for step in range(len(batches)):
            with self._random_layers(step, device):
                total, over = self._clipped_sum(parameters, batches, step)
            keys = _keys(lanes, self.round, step, "noise")
            noisy = lanes.noiser.add(total, self.stream, keys).to(parameters.dtype)
            active = steps > step
            rate = torch.where(active, lanes.learning_rates, 0.0)
            if correct is None:
                rate, direction = rate / lanes.denominators, noisy
            else:
                gradient = noisy / lanes.denominators.unsqueeze(1)
                direction = correct(gradient, parameters, lanes.state)
            parameters = torch.addcmul(parameters, rate.unsqueeze(1), direction, value=-1)
            clipped += over
            ratio = total.norm(dim=1).float() / noise_size
            ratios += torch.where(active & (noise_size > 0), ratio, 0.0)
        counts = [sum(batch[lane] for batch in batches.sizes) for lane in range(len(lanes))]
        sampled = torch.tensor(counts, device=device)
        return parameters, clipped / sampled.clamp(min=1), ratios / steps.clamp(min=1)

    def _random_layers(self, step: int, device: torch.device) -> AbstractContextManager[None]:
        if self.shared or (device.type == "cuda" and self.model.reentrant):
            return nullcontext()
        return self.stream.layers(_keys(self.lanes, self.round, step, "layers")[0], device)

    def _clipped_sum(
        self, parameters: Tensor, batches: Batches, step: int
    ) -> tuple[Tensor, Tensor]:
        """The clipped sum [L, d] over batches of any size, and how many were clipped [L]."""
        longest = batches.longest(step)
        if longest > LARGEST_BATCH:
            raise Unsupported(
                f"one step would add up {longest} records of a client, more than the "
                f"{LARGEST_BATCH} for which its rounding is bounded: lower the sampling rate"
            )
        total, start = DoubleSum(), 0
        over = torch.zeros(len(parameters), device=parameters.device)
        if longest == 0:
            return torch.zeros_like(parameters, dtype=torch.float64), over
        while start < longest:
            width = self.widths.first if self.lanes.apart else self.widths.fit(longest - start)
            part = self._pass(parameters, *batches.rows(step, start, width))
            several = start > 0 or width < longest
            total.add(part.sum.clone() if several and parameters.is_cuda else part.sum)
            over += part.clipped
            start += width
        return total.value, over

    @cached_property
    def widths(self) -> Widths | SingleRows:
        """The widths that passes of these lanes may have."""
        stacked = len(self.lanes)
        return widths_of(self.model, self.inputs, self.targets, self.lanes, stacked, self.limits)

    def _pass(self, parameters: Tensor, index: Tensor, real: Tensor) -> Clipped:
        """The clipped sum of one pass, which the next one may overwrite on CUDA."""
        clipper, records = self.lanes.clipper, (self.inputs, self.targets)
        given = parameters, index, real, clipper
        if not (parameters.is_cuda and self.model.recordable):
            return self._computed(*given)
        return self.model.graphs.run(self._computed, records, *given, self.model.precision)

    def _computed(
        self, parameters: Tensor, index: Tensor, real: Tensor, clipper: Clipper
    ) -> Clipped:
        inputs, targets = gathered(self.inputs, self.targets, index)
        return clipper.clipped_sum(self.model.pass_gradients(parameters, inputs, targets, real))


def _drawn_batches(lanes: Lanes, round_: int, stream: PrivateStream) -> list[list[Tensor]]:
    """The records of every step and lane; a step without any is a step as well."""
    every = lanes.batches * lanes.epochs
    firsts = range(0, max(lanes.steps), every)
    pool = sum(map(len, lanes.records))
    together = max(1, _DRAWN_AT_ONCE // max(1, pool))
    found: list[list[Tensor]] = []
    for start in range(0, len(firsts), together):
        some = firsts[start : start + together]
        for step, samples in zip(some, _draw(lanes, round_, some, stream), strict=True):
            keys = _keys(lanes, round_, step, "batches")
            found += random_batches(stream, keys, samples, lanes.batches) * lanes.epochs
    return found


def _draw(
    lanes: Lanes, round_: int, steps: Sequence[int], stream: PrivateStream
) -> list[list[Tensor]]:
    """For each of these steps the Poisson samples of which it is the first; a lane that is done
    draws nothing."""
    keys = [key for step in steps for key in _keys(lanes, round_, step, "sampling")]
    records = [
        records if step < own else records[:0]
        for step in steps
        for records, own in zip(lanes.records, lanes.steps, strict=True)
    ]
    samples = poisson_samples(stream, keys, records, lanes.rates * len(steps))
    return [samples[i : i + len(lanes)] for i in range(0, len(samples), len(lanes))]


def _keys(lanes: Lanes, round_: int, step: int, purpose: str) -> list[Key]:
    return [
        Key(run, client, round_, lanes.first_step + step, purpose)
        for run, client in zip(lanes.runs, lanes.clients, strict=True)
    ]


def widths_of(
    model: LaneModel, inputs: Tensor, targets: Tensor, lanes: Lanes, stacked: int, limits: Limits
) -> Widths | SingleRows:
    """The widths of passes with so many lanes side by side: a function of public numbers."""
    most = min(limits.samples, LONGEST_PASS)
    expected = float(lanes.denominators.max())
    return model.widths(inputs, targets, stacked, most, expected, lanes.clipper.order)


def gathered(inputs: Tensor, targets: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The records of a pass, laid out as widths are tried, however they lie in memory."""
    return inputs[index].contiguous(), targets[index].contiguous()
