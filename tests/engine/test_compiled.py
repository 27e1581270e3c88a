"""Every kernel compiles for an H200, on machines without a GPU as well."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = {
    "_added_sizes", "_add_rounded", "_fill_with_words", "_folded", "_gaussian", "_kept_rows",
    "_laplace", "_patches", "_pooled", "_powers_of_rows", "_radii_over_sizes", "_signed_numbers",
    "_staircase", "_tabulated", "_unpooled", "_vectors", "_weighted_rows",
}  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_every_kernel_compiles_for_hopper(tmp_path):
    """In a process of its own: where Triton interprets kernels it compiles none."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.compiling"],
        env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(done.stdout.split()) == KERNELS
