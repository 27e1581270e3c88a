"""Partitions: every record has one owner, and sizes and labels are as each kind says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.data.samples import refused, rng
from udpfl.data import partition, sizes_are_public

SORTED = np.repeat(np.arange(10), 500)  # label-sorted, as many files are

KINDS = ["iid", "dirichlet", "shards", "column", "power-law"]


def divide(kind, clients, seed=0, targets=SORTED, **options):
    options = {"classes": 10, "columns": {"site": np.arange(len(targets)) % 40}} | options
    return partition(kind, clients, rng(seed), targets=targets, by="site", **options)


@given(
    kind=st.sampled_from(KINDS),
    clients=st.integers(1, 12),
    extra=st.integers(0, 60),
    seed=st.integers(0, 1000),
)
def test_every_record_has_exactly_one_owner(kind, clients, extra, seed):
    n = 2 * clients + extra
    targets = rng(seed).integers(0, 3, n)
    site = np.arange(n) % (clients + 2)
    parts = divide(kind, clients, seed, targets, classes=3, alpha=50.0, columns={"site": site})
    assert len(parts) == clients
    assert sorted(np.concatenate(parts)) == list(range(n))
    for part in parts:
        assert part.dtype == np.int64
        assert len(part) > 0
        assert np.all(np.diff(part) > 0)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "power-law"])
def test_the_seed_decides_the_partition(kind):
    first, again, other = divide(kind, 8, 1), divide(kind, 8, 1), divide(kind, 8, 2)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("kind", ["iid", "power-law"])
def test_iid_clients_of_label_sorted_data_see_every_label_alike(kind):
    parts = divide(kind, 7, exponent=0.5)
    counts = np.array([np.bincount(SORTED[part], minlength=10) for part in parts])
    assert counts.min() > 0
    assert stats.chi2_contingency(counts).pvalue > 1e-3
    for part in parts:  # a contiguous block would span as many positions as it has records
        assert part[-1] - part[0] > 0.9 * len(SORTED)
        assert np.mean(np.diff(part) == 1) < 0.5


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(part) for part in divide("iid", 7)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0])
def test_dirichlet_shares_vary_as_the_distribution_says(alpha):
    """Var of one share is (K-1) / (K^2 (K alpha + 1)); the factor 2/3 or 3/2 is noticed."""
    clients = 5
    shares = []
    for seed in range(60):
        parts = divide("dirichlet", clients, seed, alpha=alpha)
        shares.append([np.bincount(SORTED[part], minlength=10) / 500 for part in parts])
    found = np.mean((np.array(shares) - 1 / clients) ** 2)
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert 0.85 < found / expected < 1.15


def test_dirichlet_small_alpha_is_skewed_and_large_alpha_is_even():
    def commonest(parts):
        return [np.bincount(SORTED[part]).max() / len(part) for part in parts]

    even = divide("dirichlet", 5, alpha=1e6)
    assert np.mean(commonest(divide("dirichlet", 5, alpha=0.05))) > 0.3
    assert max(commonest(even)) < 0.105
    assert np.mean(np.diff(even[0]) == 1) < 0.5  # no contiguous blocks inside a class either


def test_dirichlet_gives_up_when_clients_stay_empty():
    with refused("larger alpha", "data.alpha"):
        divide("dirichlet", 40, alpha=1e-4)


def test_shards_give_few_labels():
    parts = divide("shards", 10, shards=2)
    assert {len(part) for part in parts} == {500}
    assert max(len(np.unique(SORTED[part])) for part in parts) <= 2
    assert any(np.ptp(SORTED[part]) > 1 for part in parts)  # not neighbours along the labels
    assert max(len(np.unique(SORTED[part])) for part in divide("iid", 10)) == 10


def test_columns_make_clients(caplog):
    site = np.array(["b", "a", "c", "b", "a", "d"])
    options = {"targets": np.zeros(6, int), "columns": {"site": site}}
    assert [part.tolist() for part in divide("column", 4, **options)] == [[1, 4], [0, 3], [2], [5]]
    assert not caplog.records
    assert [part.tolist() for part in divide("column", 2, **options)] == [[1, 2, 4], [0, 3, 5]]
    assert "4 distinct values for 2 clients" in caplog.text
    with refused("4 distinct values", "data.clients"):
        divide("column", 5, **options)
    with refused("did you mean site", "data.by"):
        partition("column", 2, rng(), by="sites", **options)
    with refused("None", "data.by"):
        partition("column", 2, rng(), **options)


def test_power_law_sizes_follow_the_ranks():
    sizes = np.array([len(part) for part in divide("power-law", 10, exponent=1.5)])
    expected = np.arange(1, 11) ** -1.5
    expected *= len(SORTED) / expected.sum()
    assert np.abs(sizes - expected).max() <= 1


@given(clients=st.integers(1, 40), extra=st.integers(0, 40), exponent=st.floats(0, 9))
def test_power_law_sizes_never_grow_with_rank(clients, extra, exponent):
    n = clients + extra
    parts = divide("power-law", clients, targets=np.zeros(n, int), exponent=exponent)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == n
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] >= 1


def test_public_sizes_do_not_depend_on_the_labels():
    shuffled, constant = rng(5).permutation(SORTED), np.zeros_like(SORTED)
    for kind in KINDS:
        sizes = [
            [len(p) for p in divide(kind, 8, 3, t, columns={"site": t % 9 + np.arange(5000) % 20})]
            for t in (SORTED, shuffled, constant)
        ]
        assert (sizes[0] == sizes[1] == sizes[2]) == sizes_are_public(kind)


@pytest.mark.parametrize(
    ("kind", "clients", "options", "parameter", "match"),
    [
        ("iid", 5001, {}, "data.clients", "5001 clients"),
        ("power-law", 5001, {}, "data.clients", "5001 clients"),
        ("iid", 0, {}, "data.clients", "from 1, got 0"),
        ("iid", 2.0, {}, "data.clients", "2.0"),
        ("shards", 3000, {"shards": 2}, "data.shards", "6000 records"),
        ("shards", 3, {"shards": 0}, "data.shards", "got 0"),
        ("dirichlet", 3, {"alpha": 0.0}, "data.alpha", "above 0"),
        ("dirichlet", 3, {"alpha": float("inf")}, "data.alpha", "finite"),
        ("power-law", 3, {"exponent": -1.0}, "data.exponent", "-1.0"),
        ("dirichlet", 3, {"targets": np.ones((9, 1)), "classes": None}, "data.partition", "labels"),
        ("shards", 3, {"targets": np.ones((9, 1)), "classes": None}, "data.partition", "labels"),
        ("powerlaw", 3, {}, "data.partition", "did you mean power-law"),
    ],
)
def test_bad_partitions_are_refused(kind, clients, options, parameter, match):
    with refused(match, parameter):
        divide(kind, clients, **options)


def test_sizes_of_an_unknown_partition():
    with refused("there is iid", "data.partition"):
        sizes_are_public("zzz")
