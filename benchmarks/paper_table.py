"""The methods of the UDP-FL paper's comparison table: accuracy, rounds, and the privacy that holds.

python benchmarks/paper_table.py                              the embedded digits
python benchmarks/paper_table.py --data mnist --data-dir DIR
python benchmarks/paper_table.py --table                      only the table in docs/methods.md

Runs are cells (line, data, seed). One that is in the result file with the very same settings is not
run again, so the command may be stopped and repeated. The result file is part of the package:
`udpfl methods --table` prints it.

Methods whose noise is calibrated keep epsilon = 8 for every client, and all of them have the same
number of noisy releases: 80 on the digits, 60 on MNIST, which a CPU trains in minutes. Those that
bring noise or answers of their own get the epsilon that their authors would name, and are stated by
the accountant. Settings were chosen by a few runs on the embedded digits with seed 0.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from machine import ROOT, described, write
from tables import filled, rows

from udpfl.cli._paper_table import TARGETS, in_words, table
from udpfl.config import load
from udpfl.federation import run
from udpfl.runs.folder import RunFolder

OUT = ROOT / "src" / "udpfl" / "cli" / "paper_table.json"
DOCUMENT = ROOT / "docs" / "methods.md"
DATA = {"digits": ("default.toml", 80), "mnist": ("mnist.toml", 60)}
"""The configuration of a data set, and the releases of a run."""
_FEW_ROUNDS = {"server_momentum": 0.0, "averaging": 0.0}
_ONE_BIT = {
    "local_steps": 1, "learning_rate": 0.5, "sampling_rate": 1.0, "rounds": 40,
}  # fmt: skip
LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "dp-fedavg": ("DP-FedAvg", {
        "training": {"local_steps": 10, "learning_rate": 0.4, "server_momentum": 0.5,
                     "averaging": 0.5},
        "data": {"clients": 100}, "privacy": {"unit": "client", "delta": 1e-3},
    }),
    "nbafl": ("NbAFL", {
        "training": {"local_steps": 20, "learning_rate": 0.3, **_FEW_ROUNDS},
        "privacy": {"unit": "client", "clip": 5.0},
    }),
    "rdp-pfl": ("RDP-PFL", {"training": {"local_steps": 1}}),
    "als-dpfl": ("ALS-DPFL", {"training": {"local_steps": 4}}),
    "ldp-fed": ("LDP-Fed", {
        "training": {"local_steps": 10, "learning_rate": 0.1, "rounds": 8, **_FEW_ROUNDS},
        "privacy": {"unit": "client", "norm": "linf", "clip": 0.01, "epsilon": 1.0,
                    "mechanism": "auto"},
    }),
    "cldp-sgd": ("CLDP-SGD", {
        "training": _ONE_BIT, "data": {"clients": 400}, "model": {"name": "logistic"},
        "privacy": {"unit": "client", "clip": 0.5, "epsilon": 4.0, "delta": 1e-3,
                    "mechanism": "auto"},
    }),
    "ldp-fl": ("LDP-FL", {
        "training": _ONE_BIT, "data": {"clients": 400}, "model": {"name": "logistic"},
        "privacy": {"unit": "client", "norm": "linf", "clip": 0.02, "epsilon": 4.0, "delta": 1e-3,
                    "mechanism": "auto"},
    }),
    "cofel-avg": ("COFEL-AVG", {
        "training": {"local_steps": 1}, "privacy": {"mechanism": "laplace"},
    }),
    **{
        f"fedavg, {noise}": ("UDP-FL (Ours)", {
            "training": {"local_steps": 1}, "privacy": {"mechanism": noise},
        })
        for noise in ("gaussian", "laplace", "staircase")
    },
}  # fmt: skip
"""Which row of the paper each line belongs to, and its settings."""


def settings(line: str, data: str) -> dict[str, Any]:
    """What a cell changes in the configuration of its data."""
    own, releases = LINES[line][1], DATA[data][1]
    training = {"algorithm": line.partition(",")[0], **own["training"]}
    stages = 2 if line == "rdp-pfl" else 1  # both are releases
    training.setdefault("rounds", releases // (training["local_steps"] * stages))
    training["evaluate_every"] = max(1, training["rounds"] // 20)
    model = {"options": {}, **own["model"]} if "model" in own else {}
    return {**own, "training": training, **({"model": model} if model else {})}


def cell(line: str, data: str, seed: int, data_dir: str | None, threads: int) -> dict[str, Any]:
    """One run."""
    changes = settings(line, data)
    where = {"data": {**changes.get("data", {}), **({"dir": data_dir} if data_dir else {})}}
    with tempfile.TemporaryDirectory() as folder:
        machine = {"seed": seed, "device": "cpu", "threads": threads, "out": f"{folder}/run"}
        result = run(load(ROOT / "configs" / DATA[data][0], {**changes, **machine, **where}))
        client = RunFolder.open(result.folder).clients[0]
    reached = [
        row["round"]
        for row in result.metrics
        if row.get("accuracy") is not None and row["accuracy"] >= TARGETS[data]
    ]
    assert client.release is not None
    stored = client.release.get("mechanism")
    return {
        "row": LINES[line][0],
        "line": line,
        "data": data,
        "seed": seed,
        "settings": changes,
        "noise": stored["name"] if stored else "randomised response",
        "accuracy": result.accuracy,
        "rounds": result.config.training.rounds,
        "rounds_to_target": reached[0] if reached else None,
        "epsilon": result.privacy.epsilon,
        "delta": result.privacy.delta,
        "unit": result.privacy.unit,
        "claimed": result.config.privacy.epsilon,
        "is_budget": client.budget is not None,
        "seconds": round(result.seconds, 1),
    }


def page(report: dict[str, Any]) -> str:
    """The table as Markdown: the paper's words, and below them what was measured."""
    body = []
    for row in table(report):
        body.append([f"**{row.printed.method}**", *row.printed[1:]])
        body += [[f"`{own.name}`", *in_words(own)[1:]] for own in row.here]
    counts = {(d, n) for row in table(report) for own in row.here for d, n in own.seeds.items()}
    seeds = ", ".join(f"{data}: {n} {'seed' if n == 1 else 'seeds'}" for data, n in sorted(counts))
    targets = ", ".join(f"{target:g} on {data}" for data, target in TARGETS.items())
    return (
        rows(["Method", "Noise", "Accuracy", "Privacy", "Conv."], body)
        + f"\n{seeds}. Rounds are counted to an accuracy of {targets}. (`udpfl methods --table`; "
        "every number is in [paper_table.json](../src/udpfl/cli/paper_table.json), made by "
        "`python benchmarks/paper_table.py`.)"
    )


