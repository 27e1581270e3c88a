"""Files of a table: several of them, how they are written, and what is refused."""

from __future__ import annotations

import pytest

from tests.data.samples import HOSPITALS, refused
from udpfl.data import load

ROWS = "age;dose;ill\n30;1,5;yes\n40;-2,25;no\n50;0;no\n60;3;yes\n"
OPTIONS = {"target": "ill", "scale": "none", "delimiter": ";", "decimal": ","}


def numbers(data):
    return sorted(map(tuple, [*data.train.inputs.tolist(), *data.test.inputs.tolist()]))


def test_semicolons_and_decimal_commas(tmp_path):
    (tmp_path / "a.csv").write_text(ROWS)
    data = load("table", options={**OPTIONS, "path": str(tmp_path / "a.csv")}, test=1)
    assert numbers(data) == [(30, 1.5), (40, -2.25), (50, 0), (60, 3)]
    assert data.class_names == ("no", "yes")


def test_other_encodings(tmp_path):
    (tmp_path / "a.csv").write_bytes("größe,krank\n1,ja\n2,nein\n3,ja\n".encode("latin-1"))
    options = {"path": str(tmp_path / "a.csv"), "target": "krank", "scale": "none"}
    with refused("is not utf-8 text .*data.options.encoding", "data.options.path"):
        load("table", options=options, test=1)
    data = load("table", options={**options, "encoding": "latin-1"}, test=1)
    assert [column.name for column in data.schema.features] == ["größe"]


@pytest.mark.parametrize("as_pattern", [True, False])
def test_several_files_are_one_client_each(tmp_path, as_pattern):
    sites = {"north": ROWS, "south": "ill;dose;age\nno;1;10\nyes;2;20\nno;4;80\n"}
    for site, text in sites.items():
        (tmp_path / f"{site}.csv").write_text(text)
    names = [str(tmp_path / f"{site}.csv") for site in sites]
    path = str(tmp_path / "*.csv") if as_pattern else names
    data = load("table", options={**OPTIONS, "path": path}, test=0.25, seed=1)
    assert data.owner_names == ("north", "south")
    ages = [sorted(data.train.inputs[own, 0].tolist()) for own in data.owners]
    tested = [sorted(data.test.inputs[own, 0].tolist()) for own in data.test_owners]
    assert sorted(ages[0] + tested[0]) == [30, 40, 50, 60]
    assert sorted(ages[1] + tested[1]) == [10, 20, 80]  # whose columns stand in another order
    assert numbers(data) == sorted(
        [(30, 1.5), (40, -2.25), (50, 0), (60, 3), (10, 1), (20, 2), (80, 4)]
    )


@pytest.mark.parametrize(
    ("text", "options", "parameter", "match"),
    [
        (ROWS, {"delimiter": ","}, "data.options.decimal", "and so is data.options.delimiter"),
        (ROWS, {"delimiter": ",", "decimal": "."}, "data.options.delimiter", 'delimiter = ";" may'),
        (ROWS, {"delimiter": ";;"}, "data.options.delimiter", "single character"),
        (ROWS, {"decimal": ":"}, "data.options.decimal", "got ':'"),
        (ROWS, {"encoding": "utf-12"}, "data.options.encoding", "no encoding 'utf-12'"),
        (ROWS, {"decimal": "."}, "data.options.path", "row 1, .*'1,5'.*decimal = \",\" reads"),
        (ROWS.replace("1,5", "1.234,5"), {}, "data.options.path", "'1.234,5' is not a number"),
        (ROWS.replace("1,5", "1.5"), {}, "data.options.path", "'1.5' is not a number"),
        (
            "a;b\n1;2\n3\n4;5;6\n",
            {},
            "data.options.path",
            "2 problems in .*row 2 has 1.*row 3 has 3",
        ),
    ],
)
def test_bad_files_are_refused(tmp_path, text, options, parameter, match):
    (tmp_path / "a.csv").write_text(text)
    with refused(match, parameter):
        load("table", options={**OPTIONS, "path": str(tmp_path / "a.csv"), **options}, test=1)


def test_files_that_do_not_fit_together(tmp_path):
    (tmp_path / "a.csv").write_text(HOSPITALS)
    (tmp_path / "b.csv").write_text(HOSPITALS.replace("dose", "size"))
    options = {"target": "ill", "scale": "none", "by": "site"}
    both = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    with refused(
        "b.csv has other columns than .*missing: dose; additional: size", "data.options.path"
    ):
        load("table", options={**options, "path": both})
    with refused("is named twice", "data.options.path"):
        load("table", options={**options, "path": [both[0], both[0]]})
    with refused("no file .*sites", "data.options.path"):
        load("table", options={**options, "path": str(tmp_path / "sites" / "*.csv")})
