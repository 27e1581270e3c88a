"""Accuracy within a budget: the best configuration of each data set, with spread over seeds.

    python benchmarks/accuracy.py --data-dir DIR [--only cifar10] [--mechanisms gaussian laplace]
    python benchmarks/accuracy.py --data-dir DIR --only cifar10 --validation --set KEY=VALUE
    python benchmarks/accuracy.py --table                               only the table

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
from dataclasses import dataclass, replace
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
    """A configuration, and what is changed in it at each budget."""

    config: str
    budgets: Mapping[float, Mapping[str, Any]]


CASES = {
    "cifar10": Case("cifar10-random-prior.toml", {2: {"training.learning_rate": 12}, 8: {}}),
    "mnist": Case("mnist-scattering.toml", {2: {"training.learning_rate": 0.013}, 8: {}}),
    "medical-mnist": Case(
        "medical-mnist-random-prior.toml", {2: {"training.learning_rate": 6}, 8: {}}
    ),
    "utkface": Case("utkface-random-prior.toml", {2: {"training.learning_rate": 6}, 8: {}}),
}
"""By data set."""
MECHANISMS = ("gaussian", "laplace", "staircase")


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
    case: Case,
    data_dir: str,
    seeds: Sequence[int],
    mechanisms: Sequence[str],
    overrides: Sequence[str],
    validates: bool,
) -> list[dict[str, Any]]:
    """A row for every mechanism and budget, with an accuracy for every seed."""
    base = load(ROOT / "configs" / case.config, {"data": {"dir": data_dir}}, overrides=overrides)
    data = load_dataset(base, None, None)
    data = chosen_with(data) if validates else data
    kinds = [(mechanism, epsilon) for mechanism in mechanisms for epsilon in case.budgets]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        configs = []
        for mechanism, epsilon in kinds:
            changes = {"privacy.mechanism": mechanism, "privacy.epsilon": epsilon}
            asked = [f"{key}={own}" for key, own in {**changes, **case.budgets[epsilon]}.items()]
            for seed in seeds:
                own = {"seed": seed, "out": f"{folder}/{mechanism}-{epsilon}-{seed}"}
                own |= {"data": {"name": "own", "options": {}}}
                configs.append(load(base, own, overrides=[*asked, *overrides]))
        runs = run_together(configs, data=data)
    assert all(run.privacy.kind == "guarantee" for run in runs)
    seconds = round(time.perf_counter() - began, 1)
    rows = []
    for place, (mechanism, epsilon) in enumerate(kinds):
        own_runs = runs[place * len(seeds) : (place + 1) * len(seeds)]
        rows.append({
            "config": case.config,
            "mechanism": mechanism,
            "epsilon": epsilon,
            "changes": [*(f"{k}={v}" for k, v in case.budgets[epsilon].items()), *overrides],
            "on": "validation" if validates else "test",
            "seeds": list(seeds),
            "accuracy": [run.accuracy for run in own_runs],
            "privacy": str(own_runs[0].privacy),
            "seconds_of_all_runs_together": seconds,
            "machine": described(torch.get_num_threads()),
            "curve": [
                [row["round"], row["accuracy"]]
                for row in own_runs[0].metrics
                if row["accuracy"] is not None
            ],
        })  # fmt: skip
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean and standard deviation over seeds."""
    lines = ["| configuration | noise | ε | accuracy | seeds |", "|---|---|---|---|---|"]
    for row in rows:
        found = row["accuracy"]
        spread = f" ± {statistics.stdev(found):.4f}" if len(found) > 1 else ""
        lines.append(
            f"| {row['config']} | {row['mechanism']} | {row['epsilon']:g} | "
            f"{statistics.mean(found):.4f}{spread} | {len(found)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--mechanisms", nargs="+", choices=MECHANISMS, default=["gaussian"])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--table", action="store_true", help="only the table of the result file")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    known = json.loads(asked.out.read_text()) if asked.out.exists() else []
    tries = bool(asked.set) or asked.validation
    for name in () if asked.table else asked.only:
        config = CASES[name].config
        done = {row["mechanism"] for row in known if row["config"] == config}
        wanted = [own for own in asked.mechanisms if tries or own not in done]
        if not wanted:
            continue
        rows = measured(
            CASES[name], asked.data_dir, asked.seeds, wanted, asked.set, asked.validation
        )
        print(markdown(rows), flush=True)
        if not tries:
            known += rows
            write(asked.out, known)
    if not tries:
        print(markdown(known))


if __name__ == "__main__":
    main()
