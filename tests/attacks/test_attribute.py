"""Attribute inference, and what it is held against."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import nn

from tests.attacks.reconstruction.bars import bars, finished
from udpfl.attacks import build
from udpfl.attacks._embeddings import embeddings
from udpfl.attacks.attribute import AttributeOptions, columns_of, figures, infer
from udpfl.errors import InvalidInput, Unsupported


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return finished(
        tmp_path_factory.mktemp("runs") / "bars", bars(train=200, test=160), privacy="none",
        training={"rounds": 2, "local_steps": 3},
    )  # fmt: skip


@pytest.mark.parametrize("labels", [2, 3])
def test_figures_are_those_of_scikit_learn(labels):
    rng = np.random.default_rng(labels)
    true = rng.integers(0, labels, 200)
    found = np.where(rng.random(200) < 0.7, true, rng.integers(0, labels, 200))
    accuracy, f1 = figures(found, true, 0)
    average = "binary" if labels == 2 else "macro"
    assert accuracy.value == pytest.approx(accuracy_score(true, found))
    assert f1.value == pytest.approx(f1_score(true, found, average=average))
    for own in (accuracy, f1):
        assert own.low < own.value < own.high
    assert 0.08 < accuracy.high - accuracy.low < 0.16


def test_figures_at_their_ends():
    ones = np.ones(10, dtype=np.int64)
    right, f1 = figures(ones, ones, 0)
    assert (right.value, right.high, f1.value) == (1, 1, 1)
    assert right.low == pytest.approx(0.025 ** (1 / 10))
    wrong, f1 = figures(ones, 1 - ones, 0)
    assert (wrong.value, wrong.low, f1.value) == (0, 0, 0)


def test_a_network_of_two_layers_learns_what_is_there():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 3))
    labels = (np.abs(x[:, 0]) > 0.67).astype(np.int64)  # no line tells them apart
    options = AttributeOptions(hidden=64)
    found = infer(x[:1000], labels[:1000], x[1000:], options, seed=1)
    assert (found == labels[1000:]).mean() > 0.8
    shuffled = infer(x[:1000], rng.permutation(labels[:1000]), x[1000:], options, seed=1)
    assert (shuffled == labels[1000:]).mean() < 0.65


def test_embeddings_are_what_the_last_layer_is_given():
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    expected = network[1](network[0](x)).detach().numpy()
    np.testing.assert_allclose(embeddings(network, x), expected, atol=1e-6)
    assert not network[2]._forward_pre_hooks


def test_a_network_without_a_layer_before_its_last_is_refused():
    with pytest.raises(Unsupported, match="record itself"):
        embeddings(nn.Linear(3, 2), torch.zeros(1, 3))


def test_a_run_beside_its_baselines(target):
    found = build("attribute", {"attribute": "tall"}).run(target)
    assert found.kind == "attribute"
    names = [own.name for own in (*found.figures, *found.baselines)]
    assert names == [
        "accuracy", "F1",
        "accuracy, people whom nobody trained on", "F1, people whom nobody trained on",
        "accuracy, majority class", "F1, majority class",
        "accuracy, same attack on the untrained model", "F1, same attack on the untrained model",
    ]  # fmt: skip
    share = target.setup.data.columns["tall"].mean()
    assert found.figure("accuracy, majority class").value in (share, 1 - share)
    assert found.figure("accuracy").value > 0.6
    assert "does not promise to prevent" in found.verdict
    assert "does not promise to prevent" in found.notes[0]
    assert found.exceeded is False


def test_what_the_attacker_trains_on_is_nobody_s_and_apart_from_what_is_compared(target):
    from udpfl.attacks.attribute import chosen

    found = chosen(target, AttributeOptions(records=50), 0)
    assert len(found.attacked) == 50
    assert not set(found.own) & set(found.unseen)
    assert set(found.own) | set(found.unseen) <= set(target.nonmembers)


def test_labels_count_from_zero(target):
    train, test = columns_of(target, "tall")
    assert set(train) | set(test) == {0, 1}


@pytest.mark.parametrize(
    ("attribute", "error", "about"),
    [
        ("gender", Unsupported, "no column 'gender' to infer .it has: same, tall"),
        ("same", Unsupported, "follows from what the model was trained to predict"),
    ],
)
def test_an_attribute_that_cannot_be_inferred_is_refused(target, attribute, error, about):
    with pytest.raises(error, match=about):
        build("attribute", {"attribute": attribute}).run(target)


def test_an_option_that_is_not_known_is_refused():
    with pytest.raises(InvalidInput, match="attribute has no such option"):
        build("attribute", {"atribute": "tall"})
