"""Networks: exact sizes, shapes, seeds, and normalisation that keeps records apart."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from torch import nn  # noqa: E402

from udpfl.errors import InvalidInput, Unsupported  # noqa: E402
from udpfl.models import BUILT_IN, build, replace_batchnorm  # noqa: E402

DIGITS = (1, 28, 28)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "options", "count"),
    [
        ("cnn-small", DIGITS, 10, {}, 26_010),
        ("cnn-small", (3, 32, 32), 10, {}, 3 * 1024 + 16 + 8224 + 32 * 25 * 32 + 32 + 330),
        ("cnn", DIGITS, 10, {}, 421_642),
        ("mlp", DIGITS, 10, {}, 784 * 128 + 128 + 1290),
        ("mlp", (5,), 2, {"hidden": [7, 3]}, 5 * 7 + 7 + 7 * 3 + 3 + 3 * 2 + 2),
        ("mlp", (5,), 2, {"hidden": []}, 12),
        ("lenet", DIGITS, 10, {}, 12 * 25 + 12 + 2 * (144 * 25 + 12) + 588 * 10 + 10),
        ("lenet", (3, 32, 32), 10, {}, 12 * 75 + 12 + 2 * (144 * 25 + 12) + 768 * 10 + 10),
        ("logistic", DIGITS, 10, {}, 7850),
        ("logistic", (4,), 1, {}, 5),
    ],
)
def test_parameters_and_outputs(name, shape, outputs, options, count):
    model = build(name, shape, outputs, seed=0, **options)
    assert parameters(model) == count
    assert model(torch.randn(3, *shape)).shape == (3, outputs)
    # Records do not mix: each one alone gives its own row.
    batch = torch.randn(4, *shape)
    alone = torch.cat([model(record[None]) for record in batch])
    assert torch.allclose(model(batch), alone, atol=1e-5)


@pytest.mark.parametrize("name", ["cnn-small", "cnn"])
def test_images_that_are_too_small_are_refused_and_the_least_works(name):
    with pytest.raises(InvalidInput, match=r"^model.name: .*at least (\d+)×\1, got 1×40") as raised:
        build(name, (1, 1, 40), 2, seed=0)
    least = int(str(raised.value).split("at least ")[1].split("×")[0])
    for size in range(1, least):
        with pytest.raises(InvalidInput, match="at least"):
            build(name, (1, size, 40), 2, seed=0)
        with pytest.raises(InvalidInput, match="at least"):
            build(name, (1, 40, size), 2, seed=0)
    for size in range(least, least + 9):
        model = build(name, (1, size, least), 2, seed=0)
        assert model(torch.zeros(1, 1, size, least)).shape == (1, 2)
    with pytest.raises(InvalidInput, match=r"channels × height × width.*\(28, 28\)"):
        build(name, (28, 28), 2, seed=0)


@pytest.mark.parametrize("name", ["cnn-small", "cnn", "mlp"])
def test_the_seed_decides_the_weights_and_nothing_else_moves(name):
    before = torch.get_rng_state()
    first, again, other = (build(name, DIGITS, 10, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    later = build(name, DIGITS, 10, seed=1).state_dict()
    for key, value in first.items():
        assert torch.equal(value, again[key])
        assert torch.equal(value, later[key])
        assert not torch.equal(value, other[key])
        assert value.std() > 0


def test_logistic_starts_at_zero():
    assert all(not p.any() for p in build("logistic", DIGITS, 10, seed=4).parameters())


@pytest.mark.parametrize("name", ["cnn-small", "cnn", "mlp", "logistic"])
def test_state_goes_out_and_comes_back(name):
    model, other = (build(name, DIGITS, 10, seed=s) for s in (1, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, *DIGITS)
    assert torch.equal(model(x), other(x))
    names = dict(model.named_parameters())
    assert names.keys() == model.state_dict().keys()
    assert all(key.split(".")[0] in ("conv1", "conv2", "hidden", "output") for key in names)


def test_activations_make_a_difference():
    x = torch.randn(2, *DIGITS)
    found = {
        activation: build("cnn-small", DIGITS, 10, seed=0, activation=activation)(x)
        for activation in ("tanh", "relu", "elu", "gelu", "silu", "leaky-relu")
    }
    assert torch.equal(found["tanh"], build("cnn-small", DIGITS, 10, seed=0)(x))
    rows = torch.stack(list(found.values()))
    assert len(torch.unique(rows, dim=0)) == len(found)


@pytest.mark.parametrize(
    ("name", "changes", "parameter", "match"),
    [
        ("cnn-smal", {}, "model.name", "did you mean cnn-small"),
        ("transformer", {}, "model.name", "there is cnn-small, cnn, mlp, logistic"),
        ("cnn", {"width": 3}, "model.options.width", "cnn takes activation"),
        ("mlp", {"width": 3}, "model.options.width", "mlp takes hidden, activation"),
        ("logistic", {"hidden": [3]}, "model.options.hidden", "takes no options"),
        ("cnn", {"activation": "sine"}, "model.options.activation", "tanh, relu.*'sine'"),
        ("mlp", {"hidden": 128}, "model.options.hidden", "got 128"),
        ("mlp", {"hidden": [128, 0]}, "model.options.hidden", "0"),
        ("mlp", {"outputs": 0}, "model.name", "above 0"),
        ("mlp", {"seed": -1}, "seed", "got -1"),
    ],
)
def test_bad_models_are_refused(name, changes, parameter, match):
    with pytest.raises(InvalidInput, match=rf"^{parameter}: .*{match}"):
        build(name, **({"input_shape": DIGITS, "outputs": 10, "seed": 0} | changes))


class Own(nn.Module):
    """A network of one's own, as people write them: options that may go by place or by name."""

    def __init__(self, input_shape, outputs, width=4, *, bias=True):
        super().__init__()
        self.first = nn.Linear(input_shape[0], width, bias=bias)
        self.output = nn.Linear(width, outputs, bias=bias)

    def forward(self, x):
        return self.output(self.first(x))


