"""The UDP-FL paper's tables of reconstruction and of attribute inference, one command each.

python benchmarks/reconstruction_tables.py gradients --data-dir DIR   inverting gradients, CIFAR-10
python benchmarks/reconstruction_tables.py decoder --data-dir DIR     a decoder, CIFAR-10
python benchmarks/reconstruction_tables.py attribute --data-dir DIR   gender of UTKFace

Each cell is a run and an attack on it: three mechanisms at four budgets, and one run without
privacy. `--set KEY=VALUE` changes runs and `--attack KEY=VALUE` the attack; `--scale small` takes
fewer rounds, signals and steps, for a CPU. Cells that are in the result file with the very same
settings are not run again, so the command may be stopped and repeated; `--workers 4` has as many of
them at once, in processes of their own.

Gradients are attacked at the untrained model, which is where they tell most, behind the clip and
the noise of one step of the run; the run itself is two local steps. The pixels of the paper's MSE
are not from 0 to 1, so its numbers have another scale than those here.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import RESULTS, described, write
from tables import rows
from workers import each

from udpfl.attacks import AttackResult, Target, build
from udpfl.cli.attack import options_of
from udpfl.config import load
from udpfl.federation import run

MECHANISMS = {
    "gaussian": "DP-SGD",
    "laplace": "UDP-FL (Laplace)",
    "staircase": "UDP-FL (Staircase)",
}
EPSILONS = (2.0, 4.0, 6.0, 8.0)
PLAIN_RATE = 0.1
"""The learning rate without privacy: gradients are neither clipped nor noised there."""
Cell = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """What a table of the paper consists of."""

    attack: str
    columns: Mapping[str, str]
    """The heads of the paper, and the figures that they stand for."""
    beside: Sequence[str]
    """Who learned nothing, for the lines below the table."""
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    small: Mapping[str, Any]
    """Settings of a run that a CPU trains in a minute."""
    small_options: Mapping[str, Any]


_SMALL_TRAINING = {"training.rounds": 4, "training.local_steps": 10}
TABLES = {
    "gradients": Table(
        "inverting-gradients",
        {"MSE": "mean MSE", "PSNR": "mean PSNR", "SSIM": "mean SSIM"},
        ("same attack on noise alone", "mean picture", "random picture"),
        {
            "data.name": "cifar10", "data.clients": 10, "model.name": "lenet",
            "training.rounds": 1, "training.local_steps": 2, "training.sampling_rate": 0.01,
        },
        {"signals": 100, "iterations": 4800},
        {"data.clients": 2},
        {"signals": 20, "iterations": 600},
    ),
    "decoder": Table(
        "decoder",
        {"MSE": "mean MSE", "MAE": "mean MAE"},
        ("mean picture of the predicted class", "mean picture",
         "same attack on the untrained model"),
        {
            "data.name": "cifar10", "data.clients": 10, "model.name": "cnn-small",
            "training.rounds": 50, "training.local_steps": 10, "training.sampling_rate": 0.02,
        },
        {},
        {"data.clients": 2, **_SMALL_TRAINING},
        {"auxiliary": 1000, "records": 500, "epochs": 15, "width": 32},
    ),
    "attribute": Table(
        "attribute",
        {"Acc": "accuracy", "F1": "F1"},
        ("majority class", "same attack on the untrained model"),
        {
            "data.name": "utkface", "data.options.target": "ethnicity", "data.clients": 10,
            "model.name": "cnn-small", "training.rounds": 50, "training.local_steps": 10,
            "training.sampling_rate": 0.02,
        },
        {"attribute": "gender"},
        {"data.clients": 2, **_SMALL_TRAINING},
        {"auxiliary": 2000, "records": 2000},
    ),
}  # fmt: skip


def settings_of(table: Table, scale: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The run of every cell, as dotted keys."""
    return {**table.settings, **(table.small if scale == "small" else {}), **changes}


