"""Networks. Each is one file and a plain `nn.Module`; none mixes the records of a batch."""

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from numbers import Integral
from typing import Any

from udpfl.errors import InvalidInput, MissingExtra

try:
    import torch
except ImportError:
    raise MissingExtra("torch", "train") from None

from udpfl.models.cnn import Cnn
from udpfl.models.cnn_small import CnnSmall
from udpfl.models.lenet import LeNet
from udpfl.models.logistic import Logistic
from udpfl.models.medical_cnn import MedicalCnn
from udpfl.models.mlp import Mlp
from udpfl.models.normalization import replace_batchnorm
from udpfl.models.random_prior import RandomPrior
from udpfl.models.resnet18 import ResNet18
from udpfl.models.resnet_small import ResNetSmall
from udpfl.models.scattering import Scattering
from udpfl.models.wind_cnn import WindCnn

BUILT_IN: dict[str, Callable[..., torch.nn.Module]] = {
    "cnn-small": CnnSmall,
    "cnn": Cnn,
    "mlp": Mlp,
    "logistic": Logistic,
    "lenet": LeNet,
    "medical-cnn": MedicalCnn,
    "resnet18": ResNet18,
    "resnet-small": ResNetSmall,
    "scattering": Scattering,
    "random-prior": RandomPrior,
    "wind-cnn": WindCnn,
}


def build(
    name_or_factory: str | Callable[..., torch.nn.Module],
    input_shape: Sequence[int],
    outputs: int,
    *,
    seed: int,
    **options: Any,
) -> torch.nn.Module:
    """A network on the CPU whose initial weights depend on `seed` alone.

    It is a built-in one, or what `factory(input_shape, outputs, **options)` returns; a factory
    keeps to the seed as long as it draws from torch. The global random state is left as it was.

    Args:
        name_or_factory: A name of `BUILT_IN`, or a function that builds a network.
        input_shape: The shape of one record, without the batch.
        outputs: How many numbers the network answers with for a record.
        seed: Decides the initial weights, from 0 to 2^64 - 1.
        **options: What this network takes besides, such as `activation`.

    Returns:
        The network.

    Raises:
        InvalidInput: There is no such network or option, a number is out of range, or the records
            have a shape that the network cannot take.

    Example:
        >>> from udpfl.models import build
        >>> build("mlp", (4,), outputs=2, seed=0, hidden=[8]).hidden[0].out_features
        8
    """
    name, factory = _named(name_or_factory)
    check_options(name, factory, input_shape, outputs, options)
    sizes = (*input_shape, outputs)
    if not all(isinstance(size, Integral) and size > 0 for size in sizes):
        raise InvalidInput("model.name", f"{name} needs sizes above 0, got {sizes}")
    if not (isinstance(seed, int) and 0 <= seed < 2**64):
        raise InvalidInput("seed", f"must be a whole number in 0..2^64 - 1, got {seed!r}")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which would seed the generators of every device as well.
        torch.default_generator.manual_seed(seed)
        model = factory(input_shape, outputs, **options)
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput("model.name", f"{name} must return an nn.Module, got {model!r}")
    return model


def _named(
    name_or_factory: str | Callable[..., torch.nn.Module],
) -> tuple[str, Callable[..., torch.nn.Module]]:
    """The factory, and what to call it in messages."""
    if isinstance(name_or_factory, str):
        name = name_or_factory
        if name not in BUILT_IN:
            nearest = get_close_matches(name, BUILT_IN, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there is {', '.join(BUILT_IN)}"
            raise InvalidInput("model.name", f"unknown model {name!r}; {hint}")
        return name, BUILT_IN[name]
    factory = name_or_factory
    # A network can be called as well, but on records: it is already built.
    if not callable(factory) or isinstance(factory, torch.nn.Module):
        raise InvalidInput(
            "model.name",
            f"must be a built-in name or a function that builds a network, got {factory!r}",
        )
    own = getattr(factory, "__qualname__", repr(factory))
    return next((name for name, known in BUILT_IN.items() if known is factory), own), factory


def check_options(
    name: str,
    factory: Callable[..., torch.nn.Module],
    input_shape: Sequence[int],
    outputs: int,
    options: dict[str, Any],
) -> None:
    """Refuse options that a network does not take."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # compiled code may not tell what it takes
    kinds = inspect.Parameter
    parameters = list(signature.parameters.values())
    if any(parameter.kind is kinds.VAR_KEYWORD for parameter in parameters):
        return
    valid = [
        parameter.name
        for place, parameter in enumerate(parameters)
        if parameter.kind is kinds.KEYWORD_ONLY
        or (parameter.kind is kinds.POSITIONAL_OR_KEYWORD and place >= 2)
    ]
    for option in options:
        if option not in valid:
            takes = f"takes {', '.join(valid)}" if valid else "takes no options"
            raise InvalidInput(f"model.options.{option}", f"unknown option; {name} {takes}")
    try:
        signature.bind(input_shape, outputs, **options)
    except TypeError as error:
        raise InvalidInput(
            "model.name", f"{name} cannot be called as (input_shape, outputs, **options): {error}"
        ) from None


__all__ = [
    "BUILT_IN",
    "Cnn",
    "CnnSmall",
    "LeNet",
    "Logistic",
    "MedicalCnn",
    "Mlp",
    "RandomPrior",
    "ResNet18",
    "ResNetSmall",
    "Scattering",
    "WindCnn",
    "build",
    "replace_batchnorm",
]
