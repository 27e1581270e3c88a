"""Every attack on a small run: what it finds, what it writes, and what it refuses."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from tests.attacks.toys import noise_records, settings, small_run  # noqa: E402
from udpfl import PrivacyStatement  # noqa: E402
from udpfl.attacks import (  # noqa: E402
    BUILT_IN,
    Attacked,
    AttackResult,
    Figure,
    Target,
    attack_class,
    build,
)
from udpfl.cli.app import app  # noqa: E402
from udpfl.cli.attack import options_of  # noqa: E402
from udpfl.errors import InvalidInput, Unsupported  # noqa: E402
from udpfl.federation import run  # noqa: E402
from udpfl.report import read_run, run_page  # noqa: E402
from udpfl.report.attacks import attack_page  # noqa: E402
from udpfl.runs.attacks import AttackRecord, read_attacks, write_attack  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
WITH_SHADOWS = ("canary", "lira", "rmia", "shokri")
MEMBERSHIP = [name for name, own in BUILT_IN.items() if own.kind == "membership"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_attack_says_what_it_is(name):
    kind = attack_class(name)
    assert kind.name == name
    assert kind.kind == BUILT_IN[name].kind
    for said in (kind.what, kind.needs, kind.paper):
        assert 0 < len(said) <= 100
    assert all(own.description for own in kind.options_type.model_fields.values())


@pytest.mark.parametrize("name", WITH_SHADOWS)
def test_an_attack_with_shadows_finds_what_was_learned_by_heart(attacked_run, data, name):
    told = []
    target = Target.open(attacked_run, data=data)
    found = build(name, {"shadows": 4}).run(target, lambda *what: told.append(what))
    assert found.figure("AUC").low > 0.5
    assert not found.exceeded
    assert "claims no privacy" in found.verdict
    assert any(stage == "training shadow models" for stage, _, _ in told)
    assert AttackResult.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_the_attack_without_shadows_finds_it_too(attacked_run, data):
    assert build("loss").run(Target.open(attacked_run, data=data)).figure("AUC").low > 0.5


@pytest.mark.parametrize("mode", ["lira", "rmia", "canary"])
def test_offline_attacks_use_shadows_without_the_record(attacked_run, data, mode):
    attack = build(mode, {"shadows": 4, "mode": "offline"})
    assert attack.run(Target.open(attacked_run, data=data)).figure("AUC").value > 0.55


def test_an_attack_can_be_repeated(attacked_run, data):
    target = Target.open(attacked_run, data=data)
    first, again = (build("lira", {"shadows": 4}).run(target) for _ in range(2))
    assert first.figures == again.figures


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("lira", {"depth": 3}, "no such option"),
        ("lira", {"mode": "sideways"}, "mode"),
        ("lira", {"shadows": 2}, "4 at least"),
        ("canary", {"shadows": 2}, "4 at least"),
        ("rmia", {"shadows": 3}, "even number"),
        ("lira", {"queries": 2}, "no images"),
        ("loss", {"records": 4}, "10 members"),
    ],
)
def test_options_that_do_not_fit_are_refused(attacked_run, data, name, options, said):
    with pytest.raises(InvalidInput, match=said):
        build(name, {"shadows": 4, **options} if name != "loss" else options).run(
            Target.open(attacked_run, data=data)
        )


def test_an_attack_that_does_not_exist_is_refused():
    with pytest.raises(InvalidInput, match="there is no 'gossip'"):
        build("gossip")


def test_changed_data_is_refused(attacked_run):
    with pytest.raises(InvalidInput, match="changed since this run"):
        Target.open(attacked_run, data=noise_records(seed=1))


def test_held_out_records_that_were_trained_on_are_not_called_so(tmp_path, data):
    twin = noise_records()
    twin.test.inputs[3], twin.test.targets[3] = twin.train.inputs[0], twin.train.targets[0]
    folder = small_run(tmp_path / "run", data=twin)
    assert 3 not in Target.open(folder, data=twin).nonmembers
    assert len(Target.open(folder, data=twin).nonmembers) == len(twin.test) - 1


def test_a_regression_is_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    data = (x, x.sum(1))
    run(settings(tmp_path / "run"), data=data)
    with pytest.raises(Unsupported, match="regression"):
        build("loss").run(Target.open(tmp_path / "run", data=data))


def result(exceeded=False, attack="lira", run="run-1"):
    return AttackResult(
        attack, "membership", Attacked(run, "", "the final model", "20 <records>"),
        PrivacyStatement(1.0, 1e-5, "guarantee", "rdp"),
        (Figure("AUC", 0.7, 0.6, 0.8, cap=0.73, exceeds=exceeded),), (Figure("chance", 0.5),),
        "Past the claim." if exceeded else "Nothing.", exceeded,
    )  # fmt: skip


def test_an_attack_that_got_past_a_claim_is_not_forgotten(attacked_run):
    before = len(read_attacks(attacked_run))
    try:
        paths = [write_attack(attacked_run, result(past).to_dict()) for past in (True, False)]
        found = read_attacks(attacked_run)[before:]
        assert [own.path for own in found] == paths
        assert [own.exceeded for own in found] == [True, False]
        page = run_page(read_run(attacked_run))
        assert "Past the claim." in page
        assert "Nothing." in page
        assert "another run or model" in page
    finally:
        for path in paths:
            path.unlink()


def test_a_broken_result_is_refused_by_its_name(tmp_path):
    path = write_attack(tmp_path, result().to_dict())
    plain = json.loads(path.read_text())
    del plain["result"]["exceeded"]
    path.write_text(json.dumps(plain))
    with pytest.raises(InvalidInput, match=path.name):
        AttackRecord.read(path)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("a=1", {"a": 1}), ("a=0.5", {"a": 0.5}), ("mode=offline", {"mode": "offline"}),
     ("on=true", {"on": True})],
)  # fmt: skip
def test_options_are_read_as_settings_are(given, wanted):
    assert options_of([given]) == wanted


@pytest.mark.parametrize("given", ["a", "=1"])
def test_an_option_without_a_value_is_refused(given):
    with pytest.raises(InvalidInput, match="key=value"):
        options_of([given])


def called(*words):
    return CliRunner().invoke(app, ["attack", *map(str, words)])


def test_the_command_lists_every_attack_with_its_options():
    said = called("list").output
    for name in BUILT_IN:
        assert name in said
    assert "--set mode=" in said
    assert {own["name"] for own in json.loads(called("list", "--json").output)} == set(BUILT_IN)


@pytest.fixture(scope="module")
def run_of_digits(tmp_path_factory):
    """A run whose data the command finds by itself."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    own = {"name": "mnist5k", "clients": 2, "test": 0.98}
    run(settings(folder, data=own, training={"rounds": 2}))
    return folder


