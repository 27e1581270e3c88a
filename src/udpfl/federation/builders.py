"""From the names in a configuration to the objects they stand for."""

from __future__ import annotations

import copy
import difflib
import inspect
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl import models
from udpfl.algorithms import BUILT_IN as ALGORITHMS
from udpfl.algorithms import Algorithm, ServerStep, Terms
from udpfl.config import Config
from udpfl.config.reading import OWN
from udpfl.data import BUILT_IN as DATA
from udpfl.data import DataSet, Source, as_dataset
from udpfl.data.persons import PersonRecords
from udpfl.data.records import Array, Records, Task
from udpfl.data.table import SOURCE as TABLE
from udpfl.data.user_data import is_tabular
from udpfl.engine import LaneModel, Loss
from udpfl.errors import InvalidInput
from udpfl.federation._fixed_part import FixedPart
from udpfl.federation._learning_rate import learning_rate
from udpfl.plugins import resolve


def choose_device(name: str) -> torch.device:
    """The device; "auto" takes CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidInput("device", f"{name!r}: this machine has no such CUDA device")
    return device


def require_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that the device does not have."""
    if precision == "tf32" and device.type != "cuda":
        raise InvalidInput("training.precision", f"'tf32' is for CUDA, and this device is {device}")


def load_dataset(settings: Config, data: Any, test: Any) -> DataSet:
    """The data: handed over, or loaded by name."""
    wanted, seed = settings.data, settings.seed
    if data is not None:
        if test is None and not isinstance(data, DataSet):  # which brings its own test records
            test = wanted.test
        return as_dataset(
            data,
            test,
            task=wanted.task,
            seed=seed,
            options=_options(settings, TABLE if is_tabular(data) else None),
        )
    if wanted.name == OWN:
        raise InvalidInput(
            "data.name",
            "the data of this run was given in Python: pass it again as udpfl.run(data=)",
        )
    directory = wanted.dir or os.environ.get("UDPFL_DATA_DIR")
    loader = resolve("data", wanted.name, DATA)
    asked = {
        "seed": seed,
        "directory": Path(directory) if directory else None,
        "test": wanted.test,
        "options": _options(settings, getattr(loader, "source", None)),
    }
    try:
        inspect.signature(loader).bind(**asked)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            "data.name", f"{wanted.name!r} is not a function of {', '.join(asked)}: {error}"
        ) from None
    loaded = loader(**asked)
    if isinstance(loaded, DataSet):
        return loaded
    return as_dataset(loaded, wanted.test, task=wanted.task, seed=seed)


def _options(settings: Config, source: Source | None) -> dict[str, Any]:
    """What the loader is told; a table learns from the section which columns are no features."""
    options = dict(settings.data.options)
    if "person" in options and settings.data.person is None:
        raise InvalidInput("data.options.person", "is set as data.person, which makes it the unit")
    for name in source.takes if source else ():
        value = getattr(settings.data, name)
        if value is None:
            continue
        given = options.get(name)
        if name == "by" and given is not None:  # further columns to partition by
            others = [given] if isinstance(given, str) else list(given)
            options[name] = list(dict.fromkeys([value, *others]))
        elif given not in (None, value):
            raise InvalidInput(
                f"data.options.{name}", f"is {given!r}, but data.{name} is {value!r}: set only one"
            )
        else:
            options[name] = value
    return options


def build_network(
    settings: Config, model: nn.Module | None, input_shape: Sequence[int], outputs: int
) -> nn.Module:
    """The architecture with its initial weights."""
    if model is not None:
        return model
    name = settings.model.name
    if name == OWN:
        raise InvalidInput(
            "model.name",
            "the model of this run was given in Python: pass it again as udpfl.run(model=)",
        )
    factory = resolve("models", name, models.BUILT_IN)
    if isinstance(factory, nn.Module):
        return factory
    return models.build(factory, input_shape, outputs, seed=settings.seed, **settings.model.options)


def prepare_inputs(
    network: nn.Module, inputs: Array, device: torch.device, parameter: str = "data"
) -> Tensor:
    """The inputs on the device, after the fixed part of the network if it has one.

    A network may offer `precompute`, a transformation without parameters of its own, one record at
    a time, whose result its `forward` takes in place of the input: it is then computed once per
    record, not once per step.
    """
    tensor = torch.from_numpy(inputs)
    if not hasattr(network, "precompute"):
        return tensor.to(device)
    return FixedPart(network, device, parameter).features(tensor)


def prepare_records(
    network: nn.Module, records: Records, device: torch.device, parameter: str = "data"
) -> Tensor:
    """The same for records, of which each may be all rows of a person."""
    inputs = records.inputs
    if not isinstance(records, PersonRecords):
        return prepare_inputs(network, inputs, device, parameter)
    persons, rows = inputs.shape[:2]
    flat = inputs.reshape(persons * rows, *inputs.shape[2:])
    prepared = prepare_inputs(network, flat, device, parameter)
    return prepared.view(persons, rows, *prepared.shape[1:])


def copy_with_parameters(network: nn.Module, model: LaneModel, parameters: Tensor) -> nn.Module:
    """A copy of the network on the CPU, with these trained parameters [d]."""
    network = copy.deepcopy(network).cpu()
    named = model.layout.named(parameters.detach().cpu().clone())
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in named:
                parameter.copy_(named[name])
    return network


def build_algorithm(settings: Config) -> Algorithm:
    """The federated method with its options, agreed to the terms of the run."""
    training = settings.training
    kind = resolve("algorithms", training.algorithm, ALGORITHMS)
    refusal = InvalidInput("training.algorithm", f"{training.algorithm!r} is not an Algorithm")
    if not (issubclass(kind, Algorithm) if isinstance(kind, type) else callable(kind)):
        raise refusal
    server = ServerStep(training.server_learning_rate, training.server_momentum)
    _check_options(training.algorithm, kind, training.options)
    try:
        made = kind(server, **training.options)
    except TypeError as error:
        raise InvalidInput("training.options", f"{training.algorithm}: {error}") from None
    if not isinstance(made, Algorithm):
        raise refusal
    clients = settings.data.clients
    made.agree(
        Terms(
            clients,
            training.clients_per_round or clients,
            training.rounds,
            training.steps,
            partial(learning_rate, training),
            settings.seed,
        )
    )
    return made


def _check_options(name: str, kind: Any, given: Mapping[str, Any]) -> None:
    """Refuse options that the method does not have."""
    parameters = list(inspect.signature(kind).parameters.values())[1:]  # the server comes first
    if any(own.kind is inspect.Parameter.VAR_KEYWORD for own in parameters):
        return
    known = [own.name for own in parameters]
    for option in given:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InvalidInput(
                f"training.options.{option}",
                f"{name} has no such option; {hint}its options are: {', '.join(known) or 'none'}",
            )


def choose_loss(task: Task) -> Loss:
    """One loss per sample: cross entropy, or the mean squared error."""
    return _cross_entropy if task == "classification" else _squared_error


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).flatten(1).square().mean(1)
