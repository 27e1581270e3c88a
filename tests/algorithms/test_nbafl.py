"""NbAFL: its authors' noise, and what that noise is charged as."""

from __future__ import annotations

import itertools
import json
import math
import sys

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from tests.repository import ROOT
from tests.small import people_of

sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import nbafl_audit
from tables import filled

import udpfl
from tests.small import WIDE, Seen, Wide, blobs
from udpfl.accounting import PoissonSampled, Release, Repeated
from udpfl.accounting.budget import Budget
from udpfl.accounting.serial import event_to_json
from udpfl.algorithms import ServerStep, Target, Terms
from udpfl.algorithms.nbafl import NbAFL
from udpfl.audit import Releases, audit_releases
from udpfl.engine import BallClipper, Entropy, Keyed, MechanismNoiser, NormClipper
from udpfl.errors import BudgetExceeded, InvalidInput, Unsupported
from udpfl.federation.protection import planned_protection
from udpfl.federation.stages.downlink_noise import DownlinkNoise
from udpfl.ledger.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def federate(tmp_path):
    numbers = itertools.count()

    def start(privacy=None, training=None, *, options=None, net=None, data=None, **more):
        data = blobs() if data is None else data
        settings = {
            "out": str(tmp_path / f"run-{next(numbers)}"),
            "privacy": {"unit": "client", "delta": 1e-3, **(privacy or {})},
            "training": {"algorithm": "nbafl", "rounds": 2, "learning_rate": 0.1, "averaging": 0.0,
                         "server_momentum": 0.0, "sampling_rate": 1.0, "options": options or {},
                         **(training or {})},
            "data": {"clients": 3} if not isinstance(data, list) else {},
        }  # fmt: skip
        settings["data"]["declared_sizes"] = "partition"
        seen = Seen()
        net = Wide() if net is None else net
        # with a test set of its own, so that all records are the clients'
        first = data[0] if isinstance(data, list) else data
        result = udpfl.run(settings, data=data, test=first, model=net, observers=[seen], **more)
        return result, seen

    return start


def method(rounds, clients, asked=None, **options):
    made = NbAFL(ServerStep(), **options)
    made.agree(Terms(clients, asked or clients, rounds, 1, lambda _: 0.1))
    return made


# The formulas


def test_the_noise_is_the_authors():
    """By hand: c = sqrt(2 ln 125) = 3.10751..., 2C/m = 0.05."""
    assert math.sqrt(2 * math.log(125)) == pytest.approx(3.107511, abs=1e-6)
    target = Target(epsilon=5.0, delta=0.01, clip=1.5, smallest=60)
    noise = method(rounds=25, clients=4, exposures=10).own_noise(target)
    assert noise.up.std == pytest.approx(3.107511 * 10 * 0.05 / 5, rel=1e-6)
    # 25 > 10 sqrt(4), sqrt(625 - 400) = 15: 2 * 3.107511 * 1.5 * 15 / (60 * 4 * 5)
    assert noise.down.std == pytest.approx(0.11653166, rel=1e-6)
    assert method(20, 4, exposures=10).own_noise(target).down is None  # 20 = 10 sqrt(4)
    assert method(21, 4, exposures=10).own_noise(target).down is not None
    all_seen = method(25, 4).own_noise(target)  # every upload is seen
    assert all_seen.up.std == pytest.approx(3.107511 * 25 * 0.05 / 5, rel=1e-6)
    assert all_seen.down is None


def test_the_noise_for_some_clients_is_the_authors():
    """Their formulas for K of N, in many digits: T = 25, K = 4, N = 10, L = 3, epsilon = 5."""
    target = Target(epsilon=5.0, delta=0.01, clip=1.5, smallest=60)
    noise = method(25, 10, asked=4, exposures=3).own_noise(target)
    with mpmath.workdps(40):
        share, eps, rounds, seen = mpmath.mpf(4) / 10, mpmath.mpf(5), 25, 3
        gamma = -mpmath.log(1 - share + share * mpmath.exp(-eps / (seen * mpmath.sqrt(4))))
        assert rounds > eps / gamma
        b = -(rounds / eps) * mpmath.log(1 - 1 / share + mpmath.exp(-eps / rounds) / share)
        c = mpmath.sqrt(2 * mpmath.log(mpmath.mpf("1.25") / mpmath.mpf("0.01")))
        down = 2 * c * 1.5 * mpmath.sqrt((rounds / b) ** 2 - seen**2 * 4) / (60 * 4 * eps)
    assert noise.down.std == pytest.approx(float(down), rel=1e-9)
    assert noise.up.std == pytest.approx(3.107511 * 3 * 0.05 / 5, rel=1e-6)  # as for all of them
    assert "which 4 of 10 clients a round asks" in noise.claim
    assert "of 4 clients" not in method(25, 4, exposures=3).own_noise(target).claim


