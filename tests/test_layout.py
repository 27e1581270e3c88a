"""Where tests lie: a folder for each package, files of one topic, helpers beside them."""

from __future__ import annotations

import ast
from pathlib import Path

import udpfl

TESTS, PACKAGE = Path(__file__).parent, Path(udpfl.__file__).parent
FILES = sorted(TESTS.rglob("*.py"))
LINES = 500


def imported(path: Path) -> set[str]:
    """Every module that a file may import from, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def test_every_package_has_a_folder_of_tests():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    assert packages - folders == set()


def test_every_folder_is_a_package():
    assert {path.parent for path in FILES} == {path.parent for path in TESTS.rglob("__init__.py")}


def test_no_file_is_too_long():
    lengths = {path: len(path.read_text().splitlines()) for path in FILES}
    assert [str(path) for path, length in lengths.items() if length > LINES] == []


def test_no_test_is_imported():
    for path in FILES:
        names = {name.rpartition(".")[2] for name in imported(path) if name.startswith("tests.")}
        assert not {name for name in names if name.startswith("test_")}, path
