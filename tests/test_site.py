"""The site as it is built: complete, offline, readable on a phone, searchable from a folder."""

from __future__ import annotations

import html
import os
import re
import runpy
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer.main

from tests.chromium import Chromium, executable
from tests.repository import ROOT
from udpfl import algorithms, data, mechanisms, models
from udpfl.cli.app import app

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("mkdocs", "mkdocstrings", "latex2mathml")),
    reason="the docs extra is missing",
)
PUBLIC = (
    "udpfl", "udpfl.accounting", "udpfl.algorithms", "udpfl.attacks", "udpfl.audit",
    "udpfl.comparison", "udpfl.data", "udpfl.features", "udpfl.federation", "udpfl.harmonizer",
    "udpfl.ledger", "udpfl.mechanisms", "udpfl.models", "udpfl.report", "udpfl.trackers",
    "udpfl.trained",
)  # fmt: skip


def build(folder: Path, into: Path) -> subprocess.CompletedProcess[str]:
    # Not --quiet: warnings that are not shown do not count as such.
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", into],
        cwd=folder, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built once for all processes that run tests at the same time."""
    top = tmp_path_factory.getbasetemp()
    top = top.parent if "PYTEST_XDIST_WORKER" in os.environ else top
    folder, said = top / "site", top / "site.txt"
    try:
        folder.mkdir()
    except FileExistsError:
        while not said.exists():
            time.sleep(0.2)
    else:
        done = build(ROOT, folder)
        unready = top / "site.unready"
        unready.write_text("" if done.returncode == 0 else done.stdout + done.stderr)
        unready.rename(said)
    assert said.read_text() == ""
    return folder


# Complete, and from nowhere else


class Links(HTMLParser):
    """The ids of a page, where it leads, and what a browser fetches to show it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        address = found.get("href") or found.get("src")
        if address:
            self.links.append(address)
            follows = tag == "a" or found.get("rel") in ("canonical", "next", "prev")
            if not follows:
                self.fetched.append(address)


def test_the_site_has_no_dead_link_and_fetches_nothing_from_elsewhere(site):
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) >= 10
    for path, page in pages.items():
        elsewhere = [a for a in page.fetched if urlsplit(a).netloc]
        assert elsewhere == [], path.name
        for address in page.links:
            link = urlsplit(address)
            if link.scheme or link.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(link.path)).resolve() if link.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.name}: {address}"
            if link.fragment and target in pages:
                known = pages[target].ids | {"__search", "__toc", "__skip"}
                assert unquote(link.fragment) in known, f"{path.name}: {address}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import\s*)['\"]?(https?:)?//", sheet.read_text()), sheet.name
    for script in (site / "assets").glob("*.js"):
        assert not re.search(r"https?://", script.read_text()), script.name


def verbs(command=None, path=()) -> dict[str, object]:
    """Every verb of the command by the words that call it."""
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        return {" ".join(path): command}
    inner = command.commands.items()
    return {k: v for name, each in inner for k, v in verbs(each, (*path, name)).items()}


def test_the_site_explains_every_verb_and_option(site):
    text = html.unescape(re.sub(r"<[^>]+>", "", (site / "cli.html").read_text()))
    sections = dict(
        re.findall(r"^udpfl ([a-z -]+)¶$(.*?)(?=^udpfl [a-z -]+¶$|\Z)", text, re.M | re.S)
    )
    assert sections.keys() == verbs().keys()
    for name, command in verbs().items():
        assert " ".join(command.help.partition("\n\n")[0].split()) in sections[name]
        for parameter in command.params:
            said = parameter.help.replace("`", "")  # which the page shows as code
            assert said in sections[name], f"{name} {parameter.name}"
            assert not parameter.opts[0].startswith("-") or parameter.opts[0] in sections[name]


def test_the_site_lists_everything_that_is_built_in(site):
    page = (site / "built-in.html").read_text()
    assert "<!-- table" not in page
    for package in (algorithms, data, mechanisms, models):
        for name in package.BUILT_IN:
            assert f"<td><code>{name}</code></td>" in page


def test_the_site_shows_the_tutorial_and_the_examples(site):
    tutorial = (site / "tutorial.html").read_text()
    assert "A budget over several runs" in tutorial
    assert re.search(r'<img alt="[^"]+" src="images/tutorial-1.png"', tutorial)
    assert (site / "images" / "tutorial-1.png").read_bytes().startswith(b"\x89PNG")
    assert (site / "repository" / "examples" / "own_mechanism.py.html").is_file()
    assert not list(site.rglob("*.py"))


def test_the_site_has_its_own_name_and_mark(site):
    page = (site / "index.html").read_text()
    assert re.search(r'<img src="assets/logo.svg"', page)
    assert re.search(r'<link rel="icon" href="assets/favicon.svg"', page)
    assert "mkdocs-material" not in re.sub(r"<(meta|script|link)[^>]*>", "", page)
    for door in ("Use it", "Check it", "Extend it"):
        assert f">{door}<" in page


