"""Test accuracy on CIFAR-10 within a budget: configs/cifar10-scattering.toml at ε = 2 and ε = 8.

    python benchmarks/cifar10_scattering.py --data-dir DIR [--seeds 0 1 2] [--device auto]
                                            [--out results/cifar10-scattering.json]

Finished cases are kept: the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from machine import described

from udpfl.config import load
from udpfl.federation import run

ROOT = Path(__file__).parent.parent
CONFIG = "cifar10-scattering.toml"
CASES: dict[str, dict[str, Any]] = {
    "2": {"privacy": {"epsilon": 2.0}, "training": {"learning_rate": 0.1}},
    "8": {},
}


def trained(
    case: str, seed: int, data_dir: str, device: str, threads: int | None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        own = {"seed": seed, "device": device, "out": f"{folder}/run", "data": {"dir": data_dir}}
        if threads:
            own["threads"] = threads
        result = run(load(ROOT / "configs" / CONFIG, CASES[case], own))
    assert result.privacy.kind == "guarantee"
    return {
        "seed": seed,
        "changes": CASES[case],
        "device": device,
        "machine": described(torch.get_num_threads()),
        "accuracy": result.accuracy,
        "privacy": str(result.privacy),
        "seconds": round(result.seconds, 1),
        "rounds": [row["round"] for row in result.metrics if row["accuracy"] is not None],
        "curve": [row["accuracy"] for row in result.metrics if row["accuracy"] is not None],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "cifar10-scattering.json")
    chosen = parser.parse_args()
    kept = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    results: dict[str, list[dict[str, Any]]] = kept.get("results", {case: [] for case in CASES})
    for seed in chosen.seeds:
        for case, rows in results.items():
            if any(row["seed"] == seed for row in rows):
                continue
            row = trained(case, seed, chosen.data_dir, chosen.device, chosen.threads)
            rows.append(row)
            print(f"eps {case} seed {seed}: accuracy {row['accuracy']:.4f} in {row['seconds']} s")
            everything = {"config": CONFIG, "results": results}
            chosen.out.write_text(json.dumps(everything, indent=1) + "\n")
    for case, rows in results.items():
        found = [row["accuracy"] for row in rows]
        spread = f" ± {statistics.stdev(found):.4f}" if len(found) > 1 else ""
        count = f"{len(found)} seed{'' if len(found) == 1 else 's'}"
        print(f"eps {case}: mean accuracy {statistics.mean(found):.4f}{spread}, {count}")


if __name__ == "__main__":
    main()
