"""Pictures of measured results, one function for each result file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

_COLOURS = plt.get_cmap("tab20").colors
FLOWER_WAYS = ("service", "gate in Flower's process", "empty work", "one process")
"""A round of a federation: two ways over Flower, Flower by itself, and without Flower."""


def training_figure(report: dict[str, Any], path: Path) -> None:
    """Bars per contender; the line is the plain loop."""
    settings = report["settings"]
    models = list(next(iter(settings.values()))["models"])
    figure, axes = plt.subplots(
        1, len(models), figsize=(4.6 * len(models), 3.6), layout="constrained", squeeze=False
    )
    for axis, model in zip(axes[0], models, strict=True):
        for place, (setting, found) in enumerate(settings.items()):
            own = found["models"][model]
            height = 0.8 / len(settings)
            at = [i + place * height for i in range(len(own))]
            values = [row["median_ratio"] for row in own.values()]
            bars = axis.barh(at, values, height, label=setting, color=_COLOURS[place])
            axis.bar_label(bars, fmt=" %.2f", fontsize=7)
            axis.set_yticks([i + 0.4 - height / 2 for i in range(len(own))], list(own), fontsize=8)
        axis.axvline(1, color="0.3", linewidth=1, linestyle=":")
        axis.invert_yaxis()
        axis.set(title=model, xlabel="time of a round / plain PyTorch")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][-1].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def profile_figure(report: dict[str, Any], path: Path) -> None:
    """One bar per model, its stages side by side."""
    models = report["models"]
    figure, axis = plt.subplots(figsize=(9, 1.3 + 0.8 * len(models)), layout="constrained")
    left = [0.0] * len(models)
    for colour, stage in zip(_COLOURS, next(iter(models.values()))["stages"], strict=False):
        shares = [
            100 * own["stages"][stage] / sum(own["stages"].values()) for own in models.values()
        ]
        axis.barh(list(models), shares, left=left, label=stage, color=colour)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axis.set(xlabel="% of a round", xlim=(0, 100))
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=8, ncols=6, loc="outside lower center")
    figure.savefig(path, dpi=140)
    plt.close(figure)


def scaling_figure(report: dict[str, Any], path: Path) -> None:
    """Time against clients, time against rounds, memory against the product."""
    drawn = [name for name in ("clients", "rounds", "memory") if name in report]
    if not drawn:
        return
    figure, axes = plt.subplots(
        1, len(drawn), figsize=(4.2 * len(drawn), 3.4), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes[0], drawn, strict=True):
        found = report[name]
        if name == "clients":
            counts = [run["workload"]["picked"] for run in found["runs"]]
            axis.plot(counts, [run["median"] for run in found["runs"]], "o")
            fit = [found["seconds_at_none"] + found["seconds_per_client"] * n for n in counts]
            axis.plot(counts, fit, color="0.6", linewidth=1)
            axis.set(xlabel="clients per round", ylabel="seconds per round")
        elif name == "rounds":
            axis.plot(found["run"]["seconds"], ".", markersize=3)
            axis.set(xlabel="round", ylabel="seconds per round")
        else:
            product = [gradients_mib(run) for run in found]
            axis.plot(product, [grown_mib(run) for run in found], "o", label="grown")
            axis.plot(product, product, color="0.6", linewidth=1, label="all gradients")
            axis.set(xlabel="all gradients, MiB", ylabel="MiB", xscale="log", yscale="log")
            axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
        if name != "memory":
            axis.set_ylim(bottom=0)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def flower_figure(report: dict[str, Any], path: Path) -> None:
    """Bars for every model and number of nodes, one for each way."""
    measured = report["rounds"]
    figure, axis = plt.subplots(figsize=(8, 1.2 + 0.8 * len(measured)), layout="constrained")
    height = 0.8 / len(FLOWER_WAYS)
    for place, way in enumerate(FLOWER_WAYS):
        at = [i + place * height for i in range(len(measured))]
        values = [row.get(way, float("nan")) for row in measured]
        bars = axis.barh(at, values, height, label=way, color=_COLOURS[2 * place])
        labels = ["" if value != value else f" {value:.2f}" for value in values]
        axis.bar_label(bars, labels, fontsize=7)
    names = [f"{row['model']}, {row['nodes']} nodes" for row in measured]
    axis.set_yticks([i + 0.4 - height / 2 for i in range(len(measured))], names)
    axis.set(xlabel="seconds per round")
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def gradients_mib(run: dict[str, Any]) -> float:
    """What all per-sample gradients of one step would take."""
    workload = run["workload"]
    sampled = workload["picked"] * workload["records"] * workload["rate"]
    return sampled * run["parameters"] * 4 / (1 << 20)


def grown_mib(run: dict[str, Any]) -> float:
    """Peak memory beyond what was there before, less one copy of the records."""
    return run["peak_mib"] - run["before_mib"] - run["records_mib"]
