"""Wind power of seven farms: configs/wind.toml and its non-private twin, beside persistence.

python benchmarks/wind.py --data-dir DIR [--threads 1] [--out results/wind.json]
                          [--figure results/wind.png]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from udpfl.config import load
from udpfl.data import DataSet
from udpfl.data import load as load_data
from udpfl.data.wind import FARMS, NAME
from udpfl.federation import run

ROOT = Path(__file__).parent.parent
CONFIGS = ("wind-not-private.toml", "wind.toml")
FIGURES = ("rmse", "mae", "mse")


def trained(name: str, seed: int, data_dir: str, threads: int, data: DataSet) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        changes = {
            "seed": seed,
            "device": "cpu",
            "threads": threads,
            "out": f"{folder}/run",
            "data": {"dir": data_dir},
        }
        result = run(load(ROOT / "configs" / name, changes))
    with torch.no_grad():
        answers = result.model(torch.from_numpy(data.test.inputs)).numpy()
    gaps = (answers - data.test.targets).astype(np.float64)
    by_farm = np.split(gaps, len(FARMS))  # the test records come farm after farm
    evaluated = [row for row in result.metrics if row.get("mse") is not None]
    return {
        "seed": seed,
        "rmse": math.sqrt(float(np.square(gaps).mean())),
        "mae": float(np.abs(gaps).mean()),
        "mse": float(np.square(gaps).mean()),
        "rmse_by_farm": {
            farm: math.sqrt(float(np.square(own).mean()))
            for farm, own in zip(FARMS, by_farm, strict=True)
        },
        "privacy": str(result.privacy),
        "seconds": round(result.seconds, 1),
        "rounds": [row["round"] for row in evaluated],
        "rmse_by_round": [math.sqrt(float(row["mse"])) for row in evaluated],
    }


def draw(runs: dict[str, list[dict[str, Any]]], reference: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    axis.axhline(reference, color="0.4", linestyle=":", label=f"persistence: {reference:.3f}")
    for name, rows in runs.items():
        curves = np.array([row["rmse_by_round"] for row in rows])
        private = name == "wind.toml"
        label = "ε = 8, δ = 1e-5" if private else "not private"
        axis.plot(
            rows[0]["rounds"],
            curves.mean(0),
            "-" if private else "--",
            label=f"{label}: {curves[:, -1].mean():.3f}",
        )
    axis.set(xlabel="round", ylabel="test RMSE (share of capacity)", ylim=(0.15, 0.37))
    axis.grid(alpha=0.3)
    axis.legend(title=f"7 wind farms, mean of {len(rows)} seeds")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    data = load_data(NAME, directory=Path(options.data_dir))
    print(f"{'':<28}" + "".join(f"{figure:>9}" for figure in FIGURES))
    for name, figures in data.references.items():
        print(f"{name:<28}" + "".join(f"{figures[figure]:9.4f}" for figure in FIGURES), flush=True)
    runs: dict[str, list[dict[str, Any]]] = {}
    for name in CONFIGS:
        runs[name] = []
        for seed in options.seeds:
            row = trained(name, seed, options.data_dir, options.threads, data)
            runs[name].append(row)
            print(
                f"{name} seed {seed}".ljust(28)
                + "".join(f"{row[figure]:9.4f}" for figure in FIGURES)
                + f"  {row['seconds']:.0f} s  {row['privacy']}",
                flush=True,
            )
        means = (statistics.mean(row[figure] for row in runs[name]) for figure in FIGURES)
        print(f"{name} mean".ljust(28) + "".join(f"{mean:9.4f}" for mean in means), flush=True)
    if options.out:
        report = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "threads": options.threads,
            "torch": torch.__version__,
            "references": data.references,
            "runs": runs,
        }
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    if options.figure:
        reference = next(iter(data.references.values()))["rmse"]
        draw(runs, reference, options.figure)


if __name__ == "__main__":
    main()
