"""What several runs have in common, each once in memory: data, records on a device, the network.

Runs that train one network are merged in the engine only if they hold the same object. Nothing of
one run reaches another through it: parameters are handed in, and what is found equal is equal to
the last bit, buffers and results of trials included. Where that is not known each has its own.

What one run tests on another may hold in private, if they divide the data in different ways. So a
network that several runs train has seen no record: how many a pass has is tried with random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from udpfl.data import DataSet
from udpfl.data.records import KnownDigests, Records
from udpfl.engine import LaneModel
from udpfl.federation._isolation import are_equal, are_same
from udpfl.models import BUILT_IN

if TYPE_CHECKING:
    from udpfl.federation.setup import Setup


class Common:
    """Keeps the first of everything that runs bring, and hands it to those that bring the same."""

    def __init__(self) -> None:
        self._data: list[DataSet] = []
        self._inputs: list[tuple[Setup, Records, Tensor]] = []
        self._records: list[tuple[Tensor, Tensor]] = []
        self._models: list[tuple[Setup, LaneModel]] = []
        self._digests: list[KnownDigests] = []

    def data(self, own: DataSet) -> DataSet:
        """This data set, or one that is equal to it."""
        for other in self._data:
            if are_alike(own, other):
                return other
        self._data.append(own)
        return own

    def digests(self, records: Records) -> KnownDigests:
        """What names these records one by one."""
        for known in self._digests:
            if known.records is records:
                return known
        self._digests.append(KnownDigests(records))
        return self._digests[-1]

    def inputs(self, setup: Setup, records: Records, prepare: Callable[[], Tensor]) -> Tensor:
        """These records on their device, after the fixed part of the network if it has one.

        A fixed part that is built in and the same computes each of them once for all runs.
        """
        for other, known, inputs in self._inputs:
            if known is records and _prepare_the_same(setup, other):
                return inputs
        inputs = prepare()
        if hasattr(setup.network, "precompute"):
            self._inputs.append((setup, records, inputs))
        return inputs

    def records(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """These records on their device, or ones that are equal to them."""
        own = inputs, targets
        for other in self._records:
            if all(map(_is_same_tensor, own, other)):
                return other
        self._records.append(own)
        return own

    def lane_model(self, setup: Setup) -> LaneModel:
        """The network of this setup as the engine trains it, or that of a setup with the same."""
        for other, known in self._models:
            if train_the_same(setup, other):
                return known
        model = setup.trained_model
        if setup.test[0].is_floating_point():
            model = model.without_records()
        self._models.append((setup, model))
        return model


def _prepare_the_same(one: Setup, other: Setup) -> bool:
    """Whether the fixed parts of two networks are built in, and the same to the last bit."""
    if one.device != other.device or _built_in(one) != _built_in(other):
        return False
    return are_same(_fixed(one), _fixed(other))


def train_the_same(one: Setup, other: Setup) -> bool:
    """Whether two setups differ in nothing of their network but in what training begins with.

    A network of somebody's own may keep anything in its attributes: only the very same object is
    the same. One that is built in has nothing but its options, its buffers and its parameters.
    """
    if one.has_persons or other.has_persons or one.loss is not other.loss:
        return False
    if (one.device, one.precision) != (other.device, other.precision):
        return False
    if one.test[0].dtype != other.test[0].dtype:
        return False
    if not one.test[0].is_floating_point() and one.test[0] is not other.test[0]:
        return False  # there are no random records worth a trial: that was with those of one run
    if one.network is not other.network and _built_in(one) != _built_in(other):
        return False
    models = one.trained_model, other.trained_model
    trials = [(own.why_alone, own.lanes_apart, own.one_by_one) for own in models]
    return trials[0] == trials[1] and are_same(_fixed(one), _fixed(other))


def _built_in(setup: Setup) -> object:
    """What a network is made of, where it is built in; equal to nothing else where it is not."""
    own, data = setup.config.model, setup.data
    if own.name not in BUILT_IN or type(setup.network) is not BUILT_IN[own.name]:
        return object()
    return own, data.input_shape, data.outputs


def _fixed(setup: Setup) -> dict[str, Tensor]:
    """What of a network is not trained."""
    parameters = setup.network.named_parameters()
    frozen = {name: own.detach() for name, own in parameters if not own.requires_grad}
    return {**dict(setup.network.named_buffers()), **frozen}


def _is_same_tensor(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.device == other.device and are_equal(one, other))


def are_alike(one: Any, other: Any) -> bool:
    """Whether two values are the same to the last bit, arrays in them included."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return _are_same_arrays(one, other)
    if is_dataclass(one):
        return all(are_alike(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(are_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(are_alike, one, other))
    return bool(one == other)


def _are_same_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.hasobject:
        return bool(np.array_equal(one, other))
    bits, others = (np.ascontiguousarray(own).reshape(-1).view(np.uint8) for own in (one, other))
    return bool(np.array_equal(bits, others))
