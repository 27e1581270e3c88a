"""CPU time until the command answers, two versions of the package measured in turn.

    git worktree add /tmp/before HEAD~1
    python benchmarks/startup.py /tmp/before/src src

The versions take turns, so that a machine that becomes slower meanwhile slows both. What counts is
user and system time of the whole process, so waiting for a busy machine does not. The table has the
median of all turns, and the least in brackets.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

PLAN = ["plan", "--epsilon=8", "--steps=300", "--sampling-rate=0.05", "--dimension=26010"]
CASES = {
    "python -c pass": ["-c", "pass"],
    "import udpfl": ["-c", "import udpfl"],
    "udpfl --help": ["-m", "udpfl", "--help"],
    "udpfl run --help": ["-m", "udpfl", "run", "--help"],
    "udpfl plan": ["-m", "udpfl", *PLAN],
    "udpfl plan --mechanism all": ["-m", "udpfl", *PLAN, "--mechanism", "all"],
}


def cpu_seconds(source: Path, arguments: list[str]) -> float:
    """User and system time of Python with these arguments, and the package from `source`."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(source.absolute()), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed with {source}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="Folder that holds the package udpfl.")
    parser.add_argument("after", type=Path, help="Another one.")
    parser.add_argument("--turns", type=int, default=7)
    asked = parser.parse_args()
    print(f"{'':28}{'before':>16}{'after':>16}{'ratio':>8}   CPU seconds")
    for name, arguments in CASES.items():
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(asked.turns + 1):
            for own, source in zip(times, (asked.before, asked.after), strict=True):
                taken = cpu_seconds(source, arguments)
                if turn:  # the first one may still write bytecode
                    own.append(taken)
        middle = [statistics.median(own) for own in times]
        cells = "".join(
            f"{f'{m:.3f} ({min(own):.3f})':>16}" for m, own in zip(middle, times, strict=True)
        )
        print(f"{name:28}{cells}{middle[1] / middle[0]:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
