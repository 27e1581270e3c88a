"""Data of one's own: arrays, tensors, lists, data sets and paths give the same records."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.samples import HOSPITALS, make, refused
from udpfl.data import Records, as_dataset
from udpfl.errors import InvalidInput, UdpflError


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
    options = {"target": "dose", "by": ["site", "ill"], "scale": "none"}
    data = as_dataset(path, options=options, task="regression")
    assert (data.name, data.task, len(data.test)) == ("own", "regression", 1)
    with refused("fraction, a number of rows, or a table", "data.test"):
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
        ((X, np.array([b"a"] * 20)), {}, "data.targets", "real numbers"),
        ((X, ["a", "b"] * 10), {"classes": 3}, "data.classes", "there are 2 labels"),
        ((X, ["a", "b"] * 10), {"options": {"labels": ["a", "c"]}}, "data.options.labels", "'b'"),
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
        ((X, Y), {"options": {"by": "x"}}, "data.options.by", "of tables only"),
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

    with refused("record 1 has the fields", "data"):
        as_dataset(Dictionaries("ab", "cd"))
    assert issubclass(InvalidInput, UdpflError)
