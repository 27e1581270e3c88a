"""What the server sees, and what records would have to be behind it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.attacks.reconstruction.bars import CLASSES, bars, finished
from udpfl import Gaussian, Sensitivity
from udpfl.accounting import Release
from udpfl.attacks import build
from udpfl.attacks.reconstruction._observed import (
    GradientOptions,
    observe,
    protecting,
    released,
)
from udpfl.attacks.reconstruction._pictures import Scale
from udpfl.attacks.reconstruction._search import Descent, distance, match, total_variation
from udpfl.attacks.reconstruction._simulation import Simulation, infer_labels
from udpfl.attacks.reconstruction.inverting_gradients import InvertingGradients
from udpfl.errors import InvalidInput, Unsupported

QUICK = {"signals": 6, "iterations": 200}


def seen(target, **options):
    return observe(target, GradientOptions(**options), 0)


def test_one_step_is_the_gradient_and_several_are_how_far_they_lead(open_run):
    setup = open_run.setup
    x, y = open_run.test_records(np.arange(6))
    mean = setup.model.public_gradient(setup.start, x, y)[1]
    torch.testing.assert_close(Simulation(setup.model, setup.start)(x, y), mean)
    weights = setup.start.clone()
    for step in range(4):  # two batches of three records, in turn
        own = slice(3 * (step % 2), 3 * (step % 2) + 3)
        weights -= 0.3 * setup.model.public_gradient(weights, x[own], y[own])[1]
    several = Simulation(setup.model, setup.start, 4, 0.3, 2)(x, y)
    torch.testing.assert_close(several, (setup.start - weights) / 0.3, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("client", ["client-0", "client-1"])
def test_a_recorded_message_is_what_the_true_records_would_have_sent(open_run, client):
    """The engine trained, the message went through the run folder: the simulation agrees."""
    found = seen(open_run, view="update", client=client)
    assert found.noise is None
    assert found.batch == len(open_run.setup.parts[0])
    explained = found.client(found.originals[0], found.labels[0])
    torch.testing.assert_close(explained, found.signals[0], atol=1e-4, rtol=1e-3)
    assert float(distance(found.client, found.originals[0], found.labels[0], explained)) < 1e-5


def test_a_fresh_signal_without_privacy_is_the_true_gradient(open_run):
    for options in ({"batch": 3}, {"local_steps": 3, "batch": 2}, {"model": "trained"}):
        found = seen(open_run, signals=2, **options)
        for x, y, signal in zip(found.originals, found.labels, found.signals, strict=True):
            torch.testing.assert_close(found.client(x, y), signal, atol=2e-5, rtol=1e-3)


def test_fresh_signals_are_of_held_out_records(private_run):
    found = seen(private_run, signals=20)
    train = {row.tobytes() for row in private_run.setup.data.train.inputs}
    assert not train & {row.tobytes() for row in found.originals[:, 0].numpy()}


def test_clip_and_noise_are_those_of_the_run(private_run):
    """A message about records differs from one about none by a clipped sum, at most the clip."""
    found = seen(private_run, signals=20)
    plan = protecting(private_run)
    assert isinstance(plan.release, Release)
    std, clip = plan.release.mechanism.noise_std, plan.release.sensitivity.bound
    assert found.noise is not None
    assert float(found.noise.std()) == pytest.approx(std, rel=0.03)
    assert float(found.signals.std()) == pytest.approx(std, rel=0.03)
    x, y = found.originals.flatten(0, 1), found.labels.flatten()
    noise = [
        released(private_run, found.client, x, y, (20, 1), plan, 7, empty=empty)
        for empty in (False, True)
    ]
    sizes = (noise[0] - noise[1]).norm(dim=1)
    true = torch.stack(
        [found.client(a, b) for a, b in zip(found.originals, found.labels, strict=True)]
    ).norm(dim=1)
    torch.testing.assert_close(sizes, true.clamp(max=clip), rtol=0.02, atol=1e-3)


def test_two_messages_of_noise_have_nothing_in_common(private_run):
    """The control is drawn anew: with the noise of the signal it would take the signal apart."""
    found = seen(private_run, signals=20)
    assert found.noise is not None
    cosines = torch.cosine_similarity(found.signals, found.noise, dim=1)
    assert float(cosines.abs().max()) < 0.2


def test_protection_none_takes_all_of_it_away(private_run):
    found = seen(private_run, signals=4, protection="none")
    assert found.noise is None
    assert "without privacy" in found.view
    for x, y, signal in zip(found.originals, found.labels, found.signals, strict=True):
        torch.testing.assert_close(found.client(x, y), signal, atol=1e-5, rtol=1e-3)


def test_the_label_of_one_record_shows_in_its_gradient(open_run):
    found = seen(open_run, signals=20, labels="inferred")
    assert torch.equal(found.labels, seen(open_run, signals=20).labels)


def test_labels_of_a_batch_are_counted(open_run):
    setup = open_run.setup
    x, _ = open_run.test_records(np.arange(12))
    y = torch.tensor([0] * 6 + [2] * 5 + [3])
    start = setup.start * 0.1  # probabilities hardly depend on the record
    signal = Simulation(setup.model, start)(x, y)
    found = infer_labels(setup.model, start, signal, torch.randn(x.shape))
    assert torch.equal(found, y)
    assert len(infer_labels(setup.model, start, -signal, torch.randn(x.shape))) == 12


def test_the_search_ends_where_the_signal_came_from(open_run):
    found = seen(open_run, signals=2)
    how = Descent(250, 0.1, 0.0, -2.0, 2.0)
    start = torch.randn(found.originals.shape, generator=torch.Generator().manual_seed(0))
    told = []
    inputs, distances = match(
        found.client, found.signals, found.labels, start, how, lambda *own: told.append(own)
    )
    assert float(distances.max()) < 1e-3
    assert float((inputs - found.originals).abs().mean()) < 0.05
    assert told[-1] == (250, 250)
    assert float(inputs.abs().max()) <= 2


def test_signals_are_matched_apart(open_run, monkeypatch):
    """However many are computed at once."""
    found = seen(open_run, signals=3)
    start = torch.randn(found.originals.shape, generator=torch.Generator().manual_seed(0))
    results = []
    for numbers in (1, 1 << 25):
        monkeypatch.setattr("udpfl.attacks.reconstruction._search._NUMBERS", numbers)
        how = Descent(20, 0.1, 1e-2, -2.0, 2.0)
        results.append(
            match(found.client, found.signals, found.labels, start, how, lambda *_: None)[0]
        )
    torch.testing.assert_close(*results, atol=0.02, rtol=0)


def test_pixels_stay_between_black_and_white(open_run):
    found = seen(open_run, signals=2)
    how = Descent(5, 10.0, 0.0, -0.5, 1.0)
    start = torch.randn(found.originals.shape)
    inputs = match(found.client, found.signals, found.labels, start, how, lambda *_: None)[0]
    assert float(inputs.min()) == -0.5
    assert float(inputs.max()) == 1.0


def test_total_variation_by_hand():
    picture = torch.tensor([[[0.0, 1.0], [3.0, 3.0]]])
    assert float(total_variation(picture)) == (3 + 2) / 2 + (1 + 0) / 2


def test_the_first_step_of_signed_adam_is_its_learning_rate(open_run):
    found = seen(open_run, signals=1)
    start = torch.zeros_like(found.originals)
    moved = match(
        found.client, found.signals, found.labels, start, Descent(1, 0.25, 0.0, -2, 2),
        lambda *_: None,
    )[0]  # fmt: skip
    assert set(moved.abs().round(decimals=4).unique().tolist()) <= {0.0, 0.25}


def test_the_attack_on_a_run_without_privacy_recovers_the_pictures(open_run):
    found = build("inverting-gradients", QUICK).run(open_run)
    best = max(own.value for own in found.baselines if own.name.startswith("median PSNR"))
    assert found.figures[0].value > best + 8
    assert found.figure("mean SSIM").value > 0.8
    assert "closer than any picture that needs no signal" in found.verdict
    assert "untrained" in found.attacked.view
    assert len(found.pictures) == 1


def test_under_privacy_it_is_within_one_decibel_of_noise_alone(private_run):
    options = {"signals": 20, "iterations": 60}
    found = build("inverting-gradients", options).run(private_run)
    assert abs(found.figure("median PSNR above noise alone").value) < 1
    assert "not surely closer" in found.verdict
    assert any("same attack on noise alone" in own.name for own in found.baselines)


def test_the_closest_restart_counts(open_run, monkeypatch):
    given = {}

    def pretend(client, signals, targets, start, how, told):
        given["count"] = len(signals)
        return start, torch.tensor([3.0, 1.0, 2.0, float("nan"), 1.0, 5.0])

    module = "udpfl.attacks.reconstruction.inverting_gradients.match"
    monkeypatch.setattr(module, pretend)
    attack = InvertingGradients({"signals": 2, "restarts": 3})
    looked = observe(open_run, attack.options, 0)
    found = attack.search(looked, looked.signals, Scale(-2, 2), lambda *_: None)
    assert given["count"] == 6
    generator = torch.Generator().manual_seed(0)
    start = torch.randn((3, *looked.originals.shape), generator=generator)
    # Distances by restart: [3, 1], [2, nan], [1, 5].
    assert torch.equal(found[0], start[2, 0])
    assert torch.equal(found[1], start[0, 1])


def test_a_batch_is_paired_before_it_is_judged(open_run):
    options = {"signals": 1, "batch": 3, "iterations": 150}
    found = build("inverting-gradients", options).run(open_run)
    assert found.attacked.records == "3 records"
    assert any("paired" in note for note in found.notes)
    assert found.figure("best PSNR").value > 15


def test_an_unrolled_update_is_attacked(open_run):
    options = {"signals": 2, "local_steps": 2, "iterations": 150}
    found = build("inverting-gradients", options).run(open_run)
    best = max(own.value for own in found.baselines if own.name.startswith("median PSNR"))
    assert found.figures[0].value > best


def test_a_recorded_update_of_a_private_run(private_run):
    """Nobody knows which records took part: labels are inferred, the closest records count."""
    found = build("inverting-gradients", {"view": "update", "iterations": 3}).run(private_run)
    assert any("closest" in note for note in found.notes)
    assert any("keep this page" in note for note in found.notes)
    assert "client-0 sent in round 1" in found.attacked.view
    assert any("noise alone" in own.name for own in found.baselines)


def test_round_two_needs_the_model_it_began_with(open_run):
    with pytest.raises(InvalidInput, match="round 2 began with is not in the folder"):
        seen(open_run, view="update", round=2)


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"view": "update", "round": 3}, "was recorded"),
        ({"view": "update", "client": "nobody"}, "there is no 'nobody'"),
    ],
)
def test_what_was_not_recorded_is_refused(open_run, options, about):
    with pytest.raises(InvalidInput, match=about):
        seen(open_run, **options)


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"batches": 3}, "split samples"),
        ({"epochs": 3}, "split samples"),
        ({"penalty": 0.5}, "pulled towards others"),
        ({"count": Release(Gaussian(1.0), Sensitivity(1.0, dimension=1))}, "a clip that adapts"),
    ],
)
def test_steps_that_cannot_be_unrolled_are_refused(open_run, change, about):
    plans = tuple(replace(plan, **change) for plan in open_run.plans)
    with pytest.raises(Unsupported, match=about):
        seen(replace(open_run, plans=plans), view="update")


def test_more_records_than_are_held_out_are_refused(open_run):
    with pytest.raises(Unsupported, match="held-out records"):
        seen(open_run, signals=1000)


def test_noise_of_whole_clients_is_no_noise_of_a_gradient(private_run):
    plans = tuple(
        replace(plan, release=replace(plan.release, unit="client")) for plan in private_run.plans
    )
    target = replace(private_run, plans=plans)
    with pytest.raises(Unsupported, match="hides whole clients"):
        seen(target)
    assert seen(target, protection="none", signals=2).noise is None


def test_a_method_that_sends_something_else_is_refused(tmp_path):
    target = finished(
        tmp_path / "run", privacy="none", record_updates=[1], training={"algorithm": "scaffold"}
    )
    with pytest.raises(Unsupported, match="scaffold sends more"):
        seen(target, view="update")


def test_a_gradient_of_fedsgd_is_attacked_as_it_is(tmp_path):
    target = finished(
        tmp_path / "run", privacy="none", record_updates=[1],
        training={"algorithm": "fedsgd", "local_steps": 1, "sampling_rate": 1.0},
    )  # fmt: skip
    found = seen(target, view="update")
    explained = found.client(found.originals[0], found.labels[0])
    torch.testing.assert_close(explained, found.signals[0], atol=1e-4, rtol=1e-3)


def test_batches_that_cannot_be_told_apart_are_refused(tmp_path):
    data = bars(train=300)
    target = finished(
        tmp_path / "run", data, privacy="none", record_updates=[1],
        training={"sampling_rate": 1.0},
    )  # fmt: skip
    with pytest.raises(Unsupported, match="no more than 100"):
        seen(target, view="update")


def test_records_that_are_no_pictures_are_refused(tmp_path):
    rows = np.random.default_rng(0).normal(size=(80, 5)).astype(np.float32)
    target = finished(
        tmp_path / "run", (rows, np.arange(80) % CLASSES), privacy="none",
        model={"name": "logistic", "options": {}},
    )  # fmt: skip
    for name in ("inverting-gradients", "dlg", "mi-face", "decoder"):
        with pytest.raises(Unsupported, match="pictures"):
            build(name).run(target)


def test_deep_leakage_finds_picture_and_label(open_run):
    found = build("dlg", {"signals": 3, "iterations": 20}).run(open_run)
    best = max(own.value for own in found.baselines if own.name.startswith("median PSNR"))
    assert found.figures[0].value > best + 5
    known = build("dlg", {"signals": 3, "iterations": 20, "optimise_labels": False})
    assert known.run(open_run).figures[0].value > best + 5


def test_deep_leakage_finds_nothing_in_noise(private_run):
    found = build("dlg", {"signals": 2, "iterations": 1}).run(private_run)
    assert any("noise alone" in own.name for own in found.baselines)
    assert "not surely closer" in found.verdict
