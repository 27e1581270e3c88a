"""Plugins as people install them: a name leads to one class, or to an error that explains."""

from __future__ import annotations

import math
import re
import sys
import textwrap
from pathlib import Path

import pytest

from udpfl.errors import InvalidInput, MissingExtra
from udpfl.plugins import resolve

BUILT_IN = {"mlp": "the built-in mlp", "logistic": "the built-in logistic"}


@pytest.fixture
def path_and_modules(monkeypatch):
    """A search path and loaded modules that go back to what they were."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def install(folder: Path, distribution: str, entries: str) -> None:
    """What an installer leaves behind for a package with entry points."""
    folder.mkdir(exist_ok=True)
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entries))
    package = folder / distribution
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "networks.py").write_text(f"def resnet():\n    return {distribution!r}\n")
    sys.path.insert(0, str(folder))


RESNET = "[udpfl.models]\nresnet = {0}.networks:resnet\nmlp = {0}.networks:resnet\n"


@pytest.mark.usefixtures("path_and_modules")
def test_an_installed_package_offers_a_model(tmp_path):
    install(tmp_path / "site", "firstpackage", RESNET.format("firstpackage"))
    assert resolve("models", "resnet", BUILT_IN)() == "firstpackage"
    assert resolve("models", "mlp", BUILT_IN) == "the built-in mlp"
    with pytest.raises(
        InvalidInput, match=r"model\.name: .*did you mean resnet\? known names are log"
    ):
        resolve("models", "resnett", BUILT_IN)
    with pytest.raises(
        InvalidInput, match=r"data\.name: there is no 'resnet'; known names are mlp"
    ):
        resolve("data", "resnet", {"mlp": 1})


@pytest.mark.usefixtures("path_and_modules")
def test_two_packages_that_offer_the_same_name_are_not_chosen_between(tmp_path):
    install(tmp_path / "site", "firstpackage", RESNET.format("firstpackage"))
    sys.path.append(str(tmp_path / "site" / ".." / "site"))  # the same package, seen again
    assert resolve("models", "resnet", BUILT_IN)() == "firstpackage"
    install(tmp_path / "site", "otherpackage", RESNET.format("otherpackage"))
    with pytest.raises(InvalidInput, match="offered by") as caught:
        resolve("models", "resnet", BUILT_IN)
    assert "firstpackage.networks:resnet" in caught.value.message
    assert "otherpackage.networks:resnet" in caught.value.message


@pytest.mark.usefixtures("path_and_modules")
def test_a_package_that_offers_what_it_does_not_have(tmp_path):
    install(tmp_path / "site", "firstpackage", "[udpfl.algorithms]\nfedx = firstpackage.gone:it\n")
    with pytest.raises(InvalidInput, match=r"training\.algorithm: .*'fedx'.*firstpackage\.gone'"):
        resolve("algorithms", "fedx", {})


@pytest.mark.usefixtures("path_and_modules")
def test_a_module_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) not in sys.path
    (tmp_path / "ownthings.py").write_text("class Nets:\n    big = 'big net'\ndef net(): ...\n")
    assert resolve("models", "ownthings:Nets.big", BUILT_IN) == "big net"
    assert resolve("mechanisms", "math:exp", {}) is math.exp
    assert sys.path.count(str(tmp_path)) == 1
    with pytest.raises(InvalidInput, match=r"no attribute 'nett'; did you mean ownthings:net\?"):
        resolve("models", "ownthings:nett", BUILT_IN)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import not_there_at_all", "No module named 'not_there_at_all'"),
        ("def f(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.usefixtures("path_and_modules")
def test_a_module_that_fails_says_how(tmp_path, monkeypatch, source, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text(source)
    with pytest.raises(InvalidInput, match=re.escape(reason)) as caught:
        resolve("data", "failing:load", {})
    assert caught.value.parameter == "data.name"
    assert caught.value.message.startswith("cannot import 'failing': ")


@pytest.mark.usefixtures("path_and_modules")
def test_errors_that_already_explain_themselves_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needy.py").write_text(
        "from udpfl.errors import MissingExtra\nraise MissingExtra('torch', 'train')\n"
    )
    with pytest.raises(MissingExtra, match=r"'\.\[train\]'"):
        resolve("models", "needy:net", {})


@pytest.mark.parametrize("name", [":", "a:", ":b", "a b:c", "a:b:c", "../x:y", "a..b:c"])
def test_names_that_are_no_place_to_import_from(name):
    with pytest.raises(InvalidInput, match=r"must look like package\.module:attribute"):
        resolve("mechanisms", name, {})
