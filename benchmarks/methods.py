"""Test accuracy of every federated method within the same budget of epsilon = 8 a client.

python benchmarks/methods.py                      the embedded digits, dealt out evenly and unevenly
python benchmarks/methods.py --data mnist --data-dir DIR
python benchmarks/methods.py --table              only the table, from results/methods.json

Runs are cells (method, data, seed). One that is in the result file with the very same settings is
not run again, so the command may be stopped and repeated. In the end the table in docs/methods.md
is made again from the file.

Every method gets as many noisy releases as configs/default.toml or configs/mnist.toml plans, so all
have the same noise: more local steps mean fewer rounds. The one exception is nbafl, whose noise is
its authors' and keeps no such budget; each cell has the privacy that was stated. Beside that, each
has the settings below. They were chosen by a few runs on the embedded digits with seed 0: what is
reported for that seed is a little better than it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from machine import RESULTS, ROOT, described, write
from tables import filled, rows

from udpfl.config import load
from udpfl.federation import run

DOCUMENT = ROOT / "docs" / "methods.md"
DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("default.toml", {}),
    "digits, uneven": ("default.toml", {"data": {"partition": "dirichlet", "alpha": 0.3}}),
    "mnist": ("mnist.toml", {}),
}
STEPS = 4
"""Local steps of those methods that differ from plain averaging only where there are several."""
# A weight moves by about the server's rate in a round, so this does not depend on the data.
_ADAPTIVE = {"local_steps": 1, "server_learning_rate": 0.01, "server_momentum": 0.9}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"local_steps": 1},
    "fedsgd": {"local_steps": 1},
    "median": {"local_steps": 1},
    "trimmed-mean": {"local_steps": 1},
    "fedmed": {"local_steps": 1},
    "fedadam": _ADAPTIVE,
    "fedyogi": _ADAPTIVE,
    "fedadagrad": {**_ADAPTIVE, "server_learning_rate": 0.1},
    f"fedavg, {STEPS} steps": {"local_steps": STEPS},
    f"fedprox, {STEPS} steps": {"local_steps": STEPS, "options": {"mu": 0.1}},
    f"scaffold, {STEPS} steps": {"local_steps": STEPS},
    "bezier": {"local_steps": 1},
    "client-bezier": {"local_steps": 1},
    "fedavg, clip by quantile": {"local_steps": 1, "learning_rate": 0.4},
    "fedavg, increasing pace": {"local_steps": 1},
    "fedavg, not private": {"local_steps": 1, "learning_rate": 0.1, "server_momentum": 0.9},
    "fedavg, 5 % public": {"local_steps": 1},
    "mode-connectivity, 5 % public": {"local_steps": 1},
    "dp-fedavg, 100 clients": {
        "local_steps": 10,
        "learning_rate": 0.4,
        "server_momentum": 0.5,
        "averaging": 0.5,
    },
    # In few rounds: its noise grows with their number. The table must not call this a budget.
    "nbafl, by its own claim": {
        "local_steps": 20,
        "learning_rate": 0.3,
        "server_momentum": 0.0,
        "averaging": 0.0,
    },
}
OTHERWISE: dict[str, dict[str, Any]] = {
    "fedavg, clip by quantile": {"privacy": {"clip_quantile": 0.5}},
    "fedavg, increasing pace": {"privacy": {"pace": "increasing"}},
    "fedavg, not private": {"privacy": "none"},
    "fedavg, 5 % public": {"data": {"public": 0.05}},
    "mode-connectivity, 5 % public": {"data": {"public": 0.05}},
    # Whole clients are hidden: a crowd of them is needed, and delta below one over their number.
    "dp-fedavg, 100 clients": {
        "data": {"clients": 100},
        "privacy": {"unit": "client", "delta": 1e-3},
    },
    "nbafl, by its own claim": {"privacy": {"unit": "client", "clip": 5.0}},
}
"""What other sections of the configuration a method needs."""


def settings(method: str, data: str) -> dict[str, Any]:
    """What a cell changes in the configuration of its data; never the number of releases."""
    name, changes = DATA[data]
    planned = load(ROOT / "configs" / name).training
    own, more = METHODS[method], OTHERWISE.get(method, {})
    releases = planned.rounds * planned.local_steps
    return {
        **more,
        **{name: {**section, **more.get(name, {})} for name, section in changes.items()},
        "training": {
            **own,
            "algorithm": method.partition(",")[0],
            "rounds": releases // own["local_steps"],
        },
    }


def cell(
    method: str, data: str, seed: int, data_dir: str | None, device: str, threads: int
) -> dict[str, Any]:
    """One run."""
    changes = settings(method, data)
    with tempfile.TemporaryDirectory() as folder:
        machine = {"seed": seed, "device": device, "threads": threads, "out": f"{folder}/run"}
        where = {"data": {**changes.get("data", {}), **({"dir": data_dir} if data_dir else {})}}
        result = run(load(ROOT / "configs" / DATA[data][0], {**changes, **machine, **where}))
    return {
        "method": method,
        "data": data,
        "seed": seed,
        "settings": changes,
        "accuracy": result.accuracy,
        "privacy": str(result.privacy),
        "seconds": round(result.seconds, 1),
    }


def table(report: dict[str, Any]) -> str:
    """Mean test accuracy, with the number of seeds where it is not the same everywhere."""
    found: dict[tuple[str, str], list[float]] = {}
    for one in report["cells"]:
        found.setdefault((one["method"], one["data"]), []).append(one["accuracy"])
    shown = [data for data in DATA if any(own == data for _, own in found)]
    counts = {data: {len(own) for key, own in found.items() if key[1] == data} for data in shown}
    body = [
        [f"`{method}`", *(_accuracy(found.get((method, data)), counts[data]) for data in shown)]
        for method in METHODS
        if any((method, data) in found for data in shown)
    ]
    seeds = "; ".join(
        f"{data}: {' to '.join(map(str, sorted(counts[data])))} "
        f"{'seed' if counts[data] == {1} else 'seeds'}"
        for data in shown
    )
    return (
        rows(["test accuracy at ε = 8", *shown], body)
        + f"\n{seeds}. (`python benchmarks/methods.py`; every number is in "
        "[results/methods.json](../results/methods.json).)"
    )


def _accuracy(own: list[float] | None, counts: set[int]) -> str:
    if own is None:
        return ""
    spread = f" ± {statistics.stdev(own):.3f}" if len(own) > 1 else ""
    return f"{statistics.mean(own):.3f}{spread}" + (f" ({len(own)})" if len(counts) > 1 else "")


def known(path: Path) -> dict[str, Any]:
    """The result file so far, without cells whose settings are no longer those of this file."""
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cells": []}
    report["cells"] = [
        one
        for one in report["cells"]
        if one["method"] in METHODS
        and one["data"] in DATA
        and one["settings"] == json.loads(json.dumps(settings(one["method"], one["data"])))
    ]
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["digits", "digits, uneven"], choices=DATA)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data-dir", default=os.environ.get("UDPFL_DATA_DIR"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "methods.json")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    report = known(options.out)
    done = {(one["method"], one["data"], one["seed"]) for one in report["cells"]}
    wanted = [
        (method, data, seed)
        for data in options.data
        for seed in options.seeds
        for method in options.methods
        if (method, data, seed) not in done and not options.table
    ]
    for method, data, seed in wanted:
        one = cell(method, data, seed, options.data_dir, options.device, options.threads)
        report["cells"].append(one | {"machine": described(options.threads)})
        write(options.out, report)
        print(f"{data:<16}{method:<20}seed {seed}: {one['accuracy']:.4f}  {one['seconds']} s")
    if options.out == RESULTS / "methods.json":
        DOCUMENT.write_text(filled(DOCUMENT.read_text(), "methods", table(report)))
    else:
        print(table(report))


if __name__ == "__main__":
    main()
