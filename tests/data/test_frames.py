"""Tables in Python: frames, dicts of columns, rows that are dicts, and labels in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import udpfl
from tests.data.samples import refused
from udpfl.data import as_dataset, load

COLUMNS = {
    "age": [30.0, 40.0, 50.0, np.nan, 70.0, 80.0],
    "sex": ["f", "m", None, "f", "m", "f"],
    "ill": ["yes", "no", "no", "yes", "no", "yes"],
}
OPTIONS = {
    "target": "ill",
    "scale": {"age": [0, 100]},
    "categories": {"sex": ["f", "m"]},
    "missing": {"age": 50, "sex": "m"},
}


class Rows:
    """A map-style data set whose items are dicts."""

    def __init__(self, columns):
        self.columns_ = columns

    def __len__(self):
        return len(next(iter(self.columns_.values())))

    def __getitem__(self, index):
        return {name: values[index] for name, values in self.columns_.items()}


def test_every_kind_of_table_is_the_same_data(tmp_path):
    frame = pd.DataFrame(COLUMNS)
    frame.to_csv(tmp_path / "t.csv", index=False)
    wanted = load("table", options={**OPTIONS, "path": str(tmp_path / "t.csv")}, test=2)
    listed = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    arrays = {"age": np.array(COLUMNS["age"]), "sex": COLUMNS["sex"], "ill": COLUMNS["ill"]}
    for data in (frame, COLUMNS, listed, Rows(COLUMNS), arrays, frame.convert_dtypes()):
        found = as_dataset(data, test=2, options=OPTIONS)
        assert np.array_equal(found.train.inputs, wanted.train.inputs)
        assert np.array_equal(found.train.targets, wanted.train.targets)
        assert np.array_equal(found.test.inputs, wanted.test.inputs)
        assert (found.class_names, found.schema) == (("no", "yes"), wanted.schema)


def test_a_list_of_frames_is_one_client_each():
    frame = pd.DataFrame(COLUMNS)
    data = as_dataset([frame[:4], frame[2:]], test=1, options=OPTIONS)
    assert [len(own) for own in data.owners] == [3, 3]
    assert data.owner_names == ("client-0", "client-1")
    with refused("client 1 has the columns", "data"):
        as_dataset([frame, frame[["age", "ill"]]], options=OPTIONS)


def test_a_test_table_of_its_own():
    frame = pd.DataFrame(COLUMNS)
    data = as_dataset(frame[:4], test=frame[4:], options=OPTIONS)
    assert (len(data.train), len(data.test)) == (4, 2)
    assert data.test.inputs[:, 0].tolist() == pytest.approx([0.4, 0.6])


def test_dates_in_frames_are_refused():
    frame = pd.DataFrame({"day": pd.to_datetime(["2024-01-01", "2024-02-01"]), "y": ["a", "b"]})
    with refused("is a date", "data.options.path"):
        as_dataset(frame, test=1, options={"target": "y", "scale": "none"})


def test_labels_in_words():
    inputs = np.eye(6)
    words = ["yes", "no", "no", "yes", "no", "yes"]
    data = as_dataset((inputs, words), test=2)
    assert (data.classes, data.class_names) == (2, ("no", "yes"))
    assert set(data.train.targets) == {0, 1}
    declared = as_dataset((inputs, words), test=2, options={"labels": ["yes", "no", "perhaps"]})
    assert declared.class_names == ("yes", "no", "perhaps")
    by_client = as_dataset([(inputs, words), {"inputs": inputs, "targets": ["no"] * 6}], test=1)
    assert by_client.class_names == ("no", "yes")


def test_rows_with_images():
    rows = [{"image": np.full((2, 2), i, dtype=np.float32), "label": "ab"[i % 2]} for i in range(6)]
    data = as_dataset(rows, test=2, options={"target": "label"})
    assert (data.input_shape, data.class_names) == ((2, 2), ("a", "b"))
    with refused("one field of inputs and one target", "data.options.target"):
        as_dataset(rows, options={"target": "kind"})


def test_frames_in_a_run(tmp_path):
    frame = pd.DataFrame(COLUMNS)
    result = udpfl.run(
        {"out": str(tmp_path / "run"), "privacy": "none", "training": {"rounds": 1},
         "data": {"options": OPTIONS, "declared_sizes": 3}},
        data=[frame, frame], model="logistic",
    )  # fmt: skip
    assert list(result.clients) == ["client-0", "client-1"]
    columns = udpfl.run(
        {"out": str(tmp_path / "columns"), "privacy": "none", "training": {"rounds": 1},
         "data": {"clients": 1, "options": OPTIONS}},
        data=COLUMNS, model="logistic",
    )  # fmt: skip
    assert columns.config.data.clients == 1
