"""Rounds of several runs in one call of the engine.

Runs sit in threads and take turns: one of them runs while the others wait for their round, so
nothing that they share (torch's switches and generators, a log) is ever used by two at a time. When
everybody waits, the rounds that fit together are trained as the lanes of one call. For a run
nothing changes but rounding: its lanes keep their records, rates, clips, noise and random keys.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any, TypeVar

import torch
from torch import Tensor

from udpfl.engine.clipping import Clipper, NormClipper, Unclipped
from udpfl.engine.lanes import LaneModel
from udpfl.engine.noise import MechanismNoiser, Noiseless, Noiser
from udpfl.engine.randomness import PrivateStream
from udpfl.engine.training import (
    Correct,
    Lanes,
    LaneState,
    Limits,
    Trained,
    TrainRound,
    train_round,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

_OWNER = "together.owner"
"""Beside the lanes' own state: the call that each of them belongs to."""


class Together:
    """A table for runs of one architecture and loss: who takes a seat trains with the others."""

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._turn = threading.Condition()
        """Held by the one run whose turn it is."""
        self._waiting: list[_Call] = []
        self._pools: list[_Pool] = []
        self._joins = True
        self._closed = False

    @contextmanager
    def seat(self) -> Iterator[TrainRound]:
        """A place for one run, in a thread of its own: it trains with what this yields, in the
        place of `train_round`. A seat that is left no longer keeps the others waiting."""
        with self._turn:
            try:
                self._require_open()
                yield self._train
            finally:
                self._seats -= 1
                self._serve()
                self._turn.notify_all()

    def close(self) -> None:
        """Nobody trains here any more: whoever tries is interrupted."""
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise KeyboardInterrupt

    def _train(self, *asked: Any) -> Trained:
        call = _Call(*asked)
        self._require_open()
        self._waiting.append(call)
        self._serve()
        while call.trained is None and call.failed is None:
            self._turn.wait()
            self._require_open()
        if call.failed is not None:
            raise call.failed
        assert call.trained is not None
        return call.trained

    def _serve(self) -> None:
        """Train when nobody is left to wait for: those who are furthest behind, so that a run that
        was resumed catches up and goes on with the others."""
        while self._waiting and len(self._waiting) == self._seats:
            first = min(call.order for call in self._waiting)
            due = [call for call in self._waiting if call.order == first]
            self._waiting = [call for call in self._waiting if call.order != first]
            try:
                for pool, group in self._groups(due):
                    if not (self._joins and _answered(pool, group)):
                        self._joins = False
                        _answer_each(group)
            except BaseException as error:  # those who wait must hear of it, or wait for ever
                for call in due:
                    call.failed = error
            self._turn.notify_all()

    def _groups(self, calls: Sequence[_Call]) -> list[tuple[_Pool, list[_Call]]]:
        """The calls, those that fit together side by side."""
        groups: list[tuple[tuple[object, ...], _Pool, list[_Call]]] = []
        for call in calls:
            pool, kind = self._pool(call), call.kind
            for other, same, group in groups:
                if same is pool and other == kind:
                    group.append(call)
                    break
            else:
                groups.append((kind, pool, [call]))
        return [(pool, group) for _, pool, group in groups]

    def _pool(self, call: _Call) -> _Pool:
        for pool in self._pools:  # looking at all data takes a while, and a run has one model
            if call.model in pool.first:
                return pool
        for pool in self._pools:
            try:
                if pool.takes(call):
                    return pool
            except Exception as error:  # no memory for all records at once, or a model that balks
                log.debug("a run gets records of its own: %s", error)
        self._pools.append(_Pool(call))
        return self._pools[-1]


@dataclass(eq=False)
class _Call:
    """What a run has asked for, and what came of it."""

    model: LaneModel
    inputs: Tensor
    targets: Tensor
    parameters: Tensor
    lanes: Lanes
    round: int
    stream: PrivateStream
    limits: Limits
    correct: Correct | None
    trained: Trained | None = None
    failed: BaseException | None = None

    @property
    def order(self) -> tuple[int, int]:
        return self.round, self.lanes.first_step

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for calls that one call of the engine can answer as it would answer each alone."""
        lanes, clipper, noiser = self.lanes, self.lanes.clipper, self.lanes.noiser
        # Dropout draws once for all lanes of a call: as good, and not the same where it is seeded.
        alone = not self.stream.private and not self.model.reentrant
        known = type(clipper) in _CLIPPERS and type(noiser) in _NOISERS and not alone
        return (
            None if known else self,
            type(clipper),
            clipper.norm if isinstance(clipper, NormClipper) else None,
            type(noiser),
            max(lanes.steps),
            {name: tensor.shape[1:] for name, tensor in lanes.state.items()},
            self.correct is None,
            self.stream,
        )

    def train(self) -> Trained:
        return train_round(
            self.model, self.inputs, self.targets, self.parameters, self.lanes, self.round,
            self.stream, self.limits, self.correct,
        )  # fmt: skip


class _Pool:
    """The records of runs whose models are alike, in one tensor; what is the same is there once."""

    def __init__(self, call: _Call) -> None:
        self.inputs, self.targets = call.inputs, call.targets
        self._model = call.model
        self._parts = [(0, call.inputs, call.targets)]
        self.first = {call.model: 0}
        """Where the records of each run begin."""

    def takes(self, call: _Call) -> bool:
        """Whether this call's records are here, or could be added and now are."""
        alike = _kind(call.inputs, call.targets) == _kind(self.inputs, self.targets)
        if not alike or not call.model.like(self._model, call.inputs[:8], call.targets[:8]):
            return False
        for first, inputs, targets in self._parts:
            if torch.equal(inputs, call.inputs) and torch.equal(targets, call.targets):
                self.first[call.model] = first
                return True
        first = len(self.inputs)
        inputs = torch.cat([self.inputs, call.inputs])
        targets = torch.cat([self.targets, call.targets])
        # Nothing is noted before both are there: there may be no memory for them.
        self.inputs, self.targets, self.first[call.model] = inputs, targets, first
        self._parts.append((first, call.inputs, call.targets))
        return True

    def records(self, call: _Call) -> tuple[Tensor, ...]:
        """Where this call's records are."""
        first = self.first[call.model]
        return tuple(rows + first if first else rows for rows in call.lanes.records)