def known(path: Path) -> dict[str, Any]:
    """The result file so far, without cells whose settings are no longer those of this file."""
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cells": []}
    report["cells"] = [
        one
        for one in report["cells"]
        if one["line"] in LINES
        and one["settings"] == json.loads(json.dumps(settings(one["line"], one["data"])))
    ]
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["digits"], choices=DATA)
    parser.add_argument("--lines", nargs="+", default=list(LINES), choices=LINES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data-dir", default=os.environ.get("UDPFL_DATA_DIR"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    report = known(options.out)
    done = {(one["line"], one["data"], one["seed"]) for one in report["cells"]}
    wanted = [
        (line, data, seed)
        for data in options.data
        for seed in options.seeds
        for line in options.lines
        if (line, data, seed) not in done and not options.table
    ]
    for line, data, seed in wanted:
        one = cell(line, data, seed, options.data_dir, options.threads)
        report["cells"].append(one | {"machine": described(options.threads)})
        write(options.out, report)
        print(f"{data:<8}{line:<20}seed {seed}: {one['accuracy']:.4f}  {one['seconds']} s")
    if options.out == OUT:
        DOCUMENT.write_text(filled(DOCUMENT.read_text(), "paper-table", page(report)))
    else:
        print(page(report))


if __name__ == "__main__":
    main()
