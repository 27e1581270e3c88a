"""Pictures from the final model alone: MI-Face and the decoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.attacks.reconstruction.bars import CLASSES, SIDE
from udpfl.attacks import build
from udpfl.attacks.reconstruction._pictures import Scale
from udpfl.attacks.reconstruction.decoder import (
    Decoder,
    DecoderOptions,
    decode,
    predicted_means,
    seen_of,
)
from udpfl.attacks.reconstruction.mi_face import MiFaceOptions, class_means, descend
from udpfl.errors import Unsupported

WIDE = Scale(-2.0, 2.0)


def one_pixel_for_each_class():
    """Class c is the surer, the brighter pixel c is."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False))
    network[1].weight.data.copy_(torch.eye(4))
    return network


def descended(**options):
    how = MiFaceOptions(**{"learning_rate": 1.0, **options})
    start = torch.zeros(2, 1, 2, 2)
    return descend(one_pixel_for_each_class(), start, torch.tensor([1, 3]), how, WIDE)


def test_the_descent_makes_its_own_class_surer():
    found = descended(iterations=200).flatten(1)
    assert found.argmax(1).tolist() == [1, 3]
    assert float(found[0, 1]) > 1
    assert float(found[0, [0, 2, 3]].max()) < 0


def test_one_step_is_the_gradient_of_the_cost():
    """At zero p = 1/4, and the gradient of 1 - p_y is -p_y (1 - p_y) at y, p_y p_k elsewhere."""
    found = descended(iterations=2).flatten(1)[0]
    expected = torch.tensor([-1, 3, -1, -1]) / 16
    torch.testing.assert_close(found, expected)


def test_a_class_ends_at_its_threshold_and_the_others_go_on():
    network = one_pixel_for_each_class()
    network[1].weight.data[3] /= 4  # this one takes longer
    how = MiFaceOptions(iterations=500, threshold=0.5, learning_rate=1.0)

    def ended(*classes):
        start = torch.zeros(len(classes), 1, 2, 2)
        return descend(network, start, torch.tensor(classes), how, WIDE)

    together = ended(1, 3)
    torch.testing.assert_close(together, torch.cat([ended(1), ended(3)]))
    sure = network(together).softmax(1)[[0, 1], [1, 3]]
    assert 0.5 <= float(sure.detach().min()) <= float(sure.detach().max()) < 0.6


def test_a_descent_that_stands_still_ends_after_its_patience(monkeypatch):
    network, calls = nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), []
    network[1].weight.data.zero_()
    network.register_forward_hook(lambda *_: calls.append(1))
    how = MiFaceOptions(patience=7)
    descend(network, torch.zeros(1, 1, 2, 2), torch.tensor([0]), how, WIDE)
    assert len(calls) == 1 + 7


def test_class_means_are_of_records_that_clients_hold(open_run):
    classes, means = class_means(open_run, WIDE)
    train = open_run.setup.data.train
    rows = [i for i in open_run.members if train.targets[i] == 1]
    np.testing.assert_allclose(means[1], train.inputs[rows].mean(0) / 4 + 0.5, atol=1e-6)
    assert classes.tolist() == list(range(CLASSES))


def test_mi_face_on_a_run(open_run):
    found = build("mi-face", {"iterations": 50, "learning_rate": 1.0}).run(open_run)
    assert found.attacked.records == f"the mean picture of {CLASSES} classes"
    names = {own.name.rpartition(", ")[2] for own in found.baselines}
    assert names == {
        "mean picture",
        "where the search begins",
        "same attack on the untrained model",
    }
    assert any("does not promise" in note for note in found.notes)
    assert found.exceeded is False


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 7, 9)])
def test_a_decoder_gives_pictures_of_any_shape(shape):
    found = Decoder(5, shape, 8)(torch.randn(3, 5))
    assert found.shape == (3, *shape)
    assert 0 <= float(found.detach().min()) <= float(found.detach().max()) <= 1


def test_a_decoder_learns_what_the_answers_tell():
    rng = np.random.default_rng(0)
    known, asked = rng.normal(size=(200, 2)), rng.normal(size=(50, 2))

    def shown(numbers):
        """The first number is how bright the left half is."""
        pictures = np.full((len(numbers), 1, SIDE, SIDE), 0.5)
        pictures[..., : SIDE // 2] = 1 / (1 + np.exp(-numbers[:, :1, None, None]))
        return pictures

    state = torch.random.get_rng_state()
    how = DecoderOptions(epochs=60, width=16)
    found = decode(known, asked, shown(known), how, seed=0)
    flat = np.square(shown(known).mean(0) - shown(asked)).mean()
    assert np.square(found - shown(asked)).mean() < flat / 3
    assert torch.equal(state, torch.random.get_rng_state())
    again = decode(known, asked, shown(known), how, seed=0)
    np.testing.assert_array_equal(found, again)


def test_numbers_that_are_constant_but_for_rounding_say_nothing():
    rng = np.random.default_rng(0)
    known = np.full((40, 3), 2.3) + 1e-8 * rng.normal(size=(40, 3))
    pictures = rng.random((40, 1, SIDE, SIDE))
    found = decode(known, known[:5], pictures, DecoderOptions(epochs=3, width=8), seed=0)
    assert float(np.ptp(found, axis=0).max()) < 0.01


def test_the_decoder_on_a_run(open_run):
    found = build("decoder", {"epochs": 5, "width": 8}).run(open_run)
    names = {own.name.rpartition(", ")[2] for own in found.baselines}
    assert names == {
        "mean picture of the predicted class", "mean picture",
        "same attack on the untrained model",
    }  # fmt: skip
    assert found.attacked.records == "80 records of its training"
    assert "does not promise" in " ".join(found.notes)
    by_embedding = build("decoder", {"epochs": 1, "width": 8, "sees": "embedding"}).run(open_run)
    assert "embedding" in by_embedding.verdict


def test_the_mean_of_a_class_is_that_of_what_the_model_predicts(open_run):
    x, _ = open_run.test_records(np.arange(30))
    shown = WIDE.pixels(x)
    own = seen_of(open_run.network, x, "log-softmax").argmax(1)
    found = predicted_means(open_run.network, x, shown, x[:4])
    for label, picture in zip(own[:4], found, strict=True):
        np.testing.assert_allclose(picture, shown[own == label].mean(0))


def test_a_model_that_diverged_is_refused(open_run):
    network = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 4))
    network[1].weight.data.fill_(float("nan"))
    with pytest.raises(Unsupported, match="diverged"):
        seen_of(network, torch.zeros(2, 1, SIDE, SIDE), "log-softmax")
