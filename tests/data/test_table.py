"""CSV tables: columns, labels, scaling by public bounds, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.samples import HOSPITALS, refused
from udpfl.data import load


def read(tmp_path, text=HOSPITALS, test=1, seed=0, **options):
    path = tmp_path / "hospitals.csv"
    path.write_text(text, encoding="utf-8")
    settings = {"path": str(path), "target": "ill", "by": "site", "scale": "none"} | options
    return load("table", options=settings, test=test, seed=seed)


def rows(data):
    return {
        tuple(x): (y.tolist() if y.ndim else int(y))
        for records in (data.train, data.test)
        for x, y in zip(records.inputs.tolist(), records.targets, strict=True)
    }


def test_a_table(tmp_path):
    data = read(tmp_path)
    assert data.name == "hospitals"
    assert (len(data.train), len(data.test), data.classes) == (4, 1, 2)
    no, yes = 0, 1
    assert rows(data) == {(30, 1.5): yes, (40, -2): no, (50, 0.25): no, (60, 10): yes, (70, 3): no}
    site = {30: "north", 40: "south", 50: "north", 60: "east", 70: "south"}
    assert data.columns["site"].tolist() == [site[age] for age in data.train.inputs[:, 0]]
    relative = load(
        "table",
        directory=tmp_path,
        options={"path": "hospitals.csv", "target": ["ill"], "by": ["site"], "scale": "none"},
    )
    assert rows(relative) == rows(data)


def test_integer_labels_sort_as_numbers(tmp_path):
    text = "x,y\n" + "".join(f"{v},{v}\n" for v in (10, 9, 2, 10))
    data = read(tmp_path, text, target="y", by=None)
    assert rows(data) == {(10,): 2, (9,): 1, (2,): 0}
    stated = read(tmp_path, text, target="y", by=None, labels=[10, 2, 9, 77])
    assert stated.classes == 4
    assert rows(stated) == {(10,): 0, (2,): 1, (9,): 2}
    with refused("row 2, column y: '9' is not one of '10', '2'", "data.options.path"):
        read(tmp_path, text, target="y", by=None, labels=[10, 2])


def test_scaling_uses_public_bounds_and_clamps(tmp_path):
    scale = {"age": [40, 60], "dose": "none"}
    data = read(tmp_path, scale=scale)
    assert sorted(rows(data)) == [(-1, -2), (-1, 1.5), (0, 0.25), (1, 3), (1, 10)]
    # Another record changes nothing about the others: no statistic of the data is used.
    more = read(tmp_path, HOSPITALS + "1000,1000,east,no\n", scale=scale)
    assert rows(data).items() <= rows(more).items()


def test_regression_on_several_columns(tmp_path):
    text = (
        HOSPITALS.replace("ill\n", "ill,x\n").replace("yes\n", "yes,1\n").replace("no\n", "no,2\n")
    )
    options = {"target": ["age", "dose"], "task": "regression", "by": ["site", "ill"]}
    data = read(tmp_path, text, scale={"dose": [0, 2], "age": "none", "x": "none"}, **options)
    assert (data.classes, data.outputs, data.input_shape) == (None, 2, (1,))
    assert set(data.columns) == {"site", "ill"}
    both = np.concatenate([data.train.targets, data.test.targets]).tolist()
    assert sorted(both) == [[30, 0.5], [40, -1], [50, -0.75], [60, 1], [70, 1]]


@pytest.mark.parametrize(
    ("text", "options", "parameter", "match"),
    [
        (HOSPITALS.replace("0.25", "low"), {}, "data.options.path", "row 3, column dose: 'low'"),
        (HOSPITALS.replace("0.25", ""), {}, "data.options.path", "row 3, column dose: .*missing"),
        (HOSPITALS.replace("0.25", "nan"), {}, "data.options.path", "row 3, column dose: .*miss"),
        (HOSPITALS.replace("0.25", "inf"), {}, "data.options.path", "row 3, .*'inf' is not a num"),
        (HOSPITALS.replace("0.25", "1_0"), {}, "data.options.path", "row 3, .*'1_0' is not a num"),
        (
            HOSPITALS.replace("east,yes", "east,"),
            {},
            "data.options.path",
            "row 4, .*ill: .*missing",
        ),
        (HOSPITALS.replace("east", ""), {}, "data.options.path", "row 4, column site: .*missing"),
        (HOSPITALS, {"by": None}, "data.options.path", "row 1, column site: 'north' is not"),
        (HOSPITALS + "1,2\n", {}, "data.options.path", "row 6 has 2 values for 4"),
        ("age,age,site,ill\n1,2,3,4\n", {}, "data.options.path", "distinct"),
        ("", {}, "data.options.path", "empty"),
        ("age,site,ill\n", {}, "data.options.path", "no rows"),
        (HOSPITALS, {"target": "il"}, "data.options.target", "did you mean ill"),
        (HOSPITALS, {"target": None}, "data.options.target", "name of the column"),
        (HOSPITALS, {"target": ["ill", "age"]}, "data.options.target", "one target"),
        (HOSPITALS, {"by": "sites"}, "data.options.by", "did you mean site"),
        (HOSPITALS, {"by": ["site", "age", "dose"]}, "data.options.path", "no column to predict"),
        (HOSPITALS, {"task": "rank"}, "data.options.task", "'rank'"),
        (HOSPITALS, {"scale": {"ag": [0, 1]}}, "data.options.scale.ag", "did you mean age"),
        (HOSPITALS, {"scale": {"ill": [0, 1]}}, "data.options.scale.ill", "target of a class"),
        (
            HOSPITALS,
            {"scale": {"age": [1, 1], "dose": "none"}},
            "data.options.scale.age",
            "LOW < HIGH",
        ),
        (HOSPITALS, {"scale": {"age": 3, "dose": "none"}}, "data.options.scale.age", "LOW, HIGH"),
        (HOSPITALS, {"scale": 3}, "data.options.scale", "got 3"),
        (HOSPITALS, {"path": "no such.csv"}, "data.options.path", "no file no such.csv"),
        (HOSPITALS, {"path": None}, "data.options.path", "got None"),
        (HOSPITALS, {"test": 0.01}, "data.test", "none to test on"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, options, parameter, match):
    with refused(match, parameter):
        read(tmp_path, text, **options)
