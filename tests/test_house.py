"""What a reader can hold: how long functions and classes are, and what a constructor takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import udpfl

ROOT = Path(udpfl.__file__).parent
FUNCTION, CLASS, ARGUMENTS = 60, 250, 8
"""Lines of a function, lines of a class, arguments of an `__init__`.

The signature of a command is its list of options, with their help: it does not count.

Dataclasses and pydantic models are plain data records: they write no `__init__`, and none counts.
"""


def too_large(node: ast.AST, file: str) -> bool:
    """Whether a function or a class is over the limits."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        taken = len(names) - 1 if node.name == "__init__" else 0
        assert node.end_lineno is not None
        first = node.body[0] if file.startswith("cli/") else node
        return node.end_lineno - first.lineno + 1 > FUNCTION or taken > ARGUMENTS
    if isinstance(node, ast.ClassDef):
        assert node.end_lineno is not None
        return node.end_lineno - node.lineno + 1 > CLASS
    return False


def offenders(root: Path) -> Iterator[str]:
    """File and name of what is over the limits; a method has the name of its class before it."""
    for path in sorted(root.rglob("*.py")):
        yield from _within(ast.parse(path.read_text()), str(path.relative_to(root)), "")


def _within(tree: ast.AST, file: str, outer: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        name = f"{outer}{getattr(node, 'name', '')}"
        if too_large(node, file):
            yield f"{file} {name}"
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from _within(node, file, f"{name}." if named else outer)


def test_nothing_is_larger_than_a_reader_can_hold():
    assert list(offenders(ROOT)) == []


def lines(count: int, indent: str) -> str:
    return f"\n{indent}".join(f"x{line} = 0" for line in range(count))


def function(count: int) -> str:
    return f"def long(\n    a,\n):\n    {lines(count - 3, '    ')}"


def constructor(count: int) -> str:
    taken = ", ".join(f"a{number}" for number in range(count - 1))
    return f"class Taker:\n    def __init__(self, {taken}, *, last): ..."


@pytest.mark.parametrize(
    ("fits", "offends", "name"),
    [
        (function(60), function(61), "long"),
        (f"async {function(60)}", f"async {function(61)}", "long"),
        (f"class A:\n    {lines(249, '    ')}", f"class A:\n    {lines(250, '    ')}", "A"),
        (constructor(8), constructor(9), "Taker.__init__"),
    ],
)
def test_each_limit_is_held(tmp_path, fits, offends, name):
    (tmp_path / "file.py").write_text(fits)
    assert list(offenders(tmp_path)) == []
    (tmp_path / "file.py").write_text(offends)
    assert list(offenders(tmp_path)) == [f"file.py {name}"]
