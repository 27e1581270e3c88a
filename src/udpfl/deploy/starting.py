"""`udpfl deploy init`: a Flower app and site policies that run as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from udpfl.errors import InvalidInput

_FILES = {
    "gitignore": ".gitignore",
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "init.py": "{package}/__init__.py",
    "server_app.py": "{package}/server_app.py",
    "client_app.py": "{package}/client_app.py",
    "federation.toml": "{package}/federation.toml",
    "site_data.py": "sites/site_data.py",
}
"""Where the templates go."""


@dataclass(frozen=True)
class App:
    """A Flower app in a folder, with the policies of its sites."""

    folder: Path
    package: str
    sites: Sequence[str]

    def policy(self, site: str) -> Path:
        """The policy of a site."""
        return self.folder / "sites" / site / "policy.toml"

    @property
    def federation(self) -> Path:
        """What the server trains."""
        return self.folder / self.package / "federation.toml"


def write_app(
    folder: Path,
    *,
    sizes: Sequence[int],
    rounds: int = 80,
    releases: int | None = None,
    per_round: int = 1,
    epsilon: float = 8.0,
    delta: float = 1e-5,
) -> App:
    """Write a Flower app with a policy for each site.

    Args:
        folder: Its last part is the name of the app; it must not hold anything.
        sizes: Records of each site, of a public data set that is divided among them.
        rounds: Of a run.
        releases: How many each policy allows in all; by default as many as the run has.
        per_round: How many in a round.
        epsilon: Budget of each site.
        delta: Budget of each site.

    Returns:
        Where things are.

    Raises:
        InvalidInput: The folder is not empty, or its name cannot be that of an app.
    """
    name = _app_name(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput("folder", f"{str(folder)!r} is not empty")
    package = name.replace("-", "_")
    app = App(folder.absolute(), package, [f"client-{number}" for number in range(len(sizes))])
    said = {"name": name, "package": package, "sites": str(len(sizes)), "rounds": str(rounds)}
    for source, target in _FILES.items():
        _write(app.folder / target.format(package=package), _filled(source, said))
    for place in (app.folder, app.folder / "sites"):  # the server and the sites both need it
        _write(place / "model.py", _filled("model.py", said))
    for number, (site, size) in enumerate(zip(app.sites, sizes, strict=True)):
        own = {
            "site": site,
            "part": str(number),
            "parts": str(len(sizes)),
            "size": str(size),
            "epsilon": repr(float(epsilon)),
            "delta": repr(float(delta)),
            "releases": str(releases or rounds * per_round),
            "per_round": str(per_round),
        }
        _write(app.policy(site), _filled("policy.toml", own))
    return app


def _app_name(folder: Path) -> str:
    name = re.sub(r"[^a-z0-9-]+", "-", folder.absolute().name.lower()).strip("-")
    if not name or not name[0].isalpha():
        raise InvalidInput("folder", f"{folder.name!r} does not begin with a letter")
    return name


def _filled(name: str, values: dict[str, str]) -> str:
    text = (files("udpfl.deploy") / "template" / f"{name}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def part_sizes(records: int, parts: int) -> list[int]:
    """How many records each of so many even parts has."""
    return [records // parts + (number < records % parts) for number in range(parts)]
