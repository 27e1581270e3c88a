"""docs/paper.md: every file, command and key that it names is there."""

from __future__ import annotations

import re

import pytest
import typer

from tests.repository import ROOT
from udpfl.algorithms import BUILT_IN as METHODS
from udpfl.cli.app import app
from udpfl.config.documents import known_keys
from udpfl.mechanisms import BUILT_IN as MECHANISMS

PAGE = (ROOT / "docs" / "paper.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "|---" not in line]
NAMES = sorted(set(re.findall(r"`([^`]+)`", PAGE)))
VALUES = {"match", "paper", "src/udpfl"}
"""Values of keys, and the folder that files lie in."""


def exists(name: str) -> bool:
    """Whether a name on the page is a file, a command, a key or something built in."""
    if name.startswith("udpfl "):
        command = typer.main.get_command(app)
        for word in (part for part in name.split()[1:] if not part.startswith("--")):
            command = getattr(command, "commands", {}).get(word)
        return command is not None
    if name.endswith((".py", ".md", ".toml")):
        return any((folder / name).is_file() for folder in (ROOT / "src" / "udpfl", ROOT))
    return name in known_keys() or name in METHODS or name in MECHANISMS or name in VALUES


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_names_is_there(name):
    assert exists(name)


@pytest.mark.parametrize(
    "name", ["algorithms/no_such.py", "udpfl no-such", "udpfl audit no-such", "privacy.no_such"]
)
def test_a_name_that_is_not_there_is_found(name):
    assert not exists(name)


def test_every_row_says_where():
    """The second column names something, or says that it is not there."""
    for row in ROWS:
        _, where, _ = (cell.strip() for cell in row.strip("|").split(" | ", 2))
        assert where == "Here" or "`" in where or where == "not there", row


@pytest.mark.parametrize(
    "part",
    [
        *(f"Algorithm {n}" for n in (1, 2, 3)),
        *(f"Theorem{s}" for s in ("s 1 and 2", " 3", " 4", " 5")),
        "Lemma 1",
        "shuffle model",
        *(f"Table {n}" for n in (1, 3, 4, 5)),
        "Tables 6 to 9",
        "figures 1, 2, 4",
        *(f"Figure {n}" for n in (3, 5, 6)),
    ],
)
def test_every_part_of_the_paper_has_a_row(part):
    assert any(part in row for row in ROWS)
