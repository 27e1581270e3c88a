"""Compile every kernel for an H200, and print its name: needs Triton and no GPU."""

from __future__ import annotations

import inspect

from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from udpfl.engine import _triton, _triton_noise

CONSTANTS = {
    "BLOCK": 1024, "TALL": 16, "BROAD": 64, "HIGH": 3, "WIDE": 3, "P": 2, "SCALED": True,
    "TRIES": 128, "PARTS": 256,
}  # fmt: skip
DOUBLE, FLOAT, WORDS = "*fp64", "*fp32", "*i64"
KINDS: dict[str, str | None] = {
    "keys": WORDS, "flat": WORDS, "starts": WORDS, "which": "*u8", "rows": FLOAT, "image": FLOAT,
    "cut": FLOAT, "back": FLOAT, "largest": FLOAT, "noisy": FLOAT, "factors": DOUBLE,
    "total": DOUBLE, "kept": DOUBLE, "size": DOUBLE, "signed": DOUBLE, "noise": DOUBLE,
    "sums": DOUBLE, "laws": DOUBLE,
}  # fmt: skip
"""What arguments point to; the others are numbers."""
SIZES = {"_fill_with_words": WORDS, "_added_sizes": DOUBLE, "_radii_over_sizes": DOUBLE}
ROUNDED = {"_powers_of_rows", "_weighted_rows", "_kept_rows", "_patches"}
"""Kernels that are handed bfloat16 as well."""


def compile_for_hopper(kernel: JITFunction, number: str = FLOAT) -> None:
    """With float32, or another kind of number, in its place."""
    names, own = kernel.arg_names, kernel.__name__
    kinds = {**KINDS, "sizes": SIZES.get(own)}
    if "height" in names:  # of windows
        kinds["rows"] = "i32"
    signature = {n: "constexpr" if n in CONSTANTS else kinds.get(n) or "i32" for n in names}
    signature = {n: number if kind == FLOAT else kind for n, kind in signature.items()}
    constants = {(names.index(n),): CONSTANTS[n] for n in names if n in CONSTANTS}
    found = compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
    assert found.asm["cubin"]


if __name__ == "__main__":
    for module in (_triton, _triton_noise):
        for name, kernel in list(vars(module).items()):
            if not isinstance(kernel, JITFunction) or inspect.getmodule(kernel.fn) is not module:
                continue
            source = inspect.getsource(kernel.fn)
            if name != "_put" and ("tl.store(" in source or "_put(" in source):
                compile_for_hopper(kernel)
                if name in ROUNDED:
                    compile_for_hopper(kernel, "*bf16")
                print(name)  # noqa: T201
