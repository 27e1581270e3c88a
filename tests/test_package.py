"""What the package promises as a whole."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import udpfl
from tests.repository import ROOT
from udpfl import errors
from udpfl.mechanisms import BUILT_IN


def python(code: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip


def test_the_core_works_where_torch_cannot_be_imported():
    done = python(
        """
        import sys
        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("torch", "flwr", "opacus"):
                    raise ImportError(name)
        sys.meta_path.insert(0, Blocked())
        import udpfl
        plan = udpfl.plan("all", epsilon=4, steps=50, sampling_rate=0.1, dimension=20)
        assert plan.best.noise is not None
        assert "torch" not in sys.modules
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


@pytest.mark.parametrize("missing", ["torch", "safetensors"])
def test_training_says_which_extra_it_needs(missing):
    done = python(
        f"""
        import sys
        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "{missing}":
                    raise ImportError(name)
        sys.meta_path.insert(0, Blocked())
        from udpfl.cli import main
        main(["run"])
        """
    )
    assert done.returncode == 2
    assert "pip install -e '.[train]' in a checkout" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_engine_needs_nothing_but_numpy_scipy_and_torch():
    done = python(
        """
        import sys
        class Blocked:
            def find_spec(self, name, path=None, target=None):
                barred = ("pydantic", "dp_accounting", "safetensors", "rich", "typer", "matplotlib")
                if name.partition(".")[0] in barred:
                    raise ImportError(name)
        sys.meta_path.insert(0, Blocked())
        import udpfl.engine, udpfl.models, udpfl.mechanisms
        """
    )
    assert done.returncode == 0, done.stderr


HEAVY = {
    "dp_accounting", "matplotlib", "numpy", "pydantic", "rich", "scipy", "scipy.optimize",
    "scipy.stats", "torch", "typer",
}  # fmt: skip


def imported_by(code: str) -> set[str]:
    """Which of the heavy modules a program has imported at its end."""
    done = python(f"{code}\nimport sys; print('modules', *sys.modules)")
    assert done.returncode == 0, done.stderr
    return HEAVY & set(done.stdout.splitlines()[-1].split())


def call(arguments: str) -> str:
    return f"from udpfl.cli.app import call; assert call({arguments.split()!r}) == 0"


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import udpfl", set()),
        ("import udpfl; dir(udpfl); udpfl.InvalidInput, udpfl.__version__", set()),
        ("import udpfl.cli", set()),
        (call("--version"), {"typer"}),
        (call("--help"), {"rich", "typer"}),
        (call("plan --epsilon 8 --steps 9 --dimension 99 --sampling-rate 0.1"),
         {"numpy", "pydantic", "rich", "scipy", "typer"}),
        ("import udpfl; udpfl.plan(epsilon=8, steps=9, dimension=99, sampling_rate=0.1)",
         {"numpy", "scipy"}),
    ],
    ids=["import", "names", "cli", "version", "help", "plan", "udpfl.plan"],
)  # fmt: skip
def test_nothing_is_imported_before_it_is_needed(code, allowed):
    assert imported_by(code) <= allowed


def test_what_is_heavy_is_found():
    assert imported_by("import scipy.stats") >= {"numpy", "scipy.optimize", "scipy.stats"}


def test_dir_shows_the_public_names_and_nothing_else():
    done = python("import udpfl; assert dir(udpfl) == udpfl.__all__; print(*dir(udpfl))")
    assert done.stdout.split() == udpfl.__all__, done.stderr


@pytest.mark.parametrize("name", ["accounting", "errors", "harmonizer", "ledger", "mechanisms",
                                  "planning", "plugins", "sensitivity"])  # fmt: skip
def test_parts_are_reached_without_an_import_of_their_own(name):
    done = python(f"import udpfl; print(udpfl.{name}.__name__)")
    assert done.stdout.strip() == f"udpfl.{name}", done.stderr


def test_a_name_that_there_is_not_is_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = udpfl.nothing
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from udpfl import nothing")


def test_every_name_comes_from_the_place_that_type_checkers_are_told():
    """The table of names and the imports that only type checkers read say the same."""
    block = next(
        node for node in ast.parse(Path(udpfl.__file__).read_text()).body
        if isinstance(node, ast.If)
    )  # fmt: skip
    told = {
        alias.name: str(node.module).removeprefix("udpfl.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == udpfl._PLACES
    assert {*told, "__version__"} == set(udpfl.__all__)


def test_things_of_the_package_are_pickled():
    things = [
        udpfl.Gaussian(2.0),
        udpfl.Release(udpfl.Laplace(1.0), udpfl.Sensitivity(1.0, "l1", 3)),
        udpfl.plan("gaussian", epsilon=2, steps=3),
        udpfl.plan,
    ]
    assert pickle.loads(pickle.dumps(things)) == things


def test_exported_names_exist_and_are_sorted():
    assert all(hasattr(udpfl, name) for name in udpfl.__all__)
    assert udpfl.__all__ == sorted(udpfl.__all__)


def test_one_exception_hierarchy():
    found = [e for e in vars(errors).values() if isinstance(e, type)]
    assert len(found) == 10
    assert all(issubclass(e, errors.UdpflError) for e in found)
    assert issubclass(errors.InvalidInput, ValueError)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[train\]'"):
        raise errors.MissingExtra("torch", "train")


def test_every_link_in_the_docs_leads_somewhere():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_ten_lines_say_what_they_said():
    plan = udpfl.plan("all", epsilon=8, steps=300, sampling_rate=0.05, dimension=26_010)
    assert plan.best.mechanism == "gaussian"
    assert plan.best.statement.kind == "guarantee"
    assert {row.mechanism for row in plan} == {n for n, k in BUILT_IN.items() if k.is_ranked}
    assert [row.rank for row in plan] == list(range(1, len(plan) + 1))
    assert plan[0] is plan.best
