"""Clients that bring their own records: as many as were set, and equal records are noticed."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import udpfl
from udpfl.config import Config, DataConfig, load
from udpfl.errors import InvalidInput

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype("f4")
Y = (X[:, 0] > 0).astype(int)
TEST = (X[50:], Y[50:])


def trained(tmp_path, settings, *ranges):
    parts = [(X[slice(*own)], Y[slice(*own)]) for own in ranges]
    return udpfl.run(settings, data=parts, test=TEST, model="logistic", threads=1,
                     training={"rounds": 1}, out=str(tmp_path / "run"))  # fmt: skip


def written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "stated",
    [
        lambda folder: {"data": {"clients": 3}},
        lambda folder: {"data": DataConfig(clients=3)},
        lambda folder: load({"data": {"clients": 3}}),
        lambda folder: written(folder / "my.toml", "[data]\nclients = 3\n"),
    ],
    ids=["mapping", "section", "Config", "file"],
)  # fmt: skip
def test_another_number_of_clients_is_refused(stated, tmp_path):
    with pytest.raises(InvalidInput, match="is 3, but the data comes divided among 2 clients"):
        trained(tmp_path, stated(tmp_path), (0, 20), (20, 50))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings", [None, {"data": {"clients": 2}}, Config(), load(Config()), {"seed": 1}]
)
def test_the_right_number_or_none_is_taken(settings, tmp_path):
    run = trained(tmp_path, settings, (0, 20), (20, 50))
    assert run.config.data.clients == 2


def said(caplog):
    return [record.getMessage() for record in caplog.records if "equal record" in record.message]


def test_equal_records_at_two_clients_are_warned_about(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run = trained(tmp_path, None, (0, 20), (19, 40), (30, 50))
    ten, one = said(caplog)
    assert ten.startswith("client-1 and client-2 hold 10 equal records: ")
    assert one.startswith("client-0 and client-1 hold 1 equal record: ")
    assert "equal record" not in str(run.privacy)  # it was computed from private records
    for path in run.folder.iterdir():
        assert path.suffix not in (".json", ".html") or "equal record" not in path.read_text()


def test_many_pairs_are_summed_up(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        trained(tmp_path, None, *[(0, 20)] * 4)
    assert len(said(caplog)) == 4
    assert said(caplog)[-1] == "3 more pairs of clients hold equal records"


def test_nothing_is_said_of_clients_that_are_apart(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        trained(tmp_path, None, (0, 20), (20, 50))
    assert said(caplog) == []
