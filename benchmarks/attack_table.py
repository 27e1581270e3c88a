"""The paper's table of membership inference: three mechanisms, four budgets, three attacks.

Every cell is a run that is attacked by Shokri's shadow models, LiRA and Canary with the same shadow
models, beside the same run without privacy. LiRA is tried on every shadow as well, each attacked
with the others (leave-one-out). The paper's data is CIFAR-10; the embedded digits need no files.
With `--accounting scalar`, as in the paper, the numbers are nominal.

python benchmarks/attack_table.py --shadows 8 --json results/attacks-cpu.json
python benchmarks/attack_table.py --config configs/attack-cifar10.toml --members 10000
    --records 5000 --plain training.rounds=400 --plain training.learning_rate=0.1 --workers 6
    --json results/attacks-cifar10.json                                 a GPU, UDPFL_DATA_DIR
python benchmarks/attack_table.py --table results/attacks-cifar10.json  only the table

`--set KEY=VALUE` changes all runs, and `--plain KEY=VALUE` the one without privacy, whose learning
rate is not that of clipped gradients with noise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
from workers import each

from udpfl.attacks import AttackResult, Target, build
from udpfl.attacks.membership.statistics import ACCURACY, AUC, name_at
from udpfl.config import Config, load
from udpfl.data import DataSet
from udpfl.federation import run
from udpfl.federation.builders import load_dataset

CONFIG = Path(__file__).parents[1] / "configs" / "attack-target.toml"
MECHANISMS = ("gaussian", "laplace", "staircase")
EPSILONS = (2.0, 4.0, 6.0, 8.0)
ATTACKS = ("shokri", "lira", "canary")
TPR = name_at(0.01)
HEAD = ("TPR at 1 % FPR", "accuracy", "AUC")
Cell = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """What all cells share."""

    config: Config
    folder: Path
    shadows: int
    members: int
    """Records to train on, and as many that are held out."""
    accounting: str = "vector"
    plain: Sequence[str] = ()
    """Changes, as KEY=VALUE, of the run without privacy."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of all attacks."""


def some(data: DataSet, members: int, seed: int) -> DataSet:
    """So many records to train on, and as many that are held out."""
    rng = np.random.default_rng(seed)

    def drawn(records: Any) -> Any:
        return records.subset(rng.permutation(len(records))[:members])

    return replace(data, train=drawn(data.train), test=drawn(data.test))


def order(mechanisms: Sequence[str], epsilons: Sequence[float]) -> list[tuple[str, float | None]]:
    """The run without privacy, then by mechanism and budget."""
    return [("none", None), *((name, epsilon) for name in mechanisms for epsilon in epsilons)]


def cell(table: Table, mechanism: str, epsilon: float | None, data: DataSet | None = None) -> Cell:
    """One run with its attacks; without `data`, on records of the configuration's data set."""
    began = time.perf_counter()
    data = data or _drawn(table.config.model_dump_json(), table.members)
    privacy: Any = "none"
    if epsilon is not None:
        privacy = {"mechanism": mechanism, "epsilon": epsilon, "accounting": table.accounting}
    out = table.folder / f"{mechanism}-{epsilon or 0:g}"
    own = {"privacy": privacy, "out": str(out), "data": {"name": "own", "options": {}}}
    config = load(table.config, own, overrides=table.plain if epsilon is None else ())
    if not (out / "summary.json").is_file():
        run(config, data=data)
    target = Target.open(out, data=data)
    options = {"shadows": table.shadows, **table.options}
    found = [build(name, options).run(target) for name in ATTACKS]
    return {
        "mechanism": mechanism,
        "epsilon": epsilon,
        "statement": str(target.privacy),
        "accuracy": json.loads((out / "summary.json").read_text())["accuracy"],
        "seconds": round(time.perf_counter() - began, 1),
        "training": config.training.model_dump(mode="json"),
        "attacks": {own.attack: plain(own) for own in found},
    }


@cache
def _drawn(config: str, members: int) -> DataSet:
    """Once for all cells of a process."""
    own = Config.model_validate_json(config)
    return some(load_dataset(own, None, None), members, own.seed)


def plain(found: AttackResult) -> dict[str, Any]:
    """The figures of one attack, with their intervals and caps."""
    return {
        own.name: {
            "value": own.value, "low": own.low, "high": own.high, "cap": own.cap,
            "exceeds": own.exceeds,
        }
        for own in found.figures
    }  # fmt: skip


