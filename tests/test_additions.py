"""What it takes to add something: one new file and one line, and it works from the command.

Each addition is written into a copy of the package, as a commit would, and then used. The number of
files is that of docs/architecture.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import udpfl
from tests.repository import ROOT

SOURCE = Path(udpfl.__file__).parent
RUN = ("run", "--json", "--set", "training.rounds=1", "--set", "threads=1", "--set")


@dataclass(frozen=True)
class Addition:
    """A new file, the lines that registries get, and a command that uses it."""

    kind: str
    limit: int
    """How many files it may touch."""
    file: str
    text: str
    lines: dict[str, list[tuple[str, str]]]
    """For each other file: the line before, and the new one."""
    command: tuple[str, ...]
    finds: str
    tests: int = 0
    """Files of tests that get a line; all others read the registry."""

    @property
    def files(self) -> int:
        return 1 + len(self.lines) + self.tests


ADDITIONS = [
    Addition(
        "mechanism", 3, "mechanisms/secant.py",
        """from dataclasses import dataclass
import numpy as np
from udpfl.mechanisms.tabulated import Tabulated

@dataclass(frozen=True)
class Secant(Tabulated):
    def shape(self, x):
        return -np.logaddexp(0.5 * np.pi * x, -0.5 * np.pi * x)
""",
        {"mechanisms/__init__.py": [
            ("from udpfl.mechanisms.laplace import Laplace",
             "from udpfl.mechanisms.secant import Secant"),
            ("        Staircase,", "        Secant,"),
        ]},
        ("plan", "--mechanism", "secant", "--epsilon", "2", "--steps", "1", "--dimension", "1",
         "--accountant", "rdp", "--json"),
        '"mechanism": "secant"', tests=1,
    ),
    Addition(
        "method", 2, "algorithms/halved.py",
        """from udpfl.algorithms.fedavg import FedAvg

class Halved(FedAvg):
    name = "halved"
""",
        {"algorithms/__init__.py": [
            ("from udpfl.algorithms.fedsgd import FedSGD",
             "from udpfl.algorithms.halved import Halved"),
            ('    "nbafl": NbAFL,', '    "halved": Halved,'),
        ]},
        (*RUN, "training.algorithm=halved"), '"accuracy"',
    ),
    Addition(
        "stage", 2, "federation/stages/counted.py",
        """from udpfl.federation.stages.base import Stage

class Counted(Stage):
    def measure(self):
        return {"counted": 1}
""",
        {"federation/stages/__init__.py": [
            ("from udpfl.federation.stages.base import Stage",
             "from udpfl.federation.stages.counted import Counted"),
            ("BUILT_IN: dict[str, type[Stage]] = {", '    "counted": Counted,'),
        ]},
        (*RUN, "training.stages=['counted']"), '"accuracy"',
    ),
    Addition(
        "data set", 2, "data/stripes.py",
        """import numpy as np
from udpfl.data.records import DataSet, Records

def load(*, seed, directory, test, options):
    x = np.random.default_rng(seed).normal(size=(500, 4)).astype("f4")
    y = (x[:, 0] > 0).astype(int)
    return DataSet(
        name="stripes", task="classification", train=Records(x[:400], y[:400]),
        test=Records(x[400:], y[400:]), classes=2,
    )
""",
        {"data/__init__.py": [
            ("from udpfl.data.splits import split", "from udpfl.data import stripes"),
            ('    "table": table.load,', '    "stripes": stripes.load,'),
        ]},
        (*RUN, "data.name=stripes", "--set", "model.name=logistic"), '"accuracy"',
    ),
    Addition(
        "model", 2, "models/flat.py",
        """import math
from torch import nn

def flat(input_shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), outputs))
""",
        {"models/__init__.py": [
            ("from udpfl.models.cnn_small import CnnSmall", "from udpfl.models.flat import flat"),
            ('    "wind-cnn": WindCnn,', '    "flat": flat,'),
        ]},
        (*RUN, "model.name=flat"), '"accuracy"',
    ),
    Addition(
        "command", 2, "cli/hello.py",
        """import typer

def hello() -> None:
    typer.echo("hello")
""",
        {"cli/_verbs.py": [
            ("VERBS: dict[str, Verb] = {", '    "hello": Verb("hello", "Say hello."),'),
        ]},
        ("hello",), "hello",
    ),
]  # fmt: skip


def insert(path: Path, before: str, line: str) -> None:
    """Add a line after another one, which has to be there once."""
    lines = path.read_text().splitlines()
    assert lines.count(before) == 1, (path, before)
    lines.insert(lines.index(before) + 1, line)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda addition: addition.kind)
def test_an_addition_is_one_file_and_one_registry(tmp_path, addition):
    assert addition.files <= addition.limit
    package = tmp_path / "udpfl"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    assert not (package / addition.file).exists()
    (package / addition.file).write_text(addition.text)
    for name, lines in addition.lines.items():
        for before, line in lines:
            insert(package / name, before, line)
    command = [sys.executable, "-m", "udpfl", *addition.command]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert addition.finds in done.stdout
    if addition.kind == "stage":
        (run,) = (tmp_path / "runs").iterdir()
        assert json.loads((run / "metrics.jsonl").read_text())["counted"] == 1


def test_the_page_says_how_many_files_each_takes():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| an? ([a-z ]+) \| (\d) \|", page, re.MULTILINE))
    assert said == {addition.kind: str(addition.files) for addition in ADDITIONS}
