"""The paper's table of membership inference: three mechanisms, four budgets, three attacks.

Every cell is a run that is attacked by Shokri's shadow models, LiRA and Canary with the same shadow
models, beside the same run without privacy. The paper's data is CIFAR-10; the embedded digits need
no files. With `--accounting scalar`, as in the paper, the numbers are nominal.

.venv/bin/python benchmarks/attack_table.py --shadows 8 --json results/attacks-cpu.json
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch

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


def some(data: DataSet, members: int, seed: int) -> DataSet:
    """So many records to train on, and as many that are held out."""
    rng = np.random.default_rng(seed)

    def drawn(records: Any) -> Any:
        return records.subset(rng.permutation(len(records))[:members])

    return replace(data, train=drawn(data.train), test=drawn(data.test))


def cells(
    config: Config,
    data: DataSet,
    folder: Path,
    shadows: int,
    mechanisms: Sequence[str] = MECHANISMS,
    epsilons: Sequence[float] = EPSILONS,
    accounting: str = "vector",
    options: dict[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Each run with its attacks: first without privacy, then by mechanism and budget."""
    settings: list[tuple[str, float | None]] = [("none", None)]
    settings += [(name, epsilon) for name in mechanisms for epsilon in epsilons]
    for name, epsilon in settings:
        began = time.perf_counter()
        privacy: Any = "none"
        if epsilon is not None:
            privacy = {"mechanism": name, "epsilon": epsilon, "accounting": accounting}
        out = folder / f"{name}-{epsilon or 0:g}"
        if not (out / "summary.json").is_file():
            run(load(config, {"privacy": privacy, "out": str(out)}), data=data)
        target = Target.open(out, data=data)
        found = [build(own, {"shadows": shadows, **(options or {})}).run(target) for own in ATTACKS]
        yield {
            "mechanism": name,
            "epsilon": epsilon,
            "statement": str(target.privacy),
            "seconds": round(time.perf_counter() - began, 1),
            "attacks": {own.attack: plain(own) for own in found},
        }


def plain(found: AttackResult) -> dict[str, Any]:
    """The figures of one attack, with their intervals and caps."""
    return {
        own.name: {
            "value": own.value, "low": own.low, "high": own.high, "cap": own.cap,
            "exceeds": own.exceeds,
        }
        for own in found.figures
    }  # fmt: skip


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table in the shape of the paper's."""
    mechanisms = list(dict.fromkeys(row["mechanism"] for row in rows if row["epsilon"]))
    head = " | ".join(f"{name}: {figure}" for name in mechanisms for figure in HEAD)
    lines = [f"| attack | ε | {head} |", f"|---|---|{'---|' * 3 * len(mechanisms)}"]
    epsilons = list(dict.fromkeys(row["epsilon"] for row in rows if row["epsilon"]))
    for attack in ATTACKS:
        for epsilon in epsilons:
            told = [
                _figures(row["attacks"][attack])
                for name in mechanisms
                for row in rows
                if (row["mechanism"], row["epsilon"]) == (name, epsilon)
            ]
            lines.append(f"| {attack} | {epsilon:g} | {' | '.join(told)} |")
    plainly = next((row for row in rows if row["epsilon"] is None), None)
    if plainly is not None:
        said = "; ".join(f"{own} {_figures(plainly['attacks'][own])}" for own in ATTACKS)
        lines += ["", f"Without privacy ({', '.join(HEAD)}): {said.replace(' | ', ', ')}."]
    return "\n".join(lines)


def _figures(attack: dict[str, Any]) -> str:
    return " | ".join(f"{attack[name]['value']:.3f}" for name in (TPR, ACCURACY, AUC))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--config", type=Path, default=CONFIG)
    words.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    words.add_argument("--members", type=int, default=500)
    words.add_argument("--shadows", type=int, default=16)
    words.add_argument("--accounting", choices=("vector", "scalar"), default="vector")
    words.add_argument("--folder", type=Path, help="keep runs and shadows, and go on there")
    words.add_argument("--json", type=Path)
    asked = words.parse_args()
    config = load(asked.config, overrides=asked.set)
    data = some(load_dataset(config, None, None), asked.members, config.seed)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        config = load(config, {"data": {"name": "own", "options": {}}})
        for row in cells(config, data, folder, asked.shadows, accounting=asked.accounting):
            rows.append(row)
            print(f"{row['mechanism']} {row['epsilon']}: {row['seconds']} s", file=sys.stderr)
            if asked.json is not None:
                about = {
                    "machine": machine.described(torch.get_num_threads()),
                    "config": config.model_dump(mode="json"),
                    "members": asked.members,
                    "shadows": asked.shadows,
                    "cells": rows,
                }
                machine.write(asked.json, about)
    print(markdown(rows))


if __name__ == "__main__":
    main()
