"""A configuration to begin with: every column has a place, and nothing private is in it."""

from __future__ import annotations

import tomllib

import pytest

from udpfl.config import load
from udpfl.data.beginning import Choices, beginning
from udpfl.data.csv_files import Dialect, Table
from udpfl.data.describing import describe
from udpfl.errors import InvalidInput

COLUMNS = {
    "id": [f"P{i}" for i in range(40)],
    "site": ["a", "b"] * 20,
    "Größe (cm)": [f"{150.25 + i}" for i in range(40)],
    "sex": ["f", "m"] * 20,
    "day": ["2024-01-01"] * 40,
    "result": ["ill", ""] + ["well"] * 38,
}


def written(columns=COLUMNS, files=("t.csv",), **choices):
    table = Table(columns, (("t.csv", 40),))
    found = describe(table, Dialect())
    chosen = Choices.of(found, **choices)
    return beginning(files, Dialect(), found, chosen)


def test_every_column_has_a_place():
    text = written(by="site", person="id")
    config = tomllib.loads(text)
    options = config["data"]["options"]
    assert (config["data"]["by"], config["data"]["clients"]) == ("site", 2)
    assert config["data"]["person"] == "id"
    assert (options["target"], options["labels"]) == ("result", ["ill", "well"])
    assert options["ignore"] == ["day"]
    assert options["categories"] == {"sex": ["f", "m"]}
    assert options["scale"] == {"Größe (cm)": ["LOW", "HIGH"]}
    assert "missing" not in options
    assert '# missing = "drop"' in text
    load(config)  # every key is known
    assert "150" not in text
    assert "189" not in text


def test_regression_and_several_files():
    numbers = {"a": [str(i) for i in range(40)], "y": [f"{i / 7:.3f}" for i in range(40)]}
    config = tomllib.loads(written(numbers, ("x/1.csv", "x/2.csv")))
    assert config["data"]["clients"] == 2
    assert config["data"]["options"]["path"] == ["x/1.csv", "x/2.csv"]
    assert config["data"]["options"]["task"] == "regression"
    assert config["data"]["options"]["scale"] == {"a": ["LOW", "HIGH"], "y": ["LOW", "HIGH"]}


def test_a_column_with_bounds_is_one_of_numbers():
    columns = {**COLUMNS, "Größe (cm)": ["6O.1", *COLUMNS["Größe (cm)"][1:]], "id": COLUMNS["id"]}
    options = tomllib.loads(written(columns, scale=["day=0,1"]))["data"]["options"]
    assert options["scale"] == {"Größe (cm)": ["LOW", "HIGH"], "day": [0, 1]}
    assert options["ignore"] == ["id"]
    numbered = {**COLUMNS, "id": [str(i) for i in range(40)]}
    assert "id" in tomllib.loads(written(numbered))["data"]["options"]["ignore"]


def test_bounds_that_the_owner_names():
    config = tomllib.loads(written(scale=["Größe (cm)=50,250.5"]))
    assert config["data"]["options"]["scale"] == {"Größe (cm)": [50, 250.5]}
    config = tomllib.loads(written(scale=["Größe (cm)=none"]))
    assert config["data"]["options"]["scale"] == {"Größe (cm)": "none"}
    for wrong in ("Größe (cm)=5", "Größe (cm)=5,4", "=1,2", "Größe (cm)=a,b"):
        with pytest.raises(InvalidInput, match="scale: must look like age=0,110"):
            written(scale=[wrong])
    with pytest.raises(InvalidInput, match="scale: no column 'size'"):
        written(scale=["size=0,1"])


def test_a_column_that_is_not_there():
    with pytest.raises(InvalidInput, match="target: no column 'results'; did you mean result"):
        written(target="results")