def test_the_command_keeps_the_result_and_a_page(run_of_digits):
    done = called("loss", run_of_digits, "--set", "records=100", "--json")
    assert done.exit_code == 0, done.output
    (kept,) = read_attacks(run_of_digits)
    assert kept.result["options"] == {"records": 100}
    page = kept.page.read_text()
    assert "data:image/png" in page
    assert "http" not in page.replace("http-equiv", "")
    assert kept.page.name in run_page(read_run(run_of_digits))
    printed = json.loads(done.stdout)
    assert printed["file"] == str(kept.path)
    (curve,), (whole,) = printed["curves"], kept.result["curves"]
    assert curve["points"] == len(whole["x"]) > 2
    assert not {"x", "y", "cap"} & curve.keys()


def test_json_has_the_points_of_the_curve_where_they_are_asked_for(run_of_digits):
    done = called("loss", run_of_digits, "--set", "records=100", "--json", "--full", "--no-save")
    printed = json.loads(done.stdout)
    assert printed.pop("file") is None
    assert AttackResult.from_dict(printed).curves[0].y[-1] == 1


def test_a_page_has_few_digits_and_no_empty_column(tmp_path):
    plain = result().to_dict()
    plain["options"] = {"radius": 1 / 255, "a": None, "augment": False}
    plain["figures"][0]["value"] = 0.7123456789
    page = attack_page(AttackRecord.read(write_attack(tmp_path, plain)))
    assert "0.712" in page
    assert "0.003922" in page
    assert "not set" in page
    assert not re.search(r"\d\.\d{7}", page)
    own, baseline = page.split("Beside somebody who learned nothing")
    assert "allowed" in own
    assert "interval" in own
    assert '<th scope="col">interval' not in baseline
    assert '<th scope="col">allowed' not in baseline


def test_the_command_runs_all_that_fit_and_leaves_the_rest_out(run_of_digits, monkeypatch):
    import udpfl.cli.attack as command

    monkeypatch.setattr(command, "BUILT_IN", {n: BUILT_IN[n] for n in ("loss", "server-view")})
    done = called("all", run_of_digits, "--no-save", "--shadows", "2")
    assert done.exit_code == 0, done.output
    assert "server-view: left out" in done.output
    assert "loss finds" in done.output


def test_the_command_fails_where_a_claim_is_exceeded(run_of_digits, monkeypatch):
    from udpfl.attacks.membership.loss import LossThreshold

    monkeypatch.setattr(LossThreshold, "run", lambda *own: result(True))
    assert called("loss", run_of_digits, "--no-save").exit_code == 1
