"""Columns of a table: public bounds, categories, missing cells, and errors that say all at once."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.samples import refused
from udpfl.data import load
from udpfl.data.columns import Numeric, Schema, parse_number
from udpfl.data.csv_files import Table
from udpfl.errors import InvalidInput

PEOPLE = """age,sex,visit,dose,ill
30,f,2024-01-31,1.5,yes
40,m,2024-02-01,,no
50,f,2024-03-01,NA,no
60,d,2024-04-01,3,yes
"""
OPTIONS = {
    "target": "ill",
    "ignore": ["visit"],
    "categories": {"sex": ["f", "m", "d"]},
    "scale": {"age": [0, 100], "dose": [0, 4]},
    "missing": {"dose": 2},
}


def read(tmp_path, text=PEOPLE, **options):
    (tmp_path / "people.csv").write_text(text)
    settings = {**OPTIONS, "path": str(tmp_path / "people.csv"), **options}
    return load("table", options=settings, test=1)


def rows(data):
    both = [*data.train.inputs.tolist(), *data.test.inputs.tolist()]
    return sorted(tuple(round(value, 6) for value in row) for row in both)


def test_categories_scale_and_constants(tmp_path):
    data = read(tmp_path)
    assert rows(data) == [
        (-0.4, 1, 0, 0, -0.25),
        (-0.2, 0, 1, 0, 0.0),  # the missing dose is 2, in the middle of its bounds
        (0.0, 1, 0, 0, 0.0),
        (0.2, 0, 0, 1, 0.5),
    ]
    assert data.class_names == ("no", "yes")


def test_rows_with_missing_cells_are_dropped(tmp_path):
    data = read(tmp_path, missing="drop")
    assert [row[0] for row in rows(data)] == [-0.4, 0.2]
    with refused("every row has a missing cell", "data.options.missing"):
        read(tmp_path, PEOPLE.replace("1.5", "").replace(",3,", ",,"), missing="drop")


def test_a_declared_category_is_not_missing(tmp_path):
    text = PEOPLE.replace(",d,", ",NA,")
    data = read(tmp_path, text, categories={"sex": ["f", "m", "NA"]}, missing="drop")
    assert [row[0] for row in rows(data)] == [-0.4, 0.2]


def test_all_problems_are_in_one_error(tmp_path):
    text = PEOPLE + "".join(f"x{i},q,2024-05-01,1,yes\n" for i in range(8))
    with pytest.raises(InvalidInput) as error:
        read(tmp_path, text, missing="error")
    words = str(error.value)
    assert words.startswith("data.options.path: 18 problems in people.csv\n")
    assert "row 2, column dose: the value is missing" in words
    assert "row 5, column age: 'x0' is not a number" in words
    assert "row 5, column sex: 'q' is not one of 'f', 'm', 'd'" in words
    assert "and 8 more" in words
    assert len([line for line in words.splitlines() if line.startswith("  row")]) == 10


@pytest.mark.parametrize(
    ("options", "parameter", "match"),
    [
        ({"ignore": None, "scale": "none"}, "data.options.path", "'2024-01-31' is a date.*ignore"),
        (
            {"scale": {"age": [0, 100]}},
            "data.options.scale",
            r"dose: write scale = \{ dose = \[LOW",
        ),
        ({"scale": None}, "data.options.scale", "no public bounds for age, dose"),
        ({"missing": "guess"}, "data.options.missing", "'guess'"),
        ({"missing": {"size": 1}}, "data.options.missing.size", "not a column of features"),
        ({"missing": {"dose": "much"}}, "data.options.path", "'much' is not a number"),
        ({"categories": {"sex": ["f"]}}, "data.options.categories.sex", "at least two"),
        ({"categories": {"sexe": ["f", "m"]}}, "data.options.categories.sexe", "did you mean sex"),
        ({"labels": ["yes"]}, "data.options.labels", "at least two"),
        ({"labels": ["yes", "maybe"]}, "data.options.path", "'no' is not one of 'yes', 'maybe'"),
        ({"ignore": "visits"}, "data.options.ignore", "did you mean visit"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, parameter, match):
    with refused(match, parameter):
        read(tmp_path, **options)


def test_values_far_outside_are_warned_about_where_the_data_is(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    read(tmp_path, PEOPLE.replace("60,d", "61,d"))
    assert caplog.text == ""
    read(tmp_path, PEOPLE.replace("60,d", "460,d"))
    assert "column age: 1 of 4 values lie outside of the declared [0, 100]" in caplog.text
    caplog.clear()
    read(tmp_path, scale="none")
    assert 'although its scale is "none"' in caplog.text


def test_a_schema_survives_json(tmp_path):
    for options in (
        {},
        {"missing": "drop", "scale": {"age": [0, 100], "dose": "none"}},
        {"target": "dose", "task": "regression", "missing": "drop", "ignore": ["visit", "ill"]},
    ):
        schema = read(tmp_path, **options).schema
        assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    with pytest.raises(Exception, match="preprocessing: does not describe a table"):
        Schema.from_dict({"features": 3})


def test_new_rows_without_a_target(tmp_path):
    schema = read(tmp_path).schema
    table = Table({"dose": ["", "4"], "sex": ["m", "d"], "age": ["0", "100"]}, (("new", 2),))
    encoded = schema.encode(table, with_targets=False)
    assert encoded.targets is None
    assert encoded.inputs.tolist() == [[-1, 0, 1, 0, 0], [1, 0, 0, 1, 1]]
    with refused("there is no column 'ill'", "data.options.path"):
        schema.encode(table)


@given(
    st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.lists(st.floats(0, 1), min_size=1, max_size=5)
)
def test_scaling_back_gives_the_column(low, width, shares):
    column = Numeric("x", (low, low + width))
    values = low + np.array(shares) * width
    scaled = column.scaled(values)
    assert (np.abs(scaled) <= 1).all()
    assert np.allclose(column.unscaled(scaled), values, atol=1e-9 * (abs(low) + width))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back(number):
    assert parse_number(repr(number)) == number
    assert parse_number(repr(number).replace(".", ","), ",") == number
