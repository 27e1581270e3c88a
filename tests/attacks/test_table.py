"""The paper's table of membership inference, at a toy scale."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from tests.attacks.toys import noise_records, settings  # noqa: E402
from tests.repository import ROOT  # noqa: E402
from udpfl.config import load  # noqa: E402

sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import attack_table  # noqa: E402


def cell(mechanism, epsilon):
    figures = {"value": 0.5, "low": 0.4, "high": 0.6, "cap": None, "exceeds": False}
    names = (attack_table.TPR, attack_table.ACCURACY, attack_table.AUC)
    attacks = {name: dict.fromkeys(names, figures) for name in attack_table.ATTACKS}
    return {"mechanism": mechanism, "epsilon": epsilon, "attacks": attacks}


def test_the_table_has_the_shape_of_the_papers():
    rows = [cell("none", None)]
    rows += [cell(m, e) for m in attack_table.MECHANISMS for e in attack_table.EPSILONS]
    lines = attack_table.markdown(rows).splitlines()
    assert len(lines) == 2 + 3 * 4 + 2  # head, three attacks with four budgets, one without
    assert all(line.count("|") == 2 + 3 * 3 + 1 for line in lines[:14])
    assert lines[-1].startswith("Without privacy")


def test_every_cell_is_a_run_that_is_attacked(tmp_path, one_thread):
    config = load(settings(tmp_path / "unused", data={"clients": 2, "name": "own"}))
    found = attack_table.cells(
        config, noise_records(), tmp_path, 4, ("gaussian",), (2.0,), options={"records": 60}
    )
    plainly, private = list(found)
    assert plainly["statement"].startswith("not private")
    assert "ε = 2" in private["statement"]
    for row in (plainly, private):
        assert list(row["attacks"]) == list(attack_table.ATTACKS)
        for figures in row["attacks"].values():
            assert 0 <= figures[attack_table.AUC]["value"] <= 1
    capped = private["attacks"]["lira"][attack_table.TPR]
    assert capped["cap"] < 0.08
    assert plainly["attacks"]["lira"][attack_table.TPR]["cap"] is None


def test_the_same_records_are_drawn_again():
    data = noise_records(records=50)
    first, again = (attack_table.some(data, 20, seed=3) for _ in range(2))
    assert len(first.train) == len(first.test) == 20
    assert first.train.fingerprint() == again.train.fingerprint()