@given(
    rounds=st.integers(1, 500), asked=st.integers(1, 60), more=st.integers(1, 60),
    seen=st.integers(1, 500), epsilon=st.floats(0.01, 200),
)  # fmt: skip
def test_noise_for_some_clients_begins_where_the_authors_say(rounds, asked, more, seen, epsilon):
    seen = min(seen, rounds)
    noise = method(rounds, asked + more, asked, exposures=seen).own_noise(
        Target(epsilon, 0.01, 1.0, 10)
    )
    with mpmath.workdps(60):
        share = mpmath.mpf(asked) / (asked + more)
        gamma = -mpmath.log(1 - share * (1 - mpmath.exp(-epsilon / (seen * mpmath.sqrt(asked)))))
        begins = epsilon / gamma
    if abs(rounds - begins) > 1e-6 * rounds:
        assert (noise.down is not None) == (rounds > begins)


def test_some_clients_are_nearly_all_of_them():
    """K / N towards 1: the formula for some goes over into the one for all."""
    target = Target(epsilon=5.0, delta=0.01, clip=1.5, smallest=60)
    most = method(25, 100_001, asked=100_000, exposures=1)._lacking(0.01)
    assert method(1000, 1001, asked=1000, exposures=1)._lacking(5.0) == pytest.approx(
        method(1000, 1000, exposures=1)._lacking(5.0), rel=2e-3
    )
    assert most == 0.0  # 25 rounds are below the root of so many
    # what nobody knowing who was asked would be worth: less noise than for K clients of K
    some = method(400, 40, asked=4, exposures=2).own_noise(target).down.std
    assert some < method(400, 4, exposures=2).own_noise(target).down.std


def test_some_clients_in_a_run(federate):
    """A client pays for the rounds that asked it, and the server adds the noise of the formula."""
    result, seen = federate(
        {"epsilon": 1.0, "clip": 0.5}, {"rounds": 12, "clients_per_round": 2, "evaluate_every": 12},
        options={"exposures": 1},
    )  # fmt: skip
    release = people_of(result)[0].release
    for person in people_of(result):
        own = udpfl.account(Repeated(release, person.rounds), 1e-3).epsilon
        assert result.clients[person.name].epsilon == pytest.approx(own, rel=1e-6)
    assert sum(person.rounds for person in people_of(result)) == 24
    std = method(12, 3, asked=2, exposures=1).own_noise(Target(1.0, 1e-3, 0.5, 20)).down.std
    for round_, model in enumerate(seen.models):
        mean = torch.stack([m.tensors["parameters"] for m in seen.messages[2 * round_ :][:2]])
        noise = (model - mean.mean(0)).numpy()
        assert stats.kstest(noise, stats.norm(0, std).cdf).pvalue > 1e-6
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(noise, stats.norm(0, wrong * std).cdf).pvalue < 1e-12


def test_a_run_takes_its_numbers_from_the_configuration(federate):
    data = [(x, y) for x, y in zip(np.split(blobs()[0], [10, 35]),
                                   np.split(blobs()[1], [10, 35]), strict=True)]  # fmt: skip
    result, _ = federate({"epsilon": 2.0, "clip": 0.7}, {"rounds": 3}, data=data)
    c = math.sqrt(2 * math.log(1.25 / 1e-3))
    for person in people_of(result):
        # the smallest client has 10 records
        assert person.release.mechanism.std == pytest.approx(c * 3 * (2 * 0.7 / 10) / 2.0)
        assert person.release.sensitivity == udpfl.Sensitivity(1.4, "l2", WIDE)
        assert person.release.unit == "client"
        assert person.budget is None


# What leaves


