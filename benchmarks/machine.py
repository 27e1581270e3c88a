"""Which machine and which versions a figure comes from, and settings that are alike for all sides.

How glibc hands memory back and how OpenMP threads wait change a round by up to a factor of two, for
every contender. So each benchmark runs in a process of its own for every setting.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import udpfl

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
_PACKAGES = ("numpy", "opacus", "flwr", "ray")

GIBIBYTE = str(1 << 30)
SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    # Freed memory stays with the process, so that the next step does not fault its pages in again.
    "tuned": {
        "MALLOC_TRIM_THRESHOLD_": GIBIBYTE,
        "MALLOC_MMAP_THRESHOLD_": GIBIBYTE,
        "MALLOC_TOP_PAD_": str(64 << 20),
    },
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
_PREFIXES = ("MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "GLIBC_TUNABLES", "LD_PRELOAD")


def installed(package: str) -> bool:
    """Whether a peer can be measured here."""
    return importlib.util.find_spec(package) is not None


def described(threads: int) -> dict[str, Any]:
    """The machine, in words and versions."""
    found = {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    found |= {"torch": torch.__version__, "udpfl": udpfl.__version__}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def environment(setting: str) -> dict[str, str]:
    """The environment of a child process: nothing that changes speed, other than the setting."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_PREFIXES)}
    return kept | SETTINGS[setting]


def in_child(script: Path, arguments: Sequence[str], setting: str = "default") -> Any:
    """Run a script of ours in a process of its own; it writes what it found to the last argument.

    What it prints goes to standard error, as it comes.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        subprocess.run(
            [sys.executable, str(script), *arguments, "--answer", str(answer)],
            env=environment(setting),
            stdout=sys.stderr,
            check=True,
        )
        return json.loads(answer.read_text())


def write(path: Path, report: Any) -> None:
    """A result file."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
