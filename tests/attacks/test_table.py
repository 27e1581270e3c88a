"""The paper's table of membership inference, at a toy scale."""

from __future__ import annotations

import json
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
    table = attack_table.Table(
        load(settings(tmp_path / "unused", data={"clients": 2})), tmp_path, 6, 60,
        plain=("training.rounds=5",), options={"records": 60},
    )  # fmt: skip
    found = [
        attack_table.cell(table, *own, noise_records())
        for own in attack_table.order(("gaussian",), (2.0,))
    ]
    plainly, private = found
    assert plainly["statement"].startswith("not private")
    assert (plainly["training"]["rounds"], private["training"]["rounds"]) == (5, 4)
    assert "ε = 2" in private["statement"]
    for row in (plainly, private):
        assert 0 <= row["accuracy"] <= 1
        assert list(row["attacks"]) == list(attack_table.ATTACKS)
        for figures in row["attacks"].values():
            assert 0 <= figures[attack_table.AUC]["value"] <= 1
    capped = private["attacks"]["lira"][attack_table.TPR]
    assert capped["cap"] < 0.08
    assert plainly["attacks"]["lira"][attack_table.TPR]["cap"] is None
    left_out = attack_table.markdown(found).split("\n\n")[-2:]
    assert "LiRA: AUC, mean over 6 shadows as targets" in left_out[0]
    assert left_out[1].startswith("Without privacy (test accuracy, LiRA: AUC, mean over 6")


def test_cells_of_several_processes_are_those_of_one(tmp_path, monkeypatch, capsys):
    """The command, with toys of the embedded digits: each process draws the same records."""
    found = []
    for workers in (1, 2):
        out = tmp_path / f"{workers}.json"
        monkeypatch.setattr(sys, "argv", [
            "attack_table.py", "--members", "60", "--records", "20", "--shadows", "4",
            "--mechanisms", "laplace", "--epsilons", "8", "--workers", str(workers),
            "--folder", str(tmp_path / "shared"), "--json", str(out),
            "--set", "training.rounds=2", "--set", "training.averaging=0.5", "--set", "threads=1",
            "--set", "data.clients=2", "--plain", "training.averaging=0.0",
        ])  # fmt: skip
        attack_table.main()
        found.append(json.loads(out.read_text()))
    one, several = (own["cells"] for own in found)  # the runs are trained once, and attacked again
    assert [row["attacks"] for row in one] == [row["attacks"] for row in several]
    assert [row["training"]["averaging"] for row in one] == [0.0, 0.5]
    assert found[1]["minutes"] > 0
    monkeypatch.setattr(sys, "argv", ["attack_table.py", "--table", str(out)])
    shown = capsys.readouterr().out
    attack_table.main()
    assert capsys.readouterr().out in shown


def test_the_same_records_are_drawn_again():
    data = noise_records(records=50)
    first, again = (attack_table.some(data, 20, seed=3) for _ in range(2))
    assert len(first.train) == len(first.test) == 20
    assert first.train.fingerprint() == again.train.fingerprint()