def test_messages_carry_that_noise(federate):
    """Zero weights that hardly move: a message is the noise itself."""
    result, seen = federate({"epsilon": 3.0, "clip": 0.5}, {"learning_rate": 1e-12})
    std = math.sqrt(2 * math.log(1.25 / 1e-3)) * 2 * (2 * 0.5 / 20) / 3.0
    for message in seen.messages[:3]:
        assert set(message.tensors) == {"parameters"}
        noise = message.tensors["parameters"].numpy()
        assert stats.kstest(noise, stats.norm(0, std).cdf).pvalue > 1e-6
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(noise, stats.norm(0, wrong * std).cdf).pvalue < 1e-12
        cost = Repeated(PoissonSampled(1.0, people_of(result)[0].release), 1)
        assert message.events == (event_to_json(cost),)
    first, second = (m.tensors["parameters"] for m in seen.messages[:2])
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(WIDE)


def quiet(people):
    class Silent(MechanismNoiser):
        def add(self, sums, stream, keys):
            return sums

    return planned_protection(people)[0], Silent([p.release.mechanism for p in people])


def test_parameters_are_clipped_and_not_how_far_they_moved(federate):
    """Noise aside. They start far outside the ball and hardly move."""
    net = Wide()
    nn.init.constant_(net.weight, 1.0)
    _, seen = federate({"clip": 0.25}, {"learning_rate": 1e-6, "rounds": 1}, net=net,
                       protection=quiet)  # fmt: skip
    wanted = torch.full((WIDE,), 0.25 / math.sqrt(WIDE))
    for message in seen.messages:
        sent = message.tensors["parameters"]
        assert torch.allclose(sent, wanted, rtol=1e-3)
        assert float(sent.double().norm()) <= 0.25
    _, seen = federate({"clip": 0.25}, {"learning_rate": 50.0}, protection=quiet)
    sizes = [float(m.tensors["parameters"].double().norm()) for m in seen.messages]
    assert max(sizes) == pytest.approx(0.25, rel=1e-3)
    assert max(sizes) <= 0.25
    _, seen = federate({"clip": 1e4}, {"learning_rate": 50.0}, protection=quiet)
    assert max(float(m.tensors["parameters"].norm()) for m in seen.messages) > 1


def test_parameters_that_are_not_finite_count_as_zero(federate):
    x, y = blobs()
    _, seen = federate({"clip": 0.25}, {"learning_rate": 1e38, "rounds": 1},
                       data=(x * 1e10, y), protection=quiet)  # fmt: skip
    assert not any(m.tensors["parameters"].any() for m in seen.messages)


def test_a_ball_is_as_wide_as_its_diameter():
    """Clip and charge: any two clipped vectors lie within what is charged, and some lie so far."""
    clipper = BallClipper("l2", [0.5, 3.0])
    rows = torch.randn(2, 40, generator=torch.Generator().manual_seed(0)) * 100
    near, far = (clipper.clipped_rows(sign * rows).sum.double() for sign in (1, -1))
    for lane, charged in enumerate((1.0, 6.0)):
        assert clipper.sensitivity(lane, 40) == udpfl.Sensitivity(charged, "l2", 40)
        assert charged * 0.999 < float((near - far)[lane].norm()) <= charged
    assert clipper.lanes(slice(1, 2)).sensitivity(0, 40).bound == 6.0
    with pytest.raises(Unsupported, match="whole rows"):
        clipper.clipped_sum(None)


def test_the_clipper_of_a_run_clips_to_half_of_what_is_charged(federate):
    result, _ = federate({"clip": 0.75})
    clipper, _ = planned_protection(people_of(result))
    assert isinstance(clipper, BallClipper)
    assert clipper.bounds == (0.75,) * 3
    plain, _ = federate({"clip": 0.75}, {"algorithm": "fedavg"})
    clipper, _ = planned_protection(people_of(plain))
    assert type(clipper) is NormClipper
    assert clipper.sensitivity(0, WIDE).bound == 0.75


# What is charged and stated


