"""Ids and labels out of range are found before anything is charged."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from tests.engine.isolated import VECTORS, Net, Words
from tests.federation.refused import assert_nothing_charged, run, sentences
from tests.small import cross_entropy
from udpfl.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("value", [20, 4_000, -1])
@pytest.mark.parametrize("split", ["data", "data.test"])
def test_a_token_outside_the_embedding_is_found_before_anything_is_charged(tmp_path, split, value):
    data, test = sentences(), sentences(12)
    (data if split == "data" else test)[0][7, 3] = value
    with pytest.raises(InvalidInput, match=f"record 7 holds {value} at position 3") as refused:
        run(tmp_path, Words(), data, test=test)
    assert refused.value.parameter == split
    assert_nothing_charged(tmp_path)


def test_tables_of_different_sizes_are_told_apart(tmp_path):
    class Columns(nn.Module):
        """Each column has a table of its own."""

        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(size, 3) for size in (30, 4))

        def forward(self, t):
            return sum(table(t[:, i]) for i, table in enumerate(self.tables))

    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 30, 60), rng.integers(0, 4, 60)], 1)
    x[9, 1] = 4
    with pytest.raises(InvalidInput, match="data: record 9 holds 4 at position 1"):
        run(tmp_path, Columns(), (x, np.arange(60) % 3), test=(x[:8], np.arange(8) % 3))
    assert_nothing_charged(tmp_path)


@pytest.mark.parametrize("split", ["data", "data.test"])
def test_a_label_without_an_output_is_found_before_anything_is_charged(tmp_path, split):
    x, y = VECTORS.repeat(8, 1).numpy(), np.arange(64) % 3
    data, test = (x, y.copy()), (x[:12], y[:12].copy())
    (data if split == "data" else test)[1][5] = 3
    with pytest.raises(InvalidInput, match=r"record 5 has the label 3, .*shape \(3,\)") as refused:
        run(tmp_path, Net(), data, test=test)
    assert refused.value.parameter == split
    assert_nothing_charged(tmp_path)


def test_the_loss_decides_what_a_label_may_be(tmp_path):
    """One output for three labels, which are steps on a scale."""
    x, y = VECTORS.repeat(8, 1).numpy(), np.arange(64) % 3
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def steps(outputs, targets):
        return (outputs[:, 0] - targets).square()

    assert run(tmp_path, net, (x, y), steps).metrics


def test_a_label_whose_loss_is_not_finite_is_named(tmp_path):
    def odd(outputs, targets):
        return cross_entropy(outputs, targets) / (2 - targets)

    x, y = VECTORS.repeat(8, 1).numpy(), np.arange(64) % 3
    with pytest.raises(InvalidInput, match=r"has the label 2, .*not finite"):
        run(tmp_path, Net(), (x, y), odd)
    assert_nothing_charged(tmp_path)


def test_extremes_that_never_meet_in_a_record_are_no_reason_to_refuse(tmp_path):
    class Exclusive(Words):
        """Two ids that exclude each other: no record has both, the row of largest ids does."""

        def forward(self, t):
            assert not ((t[:, 0] == 19) & (t[:, 1] == 19)).any()
            return super().forward(t)

    x, y = sentences()
    x[:, :2] = np.minimum(x[:, :2], 18)
    x[3, 0] = x[4, 1] = 19
    assert run(tmp_path, Exclusive(), (x, y), test=(x, y)).metrics
