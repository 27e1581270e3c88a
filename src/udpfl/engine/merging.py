"""Several calls of `train_round` answered by one, as lanes beside each other.

That pays where a call is too small to keep the device busy: shadow models, or the cells of a grid.
Calls are merged if they hold the same `LaneModel` and agree in all that a call has once: the kind
of clipping and noise, the number of steps, the random stream and the numbers in its keys. Their
lanes may differ in everything else, records included. Other calls are trained by themselves.
Seeded streams may differ between runs: every key says which run it is of.

Two models that look alike are two models: what they compute may differ in ways that no comparison
finds. To be merged, calls hand their different parameters to one `LaneModel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, groupby
from typing import ClassVar

import torch
from torch import Tensor

from udpfl.engine.clipping import Clipper, NormClipper, Unclipped
from udpfl.engine.lanes import LaneModel
from udpfl.engine.limits import MOST_LANES
from udpfl.engine.noise import MechanismNoiser, Noiseless, Noiser
from udpfl.engine.pooling import RecordPool
from udpfl.engine.randomness import Key, PrivateStream
from udpfl.engine.training import Correct, Lanes, LaneState, Limits, Trained, train_round
from udpfl.errors import InvalidInput

_CLIPPERS, _NOISERS = (NormClipper, Unclipped), (MechanismNoiser, Noiseless)
"""Known to treat every lane by itself; a subclass may look at several."""
_CALL = "merging.call"
"""Beside the lanes' own state: the number of the call that each lane belongs to."""


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one call of `train_round`. A correction must not change what it is given."""

    model: LaneModel
    inputs: Tensor
    targets: Tensor
    parameters: Tensor
    lanes: Lanes
    round: int
    stream: PrivateStream
    limits: Limits
    correct: Correct | None = None

    def __post_init__(self) -> None:
        # One entry too few or too many would give those of the calls behind it to other lanes.
        own = self.lanes
        columns: dict[str, Sized] = {"parameters": self.parameters, **own.state}
        for name in ("runs", "records", "rates", "denominators", "learning_rates", "steps"):
            columns[name] = getattr(own, name)
        if isinstance(own.clipper, NormClipper):
            columns["bounds"] = own.clipper.bounds
        if isinstance(own.noiser, MechanismNoiser):
            columns["mechanisms"] = own.noiser.mechanisms
        for name, column in columns.items():
            if len(column) != len(own):
                raise InvalidInput(name, f"{len(column)} for {len(own)} lanes")
        if len(self.targets) != len(self.inputs):
            raise InvalidInput("targets", f"{len(self.targets)} for {len(self.inputs)} inputs")

    def train(self) -> Trained:
        """Answer this call by itself."""
        return train_round(
            self.model, self.inputs, self.targets, self.parameters, self.lanes, self.round,
            self.stream, self.limits, self.correct,
        )  # fmt: skip


def can_merge(one: Call, other: Call) -> bool:
    """Whether one call of the engine answers both as it would answer each by itself."""
    return len(_groups([one, other])) == 1


def train_merged(calls: Sequence[Call], pool: RecordPool | None = None) -> list[Trained]:
    """What `train_round` returns for each of these calls, in their order.

    Whoever merges calls round after round keeps a `pool`: records are compared and joined once.

    Guarantee: every lane keeps its records, sampling rate, clip, noise and random keys, so its
    releases are those of a call of its own. With a seeded stream results equal those of separate
    calls up to rounding, with a private one they have the same distribution. An error in one call
    is raised, and nothing is returned for the others.
    """
    pool, found = pool or RecordPool(), dict[int, Trained]()
    groups = _groups(calls)
    for group in groups:  # all records are known before any are joined
        for number in group if len(group) > 1 else ():
            pool.note(calls[number].inputs, calls[number].targets)
    for group in groups:
        trained = _train_as_one([calls[number] for number in group], pool)
        found |= zip(group, trained, strict=True)
    return [found[number] for number in range(len(calls))]


@dataclass
class _Group:
    """Calls that are merged, by their numbers."""

    common: tuple[object, ...] | None
    streams: dict[str, PrivateStream] = field(default_factory=dict)
    """The stream of each run."""
    numbers: list[int] = field(default_factory=list)

    def takes(self, call: Call, common: tuple[object, ...] | None) -> bool:
        """Whether a call goes with all of these."""
        if common is None or common != self.common:
            return False
        if call.stream.private or any(own.private for own in self.streams.values()):
            return all(own == call.stream for own in self.streams.values())
        return all(self.streams.get(run, call.stream) == call.stream for run in call.lanes.runs)


def _groups(calls: Sequence[Call]) -> list[list[int]]:
    """The numbers of calls that are merged with each other."""
    groups: list[_Group] = []
    for number, call in enumerate(calls):
        common = _common(call) if _is_separable(call) else None
        group = next((own for own in groups if own.takes(call, common)), None)
        if group is None:
            groups.append(group := _Group(common))
        group.streams |= dict.fromkeys(call.lanes.runs, call.stream)
        group.numbers.append(number)
    return [group.numbers for group in groups]


@dataclass(frozen=True)
class _StreamsOfRuns(PrivateStream):
    """Seeded streams of several runs: every key is drawn from that of its own run."""

    private: ClassVar[bool] = False
    streams: Mapping[str, PrivateStream]

    def _bits(self, key: Key) -> bytes:
        return self.streams[key.run]._bits(key)


def _merge_streams(calls: Sequence[Call]) -> PrivateStream:
    first = calls[0].stream
    if all(call.stream == first for call in calls):
        return first
    return _StreamsOfRuns({run: call.stream for call in calls for run in call.lanes.runs})


def _train_as_one(calls: Sequence[Call], pool: RecordPool) -> list[Trained]:
    if len(calls) == 1:
        return [calls[0].train()]
    trained = _merge(calls, pool).train()
    sizes = [len(call.lanes) for call in calls]
    ends = accumulate(sizes)
    return [trained.part(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def _is_separable(call: Call) -> bool:
    """Whether nothing in this call looks at several lanes at once."""
    if not (call.model.reentrant or call.stream.private):
        return False  # random layers draw for all lanes at once: not the same, where it is seeded
    return type(call.lanes.clipper) in _CLIPPERS and type(call.lanes.noiser) in _NOISERS


def _common(call: Call) -> tuple[object, ...]:
    """All that a call has once for its lanes."""
    lanes, clipper = call.lanes, call.lanes.clipper
    tensors = (call.inputs, call.targets, call.parameters, lanes.denominators, lanes.learning_rates)
    norm = clipper.norm if isinstance(clipper, NormClipper) else None
    return (
        call.model,
        [_form(tensor) for tensor in tensors],
        {name: _form(tensor) for name, tensor in lanes.state.items()},
        (type(clipper), norm, type(lanes.noiser), call.correct is None),
        (max(lanes.steps), lanes.batches, lanes.epochs, lanes.first_step, lanes.apart),
        (type(call.stream), call.round),
    )


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.device, tensor.dtype, tensor.shape[1:]


def _merge(calls: Sequence[Call], pool: RecordPool) -> Call:
    every = [call.lanes for call in calls]
    records: list[Tensor] = []
    for call in calls:
        records += pool.places(call.inputs, call.targets, call.lanes.records)
    inputs, targets = pool.joined(calls[0].inputs, calls[0].targets)
    state = {name: torch.cat([own.state[name] for own in every]) for name in every[0].state}
    if calls[0].correct is not None:
        # On the CPU wherever the lanes are: whoever looks at it does not wait for a GPU.
        numbers = [i for i, own in enumerate(every) for _ in own.clients]
        state[_CALL] = torch.tensor(numbers, device="cpu")
    lanes = Lanes(
        runs=tuple(chain.from_iterable(own.runs for own in every)),
        clients=tuple(chain.from_iterable(own.clients for own in every)),
        records=tuple(records),
        rates=tuple(chain.from_iterable(own.rates for own in every)),
        denominators=torch.cat([own.denominators for own in every]),
        learning_rates=torch.cat([own.learning_rates for own in every]),
        steps=tuple(chain.from_iterable(own.steps for own in every)),
        clipper=_merge_clippers([own.clipper for own in every]),
        noiser=_merge_noisers([own.noiser for own in every]),
        state=state,
        batches=every[0].batches,
        epochs=every[0].epochs,
        first_step=every[0].first_step,
        apart=every[0].apart,
    )
    return replace(
        calls[0],
        inputs=inputs,
        targets=targets,
        parameters=torch.cat([call.parameters for call in calls]),
        lanes=lanes,
        stream=_merge_streams(calls),
        limits=_merge_limits(calls),
        correct=None if calls[0].correct is None else _merge_corrections(calls),
    )


def _merge_clippers(parts: Sequence[Clipper]) -> Clipper:
    if not isinstance(parts[0], NormClipper):
        return parts[0]
    bounds = [b for part in parts if isinstance(part, NormClipper) for b in part.bounds]
    return NormClipper(parts[0].norm, bounds)


def _merge_noisers(parts: Sequence[Noiser]) -> Noiser:
    mechanisms = [m for part in parts if isinstance(part, MechanismNoiser) for m in part.mechanisms]
    return MechanismNoiser(mechanisms) if mechanisms else parts[0]


def _merge_limits(calls: Sequence[Call]) -> Limits:
    """Lanes of all calls at once, with no more samples in a pass than each call allows."""
    limits = [call.limits for call in calls]
    room = min(own.lanes * own.samples for own in limits)
    lanes = min(room, sum(min(call.limits.lanes, len(call.lanes)) for call in calls))
    if calls[0].parameters.device.type == "cpu":  # whose caches hold so many, and no more
        lanes = min(lanes, max(MOST_LANES, *(own.lanes for own in limits)))
    samples = min(room // lanes, *(own.samples for own in limits))
    return Limits(lanes, samples, max(own.workers for own in limits))


def _merge_corrections(calls: Sequence[Call]) -> Correct:
    """The corrections of all calls, each for its own lanes."""

    def correct(gradient: Tensor, parameters: Tensor, state: LaneState) -> Tensor:
        parts, start = [], 0
        for number, same in groupby(state[_CALL].tolist()):
            own, which = calls[number].correct, slice(start, start := start + len(list(same)))
            assert own is not None
            lane_state = {name: tensor[which] for name, tensor in state.items() if name != _CALL}
            direction = own(gradient[which], parameters[which], lane_state)
            parts.append(direction.expand_as(gradient[which]))
        return torch.cat(parts)

    return correct
