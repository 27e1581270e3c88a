"""Every command that README and docs tell a reader to type: it exists, and it runs.

All are parsed by the command line's own parser. Those of cheap verbs are run, in the order of their
page, in a folder that has what the pages speak of; with `slow`, all are, cut short (`SMALLER`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

import udpfl
from tests.commands import command
from tests.pages import LANGUAGES, PAGES, SHELL, Command, blocks, spans
from tests.repository import EXAMPLES, ROOT
from udpfl.accounting.imported import from_opacus
from udpfl.accounting.serial import event_to_dict
from udpfl.cli.app import app

BLOCKS = [block for page in PAGES for block in blocks(page)]
CHEAP = {"plan", "methods", "config", "data", "budget", "report", "--show-completion"}
"""Verbs that train and attack nothing."""
READING = {"budget", "data", "report"}
"""Those among them that may read what an earlier command has left."""
SMALLER = {
    "run": ["--set", "training.rounds=2"],
    "compare": ["--set", "training.rounds=1", "--set", "model.name=logistic", "--seeds", "2"],
    "audit mechanism": ["--trials", "3000"],
    "audit run": ["--trials", "100", "--canaries", "0"],
    "analyze convergence": ["--set", "training.rounds=2"],
    "analyze convergence --problem": ["--repetitions", "2", "--rounds", "200"],
    "analyze extra-rounds": ["--repetitions", "2", "--rounds", "20"],
}
"""What makes a verb quick without leaving anything out of it."""


def path_name(own: object) -> str:
    return str(own.relative_to(ROOT)) if isinstance(own, Path) else str(own)


# Every block says what it is


@pytest.mark.parametrize("page", PAGES, ids=path_name)
def test_every_block_says_what_it_is(page):
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block}: ```{block.language or '(nothing)'}"
        assert all(why.strip() for _, why in block.marks), block
        if block.language == "text":
            assert not re.search(r"(?m)^\$? ?udpfl [a-z]+", block.text), f"{block} has commands"


# Every command exists, with its options


def parse(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The verb and the values of its parameters. An option that does not exist raises."""
    verb, node, rest = [], typer.main.get_command(app), words[1:]
    while hasattr(node, "commands") and rest and not rest[0].startswith("-"):
        verb.append(rest[0])
        node, rest = node.commands[rest[0]], rest[1:]
    with node.make_context("udpfl", [], resilient_parsing=True) as context:
        context.resilient_parsing = False
        values, left, _ = node.make_parser(context).parse_args(list(rest))
        assert hasattr(node, "commands") or not left, f"{' '.join(words)}: {left} is too much"
        for parameter in node.params:
            given = values.get(parameter.name)
            has_value = given not in (None, ()) and type(given).__name__ != "Sentinel"
            assert has_value or not parameter.required, f"{words}: {parameter.name} is missing"
    return verb, values


def check_elsewhere(words: list[str]) -> None:
    """A command of another program: what it names is there."""
    if words[0] == "make":
        assert re.search(rf"(?m)^{words[1]}:", (ROOT / "Makefile").read_text())
    elif words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for named in re.findall(r"\[([\w-]+)\]", " ".join(words)):
            assert named in extras["optional-dependencies"], named
    elif words[0] == "python" and not words[1].startswith("-"):
        assert (ROOT / words[1]).is_file(), words[1]
    elif words[0] in ("flwr", "flower-superlink", "flower-supernode"):
        is_here = importlib.util.find_spec("flwr") is not None
        assert not is_here or (Path(sys.executable).parent / words[0]).exists(), words[0]
    else:
        assert words[0] in ("python", "tensorboard", "source", "git", "cd", "cp", "sudo"), words


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in SHELL], ids=str)
def test_every_command_exists(block):
    assert block.commands
    for own in block.commands:
        if own.words[0] == "udpfl":
            if "⇥" not in own.text:  # a key that is pressed
                parse(own.words)
        else:
            assert own.why_not or own.words[0] == "python", (
                f"{block}: {own.text} is not run; say why"
            )
            check_elsewhere(own.words)


@pytest.mark.parametrize("page", PAGES, ids=path_name)
def test_every_command_in_the_text_of_a_page_exists(page):
    for own in spans(page):
        words = [word for word in own.words if word not in ("…", "...")]
        try:
            parse(words)
        except Exception as error:
            if not re.search("is missing|requires an argument", str(error)):
                raise  # a text may leave out what it is not about


def verbs(node: Any) -> list[Any]:
    inner = getattr(node, "commands", {}).values()
    return [found for own in inner for found in verbs(own)] or [node]


def test_every_command_in_a_help_text_exists():
    texts = [own.help or "" for own in verbs(typer.main.get_command(app))]
    found = [line for text in texts for line in re.findall(r"(?m)^\s*(udpfl .+)$", text)]
    assert len(found) > 10
    for line in found:
        parse(Command(re.sub(r"\s+#\s.*", "", line)).words)


@pytest.mark.parametrize(
    "wrong",
    ["udpfl pla", "udpfl plan --epsilonn 8", "udpfl report", "udpfl methods a b c", "udpfl budget"],
)
def test_a_command_that_does_not_exist_is_found(wrong):
    if wrong == "udpfl budget":  # a group by itself is no mistake: it prints its help
        assert parse(wrong.split())[0] == ["budget"]
        return
    with pytest.raises(Exception, match=r"pla|epsilonn|missing|too much"):
        parse(wrong.split())


