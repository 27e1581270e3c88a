"""Noise on the device: right distribution, far tails, and how fast, against `torch.randn`.

python benchmarks/sampling.py [cuda|cpu]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy import stats

from udpfl.mechanisms import Gaussian, Laplace, Mechanism, Staircase

NOISES: list[Mechanism] = [Gaussian(1.3), Laplace(0.7), Staircase(1.0, 1.0), Staircase(4e-4, 4e-4)]


def seconds(work: Callable[[], object], device: str) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    size = 100_000_000 if device == "cuda" else 4_000_000
    low, high = -(2**63), 2**63 - 1
    words = torch.randint(low, high, (size,), device=device)
    normal = seconds(lambda: torch.randn(size, device=device), device)
    print(
        f"{device}, torch {torch.__version__}, {size:,} draws; torch.randn: {normal * 1e3:.1f} ms"
    )
    for noise in NOISES:
        drawn = noise.from_bits(words)
        sample = drawn[:200_000].double().cpu().numpy()
        grid = np.sort(sample)
        tails = noise.from_bits(torch.tensor([0, 2**23], device=device))
        exact = noise.sample(200_000, np.random.default_rng(0))
        p_value = stats.ks_2samp(grid, exact).pvalue
        wrong = stats.ks_2samp(grid * 1.5, exact).pvalue
        cost = seconds(lambda n=noise: n.from_bits(words), device)
        print(
            f"{noise!r}: KS p = {p_value:.3f} (x1.5: {wrong:.0e}), std {drawn.std():.4f} "
            f"(exact {noise.noise_std:.4f}), tails {tails.tolist()}, transform "
            f"{cost * 1e3:.1f} ms = {cost / normal:.1f} x randn"
        )


if __name__ == "__main__":
    main()
