"""Who may know whom: every package imports from those below it, and none from those above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import udpfl

LAYERS = (
    ("errors", "_version"),
    ("mechanisms",),
    ("sensitivity", "plugins"),
    ("accounting",),
    ("harmonizer", "ledger", "config"),
    ("planning",),
    ("figures",),
    ("engine", "models", "data"),
    ("algorithms",),
    ("runs",),
    ("federation", "report"),
    ("running", "analysis", "audit", "trackers"),
    ("comparison",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
"""From the lowest to the highest. Those that share a layer do not know each other."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ROOT = Path(udpfl.__file__).parent


def imports(path: Path, root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """The part of the package a file belongs to, and each part that it imports from."""
    own = path.relative_to(root).with_suffix("").parts[0]
    for node in ast.walk(ast.parse(path.read_text())):  # inside functions and TYPE_CHECKING too
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for first, *rest in (name.split(".") for name in names):
            if first == "udpfl":
                other = rest[0] if rest and rest[0] in LEVEL else "__init__"
                if other != own:
                    yield own, other


def upward(root: Path) -> list[str]:
    """Imports from a package that is not below."""
    return [
        f"{path.relative_to(root)} imports from {other}"
        for path in sorted(root.rglob("*.py"))
        for own, other in imports(path, root)
        if LEVEL[other] >= LEVEL[own]
    ]


def test_every_package_has_its_layer():
    found = {path.stem for path in ROOT.iterdir() if path.suffix == ".py"}
    found |= {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert found == LEVEL.keys()


def test_no_package_imports_from_one_above_or_beside():
    assert upward(ROOT) == []


@pytest.mark.parametrize(
    "line",
    [
        "from udpfl.federation import run",
        "import udpfl.federation.loop",
        "def late():\n    from udpfl.report import write_report",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from udpfl.cli import app",
        "from udpfl import run",
    ],
)
def test_an_import_from_above_is_found(tmp_path, line):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/steps.py").write_text(line)
    assert len(upward(tmp_path)) == 1
    (tmp_path / "engine/steps.py").write_text("from udpfl.mechanisms import Mechanism")
    assert upward(tmp_path) == []