def test_marks_and_outputs_are_told_apart(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run, udpfl data fetch: it downloads -->\n```console\n$ udpfl plan \\\n"
        "    --epsilon 8   # noise\nudpfl out\n$ udpfl data fetch x\n```\n\n<!-- not run: why -->\n"
        "```python\nboom\n```\nand `udpfl budget show RUN|LEDGER [--client NAME]`\n"
    )
    first, second = blocks(page)
    assert [(own.text, own.why_not) for own in first.commands] == [
        ("udpfl plan --epsilon 8", None),
        ("udpfl data fetch x", "it downloads"),
    ]
    assert (first.is_run, second.is_run) == (True, False)
    (span,) = spans(page)
    assert span.words == ["udpfl", "budget", "show", "RUN", "--client", "NAME"]


# Every command runs


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> Path:
    """A folder with what pages name: two runs, a ledger, a configuration, files of one's own."""
    folder = tmp_path_factory.mktemp("pages")
    settings = {"model": {"name": "logistic"}, "training": {"rounds": 2}, "data": {"clients": 4}}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("first", "second"):
            udpfl.run(settings, out=f"runs/{name}")
    shutil.copytree(folder / "runs/first", folder / "RUN")
    with udpfl.Ledger(folder / "LEDGER") as ledger:
        ledger.set_budget(ledger.account("CLIENT", "0" * 64), udpfl.Budget(8.0, 1e-5))
    (folder / "history.json").write_text("[[1.1, 0.01, 1000]]")
    (folder / "events.json").write_text(json.dumps(event_to_dict(from_opacus([(2.0, 0.01, 10)]))))
    if "UDPFL_DATA_DIR" in os.environ:
        (folder / "DATA").symlink_to(os.environ["UDPFL_DATA_DIR"])
    else:
        (folder / "DATA").mkdir()
    (folder / "my.toml").write_text('[model]\nname = "logistic"\n')
    shutil.copy(EXAMPLES / "own_mechanism.py", folder / "my_noise.py")
    for name in ("configs", "examples", "results"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run_page(page: Path, cheap_only: bool, capsys: Any) -> list[str]:
    """Run the commands of a page in order; those of other programs are checked above."""
    done, is_complete = [], True
    for block in blocks(page):
        for own in block.commands:
            if own.why_not or needs_data(own):
                continue
            if cheap_only and not is_cheap(own):
                is_complete = False  # and others may need what it would have made
                continue
            if not is_complete and own.words[1] in READING:
                continue
            if own.words[0] == "python":
                subprocess.run([sys.executable, *own.words[1:]], check=True)
            elif own.words[0] == "udpfl":
                verb = " ".join(parse(own.words)[0]) or own.words[1]
                kind = f"{verb} --problem" if "--problem" in own.words else verb
                smaller = SMALLER.get(kind, SMALLER.get(verb, ()))
                smaller = () if "--resume" in own.words else smaller
                code, _, err = command(capsys, *own.words[1:], *smaller)
                is_refuted = verb.startswith("audit") and ": refuted" in block.text
                allowed = (1, 2) if block.fails else (0, int(is_refuted))
                assert code in allowed, f"{block}: {own.text}\n{err}"
                done.append(own.text)
    return done


def is_cheap(own: Command) -> bool:
    return own.words[0] != "python" and (own.words[0] != "udpfl" or own.words[1] in CHEAP)


def needs_data(own: Command) -> bool:
    """Whether it wants data sets that are not on this machine."""
    trains = own.words[1:2] == ["run"] and "--data-dir" in own.words
    return trains and "UDPFL_DATA_DIR" not in os.environ


def pages_with(cheap: bool) -> list[Path]:
    """Pages that have commands to run, or cheap ones that need no training before them."""
    found = []
    for page in PAGES:
        own = [own for block in blocks(page) for own in block.commands if not own.why_not]
        own = [each for each in own if each.words[0] in ("udpfl", "python")]
        alone = [each for each in own if is_cheap(each) and each.words[1] not in READING]
        if own and (not cheap or alone or is_cheap(own[0])):
            found.append(page)
    return found


@pytest.fixture
def here(ready, tmp_path, monkeypatch) -> Path:
    """A copy of that folder, with modules of one's own found as in a shell."""
    folder = tmp_path / "here"
    shutil.copytree(ready, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("my_noise", None)


@pytest.mark.parametrize("page", pages_with(cheap=True), ids=path_name)
def test_the_cheap_commands_of_a_page_run(page, here, capsys, one_thread):
    assert run_page(page, True, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with(cheap=False), ids=path_name)
def test_all_commands_of_a_page_run(page, here, capsys, one_thread):
    if page.parent.name == "tutorials":  # which make what they need
        shutil.rmtree(here / "runs")
    assert run_page(page, False, capsys)


# Python


def python_blocks() -> list[Any]:
    """Those that are run; a whole comparison takes a while."""
    return [
        pytest.param(own, marks=[pytest.mark.slow] * ("udpfl.compare(" in own.text), id=str(own))
        for own in BLOCKS
        if own.language == "python" and own.is_run
    ]


@pytest.mark.parametrize("block", python_blocks())
def test_every_python_block_runs(block, tmp_path, monkeypatch, capsys, one_thread):
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block), "exec"), {"__name__": "page"})
    assert capsys.readouterr().out
