"""What every registered model and data set has to do; the registries are the lists.

Mechanisms have their matrix in test_mechanisms.py, methods theirs in test_methods.py and
test_crossings.py.
"""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from udpfl import algorithms, data, models  # noqa: E402
from udpfl.engine import LaneModel  # noqa: E402
from udpfl.errors import InvalidInput  # noqa: E402
from udpfl.models import build  # noqa: E402

SHAPES = [((5,), 2), ((1, 28, 28), 10), ((3, 32, 32), 10), ((7, 72), 48)]
"""Inputs and outputs: a table, digits, photographs, hours of wind. A model takes one of them."""


def fitting(name: str) -> tuple[tuple[int, ...], int]:
    """Inputs and outputs that this model takes."""
    for shape, outputs in SHAPES:
        try:
            build(name, shape, outputs, seed=0)
        except InvalidInput:
            continue
        return shape, outputs
    raise AssertionError(f"{name} takes none of {SHAPES}")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", models.BUILT_IN)
class TestEveryModel:
    def test_the_seed_decides_the_weights(self, name):
        shape, outputs = fitting(name)
        first, again = (build(name, shape, outputs, seed=3).state_dict() for _ in range(2))
        assert first.keys() == again.keys()
        assert all(torch.equal(first[key], again[key]) for key in first)

    def test_records_do_not_mix(self, name):
        shape, outputs = fitting(name)
        model = build(name, shape, outputs, seed=0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)  # one that starts at zero has nothing to mix
        batch = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
        together = model(batch)
        assert together.shape == (3, outputs)
        alone = torch.cat([model(record[None]) for record in batch])
        assert torch.allclose(together, alone, atol=1e-4)

    def test_the_engine_clips_it_record_by_record(self, name):
        shape, outputs = fitting(name)
        model = build(name, shape, outputs, seed=0)
        lanes = LaneModel(model, lambda found, _: (found**2).flatten(1).sum(1))
        trained = (own.numel() for own in model.parameters() if own.requires_grad)
        assert sum(trained) == lanes.layout.dimension

    def test_it_says_what_it_is_and_refuses_what_it_does_not_know(self, name):
        assert inspect.getdoc(models.BUILT_IN[name])
        shape, outputs = fitting(name)
        with pytest.raises(InvalidInput, match=r"^model\.options\.nonsense: unknown option"):
            build(name, shape, outputs, seed=0, nonsense=1)


@pytest.mark.parametrize("name", data.BUILT_IN)
def test_every_data_set_describes_itself_and_refuses_what_it_does_not_know(name):
    source = data.source_of(name)
    assert source.name == name
    assert source.title
    assert source.samples
    with pytest.raises(InvalidInput, match=rf"nonsense: is not an option of {name}"):
        data.load(name, options={"nonsense": 1})


@pytest.mark.parametrize("name", algorithms.BUILT_IN)
def test_every_method_goes_by_its_name_and_says_what_it_releases(name):
    method = algorithms.BUILT_IN[name]
    assert method.name == name
    assert all((method.paper, method.releases, method.guarantee))
