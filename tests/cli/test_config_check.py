"""`udpfl config check`: every problem at once, and one screen for a file that is right."""

from __future__ import annotations

import json
import logging
import tomllib

import pytest

from tests.commands import command
from tests.repository import ROOT
from udpfl.config import dump, load
from udpfl.errors import InvalidInput
from udpfl.federation.checking import settings_problems


def checked(capsys, tmp_path, text, *more):
    path = tmp_path / "my.toml"
    path.write_text(text)
    return command(capsys, "config", "check", path, *more)


def test_every_problem_is_listed_at_once(capsys, tmp_path):
    code, out, err = checked(
        capsys, tmp_path,
        """
        sed = 3
        [data]
        nmae = "mnist"
        clients = "ten"
        [model]
        name = "mlpp"
        [privacy]
        clip = -1
        pace_ratio = 3.0
        [training]
        rounds = 0
        algorithm = "ldp-fed"
        options = { shift = 1 }
        """,
    )  # fmt: skip
    assert (code, out) == (2, "")
    first, *lines = err.splitlines()
    assert first.endswith(f"has {len(lines)} problems:")
    said = dict(line.strip().partition(": ")[::2] for line in lines)
    assert said.keys() == {
        "sed", "data.nmae", "data.clients", "model.name", "privacy.clip", "privacy.pace_ratio",
        "privacy.norm", "privacy.unit", "training.rounds", "training.options.shift",
    }  # fmt: skip
    assert said["sed"].endswith("did you mean seed?")
    assert said["data.nmae"].endswith("did you mean data.name?")
    assert "did you mean mlp?" in said["model.name"]


def test_a_federation_is_shown_with_its_own_section_and_whose_the_budgets_are(capsys, tmp_path):
    code, out, _ = checked(capsys, tmp_path, "[deploy]\nround_timeout = 60.0\n")
    assert code == 0
    assert "round_timeout = 60.0" in out
    assert "each site has a budget of its own" in " ".join(out.split())
    code, out, _ = checked(capsys, tmp_path, "seed = 3\n")
    assert code == 0
    assert "site" not in out


def test_what_a_method_needs_is_said_at_once(capsys, tmp_path):
    """One error after the other before."""
    text = (
        '[training]\nalgorithm = "ldp-fed"\n[privacy]\nmechanism = "laplace"\npace = "decaying"\n'
    )
    _, _, err = checked(capsys, tmp_path, text)
    keys = [line.strip().partition(":")[0] for line in err.splitlines()[1:]]
    assert keys == ["privacy.mechanism", "privacy.norm", "privacy.unit", "privacy.pace"]
    wants = ("privacy.mechanism=auto", "privacy.norm=linf", "privacy.unit=client",
             "privacy.pace=uniform")  # fmt: skip
    sets = [word for want in wants for word in ("--set", want)]
    assert checked(capsys, tmp_path, text, *sets)[0] == 0


def test_what_follows_from_a_wrong_key_is_not_said(capsys, tmp_path):
    text = '[data]\npartition = "dirichlett"\nalpha = 0.3\n'
    _, _, err = checked(capsys, tmp_path, text)
    assert len(err.splitlines()) == 2
    assert "data.partition" in err


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.name)
def test_a_file_that_is_right_fits_on_a_screen(capsys, path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = command(capsys, "config", "check", path)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= 80
    assert load(path).model.name in out


def test_local_steps_are_not_shown_beside_local_epochs(capsys, tmp_path):
    text = "[training]\nlocal_epochs = 2\n"
    for more in ((), ("--full",)):
        _, out, _ = checked(capsys, tmp_path, text, *more)
        assert "local_epochs = 2" in out
        assert "local_steps =" not in out
    settings = load(tmp_path / "my.toml")
    assert load(tomllib.loads(dump(settings))) == settings


def test_full_reads_back_as_the_same(capsys, tmp_path):
    _, out, _ = checked(capsys, tmp_path, "seed = 4\n", "--full")
    assert load(tomllib.loads(out)) == load({"seed": 4})


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"data": {"name": "mnistt"}}, "data.name"),
        ({"model": {"name": "logistic", "options": {"width": 3}}}, "model.options.width"),
        ({"privacy": {"mechanism": "no_such_module:Noise"}}, "privacy.mechanism"),
        ({"training": {"algorithm": "fedprox", "options": {"my": 1}}}, "training.options.my"),
        ({"training": {"algorithm": "dp-fedavg"}}, "privacy.unit"),
    ],
)
def test_names_options_and_methods_are_looked_at(settings, key):
    assert key in dict(settings_problems(load(settings)))


# Another name takes the options of the old one out


def test_another_model_takes_the_options_of_the_old_one_out(caplog):
    path = ROOT / "configs" / "mnist.toml"
    assert load(path).model.options == {"activation": "tanh"}
    with caplog.at_level(logging.WARNING):
        assert load(path, overrides=["model.name=logistic"]).model.options == {}
    assert "options of the model cnn-small (model.options: activation) are left out" in caplog.text
    assert load(path, {"model": {"name": "logistic"}}).model.options == {}
    assert load(path, overrides=["model.name=cnn-small"]).model.options == {"activation": "tanh"}
    assert load(path, {"seed": 1}).model.options == {"activation": "tanh"}


@pytest.mark.parametrize("order", [1, -1])
def test_options_that_are_set_with_the_name_stay(order):
    path = ROOT / "configs" / "mnist.toml"
    sets = ["model.name=mlp", "model.options.hidden=[8]"][::order]
    assert load(path, overrides=sets).model.options == {"hidden": [8]}
    own = {"model": {"name": "mlp", "options": {"hidden": [8]}}}
    assert load(path, own).model.options == {"hidden": [8]}


@pytest.mark.parametrize(
    ("below", "override", "section"),
    [
        ({"data": {"name": "table", "options": {"path": "x"}}}, "data.name=mnist", "data"),
        ({"training": {"algorithm": "fedprox", "options": {"mu": 1}}},
         "training.algorithm=fedavg", "training"),
        ({"model": {"options": {"activation": "relu"}}}, "model.name=logistic", "model"),
    ],
)  # fmt: skip
def test_the_same_holds_for_data_and_methods(below, override, section):
    assert getattr(load(below, overrides=[override]), section).options == {}
    assert below[section]["options"]  # the caller's own stay


def test_an_error_has_every_problem_as_data():
    with pytest.raises(InvalidInput) as refused:
        load({"seed": -1, "threads": 0})
    assert [key for key, _ in refused.value.problems] == ["seed", "threads"]
    assert json.dumps(refused.value.problems)
    assert InvalidInput("a", "b").problems == (("a", "b"),)


def test_options_of_data_that_is_handed_over_stay():
    below = {"data": {"name": "table", "options": {"target": "ill"}}}
    assert load(below, {"data": {"name": "own"}}).data.options == {"target": "ill"}


def test_options_of_data_are_looked_at(capsys, tmp_path):
    path = tmp_path / "table.toml"
    path.write_text('[data]\nname = "table"\noptions = { pth = "a.csv", target = "y" }\n')
    code, _, err = command(capsys, "config", "check", path)
    assert code == 2
    assert "data.options.pth: is not an option of table; did you mean path?" in err
    assert "data.options.path: is needed" in err
