"""What an owner is shown of a table, and how files are written."""

from __future__ import annotations

import pytest

from udpfl.data.csv_files import Dialect, Table
from udpfl.data.describing import describe, guess_dialect


def summary(cells, dialect=None):
    table = Table({"x": cells}, (("t.csv", len(cells)),))
    return describe(table, dialect or Dialect())[0]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2.5", ""], "number"),
        ([*map(str, range(30)), "6O.1"], "number"),  # a slip of the pen
        (["f", "m", "NA"] * 5, "category"),
        (["Eva", "Tom"], "text"),  # names do not repeat
        ([f"name {i}" for i in range(30)], "text"),
        (["2024-01-01", "2024-02-03"], "date"),
        (["31.1.2024", "1.2.2024"], "date"),
        (["", "NA"], "empty"),
        (["1", "2", "many"] * 5, "category"),
    ],
)
def test_kinds(cells, kind):
    assert summary(cells).kind == kind


def test_ranges_and_missing_cells():
    found = summary(["-1,5", "", "1e3", "nan"], Dialect(";", ","))
    assert (found.low, found.high, found.missing, found.distinct) == (-1.5, 1000, 2, 2)


@pytest.mark.parametrize(
    ("text", "encoding", "dialect"),
    [
        ("a,b\n1,2\n", "utf-8", Dialect()),
        ("a;b\n1,5;2\n", "utf-8", Dialect(";", ",")),
        ("a;b\n1.5;2\n", "utf-8", Dialect(";")),
        ("a\tb\n1\t2\n", "utf-8", Dialect("\t")),
        ('a|b\n"x, y"|2\n', "utf-8", Dialect("|")),
        ("größe;b\n1;2\n", "latin-1", Dialect(";", ".", "cp1252")),
        ("\ufeffa,b\n1,2\n", "utf-8", Dialect()),
        ("alone\n1\n", "utf-8", Dialect()),
    ],
)
def test_dialects_are_read_off_a_file(tmp_path, text, encoding, dialect):
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    assert guess_dialect(tmp_path / "t.csv") == dialect
