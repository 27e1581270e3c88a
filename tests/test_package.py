"""What the package promises as a whole."""

from __future__ import annotations

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


def test_importing_is_light():
    done = python(
        """
        import sys
        import udpfl
        heavy = {"torch", "matplotlib", "dp_accounting", "pydantic", "rich", "typer"}
        print(sorted(heavy & set(sys.modules)))
        """
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_exported_names_exist_and_are_sorted():
    assert all(hasattr(udpfl, name) for name in udpfl.__all__)
    assert udpfl.__all__ == sorted(udpfl.__all__)


def test_one_exception_hierarchy():
    found = [e for e in vars(errors).values() if isinstance(e, type)]
    assert len(found) == 9
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
