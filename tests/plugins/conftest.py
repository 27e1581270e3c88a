from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import udpfl
from tests.plugins.example import PLUGIN
from tests.plugins.strangers import SOURCE, Stranger, numbers, settings
from tests.small import PowerCut, Stops, blobs, linear


@pytest.fixture
def stranger(tmp_path, monkeypatch) -> Iterator[Stranger]:
    """A new name for every test: a class that was imported once is known from then on."""
    own = Stranger(f"stranger_{next(numbers)}", tmp_path / "imported")
    (tmp_path / f"{own.module}.py").write_text(SOURCE.format(marker=str(own.marker)))
    monkeypatch.chdir(tmp_path)
    # As `python -m udpfl` has it. Nothing may rest on the module being out of reach.
    monkeypatch.syspath_prepend(tmp_path)
    yield own
    sys.modules.pop(own.module, None)


@pytest.fixture
def elsewhere(stranger, monkeypatch) -> Stranger:
    """The same where the current folder is not on the path, as with the installed command."""
    here = str(Path.cwd())
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", here)])
    return stranger


@pytest.fixture
def begun(tmp_path) -> Path:
    """A run folder after a crash."""
    folder = tmp_path / "run"
    with pytest.raises(PowerCut):
        udpfl.run(settings(folder), model=linear(), data=blobs(), observers=[Stops(after=1)])
    return folder


@pytest.fixture
def installed(tmp_path_factory, monkeypatch) -> list[str]:
    """The package as pip would leave it: importable, its entry points beside it."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    site = tmp_path_factory.mktemp("site")
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    path = [str(PLUGIN), str(site)]
    for folder in path:
        monkeypatch.syspath_prepend(folder)
    return path
