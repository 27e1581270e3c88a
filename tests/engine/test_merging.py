"""Calls of the engine that are answered by one: as each would be alone, and never mixed up."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import nn

from udpfl.engine import (
    BallClipper,
    Entropy,
    Keyed,
    LaneModel,
    Lanes,
    Limits,
    MechanismNoiser,
    Noiseless,
    NormClipper,
    Unclipped,
    merging,
)
from udpfl.engine.merging import Call, can_merge, train_merged
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Gaussian, Laplace, Staircase

X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
OTHER = torch.randn(14, 4, generator=torch.Generator().manual_seed(1))
Y, OTHER_Y = torch.arange(10) % 2, torch.arange(14) // 7


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def lane_model(*layers) -> LaneModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(*(layers or (nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))))
    return LaneModel(network, loss)


MODEL = lane_model()


def lanes_of(clipper, noiser, count=2, run="run", steps=None, rate=0.6, state=None, **more):
    records = tuple(torch.arange(5 * i, 5 * i + 5) for i in range(count))
    return Lanes(
        runs=(run,) * count,
        clients=tuple(f"client-{i}" for i in range(count)),
        records=more.pop("records", records),
        rates=(rate,) * count,
        denominators=torch.full((count,), 5.0 * rate),
        learning_rates=torch.full((count,), more.pop("learning_rate", 0.5)),
        steps=steps or (3,) * count,
        clipper=clipper,
        noiser=noiser,
        state=state or {},
        **more,
    )


def private(mechanism=None, clip=1.0, norm="l2", **more):
    count = more.get("count", 2)
    bounds = clip if isinstance(clip, list) else [clip] * count
    noise = MechanismNoiser([mechanism or Gaussian(0.3)] * count)
    return lanes_of(NormClipper(norm, bounds), noise, **more)


def plain(**more):
    return lanes_of(Unclipped(), Noiseless(), rate=1.0, **more)


def call(
    lanes, model=MODEL, x=X, y=Y, start=0.0, round_=1, stream=None, limits=None, correct=None
) -> Call:
    parameters = (model.initial() + start).to(x.device).expand(len(lanes), -1)
    return Call(
        model, x, y, parameters, lanes, round_, stream or Keyed(0), limits or Limits(2, 8), correct
    )


@pytest.fixture
def engine(monkeypatch):
    """Every call of the engine: its inputs, its lanes, its limits."""
    seen, train_round = [], merging.train_round

    def noted(model, inputs, targets, parameters, lanes, round_, stream, limits, correct):
        seen.append((inputs, lanes, limits))
        return train_round(
            model, inputs, targets, parameters, lanes, round_, stream, limits, correct
        )

    monkeypatch.setattr(merging, "train_round", noted)
    return seen


def agree(found, expected) -> None:
    assert len(found) == len(expected)
    for mine, alone in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.parameters, alone.parameters, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine.clipped_fraction, alone.clipped_fraction)
        torch.testing.assert_close(
            mine.signal_to_noise, alone.signal_to_noise, rtol=1e-4, atol=1e-5
        )


def differ(found) -> None:
    """No two calls came out the same: they would be noticed in each other's place."""
    for one, other in combinations(found, 2):
        for row in one.parameters:
            assert (row - other.parameters).abs().amax(1).min() > 1e-3


# Corrections as methods have them


def scaffold(gradient, parameters, state):
    return gradient + state["control"]


def fedprox(strength):
    def correct(gradient, parameters, state):
        return gradient + strength * (parameters - state["sent"])

    return correct


def controlled(value, count=2) -> Lanes:
    control = value + torch.arange(float(count)).unsqueeze(1).expand(-1, MODEL.layout.dimension)
    return private(count=count, state={"control": control})


def pulled(strength) -> Call:
    sent = (MODEL.initial() - strength).expand(2, -1)
    return call(private(state={"sent": sent}), correct=fedprox(strength), start=0.2)