def test_a_dead_link_ends_the_build(tmp_path):
    import yaml

    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    kept = {key: config[key] for key in ("site_name", "docs_dir", "validation")}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(kept))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[a](#home)\n")
    assert build(tmp_path, tmp_path / "site").returncode == 0
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[a](#nowhere) [b](nowhere.md)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert "#nowhere" in done.stdout + done.stderr
    assert "nowhere.md" in done.stdout + done.stderr


# The reference


def public_things() -> dict[int, set[str]]:
    """Every name by which a public function or class can be imported, by the thing itself."""
    found: dict[int, set[str]] = {}
    for place in PUBLIC:
        module = import_module(place)
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing) and getattr(thing, "__module__", "").startswith("udpfl"):
                found.setdefault(id(thing), set()).add(f"{place}.{name}")
    return found


def test_every_public_name_has_one_place_in_the_reference():
    pages = [path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")]
    listed = Counter(name for page in pages for name in re.findall(r"(?m)^::: (\S+)$", page))
    for names in public_things().values():
        places = sum(listed[name] for name in names)
        assert places == 1, f"{sorted(names)}: {places} places in docs/reference"


def test_the_reference_has_signatures_and_examples(site):
    page = html.unescape(
        re.sub(r"<[^>]+>", "", (site / "reference" / "harmonizer.html").read_text())
    )
    assert "udpfl.calibrate" in page
    assert re.search(r"calibrate\(\s*mechanism: ", page)
    assert ">>> from udpfl import" in page
    assert "udpfl.harmonizer.calibrate.calibrate" not in page


# Formulas


@pytest.fixture(scope="module")
def mathml():
    return runpy.run_path(str(ROOT / "docs" / "mathml.py"))["mathml"]


def test_every_formula_is_typeset(site):
    counts = {path.name: path.read_text().count("<math ") for path in site.glob("*.html")}
    assert counts["mathematics.html"] > 600
    assert counts["analysis.html"] > 100
    for path in site.rglob("*.html"):
        text = re.sub(r"(?s)<(pre|code)\b.*?</\1>", "", path.read_text())
        assert "arithmatex" not in text, path.name
        assert not re.search(r"\\(frac|varepsilon|sum|sqrt)", text), path.name


def test_a_formula_says_what_its_tex_says(mathml):
    made = re.sub(r"<[^>]+>", " ", html.unescape(mathml(r"\frac{a}{2a-1} \log x \le |x|/\sqrt{d}")))
    assert made.split() == ["a", "2", "a", "−", "1", "log", "x", "≤", "|", "x", "|", "/", "d"]
    assert 'display="block"' in mathml(r"\sum_{k=0}^a k", True)
    assert "<munderover>" in mathml(r"\sum_{k=0}^a k", True)


@pytest.mark.parametrize("wrong", [r"\nosuch{x}", "e^{x", "x}"])
def test_a_formula_that_cannot_be_typeset_is_refused(mathml, wrong):
    with pytest.raises(ValueError, match="cannot be typeset"):
        mathml(wrong)


# In a browser, from a folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Chromium]:
    if executable() is None:
        pytest.skip("no chromium on PATH, and UDPFL_CHROMIUM is not set")
    found = Chromium(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


OUTSIDE = """[...document.querySelectorAll("main *")].filter(own => {
  if (own.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let up = own; up; up = up.parentElement)
    if (["auto", "scroll", "hidden"].includes(getComputedStyle(up).overflowX)) return false;
  return own.checkVisibility();
}).map(own => own.outerHTML.slice(0, 120))"""
"""What sticks out of the page on the right and cannot be scrolled to."""


def check(browser: Chromium, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width, dark=dark)
    where = f"{page.name} at {width}, {'dark' if dark else 'light'}"
    assert browser.run("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
    assert browser.run("document.documentElement.scrollWidth - innerWidth") <= 0, where
    assert browser.run(OUTSIDE) == [], where
    assert browser.complaints() == [], where
    assert [a for a in browser.requests() if not a.startswith(("file:", "data:"))] == [], where


@pytest.mark.parametrize("name", ["index", "mathematics", "reference/run", "tutorials/student"])
def test_pages_fit_a_phone_and_ask_nobody(site, browser, name):
    for width, dark in ((390, False), (390, True), (1440, False)):
        check(browser, site / f"{name}.html", width, dark)


@pytest.mark.slow
def test_every_page_fits_a_phone_and_a_desk(site, browser):
    for page in sorted(site.rglob("*.html")):
        if page.name != "404.html":  # whose addresses begin at the root of a server
            check(browser, page, 390, True)
            check(browser, page, 1440, False)


def test_the_search_works_from_a_folder(site, browser):
    browser.open(site / "index.html", 1440)
    browser.run("""(() => {
        document.querySelector("[for=__search]").click();
        const query = document.querySelector("[data-md-component=search-query]");
        query.focus();
        query.value = "staircase density";
        query.dispatchEvent(new Event("input", {bubbles: true}));
        query.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    })()""")
    for _ in range(100):
        found = browser.run("""[...document.querySelectorAll(".md-search-result__link")]
            .map(own => own.getAttribute("href"))""")
        if found:
            break
        time.sleep(0.1)
    assert any("mathematics.html" in address for address in found)
    assert [a for a in browser.requests() if not a.startswith(("file:", "data:"))] == []
    assert browser.complaints() == []
