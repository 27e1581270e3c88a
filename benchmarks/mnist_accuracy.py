"""Test accuracy on MNIST within a budget: configs/mnist.toml beside its non-private twin.

python benchmarks/mnist_accuracy.py --data-dir DIR [--device auto] [--out results/mnist.json]
                                    [--figure docs/images/mnist.png]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from udpfl.config import load
from udpfl.federation import run

ROOT = Path(__file__).parent.parent
CASES = {
    "2": ("mnist.toml", 2.0),
    "8": ("mnist.toml", 8.0),
    "none": ("mnist-not-private.toml", None),
}


def trained(case: str, seed: int, data_dir: str, device: str) -> dict[str, Any]:
    name, epsilon = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        changes: dict[str, Any] = {
            "seed": seed,
            "device": device,
            "out": f"{folder}/run",
            "data": {"dir": data_dir},
        }
        if epsilon is not None:
            changes["privacy"] = {"epsilon": epsilon}
        result = run(load(ROOT / "configs" / name, changes))
    return {
        "seed": seed,
        "accuracy": result.accuracy,
        "privacy": str(result.privacy),
        "seconds": round(result.seconds, 2),
        "rounds": [row["round"] for row in result.metrics if row["accuracy"] is not None],
        "curve": [row["accuracy"] for row in result.metrics if row["accuracy"] is not None],
    }


def draw(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for case, runs in results.items():
        means = [
            statistics.mean(values) for values in zip(*(r["curve"] for r in runs), strict=True)
        ]
        label = "not private" if case == "none" else f"ε = {case}, δ = 1e-5"
        style = "--" if case == "none" else "-"
        axis.plot(runs[0]["rounds"], means, style, label=f"{label}: {means[-1]:.3f}")
    axis.set(xlabel="round", ylabel="test accuracy", ylim=(0.8, 1.0))
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", title=f"MNIST, 10 clients, {len(runs)} seeds")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}
    for case in options.cases:
        results[case] = []
        for seed in options.seeds:
            row = trained(case, seed, options.data_dir, options.device)
            results[case].append(row)
            print(f"{case:>5} seed {seed}: {row['accuracy']:.4f}  {row['privacy']}", flush=True)
        print(f"{case:>5} mean:   {statistics.mean(r['accuracy'] for r in results[case]):.4f}")
    if options.out:
        machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
        report = {"machine": machine, "torch": torch.__version__, "runs": results}
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    if options.figure:
        draw(results, options.figure)


if __name__ == "__main__":
    main()