MERGED = {
    "mechanisms": [call(private(m)) for m in (Gaussian(0.5), Laplace(0.4), Staircase(1, 0.3, 0.4))],
    "noise": [call(private(Gaussian(std))) for std in (0.1, 1.0, 3.0)],
    "clips": [call(private(clip=clip)) for clip in (0.1, 2.0, [0.3, 0.6])],
    "l1": [call(private(clip=clip, norm="l1")) for clip in (0.1, 1.0)],
    "linf": [call(private(clip=clip, norm="linf")) for clip in (0.01, 0.1)],
    "keys": [call(private(run=run)) for run in ("one", "two", "three")],
    "seeds": [call(private(run=f"seed-{n}"), stream=Keyed(n)) for n in (0, 1, 2)],
    "rates": [call(private(rate=rate)) for rate in (0.2, 0.6, 1.0)],
    "learning rates": [call(private(learning_rate=rate)) for rate in (0.1, 0.5)],
    "steps": [call(private(steps=own, run=str(own))) for own in ((3, 1), (2, 3), (3, 0))],
    "epochs of batches": [
        call(private(steps=(6, 6), batches=3, epochs=2, run=run)) for run in ("one", "two")
    ],
    "starts": [call(private(), start=start) for start in (0.0, 0.3, -0.3)],
    "sizes": [call(private(count=n, run=run)) for n, run in ((1, "one"), (2, "two"), (1, "three"))],
    "records": [
        call(private()),
        call(private(), x=OTHER, y=OTHER_Y),
        call(private(), x=X, y=1 - Y),
        call(private(), x=X.flip(0), y=Y),
        call(private(clip=0.4), x=OTHER.clone(), y=OTHER_Y.clone()),
    ],
    "bytes for places": [
        call(private(), x=torch.cat([X] * 30), y=torch.cat([Y] * 30)),
        call(private(records=(torch.arange(5).byte(), torch.arange(9).byte())), x=OTHER, y=OTHER_Y),
    ],
    "scaffold": [call(controlled(value), correct=scaffold) for value in (-2.0, 0.0, 2.0)],
    "scaffold, more and fewer clients": [
        call(controlled(2.0 * count, count), correct=scaffold) for count in (1, 2)
    ],
    "fedprox": [pulled(strength) for strength in (0.1, 0.7)],
    "one direction for all lanes": [
        call(private(), correct=lambda g, p, s, by=by: torch.full((1, g.shape[1]), by))
        for by in (1.0, 2.0)
    ],
    "without privacy": [call(plain(learning_rate=rate)) for rate in (0.1, 0.5)],
    "without privacy, other records": [call(plain()), call(plain(), x=OTHER, y=OTHER_Y)],
    "without noise": [
        call(lanes_of(NormClipper("l2", [clip] * 2), Noiseless())) for clip in (0.1, 1.0)
    ],
    "without clip": [
        call(lanes_of(Unclipped(), MechanismNoiser([Gaussian(std)] * 2))) for std in (0.1, 1.0)
    ],
    "second half of a round": [
        call(private(Laplace(scale), first_step=3), round_=4) for scale in (0.1, 1.0)
    ],
}


@pytest.mark.parametrize("limits", [Limits(2, 8), Limits(64, 64), Limits(1, 2), Limits(3, 8, 2)])
@pytest.mark.parametrize("name", MERGED)
def test_merged_calls_come_out_as_each_would_alone(name, limits, engine):
    calls = [replace(each, limits=limits) for each in MERGED[name]]
    expected = [each.train() for each in calls]
    differ(expected)
    engine.clear()
    agree(train_merged(calls), expected)
    ((_, lanes, _),) = engine
    assert len(lanes) == sum(len(each.lanes) for each in calls)
    assert all(can_merge(one, other) for one, other in combinations(calls, 2))


def test_records_that_are_the_same_are_there_once(engine):
    train_merged([call(private()), call(private(), x=X.clone()), call(private(), y=Y.clone())])
    train_merged([call(private()), call(private(), y=1 - Y)])
    train_merged([call(private()), call(private(), x=OTHER, y=OTHER_Y), call(private())])
    assert [len(inputs) for inputs, _, _ in engine] == [10, 20, 24]
    assert engine[0][0] is X