def anything(input_shape, outputs, **options):
    return nn.Sequential(*(nn.Linear(input_shape[0], outputs) for _ in options["layers"]))


def needs_width(input_shape, outputs, width):
    return Own(input_shape, outputs, width)


def test_a_factory_gets_its_options_and_its_seed():
    assert parameters(build(Own, (3,), 2, seed=0)) == 3 * 4 + 4 + 4 * 2 + 2
    assert parameters(build(Own, (3,), 2, seed=0, width=5, bias=False)) == 3 * 5 + 5 * 2
    assert parameters(build(needs_width, (3,), 2, seed=0, width=1)) == 3 + 1 + 2 + 2
    assert parameters(build(anything, (3,), 2, seed=0, layers="abc")) == 3 * 8
    assert parameters(build(lambda *sizes, width=1: Own(*sizes, width), (3,), 2, seed=0)) == 8
    assert isinstance(build(partial(Own, width=3), (3,), 2, seed=0, bias=False), Own)
    before = torch.get_rng_state()
    first, again, other = (build(Own, (3,), 2, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for key, value in first.items():
        assert torch.equal(value, again[key])
        assert not torch.equal(value, other[key])


def test_a_built_in_class_is_the_same_network_under_the_same_name():
    named, direct = (build(which, (5,), 2, seed=3) for which in ("mlp", BUILT_IN["mlp"]))
    assert all(map(torch.equal, named.parameters(), direct.parameters()))
    with pytest.raises(InvalidInput, match=r"^model\.options\.width: .*cnn-small takes activation"):
        build(BUILT_IN["cnn-small"], DIGITS, 10, seed=0, width=3)


def test_a_factory_that_does_not_say_what_it_takes_is_called_all_the_same():
    class Silent:
        __signature__ = "none of your business"

        def __call__(self, input_shape, outputs, width):
            return Own(input_shape, outputs, width)

    with pytest.raises((TypeError, ValueError)):
        inspect.signature(Silent())
    assert parameters(build(Silent(), (3,), 2, seed=0, width=1)) == 8


@pytest.mark.parametrize(
    ("factory", "options", "parameter", "match"),
    [
        (Own, {"depth": 3}, "model.options.depth", "unknown option; Own takes width, bias$"),
        (needs_width, {"depth": 3}, "model.options.depth", "needs_width takes width$"),
        (partial(Own, width=3), {"depth": 3}, "model.options.depth", "takes width, bias$"),
        (needs_width, {}, "model.name", "missing a required argument: 'width'"),
        (lambda: Own((3,), 2), {}, "model.name", "lambda.*too many positional arguments"),
        (lambda shape, outputs: None, {}, "model.name", "must return an nn.Module, got None"),
        (lambda shape, outputs: Own, {}, "model.name", "must return an nn.Module, got <class"),
        (anything, {"layers": "ab", "seed": -1}, "seed", "got -1"),
        (nn.Linear(3, 2), {}, "model.name", "a function that builds a network, got Linear"),
        (5, {}, "model.name", "a built-in name or a function that builds a network, got 5"),
        (Own, {"outputs": 0}, "model.name", "Own needs sizes above 0"),
    ],
)
def test_factories_that_do_not_fit_are_refused(factory, options, parameter, match):
    with pytest.raises(InvalidInput, match=rf"^{parameter}: .*{match}"):
        build(factory, **({"input_shape": (3,), "outputs": 2, "seed": 0} | options))


def batch_normed() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 48, 3),
        nn.BatchNorm2d(48, eps=1e-3),
        nn.Sequential(nn.Conv2d(48, 7, 3), nn.BatchNorm2d(7, affine=False)),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(112, 64),
        nn.BatchNorm1d(64),
    )
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    return model


