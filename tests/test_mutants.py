"""The kept list of faults is current, and whoever runs it says what becomes of them."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.mutants.run import FAULTS, ROOT, Fault, main, read

LIST = read(ROOT)


@pytest.mark.parametrize("fault", LIST, ids=lambda fault: fault.name)
def test_a_fault_applies_once_and_can_be_compiled(fault):
    changed = fault.applied((ROOT / fault.file).read_text(encoding="utf-8"))
    compile(changed, fault.file, "exec")
    assert changed != (ROOT / fault.file).read_text(encoding="utf-8")
    assert bool(fault.tests) != bool(fault.equivalent)


def functions(file: str) -> set[str]:
    """Names of the tests in a file, as node ids have them."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = set()
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        found |= {f"{node.name}::{own.name}" for own in inner if isinstance(own, ast.FunctionDef)}
        found |= {node.name} if isinstance(node, ast.FunctionDef) else set()
    return found


def test_the_tests_of_every_fault_exist():
    files = {test.partition("::")[0] for fault in LIST for test in fault.tests}
    known = {file: functions(file) for file in files}
    for fault in LIST:
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert not name or name.partition("[")[0] in known[file], (fault.name, test)


def test_every_fault_has_a_name_of_its_own():
    assert len({fault.name for fault in LIST}) == len(LIST)
    assert len({(fault.file, fault.old, fault.new) for fault in LIST}) == len(LIST)


def test_a_text_has_to_occur_once():
    fault = Fault("twice", "file", "a", "b")
    assert fault.applied("xax") == "xbx"
    for text in ("axa", "x"):
        with pytest.raises(ValueError, match="times in file, not once"):
            fault.applied(text)


CODE = """
def half(x):
    return x / 2


def unused(x):
    return x + 1
"""
TESTS = """
import time

from tiny import half


def test_half():
    while half(4) != 2:
        assert half(4) < 4
        time.sleep(0.01)


def test_broken():
    assert half(4) == 3
"""
TINY = {
    "noticed": ("return x / 2", "return x * 2", "test_half"),
    "not noticed": ("return x + 1", "return x - 1", "test_half"),
    "out of date": ("return x / 3", "return x / 4", "test_half"),
    "no import": ("def half(x):", "def halves(x):", "test_half"),
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A project of two functions and two tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def made(faults):
        rows = [
            f"[[fault]]\nname = '{name}'\nfile = 'src/tiny.py'\nold = '{old}'\nnew = '{new}'\n"
            + (f"tests = ['tests/test_tiny.py::{test}']\n" if test else "equivalent = 'proof'\n")
            for name, (old, new, test) in faults.items()
        ]
        files = {"src/tiny.py": CODE, "tests/test_tiny.py": TESTS, FAULTS: "\n".join(rows)}
        for file, text in files.items():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text)
        return tmp_path

    return made


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_the_outcome_of_every_fault_is_said(tiny, capfd):
    root = tiny(TINY)
    before = tree(root)
    assert main([], root) == 1
    said = capfd.readouterr().out
    outcomes = {name: found.strip() for found, name in re.findall(r"/4\] (.{14}) .* s  (.*)", said)}
    assert outcomes == {
        "noticed": "killed", "not noticed": "survived", "out of date": "does not apply",
        "no import": "does not run",
    }  # fmt: skip
    assert "1 killed, 1 survived, 0 timed out, 1 does not apply, 1 does not run" in said
    assert "+ return x - 1" in said
    assert tree(root) == before


def test_tests_without_an_end_are_stopped(tiny, capfd):
    root = tiny({"for ever": ("return x / 2", "return x / 4", "test_half")})
    assert main(["--limit", "1", "--jobs", "1"], root) == 1
    assert "0 killed, 0 survived, 1 timed out" in capfd.readouterr().out


def test_a_fault_that_is_killed_is_a_success(tiny, capfd):
    root = tiny(TINY | {"the same": ("return x + 1", "return 1 + x", None)})
    assert main(["--only", "test_nothing"], root) == 1
    assert main(["--only", "the same"], root) == 1
    assert capfd.readouterr().out.count("equivalent: proof") == 1
    assert main([], tiny({"noticed": TINY["noticed"]})) == 0
    assert "1 killed, 0 survived" in capfd.readouterr().out


def test_faults_that_a_revision_has_can_be_left_out(tiny, capfd):
    root = tiny({"noticed": TINY["noticed"], "changed": TINY["not noticed"]})
    user = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], [*user, "commit", "-q", "-m", "before"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    tiny({"noticed": TINY["noticed"], "changed": ("return x + 1", "return x - 2", "test_half")})
    assert main(["--since", "HEAD", "--list"], root) == 0
    said = capfd.readouterr().out
    assert "+ return x - 2" in said
    assert "noticed" not in said


def test_faults_are_listed_with_their_tests_or_their_proof(tiny, capfd):
    root = tiny(TINY | {"the same": ("return x + 1", "return 1 + x", None)})
    assert main(["--list"], root) == 0
    said = capfd.readouterr().out
    assert "equivalent: proof" in said
    assert said.count("tests/test_tiny.py::test_half") == len(TINY)
    assert "killed" not in said


@pytest.mark.parametrize("test", ["test_broken", "test_gone"])
def test_a_test_that_fails_anyway_notices_nothing(tiny, capfd, test):
    assert main([], tiny({"noticed": (*TINY["noticed"][:2], test)})) == 1
    said = capfd.readouterr().out
    assert "fail without a fault" in said
    assert "killed" not in said