def test_a_run_is_stated_at_what_its_noise_really_hides(federate):
    result, _ = federate({"epsilon": 1.0, "clip": 2.0}, {"rounds": 4, "local_steps": 3})
    std = math.sqrt(2 * math.log(1.25 / 1e-3)) * 4 * (2 * 2.0 / 20) / 1.0
    release = Release(udpfl.Gaussian(std), udpfl.Sensitivity(4.0), "client")
    wanted = udpfl.account(Repeated(release, 4), 1e-3).epsilon
    assert wanted > 5 * 1.0  # far beyond what was asked for
    assert result.privacy.epsilon == pytest.approx(wanted, rel=1e-6)
    assert (result.privacy.kind, result.privacy.unit) == ("guarantee", "client")
    # An upper bound that owes nothing to the accountant: N(0, 1) against N(mu, 1).
    mu, epsilon = math.sqrt(4) * 4.0 / std, result.privacy.epsilon
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )
    assert 0.9e-3 < exact <= 1.0001e-3
    with Ledger(result.ledger_path, read_only=True) as ledger:
        for account in ledger.accounts():
            entries = list(ledger.history(account.id))
            assert sum(entry.count for entry in entries) == 4
            assert ledger.budget(account.id) is None
    report = (result.folder / "report.html").read_text()
    assert "own claim of ε = 1 " in report.replace("\N{NO-BREAK SPACE}", " ")
    assert "l2 2<" in report


def test_the_statement_says_why_the_authors_claim_is_none(federate):
    result, _ = federate({"epsilon": 1.0}, options={"exposures": 2})
    (note,) = [note for note in result.privacy.notes if "NbAFL" in note]
    assert "ε = 1 at δ = 0.001 for one record is no guarantee" in note
    assert "2C/m = 0.1," in note
    assert "uploads" not in note
    assert "ε = 1 in an upload" not in note
    result, _ = federate({"epsilon": 8.0}, {"rounds": 3}, options={"exposures": 2})
    (note,) = [note for note in result.privacy.notes if "NbAFL" in note]
    assert "it counts 2 uploads of a client" in note
    assert "ε = 1 in an upload" in note


def test_a_real_budget_in_a_shared_ledger_still_refuses(federate, tmp_path):
    shared = tmp_path / "shared.sqlite"
    federate({"ledger": str(shared), "epsilon": 1.0}, {"rounds": 1})
    with Ledger(shared) as ledger:
        for account in ledger.accounts():
            ledger.set_budget(account.id, Budget(ledger.statement(account.id, 1e-3).epsilon, 1e-3))
        before = ledger.head()
    answers = {  # no setting changes the noise of this method, so none is offered
        "refuse": "is too small for this run; .* is spent; no part of this run would fit",
        "skip": "no client has enough budget left",
        "fit": "is too small for this run, and its noise is not planned for a guarantee",
    }
    for exhausted, words in answers.items():
        with pytest.raises(BudgetExceeded, match=words):
            federate({"ledger": str(shared), "epsilon": 1.0, "exhausted": exhausted})
    with Ledger(shared, read_only=True) as ledger:
        assert ledger.head() == before
        assert not any(ledger.reserved(account.id) for account in ledger.accounts())
    assert [path.name for path in tmp_path.glob("run-*")] == ["run-0"]


# The way down


def test_the_server_adds_its_own_noise(federate):
    result, seen = federate({"epsilon": 1.0, "clip": 0.5}, {"rounds": 4}, options={"exposures": 1})
    c = math.sqrt(2 * math.log(1.25 / 1e-3))
    std = 2 * c * 0.5 * math.sqrt(16 - 3) / (20 * 3 * 1.0)
    for round_, model in enumerate(seen.models):
        mean = torch.stack([m.tensors["parameters"] for m in seen.messages[3 * round_ :][:3]])
        noise = (model - mean.mean(0)).numpy()
        assert stats.kstest(noise, stats.norm(0, std).cdf).pvalue > 1e-6
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(noise, stats.norm(0, wrong * std).cdf).pvalue < 1e-12
    # It costs nothing and saves nothing: uploads are charged as they are, all four.
    release = people_of(result)[0].release
    assert result.privacy.epsilon == pytest.approx(
        udpfl.account(Repeated(release, 4), 1e-3).epsilon, rel=1e-6
    )


def test_without_noise_down_the_model_is_the_weighted_mean(federate):
    x, y = blobs()
    data = [(x[:10], y[:10]), (x[10:], y[10:])]
    _, seen = federate({"clip": 0.5}, data=data)
    for round_, model in enumerate(seen.models):
        first, second = (m.tensors["parameters"] for m in seen.messages[2 * round_ :][:2])
        assert torch.allclose(model, (10 * first + 50 * second) / 60, atol=1e-6)


