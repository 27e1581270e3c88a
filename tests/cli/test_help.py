"""What `--help` says of every verb, and what the shell completes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from udpfl import algorithms, data, mechanisms, models
from udpfl.cli._completion import NAMED, assignments, values
from udpfl.cli._verbs import VERBS as LISTED
from udpfl.cli.app import app
from udpfl.config import load
from udpfl.config.documents import known_keys
from udpfl.errors import InvalidInput

WIDTH = 80


def commands(group=None, path=()) -> dict[tuple[str, ...], object]:
    """Every command and group of the app by the words that call it."""
    group = group or typer.main.get_command(app)
    found = {path: group}
    for name, inner in getattr(group, "commands", {}).items():
        found |= commands(inner, (*path, name))
    return found


ALL = commands()
VERBS = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}
GROUPS = ALL.keys() - VERBS.keys()


def spoken(paths):
    return pytest.mark.parametrize("path", sorted(paths), ids=" ".join)


def rendered(path: tuple[str, ...]) -> str:
    answer = CliRunner().invoke(app, [*path, "--help"], terminal_width=WIDTH, color=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def examples(command) -> list[str]:
    """The command lines in a docstring: paragraphs that begin with the program's name."""
    paragraphs = re.split(r"\n\s*\n", command.help)
    return [" ".join(each.split()) for each in paragraphs if each.strip().startswith("udpfl ")]


def test_the_walk_meets_every_verb():
    assert {("run",), ("plan",), ("budget", "verify"), ("config", "check")} <= VERBS.keys()
    assert {(), ("budget",), ("config",)} <= GROUPS
    assert len(VERBS) >= 10


@spoken(VERBS)
def test_a_verb_says_what_it_does_and_shows_an_example(path):
    command = VERBS[path]
    summary = command.help.partition("\n\n")[0]
    assert summary.strip().endswith("."), summary
    assert re.search(r"^\s*Examples?:$", command.help, re.MULTILINE)
    lines = examples(command)
    assert lines
    assert any(line.split()[1:][: len(path)] == list(path) for line in lines), lines


def test_the_list_of_verbs_says_what_each_says_of_itself():
    """The list is a table of its own, so that nothing is imported to print it."""
    for name, verb in LISTED.items():
        assert verb.help == " ".join(ALL[name,].help.partition("\n\n")[0].split()), name
        assert ALL[name,].name == name


@spoken(VERBS)
def test_examples_stand_on_one_line_each_in_a_narrow_terminal(path):
    shown = [line.strip() for line in rendered(path).splitlines()]
    for line in examples(VERBS[path]):
        assert line in shown, f"broken at {WIDTH} columns: {line}"


@spoken(VERBS)
def test_the_examples_use_options_that_exist(path):
    for line in examples(VERBS[path]):
        words = shlex.split(line.partition(" > ")[0].partition(" | ")[0])[1:]
        called = next(p for n in (3, 2, 1) if (p := tuple(words[:n])) in VERBS)
        known = {
            name
            for option in VERBS[called].params
            for name in (*option.opts, *option.secondary_opts)
        }
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known, used - known


@spoken(ALL)
def test_every_option_and_argument_is_explained(path):
    for parameter in ALL[path].params:
        assert (parameter.help or "").strip(), f"{' '.join(path)} {parameter.name}"
        assert parameter.help.strip()[0].isupper()
        assert parameter.help.strip()[-1] in ".)?", parameter.help


@spoken(ALL)
def test_help_fits_and_lists_what_there_is(path):
    text = rendered(path)
    assert max(map(len, text.splitlines())) <= WIDTH
    for inner in (p for p in ALL if p[:-1] == path and p):
        assert re.search(rf"│ {inner[-1]}\s", text), inner
    assert "\b" not in text


@spoken(GROUPS - {()})
def test_a_group_without_a_verb_shows_its_help(path):
    answer = CliRunner().invoke(app, [*path], terminal_width=WIDTH)
    assert answer.exit_code == 0
    assert "Commands" in answer.output


# Completion


