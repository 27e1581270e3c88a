"""Accuracy within a budget: the random-prior configurations, with spread over seeds.

    python benchmarks/accuracy.py --data-dir DIR                        every case, on the test set
    python benchmarks/accuracy.py --data-dir DIR --only cifar10-8 --validation --set KEY=VALUE
    python benchmarks/accuracy.py --table                               only the tables

With `--validation` a tenth of the training records is held out, and the test set is not looked at:
that is what settings are chosen with. Finished cases are kept: the command goes on where it was
stopped. Seeds run together, so that features are computed once for all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import ROOT, described, write

from udpfl.config import load
from udpfl.data import DataSet
from udpfl.federation import run_together
from udpfl.federation.builders import load_dataset

OUT = ROOT / "results" / "accuracy.json"
HELD_OUT = 10
"""One of so many training records, to choose settings with."""


@dataclass(frozen=True)
class Case:
    """A configuration, and what is changed in it."""

    config: str
    changes: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "cifar10-2": Case(
        "cifar10-random-prior.toml", {"privacy.epsilon": 2, "training.learning_rate": 12}
    ),
    "cifar10-8": Case("cifar10-random-prior.toml"),
}


def chosen_with(data: DataSet, seed: int = 0) -> DataSet:
    """The same without the test set: some of the training records take its place."""
    order = np.random.default_rng(seed).permutation(len(data.train.targets))
    held, kept = np.split(order, [len(order) // HELD_OUT])
    return replace(
        data,
        train=data.train.subset(np.sort(kept)),
        test=data.train.subset(np.sort(held)),
        columns={}, test_columns={},
    )  # fmt: skip


def measured(
    case: Case, data_dir: str, seeds: Sequence[int], overrides: Sequence[str], validates: bool
) -> dict[str, Any]:
    """Accuracies of a case, one for every seed."""
    changes = [f"{key}={value}" for key, value in case.changes.items()]
    config = load(
        ROOT / "configs" / case.config, {"data": {"dir": data_dir}},
        overrides=[*changes, *overrides],
    )  # fmt: skip
    data = load_dataset(config, None, None)
    data = chosen_with(data) if validates else data
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        own = {"data": {"name": "own", "options": {}}}
        configs = [load(config, {"seed": seed, "out": f"{folder}/{seed}", **own}) for seed in seeds]
        runs = run_together(configs, data=data)
    assert all(run.privacy.kind == "guarantee" for run in runs)
    return {
        "config": case.config,
        "changes": [*changes, *overrides],
        "on": "validation" if validates else "test",
        "seeds": list(seeds),
        "accuracy": [run.accuracy for run in runs],
        "privacy": str(runs[0].privacy),
        "seconds": round(time.perf_counter() - began, 1),
        "machine": described(torch.get_num_threads()),
        "curve": [
            [row["round"], row["accuracy"]]
            for row in runs[0].metrics
            if row["accuracy"] is not None
        ],
    }


def markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| case | accuracy | seeds | on |", "|---|---|---|---|"]
    for name, row in results.items():
        found = row["accuracy"]
        spread = f" ± {statistics.stdev(found):.4f}" if len(found) > 1 else ""
        lines.append(
            f"| {name} | {statistics.mean(found):.4f}{spread} | {len(found)} | {row['on']} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    known = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    if not asked.table:
        for name in asked.only:
            if name in known and not (asked.set or asked.validation):
                continue
            row = measured(CASES[name], asked.data_dir, asked.seeds, asked.set, asked.validation)
            print(name, row["on"], row["accuracy"], f"{row['seconds']} s", flush=True)
            if not (asked.set or asked.validation):
                known[name] = row
                write(asked.out, known)
    print(markdown(known))


if __name__ == "__main__":
    main()
