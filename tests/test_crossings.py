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
from tests.engine.oracle import Noted
from tests.federation.samples import Counting
from udpfl import mechanisms
from udpfl.accounting.events import Composed, PoissonSampled, Release, leaves
from udpfl.algorithms import BUILT_IN, Algorithm, PublicData, local_update, weighted_mean
from udpfl.config import load
from udpfl.engine import Keyed, LaneModel, Limits, MechanismNoiser
from udpfl.errors import InvalidInput, UdpflError
from udpfl.federation import Request, Trainer
from udpfl.federation import calibration as planning
from udpfl.federation.builders import algorithm_of
from udpfl.federation.calibration import plan_releases
from udpfl.federation.combinations import check_combination
from udpfl.federation.request import CLIP, WEAKEST
from udpfl.federation.selection import draw_schedule
from udpfl.federation.stages.trusted_server import TrustedServer
from udpfl.federation.staging import sum_noise
from udpfl.mechanisms import Laplace
from udpfl.runs.folder import RunFolder

RECORDS, FEATURES, CLIENTS = 9, 3, 3
RATE, LOCAL_STEPS = 6.0, 2
"""So large a learning rate that updates have to be clipped."""
SIZES = {"l1": 1, "l2": 2, "linf": float("inf")}


class Silent(Algorithm):
    """A correction, and not a word on what a client without records sends."""

    name = "silent"

    def client_step(self, received, state, train):
        common = received["direction"].expand(len(train.clients), -1)
        return {"update": local_update(received, train, _along, direction=common)}, state

    def aggregate(self, server, messages):
        return self.server.apply(server, weighted_mean(messages, "update"))


def _along(gradient, parameters, lane):
    return gradient + lane["direction"]


class TwoTrainings(Algorithm):
    """Trains twice in a round, the second time from where the first has led."""

    name = "two-trainings"
    trainings = 2
    without_records = "stays"

    def client_step(self, received, state, train):
        start = received["model"].expand(len(train.clients), -1)
        return {"update": train(train(start)) - start}, state

    def aggregate(self, server, messages):
        return self.server.apply(server, weighted_mean(messages, "update"))


OWN = {
    f"{kind.__module__}:{kind.__qualname__}": kind
    for kind in (FedCM, Counting, Silent, TwoTrainings)
}
METHODS = [*BUILT_IN, *OWN]
TWO_TRAININGS = f"{__name__}:TwoTrainings"
STAGES = {
    "adaptive clip": {"privacy": {"clip_quantile": 0.5, "clip_share": 0.5}},
    "pace": {"privacy": {"pace": "increasing"}},
    "penalty": {"training": {"penalty": 0.7}, "privacy": {"epsilon": [20.0, 30.0, 40.0]}},
    "shuffler": {"training": {"shuffle": True}},
}
TOGETHER = [c for size in range(3) for c in itertools.combinations(STAGES, size)]
MECHANISMS = [*mechanisms.BUILT_IN, "tests.conftest:Logistic"]
UNITS = ["record", "client"]
OPTIONS = {
    "dp-fedavg": {"participation": 0.5}, "fedmed": {"top_k": 2}, "trimmed-mean": {"trim": 0.34},
}  # fmt: skip
STEPS = {"fedsgd": 1}


def settings(method, unit, stages, mechanism, norm="l2"):
    own = {
        "data": {"clients": CLIENTS},
        "privacy": {"unit": unit, "epsilon": 30.0, "delta": 0.01, "mechanism": mechanism,
                    "clip": 0.5, "norm": norm, "accountant": "rdp"},
        "training": {"algorithm": method, "rounds": 2, "sampling_rate": 0.75,
                     "local_steps": STEPS.get(method, LOCAL_STEPS),
                     "options": OPTIONS.get(method, {})},
    }  # fmt: skip
    for stage in stages:
        for section, keys in STAGES[stage].items():
            own[section] |= keys
    return load(own)


def refusal(method, unit, stages, mechanism):
    """Why a combination is refused, if it is: nothing is refused beyond this list."""
    trusted, prescribed = method == "dp-fedavg", method == "nbafl"
    if unit == "client" and "adaptive clip" in stages:
        return "counts records"
    if {"penalty", "shuffler"} <= set(stages):
        return "hides who sent a message"
    if trusted and unit == "record":
        return "hides whole clients"
    if trusted and "penalty" in stages:
        return "one noise to the sum of all updates"
    if "penalty" in stages and method in ("fedsgd", "nbafl"):
        return "sends no updates, so there is nothing to pull to"
    if trusted and "shuffler" in stages:
        return "clients send updates without noise to a trusted server"
    if prescribed and mechanism != "gaussian":
        return "adds Gaussian noise"
    if prescribed and unit == "record":
        return 'needs "client"'
    if prescribed and "pace" in stages:
        return 'needs "uniform"'
    return None


