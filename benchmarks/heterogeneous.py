"""Clients with budgets 1, 2, 4 and 8: what the pull towards the largest budget does.

    python benchmarks/heterogeneous.py [--seeds 0 1 2] [--device auto]

Embedded digits, ten clients whose labels differ (Dirichlet 0.3) or not, 80 rounds of
configs/default.toml, epsilon dealt out as 1, 2, 4, 8, 1, 2, ...; `training.penalty` from 0 to 0.5.
Reports test accuracy, the drift of the clients (root mean square distance of released updates from
their mean, over the last ten rounds), and whether everyone ended within the own budget.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from machine import RESULTS, ROOT, described, write
from tables import filled, rows

from udpfl.config import load
from udpfl.federation import run

PENALTIES = (0.0, 0.05, 0.1, 0.25, 0.5)
BUDGETS = [1.0, 2.0, 4.0, 8.0]
DATA: dict[str, dict[str, Any]] = {"alike": {}, "uneven": {"partition": "dirichlet", "alpha": 0.3}}
DOCUMENT = ROOT / "docs" / "methods.md"


def cell(penalty: float, data: str, seed: int, device: str) -> dict[str, Any]:
    """One run."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {
            "seed": seed, "device": device, "out": f"{folder}/run", "data": DATA[data],
            "privacy": {"epsilon": BUDGETS}, "training": {"penalty": penalty},
        }  # fmt: skip
        result = run(load(ROOT / "configs" / "default.toml", changes))
    spent = {name: statement.epsilon for name, statement in result.clients.items()}
    within = [
        epsilon <= BUDGETS[number % len(BUDGETS)] for number, epsilon in enumerate(spent.values())
    ]
    return {
        "penalty": penalty,
        "data": data,
        "seed": seed,
        "accuracy": result.accuracy,
        "drift": statistics.mean(row["drift"] for row in result.metrics[-10:]),
        "spent": spent,
        "within": all(within),
    }


def table(cells: list[dict[str, Any]]) -> str:
    """Accuracy and drift, mean and spread over the seeds."""
    body = []
    for penalty in PENALTIES:
        line = [f"{penalty:g}"]
        for data in DATA:
            own = [one for one in cells if (one["penalty"], one["data"]) == (penalty, data)]
            line += [_spread([one[name] for one in own]) for name in ("accuracy", "drift")]
        body.append(line)
    head = ["`training.penalty`", *(f"{what}, {d}" for d in DATA for what in ("accuracy", "drift"))]
    return rows(head, body)


def _spread(values: list[float]) -> str:
    wide = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{wide}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS / "heterogeneous.json")
    options = parser.parse_args()
    cells = []
    for data in DATA:
        for penalty in PENALTIES:
            for seed in options.seeds:
                cells.append(cell(penalty, data, seed, options.device))
                print({name: v for name, v in cells[-1].items() if name != "spent"}, flush=True)
    assert all(one["within"] for one in cells)
    write(options.out, {"machine": described(1), "cells": cells})
    if options.out == RESULTS / "heterogeneous.json":
        DOCUMENT.write_text(filled(DOCUMENT.read_text(), "heterogeneous", table(cells)))
    print(table(cells))


if __name__ == "__main__":
    main()