def test_noise_down_is_fresh_in_every_round_and_after_a_crash():
    noise = method(5, 2, exposures=1).own_noise(Target(1.0, 0.01, 1.0, 10))
    server = {"model": torch.zeros(50), "velocity": torch.ones(50)}
    down = DownlinkNoise("k", Entropy(), MechanismNoiser([noise.down]))
    assert not torch.equal(down.publish(1, server)["model"], down.publish(1, server)["model"])
    seeded = DownlinkNoise("k", Keyed(0), MechanismNoiser([noise.down]))
    assert torch.equal(seeded.publish(1, server)["model"], seeded.publish(1, server)["model"])
    assert not torch.equal(seeded.publish(1, server)["model"], seeded.publish(2, server)["model"])
    assert torch.equal(down.publish(1, server)["velocity"], server["velocity"])


def test_a_resumed_run_has_the_same_noise_down(federate):
    settings = ({"randomness": "seeded"}, {"rounds": 5})
    whole, _ = federate(*settings, options={"exposures": 1})
    again, _ = federate(*settings, options={"exposures": 1})
    (again.folder / "checkpoints" / "round-000005.safetensors").unlink()  # as if killed
    resumed = udpfl.run(resume=again.folder, model=Wide(), data=blobs(), test=blobs())
    for first, second in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(first, second)


# Training


def test_hardly_any_noise_leaves_the_fixed_point_of_a_proximal_training(federate):
    """Client losses are A (w - a)^2 / 2, so K steps along A (w - a) + mu (w - w0) move w0 by
    -p (w0 - a), p = (1 - (1 - eta (A + mu))^K) A / (A + mu): at rest the means cancel."""
    rate, steps, mu = 0.1, 5, 0.5
    curvatures, minima, sizes = (1.0, 4.0), (3.0, -1.0), (10, 30)
    data = []
    for curvature, minimum, size in zip(curvatures, minima, sizes, strict=True):
        x = np.full((size, 1), math.sqrt(curvature / 2), np.float32)  # loss (x w - y)^2
        data.append((x, x[:, 0] * np.float32(minimum)))
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    _, seen = federate(
        {"epsilon": 1e9, "clip": 10.0},
        {"rounds": 40, "local_steps": steps, "learning_rate": rate, "evaluate_every": 40},
        options={"mu": mu}, data=data, net=net,
    )  # fmt: skip
    pulls = [n * (1 - (1 - rate * (a + mu)) ** steps) * a / (a + mu)
             for n, a in zip(sizes, curvatures, strict=True)]  # fmt: skip
    rest = sum(p * a for p, a in zip(pulls, minima, strict=True)) / sum(pulls)
    assert float(seen.models[-1]) == pytest.approx(rest, abs=1e-3)


# What is refused


@pytest.mark.parametrize(
    ("privacy", "training", "options", "what"),
    [
        ({"unit": "record"}, {}, {}, r"privacy\.unit"),
        ({"mechanism": "laplace"}, {}, {}, r"privacy\.mechanism"),
        ({"mechanism": ["gaussian", "staircase"]}, {}, {}, r"privacy\.mechanism"),
        ({"norm": "l1"}, {}, {}, r"privacy\.norm"),
        ({"pace": "increasing"}, {}, {}, r"privacy\.pace"),
        ({"clip_quantile": 0.5}, {}, {}, r"privacy\.clip_quantile"),
        ({"accounting": "scalar"}, {}, {}, r"privacy\.accounting"),
        ({"epsilon": [1.0, 2.0]}, {}, {}, r"privacy\.epsilon"),
        ({"delta": [1e-3, 1e-4]}, {}, {}, r"privacy\.delta"),
        ({"clip": [1.0, 2.0]}, {}, {}, r"privacy\.clip"),
        ({"delta": 0.0}, {}, {}, r"privacy\.delta"),
        ({"clip": 1e20}, {}, {}, r"privacy\.clip"),
        ({}, {}, {"exposures": 0}, r"options\.exposures"),
        ({}, {}, {"exposures": 1.5}, r"options\.exposures"),
        ({}, {}, {"exposures": True}, r"options\.exposures"),
        ({}, {}, {"exposures": 3}, r"at most training\.rounds = 2"),
        ({}, {}, {"mu": -1.0}, r"options\.mu"),
    ],
)
def test_what_its_noise_would_not_follow_is_refused(federate, privacy, training, options, what):
    with pytest.raises((InvalidInput, Unsupported), match=what):
        federate(privacy, training, options=options)


