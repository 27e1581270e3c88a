"""Arithmetic in which a norm and the sum it clips agree, and sums of many passes stay exact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from udpfl.errors import Unsupported

_FULL = ("none", "ieee")


Precision = Literal["float32", "tf32", "bfloat16"]
"""Of products of matrices in a pass, on tensor cores: TF32 rounds their factors to ten bits,
bfloat16 to seven, in the products of layers alone.

What is measured and what is summed are the same numbers either way: gradients that are written out
once, or factors as they were rounded that are multiplied in double (docs/mathematics.md, 9.1).
"""


@contextmanager
def computing_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """Products in this precision, whatever switches are set outside.

    A norm and the sum it clips may take different routes through the hardware. If a gradient was
    multiplied once more for the sum with factors rounded to ten or seven bits (TF32, bfloat16), the
    two would differ by a thousandth, and the clipped sum would break its bound.
    """
    before, cudnn = _matmul_precision(), torch.backends.cudnn
    if precision == "bfloat16":
        multiplies_into_float32(device)  # tried before anything is recorded
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        if precision != "tf32":  # else the newer switches are what has just been set
            _refuse_other_switches()
        with (
            torch.autocast(device.type, enabled=False),
            cudnn.flags(
                enabled=cudnn.enabled,
                benchmark=cudnn.benchmark,
                deterministic=cudnn.deterministic,
                allow_tf32=precision == "tf32",
            ),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@cache
def multiplies_into_float32(device: torch.device) -> bool:
    """Whether torch has products of bfloat16 there that are added up, and given, in float32.

    Tried with sums that float32 has and bfloat16 has not. CPUs multiply the same numbers in
    float32: their products of bfloat16 are rounded at the end.
    """
    if device.type != "cuda":
        return False
    ones = torch.ones(2, 16, 4099, dtype=torch.bfloat16, device=device)
    try:
        with _disable_current_modes():
            found = torch.bmm(ones, (ones * 1.0078125).mT, out_dtype=torch.float32)
            return bool((found == 4099 * 1.0078125).all())
    except (RuntimeError, TypeError, NotImplementedError):  # an older torch
        return False


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise Unsupported(f"torch's precision switches contradict each other: {reason}") from None


def _refuse_other_switches() -> None:
    """Torch's newer switches cannot be undone from here without upsetting the older ones."""
    switches = {
        "torch.backends": torch.backends,
        "torch.backends.mkldnn": torch.backends.mkldnn,
        "torch.backends.mkldnn.conv": getattr(torch.backends.mkldnn, "conv", None),
        "torch.backends.mkldnn.matmul": getattr(torch.backends.mkldnn, "matmul", None),
    }
    for name, holder in switches.items():
        value = getattr(holder, "fp32_precision", "none")
        if value not in _FULL:
            raise Unsupported(
                f"{name}.fp32_precision is {value!r}: clipped sums need full float32, "
                "set it to 'ieee'"
            )


class DoubleSum:
    """A sum of tensors in double that keeps what each addition loses, and adds it at the end.

    Guarantee: within 2^-52 of the true sum plus 2^-104 k^2 times the sum of the absolute values of
    its k terms. A single term keeps its own precision.

    References: Ogita, Rump and Oishi 2005, "Accurate sum and dot product", Proposition 4.5.
    """

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._lost: Tensor | None = None

    def add(self, term: Tensor) -> None:
        """Take in one more term."""
        if self._total is None:
            self._total = term
            return
        old, term = self._total.double(), term.double()
        new = old + term
        kept = new - old
        lost = (old - (new - kept)) + (term - kept)
        self._total = new
        self._lost = lost if self._lost is None else self._lost + lost

    @property
    def value(self) -> Tensor:
        """The sum of all terms; there has to be one."""
        assert self._total is not None
        return self._total if self._lost is None else self._total + self._lost
