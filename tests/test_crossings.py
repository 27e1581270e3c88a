"""Every method with every unit, stage and mechanism: what one record, or one client, changes.

Everything that a client receives and keeps is chosen by an adversary, and what every release
returns is fixed beforehand, so that both worlds have the same past. The noise is left out. In the
world without the unit a release may then differ by what is charged for it and no more, and whatever
leaves the client must not differ at all: it may depend on records through releases alone.

A method that is registered, or a stage that is added to the list, is in the test.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from examples.plugin.udpfl_example.fedcm import FedCM
from tests.conftest import Logistic
from tests.crossing_cases import (
    ANSWERS,
    CLIENTS,
    FEATURES,
    LOCAL_STEPS,
    MECHANISMS,
    METHODS,
    OWN,
    RATE,
    RECORDS,
    SIZES,
    STAGES,
    TOGETHER,
    TWO_TRAININGS,
    UNITS,
    refusal,
    settings,
)
from tests.crossing_methods import Silent
from tests.engine.oracle import Noted
from udpfl import mechanisms
from udpfl.accounting.events import Composed, PoissonSampled, PureDP, Shuffled, leaves
from udpfl.algorithms import BUILT_IN, PublicData
from udpfl.engine import Keyed, LaneModel, Limits, MechanismNoiser, RandomisingNoiser
from udpfl.errors import InvalidInput, UdpflError
from udpfl.federation import Request, Trainer
from udpfl.federation import _calibration as planning
from udpfl.federation._calibration import plan_releases
from udpfl.federation._combinations import check_combination
from udpfl.federation.builders import build_algorithm
from udpfl.federation.request import CLIP, PULL_TARGET
from udpfl.federation.selection import draw_schedule
from udpfl.federation.stage_builder import sum_noise
from udpfl.federation.stages.trusted_server import TrustedServer
from udpfl.mechanisms import Laplace, Randomiser
from udpfl.runs.folder import RunFolder

NOISE = {name: kind.family(1.0)(1.3) for name, kind in mechanisms.BUILT_IN.items()}
NOISE["logistic"] = Logistic(0.8)


@pytest.fixture(scope="module", autouse=True)
def _any_noise_will_do():
    """How much of it fits a budget is tested elsewhere, and takes its time."""

    def calibrated(own):
        noise = NOISE[getattr(own.mechanism, "name", own.mechanism)]
        noise = noise.in_dimension(own.setting.sensitivity.dimension)
        return SimpleNamespace(mechanism=noise, event=own.setting.event(noise))

    def harmonize(wanted):
        largest = max(client.setting.epsilon for client in wanted)
        return [
            SimpleNamespace(
                client=own,
                calibrated=calibrated(own),
                penalty=1 - own.setting.epsilon / largest,
            )
            for own in wanted
        ]

    best = SimpleNamespace(calibrated=SimpleNamespace(mechanism=Laplace(3.0)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "harmonize", harmonize)
        patch.setattr(planning, "_best", lambda setting, mechanisms: best)
        yield


@lru_cache(maxsize=1)
def model():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 2), nn.Tanh(), nn.Linear(2, 2))
    return LaneModel(
        network, lambda o, t: nn.functional.cross_entropy(o, t, reduction="none")
    )  # fmt: skip


def data():
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(CLIENTS * RECORDS, FEATURES, generator=rng)
    x[RECORDS - 1] *= 40.0  # the record that comes and goes: it has to be clipped
    return x, torch.arange(len(x)) % 2


@dataclass
class Seen:
    """One release of one client: the sum, and the noise that it would get."""

    client: str
    purpose: str
    sum: torch.Tensor
    noise: object


@pytest.fixture
def releases(monkeypatch):
    """All releases; each returns numbers that nothing but its place decides."""
    seen = []

    def add(self, sums, stream, keys):
        rng = np.random.default_rng(len(seen))
        for key, row, noise in zip(keys, sums, self.mechanisms, strict=True):
            seen.append(Seen(key.client, key.purpose, row.double().clone(), noise))
        return torch.from_numpy(rng.normal(size=tuple(sums.shape))).float()

    own = property(lambda noiser: noiser.randomisers)
    monkeypatch.setattr(RandomisingNoiser, "mechanisms", own, raising=False)
    for kind in (MechanismNoiser, RandomisingNoiser):
        monkeypatch.setattr(kind, "add", add)
    return seen


def received(algorithm, seed):
    """What a server may send: anything at all. With an even seed it leads client 0 half the way
    that its records lead it, in the opposite direction."""
    rng, size = torch.Generator().manual_seed(seed), model().layout.dimension

    def draw(scale):
        return scale * torch.randn(size, generator=rng)

    sent = algorithm.broadcast(algorithm.init(model().initial()))
    sent = {
        name: draw(0.3 if name == "model" else 3.0) for name in (*sent, "direction", PULL_TARGET)
    }
    if seed % 2 == 0:
        way = learned(sent["model"])
        against = way / (2 * RATE * LOCAL_STEPS)
        sent = {name: sent[name] if name == "model" else against for name in sent}
        pull = 0.7 * (1 - 20 / 40)  # of client 0, as the budgets of the penalty stage have it
        grown = (1 - RATE * pull) ** LOCAL_STEPS - 1  # in units of the way to the other model
        sent[PULL_TARGET] = sent["model"] + way / (2 * grown)
    return {**sent, CLIP: torch.tensor(1.7)}


def learned(start):
    """How far client 0 gets by its own records, by plain gradient descent."""
    x, y = (t[:RECORDS] for t in data())
    weights = start.clone()
    for _ in range(LOCAL_STEPS):
        weights -= RATE * model().public_gradient(weights, x, y)[1]
    return weights - start


def one_round(config, algorithm, people, there, seed, releases):
    """A round of all clients, with so many of client 0's records."""
    x, y = data()
    trainer = Trainer("key", model(), x, y, algorithm, Keyed(seed), Limits(CLIENTS, 4))
    rows = [torch.arange(i * RECORDS, (i + 1) * RECORDS) for i in range(CLIENTS)]
    rows[0] = rows[0][:there]
    request = Request(2, received(algorithm, seed), RATE)
    rng = torch.Generator().manual_seed(seed + 1)
    state = {
        name: (seed % 2) * torch.randn(tensor.shape, generator=rng)
        for name, tensor in trainer.initial_state(request, CLIENTS).items()
    }
    releases.clear()
    step = trainer.train(request, people, rows, state)
    return step, list(releases)