def markdown(rows: Sequence[Cell]) -> str:
    """The table in the shape of the paper's, and LiRA with every shadow as target."""
    mechanisms = list(dict.fromkeys(row["mechanism"] for row in rows if row["epsilon"]))
    head = " | ".join(f"{name}: {figure}" for name in mechanisms for figure in HEAD)
    lines = [f"| attack | ε | {head} |", f"|---|---|{'---|' * 3 * len(mechanisms)}"]
    epsilons = list(dict.fromkeys(row["epsilon"] for row in rows if row["epsilon"]))
    by = {(row["mechanism"], row["epsilon"]): row for row in rows}
    for attack in ATTACKS:
        for epsilon in epsilons:
            told = [_figures(by[name, epsilon]["attacks"][attack]) for name in mechanisms]
            lines.append(f"| {attack} | {epsilon:g} | {' | '.join(told)} |")
    if openly := by.get(("none", None)):
        said = "; ".join(f"{own} {_figures(openly['attacks'][own])}" for own in ATTACKS)
        lines += ["", f"Without privacy ({', '.join(HEAD)}): {said.replace(' | ', ', ')}."]
    return "\n".join(lines + _left_out(by, mechanisms, epsilons))


def _left_out(
    by: Mapping[tuple[str, float | None], Cell],
    mechanisms: Sequence[str],
    epsilons: Sequence[float],
) -> list[str]:
    """LiRA on every shadow, where there were enough of them, and how well the models do."""
    names = [name for name in next(iter(by.values()))["attacks"]["lira"] if ", mean over" in name]
    if not names or any("accuracy" not in row for row in by.values()):
        return []
    what = ("test accuracy", *(f"LiRA: {name}" for name in names))
    head = " | ".join(f"{name}: {figure}" for name in mechanisms for figure in what)
    lines = ["", f"| ε | {head} |", f"|---|{'---|' * len(what) * len(mechanisms)}"]

    def said(row: Cell) -> str:
        own = row["attacks"]["lira"]
        return " | ".join(f"{value:.3f}" for value in (
            row["accuracy"], *(own[name]["value"] for name in names)
        ))  # fmt: skip

    for epsilon in epsilons:
        lines.append(f"| {epsilon:g} | {' | '.join(said(by[m, epsilon]) for m in mechanisms)} |")
    if openly := by.get(("none", None)):
        lines += ["", f"Without privacy ({', '.join(what)}): {said(openly).replace(' | ', ', ')}."]
    return lines


def _figures(attack: dict[str, Any]) -> str:
    return " | ".join(f"{attack[name]['value']:.3f}" for name in (TPR, ACCURACY, AUC))


def arguments() -> argparse.Namespace:
    """What is asked for."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--config", type=Path, default=CONFIG)
    words.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    words.add_argument("--plain", action="append", default=[], metavar="KEY=VALUE")
    words.add_argument("--members", type=int, default=500)
    words.add_argument("--records", type=int, help="that are attacked; half of them members")
    words.add_argument("--shadows", type=int, default=16)
    words.add_argument("--mechanisms", nargs="+", default=MECHANISMS, choices=MECHANISMS)
    words.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    words.add_argument("--accounting", choices=("vector", "scalar"), default="vector")
    words.add_argument("--workers", type=int, default=1, help="cells at once")
    words.add_argument("--folder", type=Path, help="keep runs and shadows, and go on there")
    words.add_argument("--json", type=Path)
    words.add_argument("--table", type=Path, help="only print the table of this result file")
    return words.parse_args()


def main() -> None:
    asked = arguments()
    if asked.table is not None:
        print(markdown(json.loads(asked.table.read_text())["cells"]))
        return
    began, found = time.perf_counter(), []
    wanted = order(asked.mechanisms, asked.epsilons)
    with tempfile.TemporaryDirectory() as temporary:
        options = {} if asked.records is None else {"records": asked.records}
        table = Table(
            load(asked.config, overrides=asked.set), asked.folder or Path(temporary),
            asked.shadows, asked.members, asked.accounting, asked.plain, options,
        )  # fmt: skip
        about = {
            "machine": machine.described(torch.get_num_threads()),
            "config": table.config.model_dump(mode="json"),
            **{name: getattr(asked, name) for name in ("members", "records", "shadows", "plain")},
            "workers": asked.workers,
        }
        for row in each(cell, [(table, *own) for own in wanted], asked.workers):
            found.append(row)
            found.sort(key=lambda own: wanted.index((own["mechanism"], own["epsilon"])))
            print(f"{row['mechanism']} {row['epsilon']}: {row['seconds']} s", file=sys.stderr)
            if asked.json is not None:
                minutes = round((time.perf_counter() - began) / 60, 2)
                machine.write(asked.json, {**about, "minutes": minutes, "cells": found})
    print(markdown(found))


if __name__ == "__main__":
    main()
