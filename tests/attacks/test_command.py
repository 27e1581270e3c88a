"""What `udpfl attack` says to people who are new to it."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import udpfl
from udpfl.attacks import Target
from udpfl.attacks.base import Figure
from udpfl.attacks.membership._verdict import _remarks, findings
from udpfl.attacks.membership.statistics import Cap, Scores
from udpfl.cli.app import app


def called(*words):
    return CliRunner().invoke(app, ["attack", *map(str, words)])


def test_one_attack_is_listed_with_the_values_of_its_options():
    done = called("list", "lira")
    assert done.exit_code == 0
    assert done.output.startswith("lira (membership)")
    assert "One of online, offline." in done.output
    assert "shokri" not in done.output


@pytest.mark.parametrize(
    ("words", "parameter", "said"),
    [
        (("lyra", "run"), "NAME", "there is no 'lyra'"),
        (("list", "lyra"), "NAME", "there is no 'lyra'"),
        (("lira", "run", "--shadows", "4", "--set", "shadows=6"), "shadows", "given twice"),
    ],
)
def test_mistakes_are_named_as_they_were_typed(words, parameter, said):
    error = called(*words).exception
    assert isinstance(error, udpfl.InvalidInput)
    assert error.parameter == parameter
    assert said in str(error)


def test_records_from_python_are_wanted_there(tmp_path):
    records = np.eye(60, dtype="float32"), np.arange(60) % 2
    settings = {"data": {"clients": 2}, "training": {"rounds": 1}, "out": str(tmp_path / "run")}
    udpfl.run(settings, data=records, model="logistic", privacy="none")
    with pytest.raises(udpfl.InvalidInput, match=r"Target\.open\(RUN, data="):
        Target.open(tmp_path / "run")
    with pytest.raises(udpfl.InvalidInput, match="does not exist"):
        Target.open(tmp_path / "elsewhere")


def scores(hits, false):
    """100 members and 100 others, of whom so many have the higher score."""
    values = np.array([1.0] * hits + [0.0] * (100 - hits) + [1.0] * false + [0.0] * (100 - false))
    return Scores(values, np.arange(200) < 100)


def test_rates_that_few_records_cannot_show_are_explained():
    figures = (Figure("TPR at 1 % FPR", 0.04, 0.01, 0.1, cap=0.03),)
    few, above = _remarks(figures, scores(10, 2))
    assert "no false positive rate of 0.1 % but 0" in few
    assert "exceeds it only where chance does not explain that" in above
    assert len(list(_remarks((), scores(10, 2)))) == 1


@pytest.mark.parametrize("kind", ["guarantee", "nominal", "none"])
def test_a_verdict_calls_the_claim_what_it_is(kind):
    privacy = udpfl.PrivacyStatement.none("off")
    if kind != "none":
        event = udpfl.Release(udpfl.Gaussian(4.0), udpfl.Sensitivity(1.0, dimension=2))
        privacy = udpfl.account(event, delta=1e-5)
        fields = {"kind": kind}
        privacy = type(privacy)(**{**vars(privacy), **fields})
    for hits, chance in ((60, "more than chance"), (21, "not surely more than chance")):
        cap = None if kind == "none" else Cap.of(privacy)
        found = findings(
            "loss", "the final model", "200 records", privacy, scores(hits, 20), seed=0,
            cap=cap and Cap(9.0, 0.1),
        )  # fmt: skip
        assert chance in found.verdict
        assert ("the nominal ε" in found.verdict) == (kind == "nominal")
        assert ("the claim ε" in found.verdict) == (kind == "guarantee")
        assert ("claims no privacy" in found.verdict) == (kind == "none")


def test_help_lists_the_options_of_the_attack_that_is_named():
    said = called("canary", "--help").output
    assert "--set radius=0.003922: How far" in said
    assert "--set radius" not in called("--help").output


def test_an_attack_without_a_run_says_how_it_is_called():
    with pytest.raises(udpfl.InvalidInput, match="folder of a finished run") as caught:
        raise called("lira").exception
    assert "usage: udpfl attack lira RUN" in str(caught.value)
    assert "--set mode=" in str(caught.value)
    assert "--set" in str(called("all").exception)
