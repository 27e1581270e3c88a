"""The pages, the tutorial and the examples: no dead link, nothing stale."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer.main

import udpfl
from tests.repository import EXAMPLES, ROOT
from udpfl import algorithms, mechanisms
from udpfl.cli.app import app

TABULATED = ("built-in.md", "cli.md", "attacks.md")
"""Pages with tables that are made from registries."""
TUTORIAL = ROOT / "docs" / "tutorial.ipynb"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *EXAMPLES.glob("**/*.md")]
)  # fmt: skip


# Links, as a forge shows the pages


def prose(text: str) -> str:
    """Markdown without its blocks and spans of code, where brackets are not links."""
    return re.sub(r"`[^`\n]+`", "code", re.sub(r"^(`{3,}).*?^\1", "", text, flags=re.M | re.S))


def anchors(text: str) -> set[str]:
    """What the headings of a page can be linked by."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", re.sub(r"(?ms)^```.*?^```", "", text), re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


def dead_links(page: Path) -> list[str]:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        link = urlsplit(target)
        if link.scheme:
            continue
        path = page.parent / unquote(link.path) if link.path else page
        if not path.exists() or (
            link.fragment
            and path.suffix == ".md"
            and link.fragment not in anchors(path.read_text())
        ):
            dead.append(target)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert dead_links(page) == []


