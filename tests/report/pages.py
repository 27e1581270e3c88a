"""Runs of every kind with names that try to break out of the page, and their pages."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path

import numpy as np
import torch

import udpfl
from udpfl.accounting.budget import Budget
from udpfl.data import DataSet
from udpfl.data.records import Records
from udpfl.ledger.ledger import Ledger

HOSTILE = (
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "<!-- <script>",
)
LABELS = ("<b>cat</b>", "dog & co", "</td></table>$x_1$")


def records(rng: np.random.Generator, count: int) -> Records:
    labels = np.arange(count) % 3
    return Records((rng.normal(size=(count, 5)) + 2 * np.eye(5)[labels]).astype("f4"), labels)


def classification(**extra: object) -> DataSet:
    rng = np.random.default_rng(0)
    names = np.array(HOSTILE)[np.arange(120) // 3 % 3]
    return DataSet("own", "classification", records(rng, 120), records(rng, 60), 3,
                   columns={"site": names}, class_names=LABELS, **extra)  # fmt: skip


def regression() -> DataSet:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(150, 4)).astype("f4")
    y = (x @ rng.normal(size=(4, 6))).astype("f4")
    return DataSet("own", "regression", Records(x[:90], y[:90]), Records(x[90:], y[90:]), None,
                   references={"persistence [b]": {"mae": 9.5, "mse": 100.0, "rmse": 10.0}},
                   )  # fmt: skip


def train(
    folder: Path, data: DataSet, rounds: int = 4, evaluate_every: int = 1, **sections: object
) -> udpfl.Run:
    threads = torch.get_num_threads()
    by = {"partition": "column", "by": "site"} if data.columns else {}
    base = {"out": str(folder), "threads": 1, "model": {"name": "logistic"},
            "data": {"clients": 3, "declared_sizes": 40, **by}}  # fmt: skip
    try:
        training = {"rounds": rounds, "learning_rate": 0.5, "evaluate_every": evaluate_every}
        return udpfl.run(base, data=data, training=training, **sections)
    finally:
        torch.set_num_threads(threads)


def record_of(folder: Path, name: str) -> list[dict]:
    return json.loads((folder / name).read_text())


def copied(run: udpfl.Run, target: Path, *without: str) -> Path:
    shutil.copytree(run.folder, target)
    for name in without:
        (target / name).unlink()
    return target


def raise_budgets(path: Path, epsilon: float) -> None:
    with Ledger(path) as ledger:
        accounts = [found.id for found in ledger.accounts()]
        ledger.set_budgets(accounts, Budget(epsilon, 1e-5), reason="more runs")


def visible(page: str) -> str:
    """The page as a reader sees it without scripts: no tags, no embedded data."""
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())
