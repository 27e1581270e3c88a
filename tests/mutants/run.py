"""`make mutants`: is there a test that fails for every fault of a kept list?

`faults.toml` has small faults in the privacy code, each beside the tests that have to notice it.
A fault is a text that occurs once in a file (`old`), what it becomes (`new`), and pytest's node ids
(`tests`). Every fault is put by itself into a copy of the repository, never into the working tree,
and its tests run there up to the first failure. A fault that no test notices fails the whole run,
and so does one whose tests run out of time, or one that no longer applies: a test or a line of the
list is missing then. A fault with a proof that nothing observable changes (`equivalent`) is listed
and not run. The tests are run without any fault first: a test that fails anyway notices nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, get_args

ROOT = Path(__file__).parents[2]
FAULTS = "tests/mutants/faults.toml"
_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
_NOT_COPIED_FROM_THE_ROOT = {"build", "out", "runs", "site"}
_PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line")

Outcome = Literal["killed", "survived", "timed out", "does not apply", "does not run"]
"""Only the first one is good; "does not run" is a fault that breaks an import, not a test."""
_BY_EXIT_CODE: dict[int | None, Outcome] = {0: "survived", 1: "killed", None: "timed out"}


@dataclass(frozen=True)
class Fault:
    """A change of the code that a test has to notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    equivalent: str = ""
    """Why nothing observable changes, where that is so."""

    def applied(self, text: str) -> str:
        """The file's text with the fault in it; `ValueError` where it is not clear what is meant"""
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"the old text occurs {times} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def read(root: Path) -> list[Fault]:
    """The kept list of a repository."""
    return _parsed((root / FAULTS).read_text(encoding="utf-8"))


def read_at(root: Path, revision: str) -> list[Fault]:
    """The list that a revision of the repository has."""
    words = ["git", "show", f"{revision}:./{FAULTS}"]
    return _parsed(subprocess.run(words, cwd=root, capture_output=True, check=True).stdout.decode())


def _parsed(text: str) -> list[Fault]:
    rows = tomllib.loads(text)["fault"]
    return [Fault(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows]


def run_tests(tests: Sequence[str], copy: Path, limit: float, keep: bool = False) -> int | None:
    """Pytest's exit code in a copy of the repository; None where it ran out of time."""
    quiet = {} if keep else {"PYTHONDONTWRITEBYTECODE": "1"}
    own = {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "FIRST_FAILURE": "1"}
    environment = {**os.environ, **own, **quiet}
    with (copy / "pytest.log").open("w") as log:
        process = subprocess.Popen(
            [*_PYTEST, *tests], cwd=copy, env=environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
            process.wait()
            return None


@contextmanager
def present(fault: Fault, copy: Path) -> Iterator[None]:
    """The fault in a copy, for a while."""
    path = copy / fault.file
    original = path.read_text(encoding="utf-8")
    try:
        path.write_text(fault.applied(original), encoding="utf-8")
        # Compiled code is told from its source by size and second, and both may be the same.
        Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)
        yield
    finally:
        path.write_text(original, encoding="utf-8")


def try_fault(fault: Fault, copy: Path, limit: float) -> Outcome:
    """What the tests of a fault make of it."""
    try:
        with present(fault, copy):
            return _BY_EXIT_CODE.get(run_tests(fault.tests, copy, limit), "does not run")
    except (OSError, ValueError):
        return "does not apply"


@contextmanager
def copies(root: Path, count: int) -> Iterator[SimpleQueue[Path]]:
    """Copies of the repository, for whoever takes one and puts it back."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(count):
            copy = Path(folder) / str(number)
            shutil.copytree(root, copy, ignore=partial(_ignored, root))
            free.put(copy)
        yield free


def _ignored(root: Path, folder: str, names: list[str]) -> set[str]:
    """What no test needs."""
    beside = _NOT_COPIED_FROM_THE_ROOT if Path(folder) == root else set()
    return _NOT_COPIED(folder, names) | beside.intersection(names)


def failing_without_a_fault(
    faults: Iterable[Fault], free: SimpleQueue[Path], jobs: int
) -> list[str]:
    """Test files of which a named test fails, or is not there, although there is no fault."""
    by_file: dict[str, dict[str, None]] = {}
    for fault in faults:
        for test in fault.tests:
            by_file.setdefault(test.partition("::")[0], {})[test] = None

    def fails(file: str) -> bool:
        copy = free.get()
        code = run_tests(list(by_file[file]), copy, limit=3600, keep=True)
        if code:
            sys.stdout.write((copy / "pytest.log").read_text())
        free.put(copy)
        return code != 0

    with ThreadPoolExecutor(jobs) as pool:
        return [file for file, bad in zip(by_file, pool.map(fails, by_file), strict=True) if bad]


def try_all(faults: Sequence[Fault], root: Path, jobs: int, limit: float) -> bool:
    """Whether every fault is noticed; says what becomes of each."""
    began, say = time.monotonic(), _said
    with copies(root, jobs) as free, ThreadPoolExecutor(jobs) as pool:
        say(f"the tests of {len(faults)} faults, without any")
        if broken := failing_without_a_fault(faults, free, jobs):
            say(f"these fail without a fault, or name tests that are not there: {broken}")
            return False

        def tried(fault: Fault) -> tuple[Outcome, float]:
            copy, start = free.get(), time.monotonic()
            try:
                return try_fault(fault, copy, limit), time.monotonic() - start
            finally:
                free.put(copy)

        outcomes: dict[str, Outcome] = {}
        for number, (fault, (outcome, took)) in enumerate(
            zip(faults, pool.map(tried, faults), strict=True), 1
        ):
            outcomes[fault.name] = outcome
            say(f"[{number:3}/{len(faults)}] {outcome:14} {took:5.1f} s  {fault.name}")
    for fault in faults:
        if outcomes[fault.name] != "killed":
            say(f"\n{outcomes[fault.name]}: {fault.name}\n{described(fault)}")
    counts = Counter(outcomes.values())
    counted = ", ".join(f"{counts[outcome]} {outcome}" for outcome in get_args(Outcome))
    say(f"\n{counted}; {time.monotonic() - began:.0f} s")
    return counts["killed"] == len(faults)


def described(fault: Fault) -> str:
    """A fault in full."""
    lines = [fault.file, *(f"- {line}" for line in fault.old.splitlines())]
    lines += [f"+ {line}" for line in fault.new.splitlines()]
    lines += [f"equivalent: {fault.equivalent}"] if fault.equivalent else fault.tests
    return "\n".join(f"    {line}" for line in lines)


def _said(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command: 0 if every fault was noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("--only", default="", help="faults with this in their name or file")
    parser.add_argument("--since", default="", help="faults that this revision does not have")
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at once")
    parser.add_argument("--limit", type=float, default=300, help="seconds for a fault's tests")
    given = parser.parse_args(arguments)
    known = read_at(root, given.since) if given.since else []
    chosen = [
        f for f in read(root) if f not in known and (given.only in f.name or given.only in f.file)
    ]
    equivalent = [fault for fault in chosen if fault.equivalent]
    for fault in chosen if given.list else equivalent:
        _said(f"{fault.name}\n{described(fault)}")
    if given.list:
        return 0
    to_try = [fault for fault in chosen if not fault.equivalent]
    return 0 if to_try and try_all(to_try, root, given.jobs, given.limit) else 1


if __name__ == "__main__":
    sys.exit(main())
