"""How long calibration takes, beside dp-accounting and (where installed) Opacus, in one run.

    make bench            our rows, and dp-accounting's
    pip install opacus    adds Opacus's rows (it brings torch along)

Writes results/calibration.json and prints a table. Every row is the median of several runs in this
process, after one warm-up, on whatever machine this is: compare rows, not machines.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from rich.console import Console
from rich.table import Table

from udpfl import Sensitivity, Setting, calibrate
from udpfl.accounting import loss_distribution, rdp

DIMENSION, RATE, EPSILON, DELTA = 26_010, 0.05, 2.0, 1e-5
STEPS = (300, 3_000, 30_000, 100_000)


def ours(mechanism: str, accountant: str, steps: int) -> float:
    rdp.log_moments.cache_clear()  # nothing may carry over from the run before
    loss_distribution.composed_loss.cache_clear()
    sensitivity = Sensitivity(1.0, "l2", DIMENSION)
    goal = Setting(EPSILON, DELTA, steps, sensitivity, RATE, accountant=accountant)
    return calibrate(mechanism, goal).mechanism.noise_std


def dp_library(make: Callable[[], object], steps: int) -> float:
    def event(std: float) -> dp_accounting.DpEvent:
        single = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(std))
        return dp_accounting.SelfComposedDpEvent(single, steps)

    return dp_accounting.calibrate_dp_mechanism(make, event, EPSILON, DELTA, tol=1e-3)


def opacus(accountant: str, steps: int) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    return get_noise_multiplier(
        target_epsilon=EPSILON, target_delta=DELTA, sample_rate=RATE, steps=steps,
        accountant=accountant, epsilon_tolerance=1e-3,
    )  # fmt: skip


ROWS: list[tuple[str, str, Callable[[int], float]]] = [
    ("udpfl", "gaussian rdp", lambda t: ours("gaussian", "rdp", t)),
    ("udpfl", "laplace rdp", lambda t: ours("laplace", "rdp", t)),
    ("udpfl", "staircase rdp", lambda t: ours("staircase", "rdp", t)),
    ("udpfl", "gaussian pld", lambda t: ours("gaussian", "pld", t)),
    ("dp-accounting", "gaussian rdp", lambda t: dp_library(RdpAccountant, t)),
    ("dp-accounting", "gaussian pld", lambda t: dp_library(PLDAccountant, t)),
]


def measure(calibration: Callable[[int], float], steps: int) -> tuple[float, float]:
    """Median seconds of up to five runs (fewer for slow ones), and the noise found."""
    std, seconds = calibration(steps), []
    for _ in range(5):
        start = time.perf_counter()
        calibration(steps)
        seconds.append(time.perf_counter() - start)
        if sum(seconds) > 5:
            break
    return statistics.median(seconds), std


def main() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    rows = list(ROWS)
    try:
        import opacus as _

        rows.append(("opacus", "gaussian rdp", lambda t: opacus("rdp", t)))
        rows.append(("opacus", "gaussian prv", lambda t: opacus("prv", t)))
    except ImportError:
        pass
    results = []
    for library, what, calibration in rows:
        for steps in STEPS:
            seconds, std = measure(calibration, steps)
            results.append(
                {"library": library, "what": what, "steps": steps, "seconds": seconds, "std": std}
            )
    table = Table(title=f"Calibrating to eps = {EPSILON:g}, delta = {DELTA:g}, q = {RATE}, "
                        f"d = {DIMENSION:,}: seconds (noise std)")  # fmt: skip
    table.add_column("library")
    table.add_column("mechanism, accountant")
    for steps in STEPS:
        table.add_column(f"T = {steps:,}", justify="right")
    for library, what, _ in rows:
        cells = [r for r in results if (r["library"], r["what"]) == (library, what)]
        table.add_row(library, what, *(f"{r['seconds']:.3f} ({r['std']:.3f})" for r in cells))
    Console(width=120).print(table)
    out = Path(__file__).parent.parent / "results"
    out.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "machine": platform.machine()}
    for package in ("udpfl", "dp-accounting", "opacus", "numpy", "scipy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            machine[package] = metadata.version(package)
    payload = {"machine": machine, "epsilon": EPSILON, "delta": DELTA, "rate": RATE,
               "dimension": DIMENSION, "rows": results}  # fmt: skip
    (out / "calibration.json").write_text(json.dumps(payload, indent=1) + "\n")


if __name__ == "__main__":
    main()
