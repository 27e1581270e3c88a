"""`udpfl site`: what check and serve say, and what they refuse before anybody asks."""

from __future__ import annotations

import tomllib

import pytest
import tomli_w
from typer.testing import CliRunner

from tests.site.samples import gate, message_of, policy, request
from udpfl import InvalidInput
from udpfl.cli.app import app as cli
from udpfl.config.documents import example
from udpfl.site import Policy

pytestmark = pytest.mark.usefixtures("one_thread")


def written(folder, **changes):
    """The file of a policy."""
    file = folder / "policy.toml"
    file.write_text(tomli_w.dumps(policy(folder, **changes).model_dump(exclude_none=True)))
    return file


def run(*words):
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_check_says_what_counts_and_what_is_left(tmp_path):
    file = written(tmp_path, server={"minimum_cohort": 3})
    text = run("site", "check", file).stdout
    for words in (
        "record, person", "at least 3 sites", "shuffler", "20 in all, 20 of them left",
        "nothing; ε = 4 is left",
    ):  # fmt: skip
        assert words in text, words
    own = gate(tmp_path, server={"minimum_cohort": 3})
    message_of(own.answer(request()))
    own.close()
    text = run("site", "check", file).stdout
    assert "nothing" not in text
    assert "16 of them left" in text, "what a run has reserved is not left"


@pytest.mark.parametrize(
    ("changes", "key", "meant"),
    [
        ({"server": {"methods": ["fedavgg"]}}, "server.methods", "fedavg"),
        ({"server": {"models": [{"name": "mpl"}]}}, "server.models", "mlp"),
        ({"data": {"name": "tabel"}}, "data.name", "table"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "serve"])
def test_a_name_that_stands_for_nothing_is_refused(tmp_path, verb, changes, key, meant):
    done = run("site", verb, written(tmp_path, **changes))
    assert isinstance(done.exception, InvalidInput)
    assert f"did you mean {meant}?" in dict(done.exception.problems)[key]


def test_check_says_which_part_of_the_records_is_used(tmp_path):
    text = run("site", "check", written(tmp_path, data={"part": 1, "parts": 3})).stdout
    assert ", part 2 of 3, inputs" in text


def test_a_loader_that_is_not_there_is_refused_with_the_folder_of_the_code(tmp_path):
    done = run("site", "check", written(tmp_path, data={"name": "no_such_module:load"}))
    assert isinstance(done.exception, InvalidInput)
    assert f"looked for in code = {str(tmp_path)!r}" in str(done.exception)


@pytest.mark.parametrize("verb", ["check", "serve"])
def test_a_ledger_of_another_kind_is_said_before_a_server_asks(tmp_path, verb):
    own = gate(tmp_path, budget={"runs": "one"})
    message_of(own.answer(request()))
    own.close()
    done = run("site", verb, written(tmp_path))
    assert isinstance(done.exception, InvalidInput)
    assert "budget.runs" in str(done.exception)


def test_a_socket_in_no_folder_is_refused(tmp_path):
    done = run("site", "serve", written(tmp_path), "--socket", tmp_path / "none" / "s")
    assert isinstance(done.exception, InvalidInput)
    assert "there is no folder" in str(done.exception)


def test_serve_says_who_answers_where_and_what_is_left(tmp_path, monkeypatch):
    def serve(handler, path, most, ready):
        ready()
        handler.close()

    monkeypatch.setattr("udpfl.site.service.serve", serve)
    text = run("site", "serve", written(tmp_path), "--socket", tmp_path / "s").stderr
    assert f"site client-0 answers at {tmp_path / 's'}, within" in text
    assert "spent: nothing; left: ε = 4 and 20 releases" in text


def test_the_example_shows_what_a_table_needs():
    text = example(Policy)
    (line,) = [own for own in text.splitlines() if own.startswith("# options = ")]
    shown = tomllib.loads(line.removeprefix("# "))["options"]
    assert shown.keys() == {"path", "target", "labels", "scale"}
    data = tomllib.loads(text)["data"]
    assert "options" not in data