CASES = [
    (method, unit, stages, mechanism)
    for method in METHODS
    for unit in UNITS
    for stages in TOGETHER
    for mechanism in (["auto", "laplace"] if method in ANSWERS else MECHANISMS)
]
CASES += [  # epochs do not look at the noise
    (method, unit, ("epochs", *stages), "gaussian")
    for method, unit in itertools.product(METHODS, UNITS)
    for stages in [(), *((stage,) for stage in STAGES)]
]


def set_up(method, unit, stages, mechanism, norm="l2"):
    config = settings(method, unit, stages, mechanism, norm)
    algorithm = build_algorithm(config)
    check_combination(config, algorithm)
    x, y = data()
    algorithm.prepare(PublicData(model(), x[:0], y[:0], 0))
    people = plan_releases(
        config, [RECORDS] * CLIENTS, draw_schedule(config), model().layout.dimension, algorithm
    )
    if config.privacy.pace == "plateau":  # as a client chooses it before it trains
        people = [own.at_level(own.levels[1]) for own in people]
    return config, algorithm, people


def charged(events):
    """The releases that were charged, each as often as it was."""
    found = []
    for event in events:
        for leaf, count in leaves(event).items():
            message = leaf.event if isinstance(leaf, Shuffled) else leaf
            release, passes = (
                message.passes if isinstance(message, PoissonSampled) else (message, 1)
            )
            if isinstance(release, PureDP):
                found.append((release.epsilon, count))
                continue
            found += [release] * count * passes
    return found