def test_group_norm_takes_the_place_of_batch_norm():
    model = batch_normed()
    before = copy.deepcopy(model.state_dict())
    replaced = replace_batchnorm(model)
    kinds = [type(m).__name__ for m in replaced.modules()]
    assert not any("BatchNorm" in kind for kind in kinds)
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == 2  # a copy was changed
    weights, old = dict(replaced.named_parameters()), dict(model.named_parameters())
    assert weights.keys() == old.keys()
    assert all(torch.equal(weights[key], old[key]) for key in old)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert not any(weights[key].data_ptr() == old[key].data_ptr() for key in old)
    assert (replaced[1].num_groups, replaced[1].eps, replaced[1].affine) == (24, 1e-3, True)
    assert (replaced[2][1].num_groups, replaced[2][1].affine) == (7, False)
    for channels, most, groups in ((64, 32, 32), (10, 4, 2), (13, 4, 1), (8, 8, 8), (8, 32, 8)):
        assert replace_batchnorm(nn.BatchNorm2d(channels), most).num_groups == groups


def test_records_no_longer_mix():
    model, replaced = batch_normed(), replace_batchnorm(batch_normed())
    x = torch.randn(6, 1, 12, 12)
    other = torch.cat([x[:1], torch.randn(5, 1, 12, 12)])
    assert not torch.allclose(model(x)[0], model(other)[0], atol=1e-3)
    assert torch.allclose(replaced(x)[0], replaced(other)[0], atol=1e-5)
    assert torch.allclose(replaced(x[:1])[0], replaced(x)[0], atol=1e-4)


@pytest.mark.parametrize("channels", [2, 16, 32, 100])
def test_a_vector_keeps_its_information(channels):
    """One channel per group would map every vector to the same point."""
    layer = replace_batchnorm(nn.BatchNorm1d(channels))
    normed = layer(torch.randn(5, channels))
    assert normed.std(dim=0).max() > 0.1
    assert len(torch.unique(normed[0].detach())) > min(channels, 8) - 1


def test_the_same_layer_under_two_names_stays_one_and_modes_are_kept():
    shared = nn.BatchNorm2d(4)
    shared.weight.requires_grad_(False)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), shared, nn.Conv2d(4, 4, 1), shared).eval().double()
    replaced = replace_batchnorm(model)
    assert replaced[1] is replaced[3]
    assert isinstance(replaced[1], nn.GroupNorm)
    assert not replaced[1].training
    assert replaced[1].weight.dtype == torch.float64
    assert not replaced[1].weight.requires_grad
    same = replace_batchnorm(nn.Linear(2, 2))
    assert isinstance(same, nn.Linear)


def test_what_cannot_be_replaced_is_refused():
    with pytest.raises(Unsupported, match="lazy layer"):
        replace_batchnorm(nn.Sequential(nn.LazyBatchNorm2d()))
    with pytest.raises(InvalidInput, match="got 0"):
        replace_batchnorm(nn.BatchNorm2d(4), groups=0)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_models_import_little_and_say_what_is_missing():
    heavy = "{'pydantic', 'dp_accounting', 'matplotlib', 'rich'}"
    assert python(f"import sys, udpfl.models; print({heavy} & set(sys.modules))") == "set()"
    code = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
try:
    import udpfl.models
except ImportError as error:
    print(type(error).__name__, error)
"""
    how = "pip install -e '.[train]' in a checkout of udpfl"
    assert python(code) == f"MissingExtra torch is not installed: {how}"
