"""What `udpfl doctor` looks at, and what to do where something is wrong."""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from udpfl._version import __version__
from udpfl.accounting.described import counted
from udpfl.errors import UdpflError

Status = Literal["ok", "warning", "problem"]
_OLDEST = (3, 11)
_EXTRAS = {
    "train": "needed to train",
    "track": "only for `udpfl run --track`",
    "onnx": "only for `udpfl export --format onnx`",
    "flower": "only for `udpfl deploy`",
    "docs": "only to build the pages",
}


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it is, and what to do."""

    name: str
    status: Status
    said: str
    do: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def every_check(data_dir: Path | None, ledgers: Sequence[Path]) -> Iterator[Check]:
    """All of them, in the order of the page."""
    yield _python()
    yield Check("udpfl", "ok", f"{__version__}, in {Path(__file__).parents[1]}")
    yield from _libraries()
    yield from _extras()
    yield from _device()
    yield from _data(data_dir)
    named = [*ledgers] or sorted(path for path in Path().glob("*.sqlite") if _is_ledger(path))
    for path in named:
        yield _ledger(path)
    if not named:
        yield Check("ledgers", "ok", "none in this folder")


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < _OLDEST:
        return Check("python", "problem", found, "install Python 3.11 or newer")
    return Check("python", "ok", found)


def _requirements() -> dict[str, list[str]]:
    """The packages that this one needs, and under the name of each extra what that brings."""
    try:
        lines = metadata.requires("udpfl") or []
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return {"": ["numpy", "scipy", "dp-accounting", "typer", "rich", "pydantic", "tomli-w"],
                "train": ["torch", "safetensors"]}  # fmt: skip
    found: dict[str, list[str]] = {}
    for line in lines:
        package, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)", line)
        if package and package[0] != "udpfl":
            found.setdefault(extra[1] if extra else "", []).append(package[0])
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _libraries() -> Iterator[Check]:
    versions = {package: _version(package) for package in _requirements().get("", [])}
    missing = [package for package, version in versions.items() if version is None]
    here = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
    yield Check("libraries", "ok", here)
    if missing:
        yield Check(
            "libraries", "problem", f"missing: {', '.join(missing)}",
            "install udpfl again: pip install -e . in a checkout",
        )  # fmt: skip


def _extras() -> Iterator[Check]:
    brings = _requirements()
    for extra, purpose in _EXTRAS.items():
        versions = {package: _version(package) for package in brings.get(extra, [])}
        missing = [package for package, version in versions.items() if version is None]
        if not missing:
            here = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Check(f"extra {extra}", "ok", here)
            continue
        status: Status = "warning" if extra == "train" else "ok"
        yield Check(
            f"extra {extra}", status, f"not installed ({purpose}): {', '.join(missing)}",
            f"pip install -e '.[{extra}]' in a checkout of udpfl" if status == "warning" else "",
        )  # fmt: skip


def _device() -> Iterator[Check]:
    cores = os.cpu_count() or 1
    if find_spec("torch") is None:
        yield Check("device", "warning", f"{cores} cores; nothing to train with", "see extra train")
        return
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways
        yield Check("device", "problem", f"torch cannot be imported: {error}", "install it again")
        return
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Check("device", "ok", ", ".join(cards) if cards else f"cpu, {cores} cores")
    threads = torch.get_num_threads()
    if threads > cores:
        yield Check(
            "threads", "warning", f"{threads} threads on {cores} cores",
            "set OMP_NUM_THREADS, or threads in the configuration, to at most the number of cores",
        )  # fmt: skip
    else:
        yield Check("threads", "ok", f"{threads} of {cores} cores")


def _data(data_dir: Path | None) -> Iterator[Check]:
    from udpfl.data import sources
    from udpfl.data.checking import presences

    if data_dir is None:
        yield Check("data folder", "ok", "none given (--data-dir or UDPFL_DATA_DIR)")
    elif not data_dir.is_dir():
        yield Check(
            "data folder", "problem", f"there is no folder {str(data_dir)!r}",
            "set UDPFL_DATA_DIR or --data-dir to a folder that exists",
        )  # fmt: skip
        return
    else:
        yield Check("data folder", "ok", str(data_dir))
    complete: list[str] = []
    begun: list[str] = []
    for name, source in sources().items():
        if found := presences(source, data_dir):
            (complete if found[0].complete else begun).append(name)
    yield Check("data sets", "ok", ", ".join(complete) or "none")
    for name in begun:
        yield Check(
            "data sets", "warning", f"{name} is incomplete",
            f"`udpfl data check {name}` says what is missing",
        )  # fmt: skip


def _is_ledger(path: Path) -> bool:
    """Whether an SQLite file in the current folder may be ours: others are nobody's business."""
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as file:
            found = file.execute("SELECT name FROM sqlite_master WHERE name = 'accounts'")
            return bool(found.fetchall())
    except sqlite3.Error:
        return path.read_bytes()[:16] == b"SQLite format 3\0"  # broken or locked: look closer


def _ledger(path: Path) -> Check:
    from udpfl.ledger.ledger import Ledger
    from udpfl.runs.ledgers import ledger_at

    name = f"ledger {path}"
    try:
        file = ledger_at(path)
        with Ledger(file, read_only=True) as ledger:
            problems = ledger.verify(events=False)
            clients, charges = len(ledger.accounts()), sum(1 for _ in ledger.history())
    except UdpflError as error:
        return Check(name, "problem", str(error), "restore it from a copy, or give another path")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Check(
            name, "problem", f"{problems[0]}{more}",
            f"charge nothing to it; `udpfl budget verify {path}` lists every problem",
        )  # fmt: skip
    held = f"{counted(charges, 'charge')} of {counted(clients, 'client')}, hash chain verified"
    if not (os.access(file, os.W_OK) and os.access(file.absolute().parent, os.W_OK)):
        return Check(
            name, "warning", f"{held}; it cannot be written",
            "a run cannot charge it: allow writing to the file and to its folder",
        )  # fmt: skip
    return Check(name, "ok", held)
