"""Static pictures, drawn with matplotlib and written to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.harmonizer import ranked
from udpfl.mechanisms import BUILT_IN, Mechanism
from udpfl.planning import plan


def dimensions(count: int) -> str:
    """A number of dimensions in words."""
    return "1 dimension" if count == 1 else f"{count:,} dimensions"


def noise_figure(
    path: Path, epsilon: float, options: dict[str, Any], own: Sequence[Mechanism] = ()
) -> None:
    """Standard deviation of the calibrated noise against epsilon, one line per mechanism.

    `options` are the keyword arguments of `udpfl.plan` other than mechanism and epsilon; `own` are
    mechanisms to draw beside the built-in ones.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullLocator

    nominal = options["accounting"] == "scalar"
    figure, axes = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    levels_of, words = _without_giants(_noise_levels(epsilon, options, own), own)
    for name, levels in levels_of.items():
        budgets, noises = zip(*levels, strict=True)
        stds, style = [noise.noise_std / options["clip"] for noise in noises], noises[0].plot_style
        axes.plot(
            budgets, stds, color=style.colour, marker=style.marker, linestyle=style.dash,
            markersize=5, label=name,
        )  # fmt: skip
    for word in words:
        axes.plot([], [], " ", label=word)
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
    many = "1 release" if options["steps"] == 1 else f"{options['steps']:,} releases"
    axes.set_title(
        f"{many} at rate {options['sampling_rate']:g}, "
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


_Levels = dict[str, list[tuple[float, Mechanism]]]
_GIANT = 20.0
"""Times the least noise, from which on a line would squeeze the others together."""


def _without_giants(levels: _Levels, own: Sequence[Mechanism]) -> tuple[_Levels, list[str]]:
    """The lines to draw, and of built-in mechanisms that need far more noise a word in the legend.

    One's own mechanisms are always drawn.
    """
    least: dict[float, float] = {}
    for found in levels.values():
        for budget, noise in found:
            least[budget] = min(noise.noise_std, least.get(budget, noise.noise_std))
    times = {
        name: min(noise.noise_std / least[budget] for budget, noise in found)
        for name, found in levels.items()
    }
    kept = {noise.name for noise in own}
    giants = [name for name in levels if times[name] >= _GIANT and name not in kept]
    drawn = {name: found for name, found in levels.items() if name not in giants}
    return drawn, [f"{name}: over {times[name]:.0f} × the least" for name in giants]


def _noise_levels(epsilon: float, options: dict[str, Any], own: Sequence[Mechanism]) -> _Levels:
    """Budgets around epsilon and the noise of each, by mechanism, as far as there is one."""
    without_dimension = options["dimension"] is None
    built_in = [n for n in ranked() if BUILT_IN[n].is_isotropic or not without_dimension]
    levels: _Levels = {name: [] for name in (*built_in, *(noise.name for noise in own))}
    for budget in epsilon * 2.0 ** np.linspace(-3, 2, 11):
        for row in plan([*built_in, *own], epsilon=float(budget), **options):
            if row.noise is not None:
                levels[row.mechanism].append((float(budget), row.noise))
    return {name: found for name, found in levels.items() if found}
