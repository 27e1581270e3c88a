"""The linear layer on features of random images: shapes, what is trained, what is refused."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import udpfl  # noqa: E402
from tests.engine.oracle import assert_same_sums  # noqa: E402
from tests.features.toys import STAGES, TOY  # noqa: E402
from tests.small import cross_entropy  # noqa: E402
from udpfl.config import load  # noqa: E402
from udpfl.data import as_dataset  # noqa: E402
from udpfl.engine import LaneModel  # noqa: E402
from udpfl.errors import InvalidInput, UdpflError  # noqa: E402
from udpfl.features import Encoder, describe, random_images, save  # noqa: E402
from udpfl.federation import Setup, run_together  # noqa: E402
from udpfl.federation._common import Common  # noqa: E402
from udpfl.federation._fixed_part import FixedPart  # noqa: E402
from udpfl.models import RandomPrior, build  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def encoder_file(path, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        save(path, Encoder(STAGES, 2), {"recipe": {**asdict(TOY), "parts": 2}, "log": []})
    return {"encoder": str(path), "sha256": describe(path)["sha256"]}


@pytest.fixture
def small(tmp_path):
    """Options of a small encoder."""
    return encoder_file(tmp_path / "small.safetensors")


def trained(model):
    return {name: own.numel() for name, own in model.named_parameters() if own.requires_grad}


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 64), (1, 28, 28), (3, 32, 32), (3, 64, 64)])
@pytest.mark.parametrize("finetune", ["none", "last", "all"])
def test_images_of_every_size(small, shape, finetune):
    model = build("random-prior", shape, 4, seed=0, finetune=finetune, **small)
    with torch.no_grad():
        model.output.weight.normal_()
        images = torch.rand(5, *shape)
        scores, fixed = model(images), model.precompute(images)
        assert torch.equal(model(fixed), scores)
        alone = torch.cat([model(own[None]) for own in images])
    assert scores.shape == (5, 4)
    assert fixed.dim() == 2
    assert torch.allclose(alone, scores, atol=0.02)


@pytest.mark.parametrize("finetune", ["none", "last", "all"])
def test_all_ways_to_train_begin_with_the_same_scores(small, finetune):
    images = random_images("spectra", 4, size=32)
    models = [RandomPrior((3, 32, 32), 3, finetune=own, **small) for own in ("none", finetune)]
    for model in models:
        torch.nn.init.constant_(model.output.weight[:, ::2], 1.0)
    assert torch.allclose(*(model(images) for model in models), atol=1e-5)


def test_what_is_trained(small):
    assert trained(RandomPrior((3, 32, 32), 10)) == {"output.weight": 69_120}
    linear = {"output.weight": 3 * 4 * 11}
    none, last, every = (
        trained(RandomPrior((3, 32, 32), 3, finetune=own, **small))
        for own in ("none", "last", "all")
    )
    assert none == linear
    assert last == linear | {"encoder.outputs.1.mix.weight": 16 * 5}
    assert every == linear | {
        "encoder.stages.0.patches.weight": 8 * 3 * 25,
        "encoder.stages.1.patches.weight": 8 * 4 * 9,
        "encoder.links.0.mix.weight": 16 * 4,
        "encoder.outputs.0.mix.weight": 16 * 6,
        "encoder.outputs.1.mix.weight": 16 * 5,
    }


@pytest.mark.parametrize("finetune", ["none", "last", "all"])
def test_the_loss_falls_and_everything_that_is_trained_moves(small, finetune):
    model = build("random-prior", (3, 16, 16), 2, seed=0, finetune=finetune, **small)
    labels = torch.arange(20) % 2
    images = random_images("spectra", 20, size=16)
    images[labels == 1] = images[labels == 1].mean(2, keepdim=True)  # stripes
    before = {name: own.detach().clone() for name, own in model.named_parameters()}
    steps = torch.optim.SGD([own for own in model.parameters() if own.requires_grad], 1.0)
    losses = []
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.01
    moved = {name for name, own in model.named_parameters() if not torch.equal(own, before[name])}
    assert moved == trained(model).keys()


@pytest.mark.parametrize("finetune", ["none", "last", "all"])
def test_the_engine_clips_every_record_to_the_bound(small, finetune):
    model = build("random-prior", (1, 16, 16), 3, seed=0, finetune=finetune, **small)
    with torch.no_grad():
        model.output.weight.normal_(generator=torch.Generator().manual_seed(0))
    lanes = LaneModel(model, cross_entropy)
    assert lanes.layout.dimension == sum(trained(model).values())
    images = random_images("spectra", 4, size=16)[:, :1]
    fixed = model.precompute(images).detach().view(2, 2, -1)
    assert_same_sums(model, fixed, torch.tensor([[0, 1], [2, 0]]))


def test_mirrored_features_do_not_change_with_the_mirror_image(small):
    images = random_images("leaves", 4, size=32)
    asked = {None: True, True: True, False: False}
    for mirrored, is_alike in asked.items():
        model = RandomPrior((3, 32, 32), 2, mirrored=mirrored, **small)
        one, other = (model.precompute(own).detach() for own in (images, images.flip(3)))
        assert torch.allclose(one, other, atol=1e-5) == is_alike, mirrored
    assert not RandomPrior((1, 28, 28), 2, **small).mirrored


def test_scattering_stands_beside_the_features_with_the_same_weight(small):
    model = RandomPrior((1, 16, 16), 2, scattering=True, **small)
    fixed = model.precompute(torch.rand(3, 1, 16, 16)).detach()
    assert fixed.shape[1] == model.output.in_features > 44
    for part in (fixed[:, :44], fixed[:, 44:]):
        assert torch.allclose(part.norm(dim=1), torch.full((3,), 0.5**0.5), atol=1e-3)
    assert trained(model).keys() == {"output.weight"}


def test_features_of_each_record_alone_are_accepted(small):
    model = RandomPrior((3, 16, 16), 2, **small)
    images = random_images("leaves", 7, size=16)
    found = FixedPart(model, torch.device("cpu"), "data").features(images)
    assert torch.allclose(found, model.precompute(images), atol=0.02)


@pytest.mark.parametrize(
    ("shape", "options", "match"),
    [
        ((28, 28), {}, r"model\.name: .*channels × height × width"),
        ((2, 28, 28), {}, r"model\.name: .*1 or 3 channels, got 2"),
        ((1, 7, 28), {}, r"model\.name: .*at least 8×8"),
        ((3, 65, 32), {}, r"model\.name: .*up to 64 a side, got 65×32"),
        ((3, 32, 32), {"finetune": "some"}, r"model\.options\.finetune: .*none, last, all"),
        (
            (3, 32, 32),
            {"finetune": "all", "scattering": True},
            r'model\.options\.scattering: goes with finetune = "none" only',
        ),
        ((3, 32, 32), {"sha256": "ab"}, r"model\.options\.sha256: .*model\.options\.encoder"),
        (
            (3, 32, 32),
            {"encoder": "a.safetensors"},
            r"model\.options\.sha256: must be given.*udpfl features show FILE",
        ),
        (
            (3, 32, 32),
            {"encoder": "nowhere", "sha256": "ab"},
            r"model\.options\.encoder: cannot read nowhere",
        ),
    ],
)
def test_what_does_not_fit_is_refused(shape, options, match):
    with pytest.raises(InvalidInput, match=f"^{match}"):
        build("random-prior", shape, 2, seed=0, **options)


def test_another_file_than_was_named_is_refused(small):
    wrong = small["sha256"][::-1]
    with pytest.raises(InvalidInput, match=rf"^model\.options\.encoder: .*not {wrong}"):
        RandomPrior((3, 32, 32), 2, encoder=small["encoder"], sha256=wrong)


def test_other_images_than_it_was_built_for_are_refused(small):
    with pytest.raises(InvalidInput, match=r"built for images \(1, 28, 28\), got \(3, 28, 28\)"):
        RandomPrior((1, 28, 28), 2, **small)(torch.rand(2, 3, 28, 28))


# Whole runs


def pictures(count=60, size=8):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    images = rng.random((count, 1, size, size), dtype=np.float32)
    images[labels == 1] = images[labels == 1].mean(2, keepdims=True)
    return images, labels


def settings(out, options, **more):
    return {
        "out": str(out),
        "threads": 1,
        "data": {"clients": 2},
        "model": {"name": "random-prior", "options": options},
        "privacy": {"mechanism": "gaussian", "epsilon": 8.0, "randomness": "seeded"},
        "training": {"rounds": 2, "local_steps": 1, "learning_rate": 1.0},
        **more,
    }


@pytest.fixture
def counted(monkeypatch):
    """How many records the fixed part was asked for, by the call."""
    seen, features = [], FixedPart.features

    def noted(self, records):
        seen.append(len(records))
        return features(self, records)

    monkeypatch.setattr(FixedPart, "features", noted)
    return seen


def flat(run):
    return torch.cat([own.detach().flatten() for own in run.model.parameters()])


def test_runs_together_compute_features_once(tmp_path, small, counted):
    grid = [settings(tmp_path / f"together-{seed}", small, seed=seed) for seed in (0, 1)]
    given = as_dataset(pictures(), 0.2, task=None, seed=0)  # one test set for both seeds
    runs = run_together(grid, data=given)
    together = list(counted)
    counted.clear()
    apart = [
        udpfl.run({**own, "out": str(tmp_path / f"apart-{seed}")}, data=given)
        for seed, own in enumerate(grid)
    ]
    assert sum(counted) == 2 * sum(together)
    for one, other in zip(runs, apart, strict=True):
        assert torch.equal(flat(one), flat(other))
        assert str(one.privacy) == str(other.privacy)


def test_features_of_another_encoder_are_computed_for_themselves(tmp_path, small, counted):
    other = encoder_file(tmp_path / "other.safetensors", seed=1)
    common, given = Common(), pictures()

    def inputs(options):
        config = load(settings(tmp_path / "none", options))
        return Setup.of(config, data=given, test=0.2, common=common).train[0]

    one, same = inputs(small), inputs(small)
    assert one is same
    assert len(counted) == 1
    assert not torch.equal(inputs(other), one)
    assert not torch.equal(inputs({**small, "mirrored": True}), one)
    assert len(counted) == 3


def test_a_run_says_what_the_encoder_has_seen(tmp_path, small):
    private = {"mechanism": "gaussian", "epsilon": 8.0}
    done = udpfl.run(settings(tmp_path / "own", small, privacy=private), data=pictures())
    note = f"of an encoder of one's own (SHA-256 {small['sha256']})"
    assert done.privacy.kind == "guarantee"
    assert any(note in own for own in done.privacy.notes)
    assert note in (tmp_path / "own" / "summary.json").read_text()
    shipped = RandomPrior((1, 8, 8), 2)
    assert "no real image was used" in shipped.origin
    assert "within its budget" not in shipped.origin
    assert "before this run trained it within its budget" in (
        RandomPrior((1, 8, 8), 2, finetune="last").origin
    )


def test_of_a_network_that_was_handed_over_nobody_knows_what_it_has_seen(tmp_path, small):
    """It may have been trained on the records of an earlier run."""
    private = {"mechanism": "gaussian", "epsilon": 8.0}
    network = RandomPrior((1, 8, 8), 3, **small)
    asked = {**settings(tmp_path / "own", {}, privacy=private)}
    asked.pop("model", None)
    done = udpfl.run(asked, model=network, data=pictures())
    assert done.privacy.kind == "guarantee"
    assert not any("features:" in own for own in done.privacy.notes)


@pytest.mark.parametrize(
    "wrong", [{"mirrored": "false"}, {"scattering": "no"}, {"encoder": 5}, {"sha256": 5}]
)
def test_options_of_another_type_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(InvalidInput, match=rf"^model\.options\.{name}: must be"):
        RandomPrior((1, 8, 8), 2, **wrong)


def test_a_run_whose_encoder_was_replaced_is_not_gone_on_with(tmp_path, small):
    done = udpfl.run(settings(tmp_path / "run", small), data=pictures())
    again = udpfl.load(done.folder)
    assert torch.allclose(
        torch.from_numpy(again.outputs(pictures()[0])),
        done.model(torch.from_numpy(pictures()[0])).detach(),
        atol=0.02,
    )
    encoder_file(tmp_path / "small.safetensors", seed=1)
    with pytest.raises(UdpflError, match="another file"):
        udpfl.run(resume=done.folder, data=pictures())


@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_exported_models_answer_as_the_run(tmp_path, small, kind):
    if kind == "onnx":
        pytest.importorskip("onnx")
        onnxruntime = pytest.importorskip("onnxruntime")
    from udpfl.trained import export

    images, labels = pictures()
    done = udpfl.run(settings(tmp_path / "run", small), data=(images, labels))
    known = udpfl.load(done.folder)
    path = export(known, tmp_path / "model", kind)
    if kind == "onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (outputs,) = session.run(None, {"inputs": images})
    else:
        with pytest.warns(DeprecationWarning, match=r"torch\.jit"):
            outputs = torch.jit.load(path)(torch.from_numpy(images)).detach().numpy()
    wanted = known.outputs(images)
    assert np.abs(outputs - wanted).max() < 0.02 * np.abs(wanted).max()