NOISE = {name: kind.family(1.0)(1.3) for name, kind in mechanisms.BUILT_IN.items()}
NOISE["logistic"] = Logistic(0.8)


@pytest.fixture(scope="module", autouse=True)
def _any_noise_will_do():
    """How much of it fits a budget is tested elsewhere, and takes its time."""

    def calibrated(own):
        noise = NOISE[getattr(own.mechanism, "name", own.mechanism)]
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
        patch.setattr(planning, "_best", lambda setting: best)
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

    monkeypatch.setattr(MechanismNoiser, "add", add)
    return seen


def received(algorithm, seed):
    """What a server may send: anything at all. With an even seed it leads client 0 half the way
    that its records lead it, in the opposite direction."""
    rng, size = torch.Generator().manual_seed(seed), model().layout.dimension

    def draw(scale):
        return scale * torch.randn(size, generator=rng)

    sent = algorithm.broadcast(algorithm.init(model().initial()))
    sent = {name: draw(0.3 if name == "model" else 3.0) for name in (*sent, "direction", WEAKEST)}
    if seed % 2 == 0:
        way = learned(sent["model"])
        against = way / (2 * RATE * LOCAL_STEPS)
        sent = {name: sent[name] if name == "model" else against for name in sent}
        pull = 0.7 * (1 - 20 / 40)  # of client 0, as the budgets of the penalty stage have it
        grown = (1 - RATE * pull) ** LOCAL_STEPS - 1  # in units of the way to the other model
        sent[WEAKEST] = sent["model"] + way / (2 * grown)
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
    for mechanism in MECHANISMS
]


def set_up(method, unit, stages, mechanism, norm="l2"):
    config = settings(method, unit, stages, mechanism, norm)
    algorithm = algorithm_of(config)
    check_combination(config, algorithm)
    x, y = data()
    algorithm.prepare(PublicData(model(), x[:0], y[:0], 0))
    people = plan_releases(
        config, [RECORDS] * CLIENTS, draw_schedule(config), model().layout.dimension, algorithm
    )
    return config, algorithm, people


def charged(events):
    """The releases that were charged, each as often as it was."""
    found = []
    for event in events:
        for leaf, count in leaves(event).items():
            release = leaf.event if isinstance(leaf, PoissonSampled) else leaf
            while not isinstance(release, Release):
                release = release.event
            found += [release] * count
    return found


def assert_within(before, after, release):
    """In units of the noise, because a clip that adapts moves both."""
    change = torch.linalg.vector_norm(before.sum - after.sum, SIZES[release.sensitivity.norm])
    unit = before.noise.noise_std / release.mechanism.noise_std
    assert before.noise == after.noise
    assert float(change) <= release.sensitivity.bound * unit
    return float(change) / (release.sensitivity.bound * unit)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.usefixtures("one_thread")
def test_nobody_changes_more_than_is_charged(method, unit, releases, tmp_path):
    """All stages and mechanisms with this method and this unit."""
    most = []
    for _, _, stages, mechanism in (c for c in CASES if c[:2] == (method, unit)):
        reason = refusal(method, unit, stages, mechanism)
        if reason:
            with pytest.raises(UdpflError, match=reason):
                set_up(method, unit, stages, mechanism)
            continue
        config, algorithm, people = set_up(method, unit, stages, mechanism)
        for seed in (3, 4):
            most.append(crossed(config, algorithm, people, seed, releases, tmp_path))
    # Somebody does change nearly as much, or half of the diameter that is charged.
    assert not most or max(most) > (0.45 if people[0].diameter else 0.9)


def crossed(config, algorithm, people, seed, releases, folder):
    left = 0 if config.privacy.unit == "client" else RECORDS - 1
    with_it, first = one_round(config, algorithm, people, RECORDS, seed, releases)
    without, second = one_round(config, algorithm, people, left, seed, releases)
    for person, events in zip(people, with_it.events, strict=True):
        assert leaves(Composed(events)) == leaves(person.at(2).round_event)  # what was planned
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
        paid = charged(with_it.events[int(client.removeprefix("client-"))])
        assert len(own[0]) == len(own[1]) == len(paid)
        # Counts come last, in the round as in its charge.
        for before, after, release in zip(*own, paid, strict=True):
            assert before.purpose == after.purpose
            change = assert_within(before, after, release)
            assert client == "client-0" or change == 0
            found.append(change)
    return max(found)


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
    assert len(crossed_at_all) > 0.6 * len(CASES)


def test_the_list_of_refusals_is_read_by_people():
    """Each reason names what to change."""
    reasons = {refusal(*case) for case in CASES} - {None}
    assert len(reasons) == 9
    for method, unit, stages, mechanism in CASES:
        if refusal(method, unit, stages, mechanism):
            with pytest.raises(InvalidInput) as told:
                set_up(method, unit, stages, mechanism)
            assert told.value.parameter.partition(".")[0] in ("privacy", "training")