def completed(words: str, shell: str = "bash") -> list[str]:
    """What the command answers to a shell, by the protocol of its own script."""
    line = f"udpfl {words}"
    asked = {
        "_UDPFL_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    answer = CliRunner().invoke(app, env=asked, prog_name="udpfl")
    assert answer.exit_code == 0, answer.output
    return answer.output.splitlines()


def test_bash_is_offered_verbs_options_keys_and_values():
    assert {"run", "plan", "budget", "config"} <= set(completed(""))
    assert completed("budget ver") == ["verify"]
    assert "--resume" in completed("run --")
    assert completed("run --set privacy.epsi") == ["privacy.epsilon="]
    assert "privacy.mechanism=laplace" in completed("config check x.toml --set privacy.mech")
    assert completed("plan --mechanism lap") == ["laplace"]
    assert completed("run --track ") == ["tensorboard", "mlflow"]
    assert completed("data fetch cif") == ["cifar10"]
    assert completed("data check mnist cif") == ["cifar10"]
    assert [line for line in completed("run conf") if line] == []  # left to the shell: a path


def test_zsh_gets_the_meaning_as_well():
    answer = "\n".join(completed("run --set training.rou", shell="zsh"))
    assert "training.rounds=" in answer
    assert "Number of rounds" in answer
    assert completed("run conf", shell="zsh") == ["_files"]


@pytest.mark.parametrize("words", ["report --", "run --set ", "plan --"])
def test_zsh_gets_every_meaning_on_one_line(words):
    asked = {"_UDPFL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"udpfl {words}"}
    code = "import sys; sys.argv = ['udpfl']; from udpfl.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked, "COLUMNS": "40"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("_arguments "), done.stderr
    lines = done.stdout.removeprefix("_arguments '*: :((").splitlines()
    assert all(re.match(r'"[^"]+":".+"', line) for line in lines), lines


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")
def test_a_real_bash_completes_with_the_script_that_the_command_prints():
    script = """
        eval "$(udpfl --show-completion)"
        complete -p udpfl
        COMP_WORDS=(udpfl run --set data.part) COMP_CWORD=3
        _udpfl_completion udpfl
        printf '%s\n' "${COMPREPLY[@]}"
    """
    folder = Path(sys.executable).parent
    path = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    registered, *offered = done.stdout.splitlines()
    assert registered.endswith("-F _udpfl_completion udpfl")
    assert set(offered) == {f"data.partition={value}" for value in values("data.partition")}


def test_completing_does_not_wait_for_torch():
    code = (
        "import sys; from udpfl.cli._completion import assignments, values, NAMED\n"
        "assert assignments('privacy.') and all(map(values, NAMED))\n"
        "print(sorted({'torch', 'matplotlib', 'scipy.stats'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_names_are_those_that_are_built_in():
    packages = {"data": data, "models": models, "mechanisms": mechanisms, "algorithms": algorithms}
    for key, group in NAMED.items():
        assert set(packages[group].BUILT_IN) <= set(values(key)), key


def test_every_key_is_offered_once_and_every_value_is_accepted():
    sections = {"data", "model", "privacy", "training"}
    offered = [key for key, _ in assignments("")]
    assert sorted(offered) == sorted(f"{key}=" for key in known_keys().keys() - sections)
    assert all(meaning for _, meaning in assignments(""))
    # Refused, or only with another key.
    not_yet = {
        "privacy.unit=client", "privacy.unit=person", "data.partition=column",
        "privacy.accountant=paper",
        "privacy.pace=plateau", "privacy.pace_follows=update", "training.sample_per=epoch",
    }  # fmt: skip
    for key in offered:
        for assignment in {f"{key}{value}" for value in values(key.rstrip("="))} - not_yet:
            load(overrides=[assignment])


@pytest.mark.parametrize("wrong", ["nothing.", "privacy.norm=l9", "privacy.epsilonn="])
def test_nothing_is_offered_where_nothing_fits(wrong):
    assert assignments(wrong) == []
    with pytest.raises(InvalidInput):
        load(overrides=[wrong if "=" in wrong else f"{wrong}x=1"])