def assert_within(before, after, release):
    """In units of the noise, because a clip that adapts moves both."""
    if isinstance(before.noise, Randomiser):
        return assert_within_ball(before, after, *release)
    change = torch.linalg.vector_norm(before.sum - after.sum, SIZES[release.sensitivity.norm])
    unit = before.noise.noise_std / release.mechanism.noise_std
    assert before.noise == after.noise
    assert float(change) <= release.sensitivity.bound * unit
    return float(change) / (release.sensitivity.bound * unit)


def assert_within_ball(before, after, epsilon, answers):
    """What a randomiser is asked about is in the ball that it knows; it may be anywhere there."""
    own = before.noise
    assert after.noise == own
    assert (own.epsilon, own.answers) == (epsilon, answers)  # what is charged
    lengths = [float(torch.linalg.vector_norm(w.sum, SIZES[own.norm])) for w in (before, after)]
    assert max(lengths) <= own.bound
    return max(lengths) / own.bound


def seeds_of(stages, mechanism):
    """What is tried of a combination by the fast test: the slow one below tries all.

    The clipped sums do not depend on the noise. So a mechanism is tried with every single stage,
    and every pair of stages with one mechanism, another one for each pair.
    """
    place = MECHANISMS.index(mechanism) if mechanism in MECHANISMS else 0
    if "epochs" in stages or len(stages) < 2:
        return (3, 4) if mechanism not in MECHANISMS or "epochs" in stages else (3 + place % 2,)
    chosen = TOGETHER.index(stages) % len(MECHANISMS)
    return (3, 4) if place == chosen or mechanism not in MECHANISMS else ()


SAME_CLIENTS = (
    "fedadam", "fedyogi", "fedadagrad", "median", "trimmed-mean", "mode-connectivity",
)  # fmt: skip
"""Methods whose clients do what those of fedavg do: only their servers differ."""


