"""What a shuffled run costs: a guarantee as without a shuffler, or the paper's number."""

from __future__ import annotations

import json
import logging
import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from tests.federation.stages.samples import Seen
from tests.small import blobs, linear
from udpfl.accounting import Composed, PoissonSampled, Release, Repeated, Sensitivity, Shuffled
from udpfl.accounting import account as accounted
from udpfl.accounting.budget import Budget
from udpfl.accounting.shuffling import exact_randomised_response, nominal, unshuffled
from udpfl.audit._one_run import one_run
from udpfl.audit.ledger import audit_ledger
from udpfl.config import load
from udpfl.data import as_dataset
from udpfl.federation import Setup
from udpfl.ledger.ledger import Ledger
from udpfl.mechanisms import Gaussian

pytestmark = pytest.mark.usefixtures("one_thread")


# What it costs: a guarantee


def test_a_guarantee_is_what_it_is_without_a_shuffler(federate, caplog):
    with caplog.at_level(logging.WARNING):
        mixed, _ = federate({"epsilon": 2.0})
    plain, _ = federate({"epsilon": 2.0}, {"shuffle": False})
    for name, statement in mixed.clients.items():
        other = plain.clients[name]
        assert statement.kind == "guarantee"
        assert (statement.epsilon, statement.accountant) == (other.epsilon, other.accountant)
        (note,) = set(statement.notes) - set(other.notes)
        assert note.startswith("shuffled: no amplification because the messages are not pure-LDP")
        assert sum(note == record.getMessage() for record in caplog.records) == 1
    events = []
    for result, note in ((mixed, "shuffled"), (plain, "")):
        with Ledger(result.ledger_path, read_only=True) as ledger:
            entries = list(ledger.history())
            assert {entry.note for entry in entries} == {note}
            assert ledger.verify() == []
        events.append([(e.client, e.round, e.count, e.event_json) for e in entries])
        found = audit_ledger(result.folder)
        assert found.sound
        assert not found.remarks
    assert events[0] == events[1]


def test_an_audit_of_a_guarantee_looks_at_messages_with_names():
    """It holds against whoever can tell senders, so that is whom it has to withstand."""
    config = load(
        {
            "data": {"clients": 2, "declared_sizes": 24, "name": "own"},
            "privacy": {"mechanism": "gaussian", "delta": 1e-3},
            "training": {"rounds": 1, "shuffle": True},
        }
    )
    data = as_dataset(blobs())
    found = one_run(Setup.of(config, data=data, model=linear()), 0, 10)
    assert found.server is not None
    assert np.all(found.server != 0)


def test_without_a_claim_there_is_nothing_to_amplify(federate):
    for privacy in ("none", {"randomness": "seeded"}):
        result, seen = federate(privacy)
        assert result.privacy.kind == "none"
        assert not any("shuffled" in note for note in result.privacy.notes)
        assert {message.client for message in seen.messages} == {""}


def test_a_shuffle_that_does_nothing_keeps_no_accountant_away():
    message = PoissonSampled(0.3, Release(Gaussian(2.0), Sensitivity(1.0, "l2", 10)))
    mixed, plain = (Repeated(event, 20) for event in (Shuffled(message, 10), message))
    for how in ("rdp", "pld", "best"):
        assert accounted(mixed, 1e-5, how).epsilon == accounted(plain, 1e-5, how).epsilon
    assert unshuffled(mixed) == plain == unshuffled(plain)
    assert unshuffled(Composed([mixed, message])) == Composed([plain, message])


# What it costs: the paper's number


def responses(order, epsilon, clients):
    """The divergence of shuffled randomised responses, from the binomial's terms."""
    truth, lie = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    others = [
        math.comb(clients - 1, k) * lie**k * truth ** (clients - 1 - k) for k in range(clients)
    ]
    with_one, with_none = [0.0, *others], [*others, 0.0]
    p = [truth * a + lie * b for a, b in zip(with_one, with_none, strict=True)]
    q = [lie * a + truth * b for a, b in zip(with_one, with_none, strict=True)]
    return max(
        math.log(sum(x * (x / y) ** (order - 1) for x, y in zip(*pair, strict=True))) / (order - 1)
        for pair in ((p, q), (q, p))
    )


def lemma(std, releases, clients, delta):
    """Nominal epsilon of whole Gaussian releases, shuffled each, one coordinate at a time."""
    best = math.inf
    for order in np.arange(1.05, 40, 0.05):
        gamma = order / (2 * std**2)
        pairs = order * (order - 1) / 2
        upper = math.log1p(pairs * 4 * math.expm1(gamma) ** 2 / clients) / (order - 1)
        own = min(gamma, upper) if upper >= responses(order, gamma, clients) else gamma
        more = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        best = min(best, releases * own + more)
    return best


def gaussian_epsilon(ratio, delta):
    """Exact: Balle and Wang 2018, Theorem 8."""

    def excess(epsilon):
        a, b = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
        return stats.norm.cdf(a) - math.exp(epsilon) * stats.norm.cdf(b) - delta

    return brentq(excess, 0, 100)


