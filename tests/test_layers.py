"""Who may know whom: every package imports from those below it, and none from those above."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import udpfl
from udpfl.attacks import BUILT_IN as ATTACKS
from udpfl.cli._verbs import VERBS

LAYERS = (
    ("errors", "_version"),
    ("mechanisms", "writing"),
    ("sensitivity", "plugins"),
    ("accounting",),
    ("harmonizer", "ledger", "config"),
    ("planning",),
    ("figures",),
    ("features",),
    ("engine", "models", "data"),
    ("algorithms",),
    ("runs",),
    ("federation", "report"),
    ("live",),
    ("site",),
    ("running", "analysis", "audit", "trackers", "trained"),
    ("comparison", "deploy", "attacks"),
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


def modules(root: Path) -> dict[str, Path]:
    """Every module by its full name; packages aside."""
    files = [path for path in sorted(root.rglob("*.py")) if path.name != "__init__.py"]
    return {
        ".".join(("udpfl", *path.relative_to(root).with_suffix("").parts)): path for path in files
    }


def imported(path: Path, known: Collection[str]) -> set[str]:
    """The modules among `known` that a file imports, or imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & set(known)


def wrongly_named(root: Path, called: Collection[str] = ()) -> list[str]:
    """Modules with an underscore that others import, and modules without one that nobody does.

    Others are packages beside and above, and the package's own `__init__`. Modules in `called` are
    imported by their name when somebody calls a verb of the command.
    """
    known, outside = modules(root), {module for module in called if "._" not in module}
    for path in root.rglob("*.py"):
        name = ".".join(("udpfl", *path.relative_to(root).with_suffix("").parts))
        user = name.removesuffix(".__init__")
        for module in imported(path, known):
            package = module.rpartition(".")[0]
            if user == package or not user.startswith(f"{package}."):
                outside.add(module)
    return [
        module
        for module in known
        if "." in module.removeprefix("udpfl.") and ("._" in module) == (module in outside)
    ]


NOT_IMPORTED = {
    "udpfl.audit.power",  # for benchmarks
    "udpfl.cli.analyze",  # which `_convergence` adds to
    "udpfl.cli.budget",  # which `_decisions` adds to
}


def test_private_modules_have_an_underscore():
    called = {f"udpfl.cli.{verb.module}" for verb in VERBS.values()}
    called |= {f"udpfl.attacks.{own.place.partition(':')[0]}" for own in ATTACKS.values()}
    assert set(wrongly_named(ROOT, called)) == NOT_IMPORTED


def test_a_private_module_that_others_import_is_found(tmp_path):
    for name in ("engine", "cli"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "engine/_steps.py").write_text("")
    (tmp_path / "engine/training.py").write_text("from udpfl.engine._steps import x")
    (tmp_path / "engine/__init__.py").write_text("from udpfl.engine.training import train")
    assert wrongly_named(tmp_path) == []
    (tmp_path / "cli/__init__.py").write_text("from udpfl.engine import _steps")
    assert wrongly_named(tmp_path) == ["udpfl.engine._steps"]
    (tmp_path / "cli/__init__.py").write_text("")
    (tmp_path / "engine/__init__.py").write_text("")
    assert wrongly_named(tmp_path) == ["udpfl.engine.training"]