@pytest.mark.parametrize(
    "method",
    [pytest.param(own, marks=[pytest.mark.slow] * (own in SAME_CLIENTS)) for own in METHODS],
)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.usefixtures("one_thread")
def test_nobody_changes_more_than_is_charged(method, unit, releases, tmp_path):
    """All stages and mechanisms with this method and this unit."""
    cross_all(method, unit, seeds_of, releases, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.usefixtures("one_thread")
def test_nobody_does_with_any_mechanism_and_two_stages(method, unit, releases, tmp_path):
    cross_all(method, unit, lambda *_: (3, 4), releases, tmp_path)


def cross_all(method, unit, seeds, releases, folder):
    most = []
    for _, _, stages, mechanism in (c for c in CASES if c[:2] == (method, unit)):
        reason = refusal(method, unit, stages, mechanism)
        if reason:
            with pytest.raises(UdpflError, match=reason):
                set_up(method, unit, stages, mechanism)
            continue
        config, algorithm, people = set_up(method, unit, stages, mechanism)
        for seed in seeds(stages, mechanism):
            most.append(crossed(config, algorithm, people, seed, releases, folder))
    # Somebody does change nearly as much, or half of the diameter that is charged.
    assert not most or max(most) > (0.45 if people[0].diameter else 0.9)


def crossed(config, algorithm, people, seed, releases, folder):
    left = 0 if config.privacy.unit == "client" else RECORDS - 1
    with_it, first = one_round(config, algorithm, people, RECORDS, seed, releases)
    without, second = one_round(config, algorithm, people, left, seed, releases)
    for person, events in zip(people, with_it.events, strict=True):
        assert leaves(Composed(events)) == leaves(person.round_event(2))  # what was planned
    if algorithm.trusts_server:
        assert first == second == []
        return summed(people, with_it, without, seed, releases, folder)
    for name in with_it.tensors:
        assert torch.equal(with_it.tensors[name], without.tensors[name]), name
    for name in with_it.state:
        assert torch.equal(with_it.state[name], without.state[name]), name
    assert with_it.events == without.events
    found = []
    for client in {release.client for release in first}:
        own = [[r for r in world if r.client == client] for world in (first, second)]
        number = int(client.removeprefix("client-"))
        paid = charged(with_it.events[number])
        # Counts come last, in the round as in its charge.
        for release, *batches in zip(paid, *by_epoch(own, people[number]), strict=True):
            pairs = list(zip(*batches, strict=True))
            changes = [assert_within(*pair, release) for pair in pairs]
            moved = [not torch.equal(before.sum, after.sum) for before, after in pairs]
            assert all(before.purpose == after.purpose for before, after in pairs)
            assert sum(moved) <= (client == "client-0")  # in one batch of every epoch
            found.append(max(changes))
    return max(found)


def by_epoch(worlds, plan):
    """The releases of either world, those of all batches of an epoch together."""
    whole = plan.release.unit == "client"
    for world in worlds:
        steps = [own for own in world if own.purpose == "noise"]
        size = 1 if whole else plan.batches
        epochs = [steps[i : i + size] for i in range(0, len(steps), size)]
        yield epochs + [[own] for own in world if own.purpose != "noise"]


def summed(people, with_it, without, seed, releases, folder):
    """A trusted server's sum with a client and without one, who adds nothing then."""
    server = TrustedServer(RunFolder(folder), "key", Keyed(seed), sum_noise(people))
    updates = with_it.tensors["update"]
    assert torch.equal(updates[1:], without.tensors["update"][1:])
    releases.clear()
    server.noisy_sum(2, updates)
    server.noisy_sum(2, torch.cat([torch.zeros_like(updates[:1]), updates[1:]]))
    (release,) = charged(with_it.events[0])
    return assert_within(*releases, release)


@pytest.mark.parametrize("unit", UNITS)
def test_a_nominal_message_holds_all_releases_of_a_round(unit, releases, tmp_path):
    """Whatever the lemma would claim of it, it is charged for what it releases."""
    for method, stage in itertools.product(METHODS, ((), ("adaptive clip",), ("pace",))):
        stages = ("nominal shuffler", *stage)
        shares = method == "als-dpfl"  # whose messages are not alike
        is_own = method in ("dp-fedavg", "nbafl", *ANSWERS)
        if is_own or shares or (unit == "client" and "adaptive clip" in stage):
            with pytest.raises(InvalidInput):
                set_up(method, unit, stages, "gaussian")
            continue
        config, algorithm, people = set_up(method, unit, stages, "gaussian")
        assert 0 < crossed(config, algorithm, people, 4, releases, tmp_path) <= 1
        found = leaves(people[0].round_event(2))
        (mixed,) = (leaf for leaf in found if isinstance(leaf, Shuffled))
        assert (mixed.clients, mixed.releases) == (CLIENTS, found[mixed])
        assert len(found) == 1 + ("adaptive clip" in stage)


@pytest.mark.parametrize("norm", ["l1", "linf"])
@pytest.mark.parametrize("unit", UNITS)
def test_other_norms(norm, unit, releases, tmp_path):
    for method in ("fedavg", "scaffold", "fedprox"):
        for mechanism in ("gaussian", "laplace"):
            config, algorithm, people = set_up(method, unit, ("penalty",), mechanism, norm)
            assert 0 < crossed(config, algorithm, people, 5, releases, tmp_path) <= 1


@pytest.mark.parametrize(
    ("method", "unit", "stages", "purposes"),
    [
        ("fedavg", "record", (), {"sampling", "layers", "noise"}),
        ("fedavg", "record", ("adaptive clip",),
         {"sampling", "layers", "noise", "counting", "counting layers", "count"}),
        ("fedavg", "record", ("epochs",), {"sampling", "batches", "layers", "noise"}),
        (TWO_TRAININGS, "record", ("epochs",), {"sampling", "batches", "layers", "noise"}),
        ("fedavg", "client", (), {"sampling", "layers", "update"}),
        (TWO_TRAININGS, "record", (), {"sampling", "layers", "noise"}),
        (TWO_TRAININGS, "client", (), {"sampling", "layers", "update"}),
        ("dp-fedavg", "client", (), {"sampling", "layers", "participation"}),
    ],
)  # fmt: skip
def test_no_two_draws_of_two_rounds_share_a_key(method, unit, stages, purposes):
    """Of all clients, trainings and steps: a key that is asked for twice gives the same bits."""
    _, algorithm, people = set_up(method, unit, stages, "gaussian")
    x, y = data()
    stream = Noted()
    trainer = Trainer("key", model(), x, y, algorithm, stream, Limits(CLIENTS, RECORDS))
    rows = [torch.arange(i * RECORDS, (i + 1) * RECORDS) for i in range(CLIENTS)]
    for round_ in (1, 2):
        request = Request(round_, received(algorithm, 3), RATE)
        trainer.train(request, people, rows, trainer.initial_state(request, CLIENTS))
    assert len(set(stream.keys)) == len(stream.keys)
    assert {key.purpose for key in stream.keys} == purposes
    assert {key.client for key in stream.keys} == {person.name for person in people}


def test_a_silent_method_is_charged_twice_the_clip(releases, tmp_path):
    """And needs it: two updates within the clip can point in opposite directions."""
    own = {kind.name: name for name, kind in OWN.items()}
    for method, bound in ((own["silent"], 1.0), ("scaffold", 0.5), (own["fedcm"], 0.5)):
        config, algorithm, people = set_up(method, "client", (), "gaussian")
        assert people[0].release.sensitivity.bound == bound
        changes = [crossed(config, algorithm, people, s, releases, tmp_path) for s in range(4)]
        assert 0.8 < max(changes) <= 1


def test_what_a_method_says_of_itself_is_not_believed():
    """A correction that moves a client, where the method says that it stays."""

    class Wrong(Silent):
        without_records = "stays"

    class Random(Silent):
        without_records = "moves"

        def client_step(self, received, state, train):
            start = received["model"].expand(len(train.clients), -1)

            def correct(gradient, parameters, lane):
                return gradient + torch.rand(())

            return {"update": train(start, correct) - start}, state

    class Remembers(Random):
        without_records = "moves"
        kept = 0.0

        def client_step(self, received, state, train):
            start = received["model"].expand(len(train.clients), -1)

            def correct(gradient, parameters, lane):
                self.kept = self.kept + gradient.sum()
                return gradient + self.kept

            return {"update": train(start, correct) - start}, state

    config, algorithm, people = set_up("fedavg", "client", (), "gaussian")
    for kind, word in ((Wrong, "its correction moves such a client"), (Random, "a fixed place"),
                       (Remembers, "a fixed place")):  # fmt: skip
        with pytest.raises(UdpflError, match=word):
            one_round(config, kind(algorithm.server), people, RECORDS, 3, [])


def test_a_class_with_a_client_step_of_its_own_has_to_speak_again():
    class Quiet(FedCM):
        def client_step(self, received, state, train):
            return super().client_step(received, state, train)

    assert FedCM.without_records == "moves"
    assert Quiet.without_records is None
    assert type("Renamed", (FedCM,), {}).without_records == "moves"


def test_every_method_is_crossed():
    assert {method for method, *_ in CASES} >= set(BUILT_IN)
    crossed_at_all = [c for c in CASES if refusal(*c) is None]
    assert len(crossed_at_all) > 0.55 * len(CASES)
    assert {method for method, *_ in crossed_at_all} >= set(BUILT_IN)


def test_the_list_of_refusals_is_read_by_people():
    """Each reason names what to change."""
    reasons = {refusal(*case) for case in CASES} - {None}
    assert len(reasons) == 19
    for method, unit, stages, mechanism in CASES:
        if refusal(method, unit, stages, mechanism):
            with pytest.raises(InvalidInput) as told:
                set_up(method, unit, stages, mechanism)
            assert told.value.parameter.partition(".")[0] in ("privacy", "training")