def test_an_audit_that_replays_updates_says_that_there_are_none(federate):
    result, _ = federate()
    with pytest.raises(Unsupported, match="releases parameters"):
        udpfl.audit.audit_run(result.folder, data=blobs(), model=Wide())


def test_values_that_are_listed_and_alike_are_one_budget(federate):
    result, _ = federate({"epsilon": [2.0, 2.0], "mechanism": ["gaussian"]})
    assert result.privacy.epsilon > 0


# The authors' claim, audited


def descended(x, y, steps=20, rate=0.1, mu=0.1):
    """Softmax regression from zero on all records in every step, by hand."""
    x = np.c_[x.reshape(len(x), -1).astype(float), np.ones(len(x))]
    wanted = np.eye(10)[y]
    w = np.zeros((10, x.shape[1]))
    for _ in range(steps):
        scores = x @ w.T
        scores = np.exp(scores - scores.max(1, keepdims=True))
        gradient = (scores / scores.sum(1, keepdims=True) - wanted).T @ x / len(x)
        w -= rate * (gradient + mu * w)
    return np.concatenate([w[:, :-1].ravel(), w[:, -1]])


def test_what_is_audited_is_what_training_makes_of_the_records():
    for case in nbafl_audit.worlds(60):
        for records in (case.one, case.other):
            plain, _ = nbafl_audit.upload(records, 1, None)
            wanted = descended(*records)
            assert np.linalg.norm(plain - wanted) < 1e-3 * np.linalg.norm(wanted)
            clip = np.linalg.norm(wanted) / 3
            clipped, std = nbafl_audit.upload(records, 4, clip)
            assert np.linalg.norm(clipped - wanted / 3) < 1e-3 * clip
            c = math.sqrt(2 * math.log(1.25 / nbafl_audit.DELTA))
            assert std == pytest.approx(c * 4 * (2 * clip / 60) / nbafl_audit.EPSILON)


def test_one_record_refutes_the_authors_claim_and_not_ours():
    for case in nbafl_audit.worlds(100):
        found = nbafl_audit.verdict(case, 1, 20_000)
        one, other = (descended(*records) for records in (case.one, case.other))
        clip = np.linalg.norm(one)
        moved = np.linalg.norm(other * min(1, clip / np.linalg.norm(other)) - one)
        assert found["moved"] == pytest.approx(moved, rel=1e-2)
        assert found["moved"] > 3 * found["granted"]
        assert found["refuted"], case.name
        assert found["proved"] > nbafl_audit.EPSILON
        assert not found["stated_refuted"]
        assert found["stated"] > found["proved"]


def test_the_same_audit_leaves_a_true_claim_alone():
    """Where one record does move a vector by 2C/m and no more, the noise is enough for ε = 1."""
    noise = method(1, 1).own_noise(Target(1.0, 1e-5, 0.5, 100)).up
    true = audit_releases(Releases(noise, np.array([2 * 0.5 / 100])), 1.0, 1e-5, trials=20_000)
    assert not true.refuted
    # and not where ε is far above 1: the formula was never proved there
    loose = method(1, 1).own_noise(Target(40.0, 1e-5, 0.5, 100)).up
    mu = 0.01 / loose.std
    exact = stats.norm.cdf(mu / 2 - 40 / mu) - math.exp(40) * stats.norm.cdf(-mu / 2 - 40 / mu)
    assert exact > 10 * 1e-5


def test_the_page_quotes_the_result_file():
    report = json.loads((nbafl_audit.RESULTS / "nbafl.json").read_text())
    page = nbafl_audit.DOCUMENT.read_text()
    assert filled(page, "nbafl", nbafl_audit.table(report)) == page
    assert all(one["refuted"] and not one["stated_refuted"] for one in report["verdicts"])
    assert round(report["verdicts"][0]["times"]) == 23
    assert "23 times as far" in page
    cells = json.loads((nbafl_audit.RESULTS / "methods.json").read_text())["cells"]
    own = [c for c in cells if c["method"].startswith("nbafl") and c["data"] == "digits"]
    (stated,) = {cell["privacy"] for cell in own}
    assert "ε = 5.62e+04, " in stated
    assert "ε = 56,200" in page
