"""How a run's time and memory grow: with clients, with rounds, with records and parameters.

    python benchmarks/scaling.py [--only clients rounds memory thousand] [--quick]

clients    seconds per round against clients per round: should be a straight line
rounds     seconds per round against the round's number: should be flat, ledger and all
memory     peak memory of fresh processes: should not grow with clients x samples x parameters
thousand   a run with 1,000 clients, from its first second to its last

Every measurement is a real run (`udpfl.run`) in a process of its own. What charging and
checkpointing cost is in profile_training.py. Writes results/scaling-cpu.json, .md and .png.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from figures import scaling_figure
from machine import RESULTS, described, in_child, write
from tables import scaling_table
from workload import Workload, timed_rounds

CLIENTS = (10, 20, 50, 100, 200)
MEMORY = [  # one thing grows at a time, from the first case on; then all of them together
    Workload("cnn-small", clients=10, picked=10, records=100, steps=2, rate=0.5),
    Workload("cnn-small", clients=40, picked=40, records=100, steps=2, rate=0.5),
    Workload("cnn-small", clients=10, picked=10, records=400, steps=2, rate=0.5),
    Workload("cnn", clients=10, picked=10, records=100, steps=2, rate=0.5),
    Workload("cnn", clients=40, picked=40, records=100, steps=2, rate=0.5),
    Workload("cnn", clients=10, picked=10, records=400, steps=2, rate=0.5),
    Workload("cnn", clients=40, picked=40, records=400, steps=2, rate=0.5),
]
THOUSAND = Workload("cnn-small", clients=1000, picked=50, records=50, steps=2, rate=0.5)
_MIB = 1 << 20


def one(workload: Workload, rounds: int) -> dict[str, Any]:
    """One run in this process: seconds per round, peak memory, and what there was before it."""
    before = _resident()
    size = sum(tensor.nbytes for tensor in workload.data())
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        seconds, result = timed_rounds(workload, rounds, Path(folder) / "run")
        total = time.perf_counter() - began
        ledger = result.ledger_path.stat().st_size
    return {
        "workload": asdict(workload),
        "parameters": sum(p.numel() for p in workload.network().parameters()),
        "seconds": seconds,
        "median": statistics.median(seconds),
        "total": total,
        "outside_rounds": total - statistics.median(seconds) * (rounds + 2),
        "records_mib": size / _MIB,
        "before_mib": before / _MIB,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ledger_mib": ledger / _MIB,
    }


def _resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def by_clients(rounds: int, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Everybody takes part in every round."""
    return [measured(Workload(clients=n, picked=n), rounds) for n in counts]


def measured(workload: Workload, rounds: int) -> dict[str, Any]:
    """The same in a process of its own."""
    arguments = ["--one", json.dumps(asdict(workload)), "--rounds", str(rounds)]
    arguments += ["--threads", str(torch.get_num_threads())]
    found: dict[str, Any] = in_child(Path(__file__), arguments)
    return found


def flatness(seconds: Sequence[float]) -> dict[str, float]:
    """Median of the first and of the last quarter, and how much the whole run grew."""
    quarter = max(1, len(seconds) // 4)
    first, last = statistics.median(seconds[:quarter]), statistics.median(seconds[-quarter:])
    return {"first_quarter": first, "last_quarter": last, "growth": last / first}


def line(counts: Sequence[int], seconds: Sequence[float]) -> dict[str, float]:
    """The least-squares line through the rounds' seconds, and the worst miss, relative."""
    slope, start = statistics.linear_regression(counts, seconds)
    misses = [abs(start + slope * n - s) / s for n, s in zip(counts, seconds, strict=True)]
    return {"seconds_per_client": slope, "seconds_at_none": start, "worst_miss": max(misses)}


def measurements(names: Sequence[str], quick: bool) -> dict[str, Any]:
    """Those asked for, each from fresh processes."""
    found: dict[str, Any] = {}
    if "clients" in names:
        counts = CLIENTS[:3] if quick else CLIENTS
        rows = by_clients(1 if quick else 5, counts)
        found["clients"] = {"runs": rows, **line(counts, [row["median"] for row in rows])}
    if "rounds" in names:
        run = measured(Workload(steps=1), 20 if quick else 200)
        found["rounds"] = {"run": run, **flatness(run["seconds"])}
    if "memory" in names:
        found["memory"] = [measured(workload, 1) for workload in MEMORY]
    if "thousand" in names:
        found["thousand"] = measured(THOUSAND, 1 if quick else 5)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["clients", "rounds", "memory", "thousand"]
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling-cpu.json")
    for hidden in ("--one", "--rounds", "--answer"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        found = one(Workload(**json.loads(options.one)), int(options.rounds))
        write(Path(options.answer), found)
        return
    report = {"machine": described(options.threads), "quick": options.quick}
    report |= measurements(options.only, options.quick)
    write(options.out, report)
    options.out.with_suffix(".md").write_text(scaling_table(report))
    scaling_figure(report, options.out.with_suffix(".png"))
    print(scaling_table(report))


if __name__ == "__main__":
    main()
