"""Records, data sets and splits, against facts that do not come from the code under test."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.data.samples import make, refused, rng
from udpfl.data import Records, split

# --- records -------------------------------------------------------------------------------------


def test_records_have_the_types_that_models_expect():
    floats = Records(np.ones((3, 2)), np.array([0.5, 1, 2]))
    assert floats.inputs.dtype == floats.targets.dtype == np.float32
    assert floats.targets.shape == (3, 1)
    tokens = Records(np.array([[5, 6], [7, 8]], dtype=np.int32), np.array([True, False]))
    assert tokens.inputs.dtype == tokens.targets.dtype == np.int64
    assert tokens.targets.tolist() == [1, 0]
    assert Records(np.array([[255]], dtype=np.uint8), [0]).inputs.dtype == np.float32
    assert Records([1.0, 2.0], [0, 1]).inputs.shape == (2, 1)
    assert len(tokens.subset([1])) == 1
    assert tokens.subset([1]).inputs.tolist() == [[7, 8]]


@pytest.mark.parametrize(
    ("inputs", "targets", "parameter", "match"),
    [
        (np.ones((3, 2)), np.zeros(2, int), "data.targets", "3 inputs"),
        (np.ones((0, 2)), np.zeros(0, int), "data.inputs", "at least one"),
        (np.array([[1.0], [np.nan], [np.inf]]), np.zeros(3, int), "data.inputs", "record 1 "),
        (np.array([[1.0], [2.0], [1e300]]), np.zeros(3, int), "data.inputs", "record 2 "),
        (np.ones((3, 2)), np.array([1.0, 2.0, np.inf]), "data.targets", "record 2 "),
        (np.array([["a"], ["b"]]), np.zeros(2, int), "data.inputs", "real numbers"),
        (np.ones((2, 1)), np.zeros((2, 3), int), "data.targets", "one class label"),
        (np.ones((2, 1)), np.zeros((2, 3, 1)), "data.targets", "shape"),
        (np.ones((2, 0)), np.zeros(2, int), "data.inputs", "shape"),
        (np.float64(3), np.zeros(1, int), "data.inputs", "shape"),
    ],
)
def test_bad_records_are_refused(inputs, targets, parameter, match):
    with refused(match, parameter):
        Records(inputs, targets)


def test_a_fingerprint_names_the_records_whatever_their_order():
    records = Records(rng().normal(size=(6, 3)), np.arange(6))
    name = records.fingerprint([0, 2, 4])
    assert len(name) == 32
    assert int(name, 16) >= 0
    assert name == records.fingerprint(np.array([4, 0, 2]))
    assert name == records.subset([4, 2, 0]).fingerprint()
    changed = records.inputs.copy()
    changed[2, 1] += 1
    relabelled = records.targets.copy()
    relabelled[[0, 2]] = relabelled[[2, 0]]
    others = [
        records.fingerprint([0, 2]),
        records.fingerprint([0, 2, 5]),
        records.fingerprint([0, 2, 4, 4]),
        Records(changed, records.targets).fingerprint([0, 2, 4]),
        Records(records.inputs, relabelled).fingerprint([0, 2, 4]),
        Records(records.inputs.reshape(6, 1, 3), records.targets).fingerprint([0, 2, 4]),
    ]
    assert len({name, *others}) == 7


def test_a_data_set_knows_its_shapes():
    assert make().input_shape == (2,)
    assert make().outputs == 4
    values = Records(np.ones((4, 2)), np.ones((4, 3)))
    assert make(task="regression", train=values, test=values, classes=None).outputs == 3


@pytest.mark.parametrize(
    ("changes", "parameter", "match"),
    [
        ({"task": "clustering"}, "data.task", "clustering"),
        ({"task": "regression"}, "data.task", "class labels"),
        ({"classes": None}, "data.classes", "None"),
        ({"classes": 3}, "data.targets", "0..2, got 3 in record 3"),
        ({"test": Records(np.ones((4, 3)), np.arange(4))}, "data.test", r"\(2,\)"),
        ({"test": Records(np.ones((4, 2), int), np.arange(4))}, "data.test", "float32"),
        ({"test": Records(np.ones((4, 2)), np.ones(4))}, "data.task", "regress"),
        ({"columns": {"site": np.zeros(3)}}, "data.columns.site", "4 records, got 3"),
        ({"owners": (np.array([0, 1]), np.array([1]))}, "data.owners", "only one client"),
        ({"owners": (np.array([0, 4]),)}, "data.owners", "0..3"),
        ({"owners": (np.array([0]), np.array([], dtype=int))}, "data.owners", "at least one"),
    ],
)
def test_bad_data_sets_are_refused(changes, parameter, match):
    with refused(match, parameter):
        make(**changes)


# --- splits --------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    fraction=st.floats(0, 0.9),
    seed=st.integers(0, 100),
)
def test_a_split_is_exact_and_each_class_gives_its_share(sizes, fraction, seed):
    targets = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    n = len(targets)
    if round(fraction * n) == n:
        return
    kept, out = split(n, fraction, rng(seed), targets)
    assert sorted([*kept, *out]) == list(range(n))
    assert len(out) == round(fraction * n)
    share = len(out) / n
    for label, size in enumerate(sizes):
        assert abs(np.sum(targets[out] == label) - share * size) < 1


def test_a_split_takes_counts_and_follows_the_seed():
    _, out = split(100, 30, rng(1))
    assert len(out) == 30
    assert np.array_equal(split(100, 30, rng(1))[1], out)
    assert not np.array_equal(split(100, 30, rng(2))[1], out)
    assert not np.array_equal(out, np.arange(out[0], out[0] + 30))
    assert len(split(100, 0, rng())[1]) == 0
    assert len(split(10, 3, rng(), np.ones((10, 2)))[1]) == 3
    # Which records are held out is uniform: every record about as often as any other.
    hits = np.bincount(np.concatenate([split(20, 5, rng(s))[1] for s in range(2000)]))
    assert stats.chisquare(hits).pvalue > 1e-4


@pytest.mark.parametrize("size", [-0.1, 1.0, 0.99, 5, -1, True, "half", float("nan")])
def test_a_split_that_makes_no_sense_is_refused(size):
    with refused("", "data.public"):
        split(5, size, rng(), parameter="data.public")


def test_data_needs_no_torch():
    code = "import sys, udpfl.data; sys.exit('torch' in sys.modules or 'mlxtend' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
