"""Staircase noise with one density for the whole vector, beside independent Laplace noise under l1.

`table` makes the table in docs/mathematics.md: for every dimension the noise that one release with
pure epsilon = 1 and 4 takes, and 300 sampled releases with epsilon = 4 at delta = 1e-5, as standard
deviations per coordinate over those of Laplace noise; and the epsilon that an audit proves of the
release with epsilon = 1. `price` times the noise of 26,010 dimensions, as ratios.

python benchmarks/vector_noise.py table|price
"""

from __future__ import annotations

import sys
import time

import torch

from udpfl import Laplace, Mechanism, Sensitivity, Setting, Staircase, StaircaseL1, calibrate
from udpfl.audit import Releases, audit_releases, canary
from udpfl.engine import Entropy, Key, MechanismNoiser

DIMENSIONS = (1, 2, 3, 10, 100, 1_000, 26_010)
NAMES = ("staircase-l1", "laplace")
PRICED = 26_010


def settings(dimension: int) -> list[Setting]:
    sensitivity = Sensitivity(1.0, "l1", dimension)
    return [
        Setting(1.0, 0.0, 1, sensitivity),
        Setting(4.0, 0.0, 1, sensitivity),
        Setting(4.0, 1e-5, 300, sensitivity, 0.05),
    ]


def proved(noise: Mechanism, dimension: int) -> float:
    """What an adversary proves of a release with pure epsilon = 1, a record in one coordinate."""
    shift = canary("dirac", Sensitivity(1.0, "l1", dimension))
    trials = min(100_000, max(2_000, 4 * 10**7 // dimension))
    return audit_releases(Releases(noise, shift), 1.0, 0.0, trials=trials).proved


def table() -> None:
    print(
        "| dimension | ε = 1, δ = 0 | ε = 4, δ = 0 | ε = 4, δ = 1e−5, T = 300, q = 0.05 | "
        "ε ≥ proved of ε = 1, staircase-l1 | laplace |\n" + "|---" * 6 + "|"
    )
    for dimension in DIMENSIONS:
        cells, audited = [], []
        for goal in settings(dimension):
            mine, other = (calibrate(name, goal).mechanism for name in NAMES)
            ratio = mine.noise_std / other.noise_std
            cells.append(f"{mine.noise_std:.4f} / {other.noise_std:.4f} = {ratio:.4f}")
            audited = audited or [proved(noise, dimension) for noise in (mine, other)]
        row = [f"{dimension:,}", *cells, *(f"{value:.2f}" for value in audited)]
        print(f"| {' | '.join(row)} |", flush=True)


def price() -> None:
    torch.set_num_threads(1)
    sums = torch.zeros(1, PRICED, dtype=torch.float64)
    noises: list[Mechanism] = [
        Staircase(1.0, 1.0),
        Laplace(1.0),
        *(StaircaseL1(decay, 1.0, dimension=PRICED) for decay in (0.01, 1.0, 8.0)),
    ]
    stream, keys = Entropy(), [Key("benchmark", "client", 0, 0)]
    best = dict.fromkeys(noises, float("inf"))
    for _ in range(200):  # in turn, so that a busy machine is busy for all of them
        for noise in noises:
            noiser = MechanismNoiser([noise])
            start = time.perf_counter()
            noiser.add(sums, stream, keys)
            best[noise] = min(best[noise], time.perf_counter() - start)
    for noise, seconds in best.items():
        print(f"{noise}: {seconds / best[noises[0]]:.2f} x independent Staircase noise")


if __name__ == "__main__":
    {"table": table, "price": price}[sys.argv[1]]()
