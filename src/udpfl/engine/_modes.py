"""A model in another state: evaluating, without dropout, with a broken row, computing in double."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DROPOUT = nn.modules.dropout._DropoutNd
"""What every dropout layer is."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; modules go back to the mode each was in."""
    modes = [module.training for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode


def drop_nothing(model: nn.Module) -> None:
    """Set the rate of torch's own dropout layers to 0: a fair comparison is not random.

    A subclass of one may draw from anywhere, so it stays as it is and counts as a random model.
    """
    for module in model.modules():
        if isinstance(module, DROPOUT) and type(module).__module__ == DROPOUT.__module__:
            module.p = 0.0


class _Filled(torch.autograd.Function):
    """Fill a part of a tensor; its gradient goes back as if nothing had been done."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, where: Tensor, value: float) -> Tensor:
        return t.masked_fill(where, value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0], None, None


@contextmanager
def broken(modules: Iterable[nn.Module], rows: int, place: int, value: float) -> Iterator[None]:
    """For a while, one of `rows` rows of what each of the modules gives is filled with `value`.

    An output whose first axis is not the batch stays as it is.
    """

    def fill(module: nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        if not output.dim() or len(output) != rows:
            return None
        here = torch.arange(rows, device=output.device) == place
        filled: Any = _Filled.apply
        return filled(output, here.view(-1, *([1] * (output.dim() - 1))), value)

    with ExitStack() as hooks:
        for module in modules:  # before hooks of the user's own, which may look at the output
            hooks.enter_context(module.register_forward_hook(fill, prepend=True))
        yield


class InDouble(TorchFunctionMode):
    """Within this context every torch function computes in double precision.

    Parameters and buffers in double are not enough: many honest forward passes and losses write
    `x.float()` or hold a tensor of class weights in float32, and torch refuses to mix the two. So
    float32 tensors are widened where they are used, and requests for float32 are read as requests
    for float64. Nothing is widened where it is written to, because the change would be lost in a
    copy: a model that keeps something in a float32 tensor is refused here with a `TypeError`.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.__name__
        if name == "__get__":  # an attribute such as `shape`
            return func(*args)
        kwargs = kwargs or {}
        given = (*args, *kwargs.values())
        target = kwargs["out"] if "out" in kwargs else given[0] if _writes(name) else None
        if isinstance(target, Tensor) and target.dtype in _WIDER:
            raise TypeError(f"{name} writes to a tensor of {target.dtype}")
        func = torch.Tensor.double if func is torch.Tensor.float else func
        result = func(*map(_widened, args), **{key: _widened(kwargs[key]) for key in kwargs})
        return _widened(result) if isinstance(result, Tensor) else result


_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_ASSIGNS = ("__setitem__", "__set__", "__iadd__", "__isub__", "__imul__", "__itruediv__",
            "__ifloordiv__", "__imod__", "__ipow__")  # fmt: skip


def _writes(name: str) -> bool:
    """Whether a torch function changes its first argument; torch marks it by an underscore."""
    return name in _ASSIGNS if name.endswith("__") else name.endswith("_")


def _widened(value: Any) -> Any:
    """The same argument, with 64 bits in the place of 32."""
    if isinstance(value, Tensor):
        return value.to(_WIDER[value.dtype]) if value.dtype in _WIDER else value
    if isinstance(value, torch.dtype):
        return _WIDER.get(value, value)
    if type(value) in (list, tuple):
        return type(value)(map(_widened, value))
    return value
