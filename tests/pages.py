"""What the pages tell a reader to type: fenced blocks with their marks, and commands in them.

A mark is a comment on a line of its own before a block, which no reader sees:

    <!-- not run: REASON -->                    nothing of the block is run
    <!-- not run, udpfl data fetch: REASON -->  those that begin with these words are not
    <!-- fails: REASON -->                      every command of the block has to fail
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.repository import EXAMPLES, ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md"), *EXAMPLES.glob("**/*.md")])
SHELL = ("sh", "bash", "console")
LANGUAGES = (*SHELL, "python", "toml", "text", "json", "csv")
_BLOCK = re.compile(
    r"(?P<marks>(?:^ *<!--[^\n]*-->\n\n?)*)^ *(?P<fence>`{3,})(?P<language>\w*)\n"
    r"(?P<text>.*?)^ *(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
_MARK = re.compile(r"<!-- not run(?:, (?P<command>[^:]+))?: (?P<why>.+?) -->")
_FAILS = re.compile(r"<!-- fails: .+? -->")
_SPAN = re.compile(r"(?<!`)`(udpfl [^`]+)`(?!`)")


@dataclass(frozen=True)
class Command:
    """One command as a page has it; `why_not` is the reason of a mark."""

    text: str
    why_not: str | None = None

    @property
    def words(self) -> list[str]:
        """Its words. Of a synopsis (`[--client NAME]`, `CLIENT|all`) the fullest form."""
        text = self.text.partition(" > ")[0].removesuffix(" &")
        plain = re.sub(r"\[(--?[^\]]*)\](\.\.\.)?", r"\1", text)
        return [re.sub(r"^(\w+)\|\S+$", r"\1", word) for word in shlex.split(plain)]


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, what is in it, and what is said of it."""

    page: Path
    line: int
    language: str
    text: str
    marks: tuple[tuple[str, str], ...] = ()
    fails: bool = False

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return all(command for command, _ in self.marks)

    @property
    def commands(self) -> list[Command]:
        """Its commands, if it is for a shell; of a console, not what was printed."""
        if self.language not in SHELL:
            return []
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        if self.language == "console":
            lines = [line.strip()[2:] for line in lines if line.strip().startswith("$ ")]
        said = (re.sub(r"(^|\s)#\s.*", "", line).strip() for line in lines)
        parts = (part for line in said for part in line.split(" && ") if part)
        return [Command(part, self._why_not(part)) for part in parts]

    def _why_not(self, command: str) -> str | None:
        return next((why for begins, why in self.marks if command.startswith(begins)), None)


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        marks = tuple((own["command"] or "", own["why"]) for own in _MARK.finditer(found["marks"]))
        line = text.count("\n", 0, found.start("fence")) + 1
        fails = bool(_FAILS.search(found["marks"]))
        yield Block(page, line, found["language"], found["text"], marks, fails)


def spans(page: Path) -> list[Command]:
    """Commands within the text of a page."""
    text = re.sub(r"(?ms)^ *(`{3,}).*?^ *\1$", "", page.read_text(encoding="utf-8"))
    return [Command(" ".join(own.split())) for own in _SPAN.findall(text)]