def test_the_readme_leads_to_every_page():
    text = (ROOT / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"(docs/{page.name}" in text, page.name


def test_the_tables_of_the_page_about_methods_name_methods_that_there_are():
    """Every method is in the table that is made from the registry; this page is about some."""
    text = (ROOT / "docs" / "methods.md").read_text()
    keys = text.split("## What the common keys mean")[1].split("\n## ")[0]
    for part in (text.split("\n## ")[0], keys):
        first = [row.split("|")[1] for row in part.splitlines() if row.startswith("| `")]
        named = re.findall(r"`([^`]+)`", " ".join(first))
        assert len(set(named)) == len(named) >= 14
        assert set(named) <= algorithms.BUILT_IN.keys()


def test_dead_links_are_found(tmp_path):
    (tmp_path / "b.md").write_text("# One heading, with ε\n")
    (tmp_path / "a.md").write_text(
        "# A\n[1](b.md) [2](b.md#one-heading-with-ε) [3](#a) `[4](no.md)`\n```\n[5](no.md)\n```\n"
        "[x](no.md) [y](b.md#none) [z](#b) ![p](no.png) [w](https://example.org/no)\n"
    )
    assert dead_links(tmp_path / "a.md") == ["no.md", "b.md#none", "#b", "no.png"]


# Tables made from the registries


def verbs(command=None, path=()) -> dict[str, object]:
    """Every verb of the command by the words that call it."""
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        return {" ".join(path): command}
    inner = command.commands.items()
    return {k: v for name, each in inner for k, v in verbs(each, (*path, name)).items()}


def test_the_table_of_commands_lists_every_verb():
    table = runpy.run_path(str(ROOT / "docs" / "tables.py"))["TABLES"]["commands"]()
    rows = dict(re.findall(r"^\| `udpfl ([a-z -]+)` \| (.+) \|$", table, re.M))
    assert rows.keys() == verbs().keys()
    assert all(len(does) > 20 for does in rows.values())


def test_every_mark_of_a_page_has_its_table():
    tables = runpy.run_path(str(ROOT / "docs" / "tables.py"))
    pages = ((ROOT / "docs" / name).read_text() for name in TABULATED)
    assert [mark for page in pages for mark in tables["MARK"].findall(page)] == list(
        tables["TABLES"]
    )
    for mechanism in mechanisms.BUILT_IN.values():
        assert mechanism.summary


# The tutorial


def test_the_stored_tutorial_is_a_whole_and_clean_run():
    assert TUTORIAL.stat().st_size < 300_000
    cells = [c for c in json.loads(TUTORIAL.read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 1
    said = "".join("".join(output.get("text", "")) for output in outputs)
    assert "kind: guarantee" in said
    (planned,) = re.findall(r"the network, (\d+) releases", said)
    assert set(re.findall(r": (\d+) noisy releases", said)) == {planned}
    assert not re.search(r"/(tmp|home|root|work|Users|opt|usr)/", said)


@pytest.mark.skipif(find_spec("nbclient") is None, reason="the docs extra is missing")
@pytest.mark.slow
def test_the_tutorial_runs(tmp_path):
    shutil.copy(TUTORIAL, tmp_path)
    code = (
        "import nbclient, nbformat\n"
        "book = nbformat.read('tutorial.ipynb', 4)\n"
        "nbclient.NotebookClient(book, timeout=300, kernel_name='python3').execute()\n"
        "said = [o.get('text', '') for c in book.cells for o in c.get('outputs', ())]\n"
        "print(''.join(said))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path,
        env={**os.environ, "UDPFL_TUTORIAL_ROUNDS": "2", "JUPYTER_PLATFORM_DIRS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "after 2 rounds" in done.stdout
    assert "problems found in the ledger: []" in done.stdout
    # The plan in section 4 is that of the run in section 1.
    assert "the network, 2 releases" in done.stdout
    assert "client-0: 2 noisy releases" in done.stdout
    ranking = re.search(r"a single number, .*\[(.*)\]", done.stdout)[1]
    assert ranking.index("gaussian") > ranking.index("laplace")
    # Two runs of epsilon 1 together cost more than one and less than two, as the text says.
    (second,) = re.findall(r"second run, .*?ε = ([\d.]+)", done.stdout)
    assert 1 < float(second) <= 1.75
    assert (
        "third run: 10 clients (client-0, client-1, …): the budget in budget.sqlite" in done.stdout
    )
    assert not list(tmp_path.glob("runs"))


# The table of one's own in running.md, as printed


def test_the_table_of_ones_own_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"h{n % 4},{n % 70 + 20},{'ill' if n % 70 > 35 else 'healthy'}" for n in range(1200)]
    (tmp_path / "visits.csv").write_text("\n".join(["hospital,age,outcome", *rows, ""]))
    page = (ROOT / "docs" / "running.md").read_text()
    section = page.partition("## A table of your own\n")[2].partition("\n## ")[0]
    settings = tomllib.loads(re.search(r"```toml\n(.*?)```", section, re.S)[1])
    call = re.search(r"```python\n(udpfl\.run\(.*?)```", section, re.S)[1]
    for result in (udpfl.run(settings), eval(call, {"udpfl": udpfl})):
        assert result.accuracy > 0.8
        assert result.privacy.kind == "guarantee"
        assert len(result.clients) == 4


# The examples


def documented() -> dict[str, str]:
    """The command for each example, by what one has."""
    return dict(re.findall(r"^\| (.+?) \| `(.+?)` \|", (EXAMPLES / "README.md").read_text(), re.M))


def test_both_lists_of_examples_are_complete_and_the_same():
    page = (ROOT / "docs" / "examples.md").read_text()
    assert dict(re.findall(r"^\| (.+?) \| `(.+?)` \|", page, re.M)) == documented()
    commands = " ".join(documented().values())
    for path in EXAMPLES.iterdir():
        if path.name not in ("README.md", "__pycache__", "runs", "deployment"):  # no programs
            assert f"examples/{path.name}" in commands, path.name
    for named in re.findall(r"examples/\S+", commands):
        assert (ROOT / named).exists(), named


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder to run an example in, as `python examples/NAME.py` would find its modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    return tmp_path


def test_own_mechanism(here, capsys):
    runpy.run_path(str(EXAMPLES / "own_mechanism.py"), run_name="__main__")
    said = capsys.readouterr().out
    found = re.findall(r"(\w+) +standard deviation ([\d.]+)", said)
    noise = {name: float(std) for name, std in found}
    # Its tails lie between the two, and so does what it costs.
    assert noise["gaussian"] < noise["secant"] < noise["laplace"]
    (folder,) = (here / "runs").iterdir()
    clients = json.loads((folder / "participants.json").read_text())
    assert "own_mechanism:Secant" in json.dumps(clients)
    assert re.search(r"every client: \(ε = (4|3\.9\d*), δ = 1e-05\)-DP", said)


def test_shared_budget(here, capsys):
    runpy.run_path(str(EXAMPLES / "shared_budget.py"), run_name="__main__")
    first, second, refused, fitted = capsys.readouterr().out.splitlines()
    rows = [
        re.match(r"rounds (\d+), .* in all \(ε = ([\d.]+)", line)
        for line in (first, second, fitted)
    ]
    assert [int(row[1]) for row in rows] == [10, 10, 10]
    spent = [float(row[2]) for row in rows]
    assert spent[0] <= 1 < spent[1] < spent[2] <= 1.75
    assert spent[1] < 2 * spent[0]
    assert re.match(
        r"refused: 4 clients .* nothing was trained\. .* \d of 10 rounds \(.*\) or 10 rounds with",
        refused,
    )


def test_the_package_of_plugins(here, monkeypatch):
    plugin = EXAMPLES / "plugin"
    offered = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]["entry-points"]
    info = here / "site" / "udpfl_example-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: udpfl-example\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items())
            for group, points in offered.items()
        )
    )
    for folder in (plugin, here / "site"):
        monkeypatch.syspath_prepend(folder)
    result = udpfl.run(EXAMPLES / "plugin.toml", training={"rounds": 2}, out="run")
    assert result.privacy.kind == "guarantee"
    assert result.config.training.algorithm == "fedcm"
    readme = re.findall(r"```toml\n(.*?)```", (plugin / "README.md").read_text(), re.DOTALL)
    assert tomllib.loads(readme[0]) == tomllib.loads((EXAMPLES / "plugin.toml").read_text())


def test_the_page_about_the_architecture_names_what_there_is():
    """Every file exists, and what is named before it is in it."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src/udpfl"
    named = re.findall(r"`([\w.]+)` (?:in|of) `([\w/]+\.py)`", page)
    assert len(named) > 15
    for symbol, file in named:
        text = ((ROOT if file.startswith("tests/") else source) / file).read_text(encoding="utf-8")
        for part in symbol.split("."):
            assert re.search(rf"(def|class) {part}\b|^{part}\b", text, re.MULTILINE), (symbol, file)
    examples = set(re.findall(r"^\| an? [a-z ]+ \| \d \| `([a-z_/]+\.py)`", page, re.MULTILINE))
    for file in set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", page)) - examples:
        assert (source / file).is_file() or (ROOT / file).is_file(), file
