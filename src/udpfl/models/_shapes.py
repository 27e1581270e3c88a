"""What a network asks of its input shape, and the names of its activations."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from udpfl.errors import InvalidInput

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky-relu": nn.LeakyReLU,
}


def activation_named(name: str) -> nn.Module:
    """The activation of this name; none of them mixes records."""
    if name not in ACTIVATIONS:
        raise InvalidInput(
            "model.options.activation", f"must be one of {', '.join(ACTIVATIONS)}: {name!r}"
        )
    return ACTIVATIONS[name]()


def image(model: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width, or an error that says what the model needs."""
    if len(input_shape) != 3:
        raise InvalidInput(
            "model.name",
            f"{model} needs images of channels × height × width, got records of shape "
            f"{tuple(input_shape)}: use mlp or logistic",
        )
    channels, height, width = input_shape
    return channels, height, width


def after_window(size: int, kernel: int, stride: int, padding: int = 0) -> int:
    """How many positions a sliding window has along one side; 0 where it does not fit."""
    return max(0, (size + 2 * padding - kernel) // stride + 1)


def too_small(model: str, input_shape: Sequence[int], least: int) -> InvalidInput:
    """The error for an image that the layers reduce to nothing."""
    return InvalidInput(
        "model.name",
        f"{model} needs images of at least {least}×{least}, got {input_shape[1]}×{input_shape[2]}: "
        "use mlp or logistic",
    )