def test_a_nominal_run_uses_the_lemma_and_says_what_holds(federate):
    training, ten = {"sampling_rate": 1.0, "rounds": 4}, {"clients": 10}
    privacy = {"epsilon": 2.0, "accounting": "scalar"}
    mixed, _ = federate(privacy, training, ten)
    plain, _ = federate(privacy, {**training, "shuffle": False}, ten)
    people = [json.loads((r.folder / "participants.json").read_text()) for r in (mixed, plain)]
    stds = [own[0]["release"]["mechanism"]["parameters"]["std"] for own in people]
    assert stds[0] < 0.95 * stds[1]  # the amplification is used when noise is planned
    statement = mixed.clients["client-0"]
    assert statement.kind == "nominal"
    assert statement.epsilon == pytest.approx(lemma(stds[0], 4, 10, 1e-3), rel=2e-3)
    assert 1.95 < statement.epsilon <= 2.0
    exact = gaussian_epsilon(2 / stds[0], 1e-3)  # four releases are one of half the noise
    assert exact <= statement.vector_epsilon * (1 + 1e-9) <= exact * 1.01
    assert statement.vector_epsilon > 2.1
    assert any(
        "the paper's lemma, whose conditions do not hold" in note for note in statement.notes
    )
    assert not any("shuffled" in note for note in plain.clients["client-0"].notes)
    with Ledger(mixed.ledger_path, read_only=True) as ledger:
        assert {(e.note, e.event.clients) for e in ledger.history()} == {("shuffled", 10)}
        # Whoever asks the ledger for what holds is told so.
        (asked,) = {ledger.statement(a.id, 1e-3) for a in ledger.accounts()}
    assert (asked.kind, asked.epsilon) == ("guarantee", statement.vector_epsilon)
    assert audit_ledger(mixed.folder).sound


def test_counts_of_an_adaptive_clip_are_not_among_the_mixed(federate):
    """The server reads them before the shuffler does."""
    mixed, _ = federate({"accounting": "scalar", "clip_quantile": 0.5}, {"local_steps": 2})
    with Ledger(mixed.ledger_path, read_only=True) as ledger:
        kinds = {(type(e.event), e.count, e.round) for e in ledger.history(1)}
    assert kinds == {
        (Shuffled, 2, 1),
        (Shuffled, 2, 2),
        (PoissonSampled, 1, 1),
        (PoissonSampled, 1, 2),
    }


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("late", [False, True])
def test_only_messages_that_were_mixed_count(federate, monkeypatch, tmp_path, late, steps):
    class Lowers(Seen):
        """Sets a budget that is too small once the run has begun."""

        def on_start(self, config, folder):
            with Ledger(config.privacy.ledger) as ledger:
                (first,) = ledger.find("client-0")
                ledger.set_budget(first.id, Budget(1e-3, 1e-3))

    shared = {"accounting": "scalar", "ledger": str(tmp_path / "shared.sqlite")}
    if late:  # the budget is seen to be too small only when the charge is made
        monkeypatch.setattr(Ledger, "refusals", lambda *_: {})
    result, seen = federate(shared, {"rounds": 1, "local_steps": steps}, seen=Lowers())
    assert len(seen.messages) == 2
    with Ledger(result.ledger_path, read_only=True) as ledger:
        new = list(ledger.history())
        assert {entry.client for entry in new} == {"client-1", "client-2"}
        for entry in new:
            mixed = entry.event
            assert entry.count == steps
            alone = (
                PoissonSampled(mixed.rate, mixed.event)
                if late
                else Shuffled(mixed.event, 2, releases=steps)
            )
            assert mixed == alone
        assert ledger.verify() == []


def test_clients_that_are_left_out_are_not_counted_among_the_mixed(federate, tmp_path):
    """What the others reserve is what they are charged, so it fits a budget with no room beside."""
    path = tmp_path / "shared.sqlite"
    shared = {"accounting": "scalar", "ledger": str(path), "exhausted": "skip"}
    federate(shared)
    with Ledger(path) as ledger:
        for own in ledger.accounts():
            twice = Repeated(ledger.spent(own.id), 2)
            enough = ledger.filter(own.id).epsilon(twice, 1e-3) * 1.01
            ledger.set_budget(own.id, Budget(enough if own.id > 1 else enough / 4, 1e-3))
        before = len(list(ledger.history()))
    result, _ = federate(shared)
    assert [row["participants"] for row in result.metrics] == [2, 2]
    with Ledger(path, read_only=True) as ledger:
        new = list(ledger.history())[before:]
    assert {entry.client for entry in new} == {"client-1", "client-2"}
    assert {entry.event.clients for entry in new} == {2}


def test_randomised_response_is_exact_for_large_epsilon():
    orders = np.asarray([1.5, 2.0, 30.0])
    for epsilon in (0.5, 30.0, 45.0, 200.0):
        found = exact_randomised_response(orders, epsilon, 1)
        a, lie = orders, -epsilon - math.log1p(math.exp(-epsilon))
        truth = lie + epsilon
        wanted = np.logaddexp(a * truth + (1 - a) * lie, a * lie + (1 - a) * truth) / (a - 1)
        assert found == pytest.approx(wanted, rel=1e-9)
    for gamma in (600.0, 1e5, math.inf):
        assert nominal(orders, np.full(3, gamma), 10) == pytest.approx(gamma)