def options_for(table: Table, scale: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The attack of every cell."""
    return {**table.options, **(table.small_options if scale == "small" else {}), **changes}


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Sections from dotted keys."""
    found: dict[str, Any] = {}
    for key, value in dotted.items():
        place, *inner = found, *key.split(".")
        for name in inner[:-1]:
            place = place.setdefault(name, {})
        place[inner[-1]] = value
    return found


def cells(mechanisms: Sequence[str], epsilons: Sequence[float]) -> Iterator[dict[str, Any]]:
    """The privacy of every cell; first that without any."""
    yield {"privacy": "none", "training.learning_rate": PLAIN_RATE}
    for epsilon in epsilons:
        for mechanism in mechanisms:
            yield {"privacy.mechanism": mechanism, "privacy.epsilon": epsilon}


def measured(
    table: Table,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    privacy: Mapping[str, Any],
    data_dir: str | None = None,
    data: Any = None,
) -> Cell:
    """One run, and one attack on it."""
    where = {"data.dir": data_dir} if data_dir else {}
    given = nested({**settings, **privacy, **where})
    with tempfile.TemporaryDirectory() as folder:
        given["out"] = f"{folder}/run"
        run(load(given), data=data)
        found = build(table.attack, options).run(Target.open(f"{folder}/run", data=data))
    return {
        "settings": dict(settings),
        "options": dict(options),
        "privacy": dict(privacy),
        "stated": str(found.privacy),
        "figures": _numbers(found),
        "seconds": found.seconds,
    }


def _numbers(found: AttackResult) -> dict[str, list[float | None]]:
    """Every figure with its interval; NaN never occurs, as pictures have pixels."""
    return {own.name: [own.value, own.low, own.high] for own in (*found.figures, *found.baselines)}


def page(name: str, found: Sequence[Cell], mechanisms: Sequence[str]) -> str:
    """The table as Markdown."""
    table = TABLES[name]
    by = {
        (own["privacy"].get("privacy.epsilon"), own["privacy"].get("privacy.mechanism")): own
        for own in found
    }
    head = ["ε", *(f"{MECHANISMS[m]}: {c}" for m in mechanisms for c in table.columns)]
    body = []
    for epsilon in sorted({epsilon for epsilon, _ in by if epsilon}):
        line = [f"{epsilon:g}"]
        for mechanism in mechanisms:
            own = by.get((epsilon, mechanism))
            line += [_shown(own, figure) for figure in table.columns.values()]
        body.append(line)
    open_run = by.get((None, None))
    text = rows(head, body)
    said = ", ".join(f"{c} {_shown(open_run, figure)}" for c, figure in table.columns.items())
    text += f"\nWithout privacy: {said}.\n"
    for who in table.beside:
        beside = [own for own in found if f"{next(iter(table.columns.values()))}, {who}" in
                  own["figures"]]  # fmt: skip
        if beside:
            said = ", ".join(
                f"{c} {_range(beside, f'{figure}, {who}')}" for c, figure in table.columns.items()
            )
            text += f"Baseline, {who}: {said}.\n"
    return text


def _shown(cell: Cell | None, figure: str) -> str:
    return "–" if cell is None else f"{cell['figures'][figure][0]:.4g}"


def _range(found: Sequence[Cell], figure: str) -> str:
    """Of all cells: they differ by what was drawn, or by the model."""
    values = [own["figures"][figure][0] for own in found]
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--data-dir")
    parser.add_argument("--scale", choices=("small", "full"), default="full")
    parser.add_argument("--set", action="append", default=[], help="of the runs")
    parser.add_argument("--attack", action="append", default=[], help="of the attack")
    parser.add_argument("--mechanisms", nargs="+", choices=MECHANISMS, default=list(MECHANISMS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="cells at once")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    table, out = TABLES[asked.table], asked.out or RESULTS / f"{asked.table}-attack.json"
    settings = settings_of(table, asked.scale, options_of(asked.set))
    settings["threads"] = asked.threads
    options = options_for(table, asked.scale, options_of(asked.attack))
    known = json.loads(out.read_text()) if out.exists() else {"cells": []}
    order = list(cells(asked.mechanisms, asked.epsilons))
    same = {"settings": settings, "options": options}
    found = [own for own in known["cells"] if same.items() <= own.items()]
    found = [own for own in found if own["privacy"] in order]
    missing = [own for own in order if own not in [cell["privacy"] for cell in found]]
    began, before = time.perf_counter(), known.get("minutes", 0.0) if found else 0.0
    work = [(table, settings, options, own, asked.data_dir) for own in missing]
    for cell in each(measured, work, asked.workers):
        found.append(cell)
        found.sort(key=lambda own: order.index(own["privacy"]))
        minutes = round(before + (time.perf_counter() - began) / 60, 2)
        about = {"machine": described(asked.threads), "workers": asked.workers, "minutes": minutes}
        write(out, {**about, "cells": found})
        print(cell["privacy"], f"{cell['seconds']:.0f} s", flush=True)
    print(page(asked.table, found, asked.mechanisms))


if __name__ == "__main__":
    main()
