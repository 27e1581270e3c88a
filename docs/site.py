"""Pages that are made while the site is built, from what is kept elsewhere in the repository.

The tutorial comes from its notebook with the outputs stored in it, the reference of the command
line from the command itself, tables of what is built in from the registries (`tables.py`), the
changelog from the root; formulas become MathML (`mathml.py`); and a file that a page links to
beside docs/ becomes a page as well, so that the site is complete without the repository.
"""

from __future__ import annotations

import base64
import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import typer.main
from api import located
from mathml import typeset
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tables import filled

from udpfl.cli.app import app

ROOT = Path(__file__).parent.parent
OUTSIDE = re.compile(r"\]\((\.\./(?:\.\./)*)([^)#\s]+)")
SOURCES = {".py": "python", ".toml": "toml", ".json": "json", ".txt": "text"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file in docs/ holds."""
    add = {"changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")}
    add["tutorial.md"], pictures = notebook(ROOT / "docs" / "tutorial.ipynb", "tutorial")
    for page in files.documentation_pages():
        for up, path in OUTSIDE.findall(page.content_string):
            if leaves(page.src_uri, up) and (ROOT / path).is_file():
                add[placed(path)] = shown(ROOT / path)
    for uri, content in {**add, **pictures}.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links out of docs/ to the pages made for them, and complete the command's page."""
    uri = page.file.src_uri
    markdown = OUTSIDE.sub(lambda link: lead(link, uri), located(markdown))
    markdown = filled(re.sub(r"(\]\((?:\.\./)?)tutorial\.ipynb", r"\1tutorial.md", markdown))
    return markdown + reference() if uri == "cli.md" else markdown


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Typeset the formulas."""
    try:
        return typeset(html)
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def leaves(uri: str, up: str) -> bool:
    """Whether a link that begins with these `../` leads out of docs/."""
    return uri.startswith("repository/") or up.count("/") > uri.count("/")


def lead(link: re.Match[str], uri: str) -> str:
    """A link out of docs/ as one to the page made for it; any other as it is."""
    up, path = link[1], link[2]
    return f"]({up[3:]}{placed(path)}" if leaves(uri, up) else link[0]


def placed(path: str) -> str:
    """Where a file from beside docs/ lies in the site."""
    return "changelog.md" if path == "CHANGELOG.md" else f"repository/{path.removesuffix('.md')}.md"


def shown(path: Path) -> str:
    """A file as a page: prose as it is, source in a block."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return f"# {path.name}\n\n{fenced(text, SOURCES.get(path.suffix, 'text'))}"


def fenced(text: str, language: str = "text") -> str:
    """A block of code."""
    return f"````{language}\n{text.rstrip()}\n````\n"


def notebook(path: Path, stem: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, and the pictures in it by where they go."""
    parts, pictures = [], {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else fenced(source, "python"))
        outputs = cell.get("outputs", ())
        if said := "".join("".join(output.get("text", ())) for output in outputs):
            parts.append(fenced(said))
        for drawn in (output["data"]["image/png"] for output in outputs if "data" in output):
            name = f"images/{stem}-{len(pictures) + 1}.png"
            pictures[name] = base64.b64decode("".join(drawn))
            parts.append(f"![{caption(source)}]({name})")
    return "\n\n".join(parts), pictures


def caption(source: str) -> str:
    """What a picture shows: the first comment of the cell that drew it."""
    said = re.search(r"^# (.+)$", source, re.MULTILINE)
    return said[1] if said else "figure"


def reference() -> str:
    """Every verb with its help, its arguments and its options."""
    parts = []
    for path, command in verbs(typer.main.get_command(app)):
        parts.append(f"\n\n## `udpfl {' '.join(path)}`\n")
        paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n", command.help or "")]
        for example, group in groupby(paragraphs, lambda said: said.startswith("udpfl ")):
            said = ("\n" if example else "\n\n").join(group)
            parts.append(fenced(said, "sh") if example else f"{said}\n")
        parts.append("| | |\n|---|---|")
        for parameter in command.params:
            option = parameter.opts[0].startswith("-")
            names = parameter.opts if option else [parameter.metavar or parameter.name.upper()]
            help_ = (parameter.help or "").replace("|", "\\|")
            parts.append(f"| {', '.join(f'`{name}`' for name in names)} | {help_} |")
    return "\n".join(parts)


def verbs(command: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every command below this one, with the words that call it."""
    if not hasattr(command, "commands"):
        return [(path, command)]
    inner = command.commands.items()
    return [found for name, each in inner for found in verbs(each, (*path, name))]