class Watchful(NormClipper):
    """A clipper of somebody's own, which may look at several lanes."""

    def lanes(self, which):
        return Watchful(self.norm, self.bounds[which])


class Loud(MechanismNoiser):
    """The same for noise."""

    def lanes(self, which):
        return Loud(self.mechanisms[which])


class Raw(nn.Module):
    """No rule covers it, so nobody knows whether its forward pass is random."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 8).reshape(4, 2))

    def forward(self, x):
        return x @ self.weight


DROPPING, RAW = lane_model(nn.Dropout(0.5), nn.Linear(4, 2)), LaneModel(Raw(), loss)
STATE = torch.ones(2, MODEL.layout.dimension)


def kept(state, **more):
    return call(private(state={"control": state}), correct=scaffold, **more)


APART = {
    "norm": (call(private(norm="l1")), call(private(norm="l2"))),
    "norms of coordinates": (call(private()), call(private(norm="linf"))),
    "clipped or not": (
        call(private()),
        call(lanes_of(Unclipped(), MechanismNoiser([Gaussian(0.3)] * 2))),
    ),
    "noisy or not": (
        call(private()),
        call(lanes_of(NormClipper("l2", [1.0] * 2), Noiseless())),
    ),
    "steps": (call(private()), call(private(steps=(2, 1)))),
    "batches": (call(private()), call(private(batches=3))),
    "epochs": (call(private()), call(private(epochs=3))),
    "first step": (call(private()), call(private(first_step=3))),
    "round": (call(private()), call(private(), round_=2)),
    "seed": (call(private()), call(private(), stream=Keyed(1))),
    "seeded or not": (call(private()), call(private(), stream=Entropy())),
    "model": (call(private()), call(private(), model=lane_model())),
    "corrected or not": (call(private()), call(private(), correct=lambda g, p, s: g + 1)),
    "state": (
        kept(STATE),
        call(private(state={"sent": STATE}), correct=fedprox(1.0)),
    ),
    "shape of state": (kept(STATE), kept(STATE[:, :1])),
    "seeded dropout": (call(private(), model=DROPPING), call(private(clip=0.1), model=DROPPING)),
    "seeded, and perhaps random": (call(private(), model=RAW), call(private(), model=RAW)),
    "own clipper": tuple(
        call(lanes_of(Watchful("l2", [clip] * 2), MechanismNoiser([Gaussian(0.3)] * 2)))
        for clip in (0.1, 1.0)
    ),
    "own noiser": tuple(
        call(lanes_of(NormClipper("l2", [1.0] * 2), Loud([Gaussian(std)] * 2)))
        for std in (0.1, 1.0)
    ),
}


@pytest.mark.parametrize("name", APART)
def test_calls_that_do_not_fit_are_trained_alone(name, engine):
    one, other = APART[name]
    expected = [one.train(), other.train()]
    engine.clear()
    found = train_merged([one, other])
    assert [len(lanes) for _, lanes, _ in engine] == [2, 2]
    assert not can_merge(one, other)
    assert not can_merge(other, one)
    for mine, alone, each in zip(found, expected, (one, other), strict=True):
        if not each.stream.private:
            assert torch.equal(mine.parameters, alone.parameters)


def test_tensors_of_another_form_are_not_joined():
    """Joined, single precision would become double for all lanes."""
    assert can_merge(call(plain()), call(plain(), x=X + 1))
    assert can_merge(kept(STATE), kept(2 * STATE))
    assert not can_merge(kept(STATE), kept(STATE.double()))
    for name in ("denominators", "learning_rates"):
        double = replace(plain(), **{name: torch.ones(2, dtype=torch.float64)})
        assert not can_merge(call(plain()), call(double))
    for x, y in ((X.double(), Y), (X, Y.int()), (X.repeat(1, 2), Y), (X, Y.unsqueeze(1))):
        assert not can_merge(call(plain()), call(plain(), x=x, y=y))


class Hidden(nn.Module):
    """Keeps what is drawn from its seed where neither buffers nor its name show it."""

    def __init__(self, seed):
        super().__init__()
        self.features = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x @ self.features)


def test_models_that_only_look_alike_are_told_apart(engine):
    models = [LaneModel(Hidden(seed), loss) for seed in (0, 1)]
    calls = [call(plain(), model=model) for model in (*models, *models)]
    expected = [each.train() for each in calls]
    engine.clear()
    agree(train_merged(calls), expected)
    assert [len(lanes) for _, lanes, _ in engine] == [4, 4]


def test_private_draws_are_merged_and_drawn_for_every_lane(engine):
    """From the operating system: as much noise as each call asked for, and never the same twice."""
    model = lane_model(nn.Linear(4, 500))
    stds, size = (1.0, 10.0, 10.0), 2500
    empty = (torch.arange(0),) * 2
    calls = [
        call(private(Gaussian(std), records=empty, steps=(1, 1)), model=model, stream=Entropy())
        for std in stds
    ]
    found = train_merged(calls)
    assert len(engine) == 1
    noise = [(trained.parameters - model.initial()) * 6.0 for trained in found]  # 3 / 0.5
    for own, std in zip(noise, stds, strict=True):
        assert own.shape == (2, size)
        assert own.std(1).tolist() == pytest.approx([std] * 2, rel=6 / (2 * size) ** 0.5)
    rows = torch.cat(noise)
    correlations = torch.corrcoef(rows) - torch.eye(6)
    assert correlations.abs().max() < 6 / size**0.5


@pytest.mark.parametrize("model", [DROPPING, RAW], ids=["dropout", "no rule"])
def test_what_may_be_random_is_merged_where_draws_are_private(model, engine):
    calls = [call(plain(learning_rate=rate), model=model, stream=Entropy()) for rate in (0.1, 0.5)]
    found = train_merged(calls)
    assert [len(lanes) for _, lanes, _ in engine] == [4]
    if model is RAW:  # which is not, after all
        agree(found, [each.train() for each in calls])


def test_results_are_in_the_order_of_the_calls(engine):
    clips = (0.1, 0.2, 0.4, 0.8, 1.6)
    calls = [
        call(private(clip=clip, norm=norm))
        for clip, norm in zip(clips, ("l2", "l1", "l2", "linf", "l1"), strict=True)
    ]
    expected = [each.train() for each in calls]
    engine.clear()
    agree(train_merged(calls), expected)
    assert [len(lanes) for _, lanes, _ in engine] == [4, 4, 2]
    assert train_merged([]) == []


@pytest.mark.parametrize("limits", [Limits(1, 8), Limits(2, 8), Limits(4, 8)])
def test_corrections_see_their_own_lanes_only(limits):
    seen = []

    def corrected(number):
        def correct(gradient, parameters, state):
            assert state.keys() == {"own"}
            assert len(state["own"]) == len(gradient) == len(parameters)
            seen.extend((number, own) for own in state["own"].flatten().tolist())
            return gradient * 0 + state["own"]

        own = number + torch.tensor([[0.0], [0.5], [0.25]])
        lanes = private(count=3, steps=(1,) * 3, records=(torch.arange(5),) * 3, state={"own": own})
        return call(lanes, correct=correct, limits=limits)

    found = train_merged([corrected(number) for number in range(3)])
    assert sorted(seen) == [(n, n + part) for n in range(3) for part in (0.0, 0.25, 0.5)]
    for number, trained in enumerate(found):
        steps = number + torch.tensor([[0.0], [0.5], [0.25]])
        torch.testing.assert_close(trained.parameters, MODEL.initial() - 0.5 * steps)


def test_what_a_call_holds_is_left_as_it_was():
    calls = [kept(STATE.clone()), kept(2 * STATE, x=OTHER, y=OTHER_Y)]
    before = [
        [t.clone() for t in (c.inputs, c.parameters, *c.lanes.records, *c.lanes.state.values())]
        for c in calls
    ]
    train_merged(calls)
    for each, old in zip(calls, before, strict=True):
        now = (each.inputs, each.parameters, *each.lanes.records, *each.lanes.state.values())
        assert all(torch.equal(a, b) for a, b in zip(now, old, strict=True))
        assert each.lanes.state.keys() == {"control"}


@pytest.mark.parametrize(
    "limits",
    [(Limits(2, 8), Limits(2, 8)), (Limits(1, 50), Limits(16, 5)), (Limits(1, 1), Limits(9, 9, 2))],
)
def test_no_pass_is_larger_than_every_call_allows(limits, engine):
    train_merged([call(private(), limits=own) for own in limits])
    ((_, _, merged),) = engine
    assert merged.lanes >= 1
    assert 1 <= merged.samples <= min(own.samples for own in limits)
    assert merged.lanes * merged.samples <= min(own.lanes * own.samples for own in limits)
    assert merged.workers == max(own.workers for own in limits)


def test_a_fault_of_one_call_is_raised():
    def bad(gradient, parameters, state):
        raise RuntimeError("of my own making")

    calls = [call(private(), correct=lambda g, p, s: g), call(private(), correct=bad)]
    with pytest.raises(RuntimeError, match="of my own making"):
        train_merged(calls)


@pytest.mark.parametrize("rows", [[-1], [0, 10], [13]])
@pytest.mark.parametrize("place", [0, 1])
def test_nobody_reaches_the_records_of_another_call(rows, place, engine):
    wrong = call(private(records=(torch.arange(3), torch.tensor(rows))))
    calls = [call(private(), x=OTHER, y=OTHER_Y), call(private(), x=X + 1)]
    with pytest.raises(InvalidInput, match="records: must lie between 0 and 9"):
        train_merged([*calls[:place], wrong, *calls[place:]])
    assert engine == []


LANES = private()


@pytest.mark.parametrize(
    ("parameter", "change"),
    [
        ("runs", {"runs": ("run",)}),
        ("records", {"records": LANES.records[:1]}),
        ("rates", {"rates": (0.5,) * 3}),
        ("denominators", {"denominators": torch.ones(1)}),
        ("learning_rates", {"learning_rates": torch.ones(3)}),
        ("steps", {"steps": (1,)}),
        ("bounds", {"clipper": NormClipper("l2", [1.0])}),
        ("bounds", {"clipper": BallClipper("l2", [1.0] * 3)}),
        ("mechanisms", {"noiser": MechanismNoiser([Gaussian(1.0)] * 3)}),
        ("control", {"state": {"control": torch.ones(1, 4)}}),
    ],
)
def test_every_lane_has_an_entry_of_its_own(parameter, change):
    """Alone, one entry may do for all lanes; merged, it would move those of other calls."""
    with pytest.raises(InvalidInput, match=f"^{parameter}: . for 2 lanes"):
        call(replace(LANES, **change))


def test_records_and_parameters_fit_their_call():
    with pytest.raises(InvalidInput, match="targets: 14 for 10 inputs"):
        call(private(), y=OTHER_Y)
    with pytest.raises(InvalidInput, match="parameters: 3 for 2 lanes"):
        replace(call(private()), parameters=MODEL.initial().expand(3, -1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["mechanisms", "records", "scaffold", "without privacy"])
def test_merged_calls_on_a_gpu(name, engine):
    device = torch.device("cuda")
    model = lane_model().to(device)

    def moved(one: Call) -> Call:
        lanes = replace(
            one.lanes,
            records=tuple(rows.to(device) for rows in one.lanes.records),
            denominators=one.lanes.denominators.to(device),
            learning_rates=one.lanes.learning_rates.to(device),
            state={key: tensor.to(device) for key, tensor in one.lanes.state.items()},
        )
        tensors = {key: getattr(one, key).to(device) for key in ("inputs", "targets", "parameters")}
        return replace(one, model=model, lanes=lanes, **tensors)

    calls = [moved(each) for each in MERGED[name]]
    expected = [each.train() for each in calls]
    engine.clear()
    agree(train_merged(calls), expected)
    assert len(engine) == 1