def _kind(*tensors: Tensor) -> list[tuple[object, ...]]:
    return [(tensor.device, tensor.dtype, tensor.shape[1:]) for tensor in tensors]


def _answered(pool: _Pool, calls: Sequence[_Call]) -> bool:
    """Train these calls as one; whether that went well. Nothing was released if it did not."""
    if len(calls) == 1:
        _answer_each(calls)
        return True
    try:
        merged = _merged(pool, calls).train()
    except Exception as error:  # too little memory for all of them, or the fault of one
        log.warning("runs are trained one by one from here on, together they failed: %s", error)
        return False
    sizes = [len(call.lanes) for call in calls]
    for call, end, size in zip(calls, accumulate(sizes), sizes, strict=True):
        call.trained = merged.part(slice(end - size, end))
    return True


def _answer_each(calls: Sequence[_Call]) -> None:
    """Train each call alone, so that a fault is felt by nobody else."""
    for call in calls:
        try:
            call.trained = call.train()
        except BaseException as error:  # to be raised again where it belongs
            call.failed = error


def _merged(pool: _Pool, calls: Sequence[_Call]) -> _Call:
    every = [call.lanes for call in calls]
    state = {name: torch.cat([own.state[name] for own in every]) for name in every[0].state}
    if calls[0].correct is not None:
        state[_OWNER] = torch.tensor([i for i, own in enumerate(every) for _ in own.clients])
    lanes = Lanes(
        runs=_chained(own.runs for own in every),
        clients=_chained(own.clients for own in every),
        records=_chained(pool.records(call) for call in calls),
        rates=_chained(own.rates for own in every),
        denominators=torch.cat([own.denominators for own in every]),
        learning_rates=torch.cat([own.learning_rates for own in every]),
        steps=_chained(own.steps for own in every),
        clipper=_clipper([own.clipper for own in every]),
        noiser=_noiser([own.noiser for own in every]),
        state=state,
        first_step=every[0].first_step,
    )
    limits = Limits(
        lanes=sum(call.limits.lanes for call in calls),
        samples=min(call.limits.samples for call in calls),
        workers=max(call.limits.workers for call in calls),
    )
    return replace(
        calls[0],
        inputs=pool.inputs,
        targets=pool.targets,
        parameters=torch.cat([call.parameters for call in calls]),
        lanes=lanes,
        limits=limits,
        correct=_each_its_own(calls) if calls[0].correct is not None else None,
    )


def _each_its_own(calls: Sequence[_Call]) -> Correct:
    """The corrections of all calls, each for its own lanes."""

    def correct(gradient: Tensor, parameters: Tensor, state: LaneState) -> Tensor:
        owners, parts, start = state[_OWNER].tolist(), [], 0
        for owner, same in groupby(owners):
            own, which = calls[owner].correct, slice(start, start := start + len(list(same)))
            assert own is not None
            mine = {name: tensor[which] for name, tensor in state.items() if name != _OWNER}
            parts.append(own(gradient[which], parameters[which], mine))
        return torch.cat(parts)

    return correct


def _chained(parts: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(one for part in parts for one in part)


_CLIPPERS, _NOISERS = (NormClipper, Unclipped), (MechanismNoiser, Noiseless)
"""What is known to treat every lane by itself, whoever else is there."""


def _clipper(parts: Sequence[Clipper]) -> Clipper:
    bounded = [part for part in parts if isinstance(part, NormClipper)]
    if not bounded:
        return parts[0]
    return NormClipper(bounded[0].norm, _chained(part.bounds for part in bounded))


def _noiser(parts: Sequence[Noiser]) -> Noiser:
    noisy = [part for part in parts if isinstance(part, MechanismNoiser)]
    return MechanismNoiser(_chained(part.mechanisms for part in noisy)) if noisy else parts[0]
