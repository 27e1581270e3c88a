"""Methods that answer by randomised response: what leaves, what it costs, what an audit sees."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import special, stats

import udpfl
from tests.small import WIDE, Seen, Wide, blobs, people_of
from udpfl.accounting import PureDP, Repeated
from udpfl.accounting.budget import Budget
from udpfl.accounting.randomised import Randomised
from udpfl.accounting.serial import event_to_json
from udpfl.algorithms import ServerStep, Target, Terms
from udpfl.algorithms.cldp_sgd import CldpSgd
from udpfl.algorithms.ldp_fed import LdpFed
from udpfl.algorithms.ldp_fl import LdpFl
from udpfl.audit import audit_run
from udpfl.audit._randomised import audit_message
from udpfl.audit.ledger import audit_ledger
from udpfl.config import load
from udpfl.errors import BudgetExceeded, InvalidInput
from udpfl.ledger.ledger import Ledger
from udpfl.mechanisms import CoordinateResponse, DirectionResponse

pytestmark = pytest.mark.usefixtures("one_thread")

NORMS = {"ldp-fed": "linf", "cldp-sgd": "l2", "ldp-fl": "linf"}
every = pytest.mark.parametrize("method", NORMS)


def settings(method, privacy=None, training=None, options=None):
    return {
        "privacy": {"unit": "client", "norm": NORMS[method], "delta": 1e-3, "epsilon": 1.0,
                    **(privacy or {})},
        "training": {"algorithm": method, "rounds": 2, "learning_rate": 0.1, "averaging": 0.0,
                     "server_momentum": 0.0, "sampling_rate": 1.0, "options": options or {},
                     **(training or {})},
        "data": {"clients": 3, "declared_sizes": "partition"},
    }  # fmt: skip


@pytest.fixture
def federate(tmp_path):
    numbers = itertools.count()

    def start(*args, **more):
        seen, own = Seen(), {**settings(*args), "out": str(tmp_path / f"run-{next(numbers)}")}
        result = udpfl.run(own, data=blobs(), test=blobs(), model=Wide(), observers=[seen], **more)
        return result, seen

    return start


def agreed(kind, rounds=5, clients=10, asked=None, **options):
    made = kind(ServerStep(), **options)
    made.agree(Terms(clients, asked or clients, rounds, 1, lambda _: 0.1))
    return made


# What leaves


def exact_delta(epsilon, answers, total):
    """Of so many independent binary randomised responses, exactly: their number of true answers."""
    right = np.arange(answers + 1)
    yes, no = special.log_expit(epsilon), special.log_expit(-epsilon)
    ways = special.gammaln(answers + 1) - special.gammaln(right + 1)
    ways -= special.gammaln(answers - right + 1)
    one = ways + right * yes + (answers - right) * no
    other = ways + right * no + (answers - right) * yes
    gain = one > other + total
    return float((np.exp(one[gain]) - np.exp(other[gain] + total)).sum())


@pytest.mark.parametrize(
    ("method", "options", "answers", "each"),
    [
        ("ldp-fed", {}, WIDE, 0.05),
        ("cldp-sgd", {"answers": 4}, 4, 0.0125),
        ("ldp-fl", {"answers": 8}, 8, 0.00625),
    ],
)
def test_a_run_is_stated_at_all_its_answers(federate, method, options, answers, each):
    result, seen = federate(method, {"epsilon": 0.05}, {}, options)
    for person in people_of(result):
        assert isinstance(person.release, Randomised)
        own = person.release.randomiser
        assert (own.answers, own.dimension) == (answers, WIDE)
        assert own.epsilon == pytest.approx(each)
        assert person.budget is None
        cost = Repeated(Repeated(PureDP(own.epsilon, "client", discrete=own.discrete), answers), 1)
        assert event_to_json(cost) in {message.events[0] for message in seen.messages}
    stated = result.privacy
    assert (stated.kind, stated.unit, stated.delta) == ("guarantee", "client", 1e-3)
    exact = exact_delta(each, 2 * answers, stated.epsilon)
    assert exact <= 1e-3 * (1 + 1e-6)
    assert exact_delta(each, 2 * answers, 0.9 * stated.epsilon) > 1e-3 or stated.epsilon < 0.2
    with Ledger(result.ledger_path, read_only=True) as ledger:
        for account in ledger.accounts():
            assert sum(entry.count for entry in ledger.history(account.id)) == 2 * answers
            pure = ledger.statement(account.id, 0.0).epsilon
            assert pure == pytest.approx(2 * answers * each)
    assert audit_ledger(result.folder, 1e-3).sound
    assert f"randomised response ({answers} answers" in (result.folder / "report.html").read_text()


def test_messages_of_ldp_fed_are_two_numbers(federate):
    """Far out the update is clipped, and with a large ε nearly every answer is true."""
    _, seen = federate("ldp-fed", {"epsilon": 12.0, "clip": 1e-4}, {"learning_rate": 50.0})
    size = np.float32(1e-4 / math.tanh(6.0))
    sent = [m.tensors["update"].numpy() for m in seen.messages]
    assert all(np.allclose(np.abs(own), size, rtol=1e-4) for own in sent)
    first = np.sign(np.stack(sent[:3]))
    assert (first == first[0]).mean() > 0.9  # clients of the same blobs learn the same signs
    _, hardly = federate("ldp-fed", {"epsilon": 1.0, "clip": 1.0}, {"learning_rate": 1e-9})
    signs = [np.sign(m.tensors["update"].numpy()) for m in hardly.messages]
    assert all(stats.binomtest(int((own > 0).sum()), WIDE).pvalue > 1e-6 for own in signs)
    assert abs(np.corrcoef(signs[0], signs[1])[0, 1]) < 6 / math.sqrt(WIDE)


def test_messages_of_the_others_are_as_long_as_they_say(federate):
    _, seen = federate("cldp-sgd", {"clip": 0.5}, {}, {"answers": 1})
    size = DirectionResponse(1.0, 0.5, WIDE).size
    for message in seen.messages:
        assert float(message.tensors["update"].double().norm()) == pytest.approx(size, rel=1e-4)
    _, seen = federate("ldp-fl", {"clip": 0.5}, {}, {"answers": 3})
    for message in seen.messages:
        sent = message.tensors["update"].numpy()
        assert (sent != 0).sum() == 3
        assert np.abs(sent[sent != 0]) == pytest.approx(WIDE / 3 * 0.5 / math.tanh(1 / 6), rel=1e-4)


@every
def test_seeded_runs_repeat_and_claim_nothing_and_others_do_neither(federate, method):
    def sent(privacy):
        result, seen = federate(method, privacy)
        return result, torch.stack([m.tensors["update"] for m in seen.messages])

    result, first = sent({"randomness": "seeded"})
    assert result.privacy.kind == "none"
    assert torch.equal(first, sent({"randomness": "seeded"})[1])
    fresh, second = sent({})
    assert fresh.privacy.kind == "guarantee"
    assert not torch.equal(second, sent({})[1])


# What its authors claim


def test_ldp_fed_says_why_the_claim_is_none(federate):
    result, _ = federate("ldp-fed", {"epsilon": 2.0}, {"rounds": 3})
    (note,) = [note for note in result.privacy.notes if "authors of ldp-fed" in note]
    assert (
        f"claim ε = 2, which is no guarantee: it is that of one weight, and a client sends {WIDE}"
        in note
    )
    assert result.privacy.epsilon > 1000 * 2.0


@pytest.mark.parametrize("kind", [CldpSgd, LdpFl])
def test_what_shuffling_would_gain_is_named_and_not_counted(kind):
    noise = agreed(kind, clients=400).own_noise(Target(2.0, 1e-3, 1.0, 10, 50))
    assert "5 rounds of 400 messages with ε = 2 each would cost ε = " in noise.claim
    assert f"more than {144 * math.exp(10):.2g} messages" in noise.claim
    claimed = float(noise.claim.partition("would cost ε = ")[2].split()[0])
    own = noise.up
    alone = Repeated(PureDP(own.epsilon, "client"), 5 * own.answers)
    assert claimed < udpfl.account(alone, 1e-3).epsilon
    single = agreed(kind, clients=1).own_noise(Target(2.0, 1e-3, 1.0, 10, 50))
    assert "nothing below that" in single.claim
    assert "nothing below that" in agreed(kind).own_noise(Target(2.0, 0.0, 1.0, 10, 50)).claim


def test_a_shuffler_amplifies_nothing(federate):
    plain, _ = federate("cldp-sgd", {}, {}, {"answers": 1})
    shuffled, seen = federate("cldp-sgd", {}, {"shuffle": True}, {"answers": 1})
    assert shuffled.privacy.epsilon == plain.privacy.epsilon
    assert {message.client for message in seen.messages} == {""}
    (note,) = [note for note in shuffled.privacy.notes if note.startswith("shuffled")]
    assert "the randomiser is not discrete" in note
    other, _ = federate("ldp-fl", {}, {"shuffle": True}, {"answers": 2})
    (note,) = [note for note in other.privacy.notes if note.startswith("shuffled")]
    assert "too few clients: 3 are not more than 144 e^(5 x 1)" in note


@pytest.mark.parametrize(("epsilon", "answers"), [(0.3, 1), (1.0, 1), (4.0, 2), (8.0, 4), (50, 25)])
def test_as_many_answers_as_are_best(epsilon, answers):
    """Within a tenth of the least variance coth^2(ε / 2k) / k."""
    own = agreed(CldpSgd).own_noise(Target(epsilon, 1e-3, 1.0, 10, 1000)).up
    assert own == DirectionResponse(epsilon / answers, 1.0, 1000, answers)
    spread = [1 / math.tanh(epsilon / 2 / k) ** 2 / k for k in range(1, 60)]
    assert spread[answers - 1] < 1.1 * min(spread)
    few = agreed(LdpFl).own_noise(Target(epsilon, 1e-3, 1.0, 10, 2)).up
    assert few.answers == min(2, answers)


# What is refused


@every
@pytest.mark.parametrize(
    ("privacy", "training", "what"),
    [
        ({"unit": "record"}, {}, r"privacy\.unit"),
        ({"mechanism": "gaussian"}, {}, r"privacy\.mechanism"),
        ({"mechanism": ["auto", "laplace"]}, {}, r"privacy\.mechanism"),
        ({"norm": "l1"}, {}, r"privacy\.norm"),
        ({"accounting": "scalar"}, {}, r"privacy\.accounting"),
        ({"pace": "increasing"}, {}, r"privacy\.pace"),
        ({"epsilon": [1.0, 2.0]}, {}, r"privacy\.epsilon"),
        ({"clip": [1.0, 2.0]}, {}, r"privacy\.clip"),
        ({"clip": 1e20}, {}, r"privacy\.clip"),
        ({"epsilon": 1e-8}, {}, "epsilon"),
    ],
)
def test_what_answers_would_not_follow_is_refused(federate, method, privacy, training, what):
    with pytest.raises(InvalidInput, match=what):
        federate(method, privacy, training)


def test_more_answers_than_weights_are_refused():
    with pytest.raises(InvalidInput, match="at most the 7 parameters"):
        agreed(LdpFl, answers=8).own_noise(Target(1.0, 1e-3, 1.0, 10, 7))


def test_a_real_budget_in_a_shared_ledger_still_refuses(federate, tmp_path):
    shared = str(tmp_path / "shared.sqlite")
    federate("cldp-sgd", {"ledger": shared}, {"rounds": 1})
    with Ledger(shared) as ledger:
        for account in ledger.accounts():
            ledger.set_budget(account.id, Budget(ledger.statement(account.id, 1e-3).epsilon, 1e-3))
    with pytest.raises(BudgetExceeded, match="no part of this run would fit"):
        federate("cldp-sgd", {"ledger": shared})


def test_a_run_goes_on_where_it_stopped(federate):
    own = ("ldp-fl", {"randomness": "seeded"}, {"rounds": 4})
    whole, _ = federate(*own)
    again, _ = federate(*own)
    (again.folder / "checkpoints" / "round-000004.safetensors").unlink()  # as if killed
    resumed = udpfl.run(resume=again.folder, model=Wide(), data=blobs(), test=blobs())
    for first, second in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(first, second)


# Audits


@every
def test_an_audit_of_a_run_does_not_refute_it(method):
    config = load({**settings(method, {"epsilon": 0.2 if method == "ldp-fed" else 1.0})})
    found = audit_run(config, data=blobs(), model=Wide(), trials=400, canaries=0, error=1e-6)
    assert len(found) == 2
    assert not any(verdict.refuted for verdict in found)
    assert all(verdict.caught is None for verdict in found)
    assert "its update or the opposite one" in found[0].claim
    assert max(verdict.proved for verdict in found) > 0


@pytest.mark.parametrize("kind", [CoordinateResponse, DirectionResponse])
def test_an_audit_comes_close_and_refutes_more(kind):
    """A pure claim from below; and answers that are too often true."""
    own, update = kind(1.0, 1.0, 1, 1), np.array([1.0])
    more = {"claim": "", "trials": 2_000, "error": 1e-3}
    true = audit_message(own, update, 1.0, 0.0, **more)
    assert not true.refuted
    assert true.proved > 0.6
    assert audit_message(kind(1.6, 1.0, 1, 1), update, 1.0, 0.0, **more).refuted
    more["trials"] = 500
    shift = np.full(4, 1.0 if kind is CoordinateResponse else 0.5)
    assert not audit_message(kind(0.2, 1.0, 4, 4), shift, 0.8, 0.0, **more).refuted
    assert audit_message(kind(1.0, 1.0, 4, 4), shift, 0.8, 0.0, **more).refuted


def test_the_claim_of_ldp_fed_for_a_client_is_refuted():
    """That of one weight, tried with twenty of them: a message tells two clients apart."""
    own, update = CoordinateResponse(1.0, 1.0, 20, 20), np.ones(20)
    more = {"claim": "", "trials": 500, "error": 1e-3}
    assert audit_message(own, update, 1.0, 1e-5, **more).refuted
    whole = udpfl.account(Randomised(own).event, 1e-5).epsilon
    assert not audit_message(own, update, whole, 1e-5, **more).refuted


def test_the_methods_differ_in_what_they_ask():
    target = Target(2.0, 1e-3, 0.5, 10, 30)
    assert agreed(LdpFed).own_noise(target).up == CoordinateResponse(2.0, 0.5, 30, 30)
    assert agreed(LdpFl, answers=2).own_noise(target).up == CoordinateResponse(1.0, 0.5, 30, 2)
    assert agreed(CldpSgd, answers=2).own_noise(target).up == DirectionResponse(1.0, 0.5, 30, 2)
    assert agreed(CldpSgd).own_noise(target).down is None
    assert json.dumps(Randomised(CoordinateResponse(2.0, 0.5, 30, 30)).to_dict())
