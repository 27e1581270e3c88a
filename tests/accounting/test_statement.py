"""Statements as JSON: read back exactly, never guessed, and described on their page."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from tests.accounting.samples import PAST
from tests.repository import ROOT
from udpfl import InvalidInput, Laplace, PrivacyStatement, PureDP, Release, Sensitivity, account
from udpfl.accounting.statement import largest, shown

STATEMENTS = [
    account(PAST, 1e-5),
    account(Release(Laplace(1.0), Sensitivity(1.0, "l2", 9)), 1e-5, accounting="scalar"),
    account(PureDP(0.5, "client", "replace-one"), 0.0),
    PrivacyStatement.none("noise is seeded"),
    PrivacyStatement(math.inf, 1e-5, "nominal", "rdp", notes=("a", "b")),
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_survives_json(statement):
    plain = json.loads(json.dumps(statement.to_dict(), allow_nan=False))
    assert PrivacyStatement.from_dict(plain) == statement
    assert plain.keys() == set(PrivacyStatement.__dataclass_fields__)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "promise"},
        {"composition": "magic"},
        {"unit": "family"},
        {"neighbours": "all"},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": "much"},
        {"delta": True},
        {"trusts_server": "yes"},
        {"more": 1},
    ],
)
def test_a_statement_is_never_guessed(change):
    with pytest.raises(InvalidInput, match="statement"):
        PrivacyStatement.from_dict({**STATEMENTS[0].to_dict(), **change})


def test_a_statement_with_a_field_missing_is_refused():
    younger = {"composition", "assumptions", "trusts_server"}  # earlier versions did not write them
    for field in STATEMENTS[0].to_dict().keys() - younger:
        plain = STATEMENTS[0].to_dict()
        del plain[field]
        with pytest.raises(InvalidInput, match="must have the fields"):
            PrivacyStatement.from_dict(plain)


def test_the_page_names_every_field_of_a_statement():
    page = (ROOT / "docs" / "interop.md").read_text()
    for field in PrivacyStatement.__dataclass_fields__:
        assert f"`{field}`" in page


def test_a_statement_of_an_earlier_version_loses_no_assumption():
    """Assumptions were among the notes then, and nothing but their words told them apart."""
    now = PrivacyStatement(2.0, 1e-5, "guarantee", "rdp", vector_epsilon=2.0)
    former = {**now.to_dict(), "notes": ["assumes an honest server", "the whole plan counts"]}
    del former["assumptions"]
    read = PrivacyStatement.from_dict(former)
    assert read.remarks == ("assumes an honest server", "the whole plan counts")
    assert "assumes an honest server" in str(read)
    none = {**PrivacyStatement.none("seeded").to_dict()}
    del none["assumptions"]
    assert PrivacyStatement.from_dict(none) == PrivacyStatement.none("seeded")


def test_an_earlier_statement_that_trusts_the_server_still_says_so():
    from udpfl.ledger.charges import TRUST

    said = replace(STATEMENTS[0], assumptions=(TRUST,), trusts_server=True)
    plain = said.to_dict()
    del plain["trusts_server"]
    assert PrivacyStatement.from_dict(plain) == said
    assert not PrivacyStatement.from_dict({**plain, "assumptions": []}).trusts_server
    earliest = {**plain, "notes": [TRUST]}
    del earliest["assumptions"]
    assert PrivacyStatement.from_dict(earliest).trusts_server
    assert largest([replace(STATEMENTS[0], epsilon=99.0), said]).trusts_server


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_is_short_on_a_line_and_whole_in_a_notebook(statement):
    assert len(repr(statement)) < 120
    assert repr(statement).startswith("<PrivacyStatement: ")
    page = replace(statement, notes=("<script>alert(1)</script>",))._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert not re.search("https?:|src=|url[(]", page)
    if statement.kind == "nominal":
        assert "Nominal: not a guarantee" in page
        assert f"guaranteed: ε = {shown(statement.vector_epsilon)}" in repr(statement)
