"""Static pictures, drawn with matplotlib and written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from udpfl.planning import plan

_STYLE = {
    "gaussian": ("#1f77b4", "o", "-"),
    "laplace": ("#d95f02", "s", "--"),
    "staircase": ("#2a9d4a", "^", "-."),
}


def dimensions(count: int) -> str:
    """A number of dimensions in words."""
    return "1 dimension" if count == 1 else f"{count:,} dimensions"


def noise_figure(path: Path, epsilon: float, options: dict[str, Any]) -> None:
    """Standard deviation of the calibrated noise against epsilon, one line per mechanism.

    `options` are the keyword arguments of `udpfl.plan` other than mechanism and epsilon.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullLocator

    budgets = epsilon * 2.0 ** np.linspace(-3, 2, 11)
    lines: dict[str, list[tuple[float, float]]] = {}
    which = "gaussian" if options["dimension"] is None else "all"
    for budget in budgets:
        for row in plan(which, epsilon=float(budget), **options):
            if row.noise is not None:
                lines.setdefault(row.mechanism, []).append(
                    (float(budget), row.noise.noise_std / options["clip"])
                )
    nominal = options["accounting"] == "scalar"
    figure, axes = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    for name, (colour, marker, dash) in _STYLE.items():
        if name in lines:
            x, y = zip(*lines[name], strict=True)
            axes.plot(x, y, color=colour, marker=marker, linestyle=dash, markersize=5, label=name)
    axes.axvline(epsilon, color="0.6", linewidth=1, linestyle=":")
    axes.annotate(
        f" ε = {epsilon:g}", (epsilon, 1), xycoords=("data", "axes fraction"), va="top", color="0.4"
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    ticks = [m * 10.0**k for k in range(-6, 7) for m in (1, 2, 5)]
    axes.set_yticks([t for t in ticks if low <= t <= high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("nominal ε (scalar accounting)" if nominal else "privacy budget ε")
    axes.set_ylabel("noise standard deviation / clip (less is better)")
    dimension = options["dimension"]
    size = "" if dimension is None else f", {dimensions(dimension)}"
    axes.set_title(
        f"{options['steps']:,} releases at rate {options['sampling_rate']:g}, "
        f"δ = {options['delta']:g}, {options['norm']} clip{size}",
        fontsize=10,
    )
    if nominal:
        axes.text(
            0.03, 0.05, "nominal: not a privacy guarantee", transform=axes.transAxes,
            color="#c1121f", alpha=0.45, fontsize=18,
        )  # fmt: skip
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=160)
    plt.close(figure)
