"""Whole clients as the unit, the trusted server of DP-FedAvg, and the pull between budgets."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import udpfl
from tests.small import WIDE, Seen, Wide, blobs, linear
from udpfl.accounting import PoissonSampled, Release, Repeated, Sensitivity
from udpfl.accounting.serial import event_to_json
from udpfl.algorithms import ClientMessage, ServerStep
from udpfl.algorithms.base import local_update
from udpfl.algorithms.fedavg import FedAvg
from udpfl.engine import Keyed, LaneModel, Limits, MechanismNoiser, NormClipper, Unclipped
from udpfl.errors import BudgetExceeded, InvalidInput, LedgerError, Unsupported
from udpfl.federation import Request, Trainer, local_training
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.stages.trusted_server import TrustedServer
from udpfl.federation.staging import sum_noise
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder


@pytest.fixture
def federate(tmp_path):
    numbers = itertools.count()

    def start(privacy=None, training=None, *, net=None, clients=3, seen=None, **more):
        settings = {
            "out": str(tmp_path / f"run-{next(numbers)}"),
            "privacy": {"unit": "client", "delta": 1e-3, "mechanism": "gaussian",
                        **(privacy or {})},
            "training": {"rounds": 2, "learning_rate": 0.1, "averaging": 0.0,
                         "server_momentum": 0.0, **(training or {})},
            "data": {"clients": clients},
            **{name: more.pop(name) for name in ("record_updates",) if name in more},
        }  # fmt: skip
        seen = seen or Seen()
        result = udpfl.run(settings, data=blobs(), model=net or linear(), observers=[seen], **more)
        return result, seen

    return start


def people_of(result):
    rows = RunFolder(result.folder).read_json("participants.json")
    return [ReleasePlan.from_dict(row) for row in rows]


# Clipping a whole update


@given(
    st.integers(0, 2**32), st.sampled_from(["l1", "l2", "linf"]), st.floats(1e-3, 1e3),
    st.floats(-30, 30),
)  # fmt: skip
def test_a_clipped_update_is_within_its_bound(seed, norm, bound, scale):
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(seed)) * 10.0**scale
    rows[1, 3] = float("nan")
    clipped = NormClipper(norm, [bound] * 3).clipped_rows(rows).sum.double()
    order = {"l1": 1, "l2": 2, "linf": float("inf")}[norm]
    assert torch.linalg.vector_norm(clipped, order, dim=1).max() <= bound
    assert not clipped[1].any()  # not finite: counts as nothing
    small = rows[[0]].double().nan_to_num() * (
        0.9 * bound / torch.linalg.vector_norm(rows[0].double(), order)
    )
    kept = NormClipper(norm, [bound]).clipped_rows(small.float()).sum
    assert torch.allclose(kept.double(), small, rtol=1e-5, atol=0)


# Noise at the client


def test_updates_carry_the_noise_that_was_planned_and_charged(federate):
    """Without a step of training an update is the noise itself."""
    result, seen = federate({"epsilon": 3.0}, {"learning_rate": 1e-12}, net=Wide())
    for person, message in zip(people_of(result), seen.messages, strict=False):
        noise = message.tensors["update"].numpy()
        std = person.release.mechanism.std
        assert stats.kstest(noise, stats.norm(0, std).cdf).pvalue > 1e-6
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(noise, stats.norm(0, wrong * std).cdf).pvalue < 1e-12
        assert message.events == (event_to_json(Repeated(PoissonSampled(1.0, person.release), 1)),)
    first, second = seen.messages[0].tensors["update"], seen.messages[1].tensors["update"]
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(WIDE)


def test_a_round_costs_one_release_however_many_steps_it_takes(federate):
    result, _ = federate({"epsilon": 2.0}, {"local_steps": 7, "sampling_rate": 0.5, "rounds": 4})
    with Ledger(result.ledger_path, read_only=True) as ledger:
        for account in ledger.accounts():
            entries = list(ledger.history(account.id))
            assert sum(entry.count for entry in entries) == 4
            assert {entry.event.rate for entry in entries} == {1.0}
            assert {entry.event.event.unit for entry in entries} == {"client"}
    assert result.privacy.unit == "client"
    assert result.privacy.epsilon <= 2.0
    exact = people_of(result)[0].release
    stated = udpfl.account(Repeated(Release(exact.mechanism, exact.sensitivity), 4), 1e-3).epsilon
    assert result.privacy.epsilon == pytest.approx(stated, rel=1e-3)


def test_what_leaves_is_clipped_however_large_the_step(federate):
    """Noise aside: an auditor who takes it away sees updates within the bound."""

    class Silent(MechanismNoiser):
        def add(self, sums, stream, keys):
            return sums

    def protection(people):
        bounds = [person.release.sensitivity.bound for person in people]
        return NormClipper("l2", bounds), Silent([p.release.mechanism for p in people])

    _, seen = federate({"clip": 0.25}, {"learning_rate": 50.0}, protection=protection)
    sizes = [float(m.tensors["update"].norm()) for m in seen.messages]
    assert max(sizes) == pytest.approx(0.25, rel=1e-3)
    assert max(sizes) <= 0.25 * (1 + 1e-6)

    def unclipped(people):
        return Unclipped(), Silent([p.release.mechanism for p in people])

    _, seen = federate({"clip": 0.25}, {"learning_rate": 50.0}, protection=unclipped)
    assert max(float(m.tensors["update"].norm()) for m in seen.messages) > 1


def test_units_do_not_mix_in_one_account(federate, tmp_path):
    shared = str(tmp_path / "shared.sqlite")
    federate({"ledger": shared, "epsilon": 5.0})
    with pytest.raises((LedgerError, Unsupported, InvalidInput), match=r"unit|client|record"):
        federate({"ledger": shared, "epsilon": 5.0, "unit": "record"})


# A trusted server


def trusted(federate, participation=1.0, training=None, seen=None, **privacy):
    return federate(
        privacy,
        {"algorithm": "dp-fedavg", "options": {"participation": participation}, **(training or {})},
        net=Wide(),
        clients=6,
        seen=seen,
    )


def test_the_server_lets_out_one_noisy_mean(federate):
    result, seen = trusted(federate, 0.5, {"learning_rate": 1e-12, "rounds": 3})
    assert [message.client for message in seen.messages] == ["everyone"] * 3
    std = people_of(result)[0].release.mechanism.std
    for message in seen.messages:
        noise = message.tensors["update"].numpy() * (6 * 0.5)  # a public number of participants
        assert stats.kstest(noise, stats.norm(0, std).cdf).pvalue > 1e-6
        assert stats.kstest(noise, stats.norm(0, 2 / 3 * std).cdf).pvalue < 1e-9
    assert "trusts" not in str(result.privacy)
    assert "assumes a server that adds the noise" in str(result.privacy)
    assert "Not against the server" in (result.folder / "report.html").read_text()


def test_everyone_pays_whether_or_not_their_coin_fell_right(federate):
    result, _ = trusted(federate, 0.25, {"rounds": 5}, epsilon=4.0)
    person = people_of(result)[0]
    assert person.participation == 0.25
    with Ledger(result.ledger_path, read_only=True) as ledger:
        for account in ledger.accounts():
            entries = list(ledger.history(account.id))
            assert sum(entry.count for entry in entries) == 5
            assert {entry.event.rate for entry in entries} == {0.25}
            # what the server was told stays nowhere
            assert all(ledger.message(entries[0].run, account.id, r) is None for r in range(1, 6))
    event = Repeated(PoissonSampled(0.25, person.release), 5)
    assert result.privacy.epsilon == pytest.approx(udpfl.account(event, 1e-3).epsilon, rel=1e-6)
    assert result.privacy.epsilon <= 4.0


def test_coins_fall_as_often_as_they_should(federate, monkeypatch):
    """Who does not take part sends zeros, of the same size as everybody's update."""
    sent = []
    whole = TrustedServer.receive

    def listening(self, round_, server, messages):
        sent.extend(messages)
        return whole(self, round_, server, messages)

    monkeypatch.setattr(TrustedServer, "receive", listening)
    trusted(federate, 0.3, {"rounds": 40, "evaluate_every": 40})
    silent = sum(not m.tensors["update"].any() for m in sent)
    assert len(sent) == 240
    assert stats.binomtest(silent, 240, 0.7).pvalue > 1e-6
    assert len({m.tensors["update"].numel() for m in sent}) == 1


def test_the_mean_is_the_sum_over_a_public_number(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    release = Release(udpfl.Gaussian(1e-9), udpfl.Sensitivity(1.0, "l2", 3), "client")
    people = [ReleasePlan(str(i), 10, 1.0, 5, 1, release, participation=0.5) for i in range(4)]
    server = TrustedServer(folder, "k", Keyed(0), sum_noise(people))
    messages = [
        ClientMessage(str(i), 1, {"update": torch.full((3,), 0.1 * i)}, (), {"declared_size": 10})
        for i in range(3)  # one of four was refused: the denominator stays
    ]
    (merged,) = server.receive(1, {}, messages)
    assert merged.tensors["update"].tolist() == pytest.approx([0.15] * 3)
    for message in messages:  # nor does it follow how many have sent something
        message.tensors["update"] += 0.1
    (merged,) = server.receive(2, {}, messages)
    assert merged.tensors["update"].tolist() == pytest.approx([0.3] * 3)


def test_one_noise_is_for_clients_that_planned_for_the_same(tmp_path):
    """Else somebody's update would get less noise than its plan says."""
    folder = RunFolder.create(tmp_path / "run")
    bound = udpfl.Sensitivity(1.0, "l2", 3)
    plan = ReleasePlan("a", 10, 1.0, 5, 1, Release(udpfl.Gaussian(1.0), bound, "client"))
    assert (
        TrustedServer(
            folder, "k", Keyed(0), sum_noise([plan, replace(plan, name="b")])
        ).noise.clients
        == 2
    )
    for other in (
        {"release": Release(udpfl.Gaussian(2.0), bound, "client")},
        {"release": Release(udpfl.Gaussian(1.0), replace(bound, bound=0.5), "client")},
        {"participation": 0.5},
        {"factors": (1.0, 1.0, 1.0, 1.0, 2.0)},
    ):
        with pytest.raises(Unsupported, match="one noise"):
            TrustedServer(
                folder, "k", Keyed(0), sum_noise([plan, replace(plan, name="b", **other)])
            )


def test_every_round_has_a_noise_of_its_own(tmp_path):
    """Also where draws are seeded: two sums with one noise are told apart by their difference."""
    release = Release(udpfl.Gaussian(1.0), udpfl.Sensitivity(1.0, "l2", 500), "client")
    people = [ReleasePlan(str(i), 10, 1.0, 5, 1, release) for i in range(2)]
    server = TrustedServer(RunFolder.create(tmp_path / "run"), "k", Keyed(0), sum_noise(people))
    first, second = (server.noisy_sum(round_, torch.zeros(2, 500)) for round_ in (1, 2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(500)


def test_after_a_crash_the_same_noise_is_used_again(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    release = Release(udpfl.Gaussian(1.0), udpfl.Sensitivity(1.0, "l2", 50), "client")
    people = [ReleasePlan("a", 10, 1.0, 5, 1, release)]
    message = ClientMessage("a", 1, {"update": torch.zeros(50)}, (), {"declared_size": 10})
    fresh = [
        TrustedServer(folder, "k", udpfl.engine.Entropy(), sum_noise(people)).receive(
            round_, {}, [message]
        )[0]
        for round_ in (1, 1, 2)
    ]
    first, again, other = (m.tensors["update"] for m in fresh)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_noisy_mean_is_kept_as_long_as_its_round_may_run_again(tmp_path):
    folder, model = RunFolder.create(tmp_path / "run"), {"server.model": torch.zeros(2)}
    kept = []
    for round_ in range(1, 6):
        folder.write_aggregate(round_, bytes([round_]))
        kept.append([r for r in range(1, 6) if folder.read_aggregate(r) == bytes([r])])
        if round_ in (2, 4):
            folder.write_checkpoint(round_, model, {})
    # From the checkpoint of round 2 a run goes on with round 3.
    assert kept == [[1], [1, 2], [3], [3, 4], [3, 4, 5]]


@pytest.mark.parametrize(
    ("privacy", "training", "more", "what"),
    [
        ({"unit": "record"}, {}, {}, "privacy.unit"),
        ({}, {"clients_per_round": 2}, {}, "clients_per_round"),
        ({}, {}, {"record_updates": [1]}, "record_updates"),
        ({"epsilon": [1.0, 2.0]}, {}, {}, "privacy.epsilon"),
        ({}, {"options": {"participation": 0.0}}, {}, "participation"),
        ({}, {"options": {"participation": True}}, {}, "participation"),
    ],
)
def test_what_a_trusted_server_cannot_keep_is_refused(federate, privacy, training, more, what):
    with pytest.raises((InvalidInput, Unsupported), match=what):
        federate(privacy, {"algorithm": "dp-fedavg", **training}, **more)


def test_secret_coins_lower_the_noise(federate):
    noises = [
        people_of(trusted(federate, p, {"rounds": 5})[0])[0].release.mechanism.std
        for p in (1.0, 0.2)
    ]
    assert noises[1] < 0.8 * noises[0]


# The pull towards the largest budget


def pulled(federate, penalty, **training):
    return federate(
        {"unit": "record", "epsilon": [1.0, 4.0, 2.0], "randomness": "seeded"},
        {"penalty": penalty, "rounds": 2, **training},
    )


def test_the_pull_is_the_papers(federate):
    """Same noise, with and without: round 2 differs by eta lambda_k (w - w_max), per step."""
    free, pull = (pulled(federate, weight) for weight in (0.0, 0.8))
    assert [p.penalty for p in people_of(pull[0])] == pytest.approx([0.8 * 0.75, 0, 0.8 * 0.5])
    starts = [seen.models[0] for _, seen in (free, pull)]
    assert torch.equal(*starts)  # nothing was released before the first round
    largest = pull[1].messages[1]
    initial = starts[0] - udpfl.algorithms.weighted_mean(pull[1].messages[:3], "update")
    target = initial + largest.tensors["update"]
    for client, weight in enumerate([0.6, 0.0, 0.4]):
        difference = (
            pull[1].messages[3 + client].tensors["update"]
            - free[1].messages[3 + client].tensors["update"]
        )
        assert torch.allclose(difference, -0.1 * weight * (starts[0] - target), atol=1e-6)


def test_the_pull_costs_nothing(federate):
    epsilons = []
    for weight in (0.0, 0.5):
        result, _ = federate(
            {"unit": "record", "epsilon": [1.0, 2.0, 4.0]}, {"penalty": weight, "rounds": 3}
        )
        assert all(
            statement.epsilon <= budget
            for statement, budget in zip(result.clients.values(), [1.0, 2.0, 4.0], strict=True)
        )
        epsilons.append([statement.epsilon for statement in result.clients.values()])
    assert epsilons[0] == pytest.approx(epsilons[1])


def test_a_pull_without_different_budgets_is_refused():
    with pytest.raises(InvalidInput, match=r"training\.penalty"):
        udpfl.run(training={"penalty": 1.0}, privacy={"epsilon": 4.0})


def test_a_resumed_run_is_pulled_as_before(federate):
    whole, _ = pulled(federate, 0.8, rounds=4)
    again, _ = pulled(federate, 0.8, rounds=4)
    folder = again.folder
    (folder / "checkpoints" / "round-000004.safetensors").unlink()  # as if killed in round 4
    resumed = udpfl.run(resume=folder, model=linear(), data=blobs())
    for first, second in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(first, second)


# What a review found


def test_a_pace_reaches_the_noise_of_a_trusted_server(federate):
    """Each round's noise is the one that was charged for it."""
    result, seen = trusted(
        federate, 1.0, {"learning_rate": 1e-12, "rounds": 4}, pace="increasing", pace_ratio=4.0
    )
    person = people_of(result)[0]
    for message in seen.messages:
        noise = message.tensors["update"].numpy() * 6
        std = person.at(message.round).release.mechanism.std
        assert stats.kstest(noise, stats.norm(0, std).cdf).pvalue > 1e-6
    stds = [person.at(r).release.mechanism.std for r in range(1, 5)]
    assert stds[0] == pytest.approx(4 * stds[-1])


def test_the_ledger_itself_says_that_a_server_was_trusted(federate, tmp_path):
    shared = str(tmp_path / "shared.sqlite")
    trusted(federate, 1.0, ledger=shared, epsilon=2.0)
    with Ledger(tmp_path / "shared.sqlite", read_only=True) as ledger:
        account = ledger.accounts()[0].id
        assert "assumes a server" in str(ledger.statement(account))
        ledger_run = next(ledger.history(account)).run
        assert all(ledger.message(ledger_run, a.id, 2) is None for a in ledger.accounts())
    # Another method on the same ledger: what it states covers what the server was trusted with.
    with Ledger(tmp_path / "shared.sqlite") as ledger:
        for own in ledger.accounts():
            ledger.set_budget(own.id, udpfl.Budget(9.0, 1e-3), reason="another method")
    later, _ = federate({"ledger": shared, "epsilon": 2.0}, net=Wide(), clients=6)
    assert "assumes a server" in str(later.privacy)
    assert "Not against the server" in (later.folder / "report.html").read_text()


@pytest.mark.parametrize("divided", [False, True])
def test_a_client_cannot_change_its_data_to_get_a_new_budget(tmp_path, divided):
    shared = {"unit": "client", "delta": 1e-3, "ledger": str(tmp_path / "l.sqlite")}

    def train(out, change):
        x, y = blobs()
        x = x + np.float32(change)
        parts = np.array_split(np.arange(len(x)), 3)
        data = (x, y) if divided else [(x[part], y[part]) for part in parts]
        settings = {
            "out": str(tmp_path / out), "privacy": shared, "training": {"rounds": 1},
            "data": {"clients": 3} if divided else {},
        }  # fmt: skip
        return udpfl.run(settings, data=data, test=blobs(), model=linear())

    first = train("first", 0.0)
    with pytest.raises(BudgetExceeded, match="client-0, client-1, client-2: the budget in"):
        train("second", 1e-3)
    assert not (tmp_path / "second").exists()
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert len(ledger.accounts()) == 3
        for own in ledger.accounts():
            assert ledger.versions(own.id) == [ledger.data_of(next(ledger.history()).run)[own.id]]
            ledger.set_budget(own.id, udpfl.Budget(30.0, 1e-3), reason="another version")
    third = train("third", 1e-3)
    assert third.privacy.epsilon > first.privacy.epsilon  # both of them count
    with Ledger(tmp_path / "l.sqlite", read_only=True) as ledger:
        for own in ledger.accounts():
            assert len(ledger.versions(own.id)) == 2
            assert len(list(ledger.history(own.id))) == 2


def test_updates_are_within_the_bound_when_they_are_summed(tmp_path):
    """Rounding on the way may lengthen an update: the server clips once more."""
    folder = RunFolder.create(tmp_path / "run")
    release = Release(udpfl.Gaussian(1e-12), udpfl.Sensitivity(1.0, "l2", 3), "client")
    server = TrustedServer(
        folder, "k", Keyed(0), sum_noise([ReleasePlan("a", 9, 1.0, 5, 1, release)])
    )
    long = ClientMessage("a", 1, {"update": torch.tensor([3.0, 4.0, 0.0])}, (), {})
    (merged,) = server.receive(1, {}, [long])
    assert merged.tensors["update"].tolist() == pytest.approx([0.6, 0.8, 0.0], rel=1e-3)


def test_an_empty_file_is_not_taken_for_no_file(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    release = Release(udpfl.Gaussian(1.0), udpfl.Sensitivity(1.0, "l2", 3), "client")
    server = TrustedServer(
        folder, "k", Keyed(0), sum_noise([ReleasePlan("a", 9, 1.0, 5, 1, release)])
    )
    folder.write_aggregate(1, b"")
    with pytest.raises(InvalidInput):
        server.receive(1, {}, [ClientMessage("a", 1, {"update": torch.zeros(3)}, (), {})])


def test_a_run_without_a_readable_checkpoint_is_not_begun_anew(federate):
    result, _ = trusted(federate, 1.0)
    for checkpoint in (result.folder / "checkpoints").iterdir():
        checkpoint.write_bytes(b"damaged")
    with pytest.raises(LedgerError, match="no checkpoint"):
        udpfl.run(resume=result.folder, model=Wide(), data=blobs())


def test_a_run_that_stopped_early_can_go_on(federate, tmp_path):
    shared = tmp_path / "shared.sqlite"

    def set_budgets(epsilon, reason=""):
        with Ledger(shared) as ledger:
            accounts = [own.id for own in ledger.accounts()]
            ledger.set_budgets(accounts, udpfl.Budget(epsilon, 1e-3), reason=reason)

    class Lowers(Seen):
        """The budget that a run has reserved is taken away after its second round."""

        def on_round(self, row):
            if row["round"] == 2:
                set_budgets(0.9)

    training = {"rounds": 6, "checkpoint_every": 10}
    short, _ = trusted(federate, 1.0, training, Lowers(), ledger=str(shared), epsilon=1.0)
    assert short.stopped
    assert short.metrics[-1]["round"] == 2
    set_budgets(1.0, "as it was")
    resumed = udpfl.run(resume=short.folder, model=Wide(), data=blobs())
    assert resumed.stopped is None
    assert resumed.metrics[-1]["round"] == 6


def test_nothing_tells_how_many_took_part(federate):
    result, _ = trusted(federate, 0.5)
    for row in result.metrics:
        assert set(row["simulation_only"].values()) == {None}
        assert row["participants"] == 6
    assert len({row["bytes_up"] for row in result.metrics}) == 1


def test_a_pull_is_refused_before_anyone_pays(federate, tmp_path):
    with pytest.raises(InvalidInput, match=r"training\.penalty"):
        federate({"unit": "record", "epsilon": [1.0, 2.0]}, {"algorithm": "fedsgd", "penalty": 0.5})
    assert not (tmp_path / "run-0").exists()


def test_the_report_speaks_of_the_client(federate):
    result, _ = federate({"epsilon": 2.0})
    page = (result.folder / "report.html").read_text()
    assert "whether a client with all its records was there" in page
    assert "which has twice the ε" in page
    assert "whether a record was there" not in page


def test_the_first_words_of_a_report_say_who_is_trusted(federate):
    result, _ = trusted(federate, 1.0)
    page = (result.folder / "report.html").read_text()
    assert "against everyone but the server, which is trusted to add the noise" in page
    assert "whole clients" in page
    plain, _ = federate({"epsilon": 2.0})
    assert "everyone but the server" not in (plain.folder / "report.html").read_text()


class SendsGradients(FedAvg):
    """A control variate made of the gradients that the local steps went along."""

    name = "sends-gradients"
    without_records = "stays"

    def client_step(self, received, state, train):
        seen = []

        def note(gradient, parameters, lane):
            seen.append(gradient.sum())
            return gradient

        moved = local_update(received, train, note)
        return {"update": moved, "control": torch.ones_like(moved) * sum(seen)}, state


class Mixed(type("Mixin", (), {"client_step": SendsGradients.client_step}), FedAvg):
    """Inherits its client half from a class that says nothing of clients without records."""

    name = "mixed"


class KeepsGradients(FedAvg):
    """Nothing but the update is sent; what is kept corrects the next round."""

    name = "keeps-gradients"
    without_records = "moves"

    def client_init(self, parameters):
        return {"sum": torch.zeros(1)}

    def client_step(self, received, state, train):
        seen = []

        def note(gradient, parameters, lane):
            seen.append(gradient.sum())
            return gradient + lane["before"]

        moved = local_update(received, train, note, before=state["sum"])
        return {"update": moved}, {"sum": torch.ones_like(state["sum"]) * sum(seen)}


class SendsTheFirst(FedAvg):
    """Remembers the first gradient of records that it ever saw."""

    name = "sends-the-first"
    without_records = "stays"

    def client_step(self, received, state, train):
        def note(gradient, parameters, lane):
            if gradient.any():
                self.first = getattr(self, "first", gradient.clone())
            return gradient

        moved = local_update(received, train, note)
        first = getattr(self, "first", torch.zeros(()))
        return {"update": moved, "first": first.expand_as(moved)}, state


class KeepsTheLargest(FedAvg):
    """Writes to its own state while it trains, as optimisers do."""

    name = "keeps-the-largest"
    without_records = "stays"

    def client_init(self, parameters):
        return {"largest": torch.zeros_like(parameters)}

    def client_step(self, received, state, train):
        largest = state["largest"]

        def note(gradient, parameters, lane):
            largest.copy_(torch.maximum(largest, gradient.square()))
            return gradient

        return {"update": local_update(received, train, note)}, {"largest": largest}


class KeepsTheFirst(KeepsTheLargest):
    """Writes the first gradient to its state, and never again."""

    name = "keeps-the-first"
    without_records = "stays"

    def client_step(self, received, state, train):
        largest = state["largest"]

        def note(gradient, parameters, lane):
            if not largest.any():
                largest.copy_(gradient)
            return gradient

        return {"update": local_update(received, train, note)}, {"largest": largest}


class SendsNothingInstead(FedAvg):
    """Catches what goes wrong in a training."""

    name = "sends-nothing-instead"
    without_records = "stays"

    def client_step(self, received, state, train):
        def note(gradient, parameters, lane):
            if float(gradient.norm()) > 1e6:
                raise ValueError("diverged")
            return gradient

        try:
            moved = local_update(received, train, note)
        except ValueError:
            moved = torch.zeros(len(train.clients), len(received["model"]))
        return {"update": moved}, state


def noting(seen):
    def note(gradient, parameters, lane):
        seen.append(gradient.clone())
        return gradient

    return note


class CarriesGradientsOn(FedAvg):
    """A second training with the gradients of the first one as its momentum."""

    name = "carries-gradients-on"
    without_records = "moves"
    trainings = 2

    def client_step(self, received, state, train):
        seen = []
        local_update(received, train, noting(seen))
        along = {"momentum": 100 * sum(seen)}
        return {"update": local_update(received, train, self._along, **along)}, state

    @staticmethod
    def _along(gradient, parameters, lane):
        return gradient + lane["momentum"]


class RemembersGradients(CarriesGradientsOn):
    """The same, in a variable that only its correction knows."""

    name = "remembers-gradients"
    without_records = "moves"

    def client_step(self, received, state, train):
        seen = []
        local_update(received, train, noting(seen))
        momentum = 100 * sum(seen)
        moved = local_update(received, train, lambda g, parameters, lane: g + momentum)
        return {"update": moved}, state


class StartsElsewhere(CarriesGradientsOn):
    """A second training from where the gradients of the first one lead."""

    name = "starts-elsewhere"
    without_records = "stays"

    def client_step(self, received, state, train):
        seen, start = [], received["model"].expand(len(train.clients), -1)
        train(start, noting(seen))
        return {"update": train(start - 100 * sum(seen)) - start}, state


class WritesToItsStart(FedAvg):
    """Its correction writes gradients to what the training was called with."""

    name = "writes-to-its-start"

    def client_step(self, received, state, train):
        start = received["model"].expand(len(train.clients), -1).clone()
        before = start.clone()

        def correct(gradient, parameters, lane):
            start.add_(gradient, alpha=1e3)
            return gradient

        return {"update": train(start, correct) - before, "start": start}, state


class SendsNotANumber(FedAvg):
    """Tells of a gradient by where something is not a number."""

    name = "sends-not-a-number"
    without_records = "stays"

    def client_step(self, received, state, train):
        seen = []
        moved = local_update(received, train, noting(seen))
        signs = torch.where(sum(seen) > 0, float("nan"), 0.0)
        return {"update": moved, "signs": signs}, state


class SendsMinusZero(SendsNotANumber):
    """Tells of a gradient by the signs of zeros."""

    name = "sends-minus-zero"
    without_records = "stays"

    def client_step(self, received, state, train):
        seen = []
        moved = local_update(received, train, noting(seen))
        return {"update": moved, "signs": torch.copysign(torch.zeros(()), sum(seen))}, state


class TrainsWhenItLikes(FedAvg):
    """Trains a second time if the first gradient is of a certain kind."""

    name = "trains-when-it-likes"
    without_records = "stays"
    trainings = 2

    def client_step(self, received, state, train):
        seen = []
        moved = local_update(received, train, noting(seen))
        if float(sum(seen).abs().max()) < 1e20:
            local_update(received, train)
        return {"update": moved}, state


HEEDLESS = [
    SendsGradients, Mixed, KeepsGradients, SendsTheFirst, KeepsTheLargest, SendsNothingInstead,
    KeepsTheFirst, CarriesGradientsOn, RemembersGradients, StartsElsewhere, WritesToItsStart,
    SendsNotANumber, SendsMinusZero, TrainsWhenItLikes,
]  # fmt: skip


@pytest.mark.parametrize("method", HEEDLESS)
@pytest.mark.usefixtures("one_thread")  # `KeepsTheLargest` expects all clients in one stack
def test_nothing_but_the_noisy_update_leaves_a_training_of_whole_clients(tmp_path, method):
    """Gradients have no noise there, and a correction sees them."""
    settings = {
        "out": str(tmp_path / "run"), "data": {"clients": 3},
        "training": {"rounds": 2, "algorithm": f"{__name__}:{method.__name__}"},
        "privacy": {"unit": "client", "delta": 1e-3, "mechanism": "gaussian", "epsilon": 1.0},
    }  # fmt: skip
    with pytest.raises(Unsupported, match="depends on gradients that have no noise"):
        udpfl.run(settings, data=blobs(), model=linear())
    settings["privacy"]["unit"] = "record"  # where every gradient has its noise
    settings["out"] = str(tmp_path / "records")
    if method.trainings == 1:
        assert udpfl.run(settings, data=blobs(), model=linear()).privacy.kind == "guarantee"


def test_what_a_correction_writes_to_the_start_changes_nothing(tmp_path):
    """Neither what whole clients are measured from nor what is added back to the noise."""

    class Silent(WritesToItsStart):
        def client_step(self, received, state, train):
            answer, state = super().client_step(received, state, train)
            return {"update": answer["update"]}, state

    assert float(trained_together(Silent(ServerStep(1.0, 0.0)), [20])["update"].norm()) < 1.01


def test_a_client_half_that_comes_from_elsewhere_says_nothing():
    assert Mixed.without_records is None
    assert SendsGradients.without_records == "stays"
    assert type("Plain", (SendsGradients,), {}).without_records == "stays"
    own = {"client_step": Mixed.client_step}
    assert type("Own", (SendsGradients,), own).without_records is None
    assert type("Says", (Mixed,), {"without_records": "moves"}).without_records == "moves"


def trained_together(algorithm, sizes, steps=3):
    """What some clients would release, with next to no noise."""
    x = 50 * torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 3
    torch.manual_seed(0)
    model = LaneModel(nn.Linear(6, 3), lambda o, t: F.cross_entropy(o, t, reduction="none"))
    bound = 2.0 if algorithm.without_records is None else 1.0
    sensitivity = Sensitivity(bound, "l2", model.layout.dimension)
    release = Release(udpfl.Gaussian(1e-9), sensitivity, "client")
    people = [
        ReleasePlan(str(i), 20, 1.0, 1, steps, release, diameter=bound == 2.0)
        for i in range(len(sizes))
    ]
    trainer = Trainer("key", model, x, y, algorithm, Keyed(0), Limits(8, 512))
    request = Request(1, {"model": model.initial()}, 0.5)
    rows = [torch.arange(20 * i, 20 * i + size) for i, size in enumerate(sizes)]
    return trainer.train(request, people, rows, trainer.initial_state(request, len(sizes))).tensors


class ScaledByAll(FedAvg):
    """Divides by the norm of all clients' gradients where it means each one's."""

    name = "scaled-by-all"
    without_records = "stays"

    def client_step(self, received, state, train):
        moved = local_update(received, train, lambda g, p, lane: g / (g.norm() + 1e-6))
        return {"update": moved}, state


class WritesInPlace(FedAvg):
    """An optimiser of its own, which moves the parameters that it is shown."""

    name = "writes-in-place"

    def client_step(self, received, state, train):
        def step(gradient, parameters, lane):
            parameters.sub_(0.5 * gradient)
            return torch.zeros_like(gradient)

        return {"update": local_update(received, train, step)}, state


class Notes(FedAvg):
    """Leaves norms where the server half could read them."""

    name = "notes"
    without_records = "stays"
    norms = None

    def client_step(self, received, state, train):
        def note(gradient, parameters, lane):
            self.norms = float(gradient.norm())
            return gradient

        return {"update": local_update(received, train, note)}, state


class ScaledByLargest(FedAvg):
    """Divides by the largest norm so far, of whichever client."""

    name = "scaled-by-largest"
    without_records = "stays"

    def client_step(self, received, state, train):
        largest = 1e-6

        def scaled(gradient, parameters, lane):
            nonlocal largest
            largest = max(largest, float(gradient.norm()))
            return gradient / largest

        return {"update": local_update(received, train, scaled)}, state


def test_one_client_does_not_change_what_another_sends():
    for method in (FedAvg, ScaledByAll, ScaledByLargest):
        both = trained_together(method(ServerStep()), [20, 20])["update"]
        for sizes, same in (([20, 0], 0), ([0, 20], 1)):
            alone = trained_together(method(ServerStep()), sizes)["update"]
            assert torch.equal(both[same], alone[same])
            assert not torch.equal(both[1 - same], alone[1 - same])


def test_whole_clients_are_computed_apart(monkeypatch):
    seen = []
    kept = local_training.train_round
    monkeypatch.setattr(
        local_training,
        "train_round",
        lambda *given: seen.append(given[4].apart) or kept(*given),
    )
    trained_together(FedAvg(ServerStep()), [20, 5])
    assert seen
    assert all(seen)


def test_a_method_cannot_move_the_parameters_that_it_is_shown():
    moved = trained_together(WritesInPlace(ServerStep()), [20])["update"]
    assert float(moved.norm()) < 1e-6  # what it returns is a step of nothing


def test_what_a_method_notes_of_gradients_is_gone_after_the_round():
    method = Notes(ServerStep())
    trained_together(method, [20, 20])
    assert method.norms is None


def test_a_training_that_fails_ends_the_round_whatever_the_method_does():
    with pytest.raises(ValueError, match="diverged"):
        trained_together(Impatient(ServerStep()), [20])


class SlowsDown(FedAvg):
    """Lowers learning rates and steps by the gradients that it sees, and sends them."""

    name = "slows-down"
    without_records = "stays"

    def client_step(self, received, state, train):
        rates, steps = train.learning_rates, train.steps

        def slow(gradient, parameters, lane):
            for shown in (rates, train.learning_rates, steps, train.steps):
                shown.add_(gradient.norm().to(shown.dtype))
            return gradient

        update = local_update(received, train, slow)
        return {"update": update, "rates": train.learning_rates, "steps": train.steps}, state


def test_what_a_method_writes_to_rates_and_steps_reaches_nobody():
    for size in (20, 0):
        sent = trained_together(SlowsDown(ServerStep()), [size, 20])
        assert torch.equal(sent["rates"], torch.full((2,), 0.5))
        assert torch.equal(sent["steps"], torch.full((2,), 3))


SHARED = torch.zeros(1)


class SendsTheShared(FedAvg):
    """Sends a tensor that all its copies write to."""

    name = "sends-the-shared"
    without_records = "stays"

    def client_step(self, received, state, train):
        def note(gradient, parameters, lane):
            SHARED.copy_(gradient.norm())
            return gradient

        update = local_update(received, train, note)
        return {"update": update, "norms": SHARED}, state


def test_what_was_sent_is_what_is_compared():
    with pytest.raises(Unsupported, match="depends on gradients that have no noise"):
        trained_together(SendsTheShared(ServerStep()), [20])


class CatchesAll(FedAvg):
    """Goes on whatever happens in a training."""

    name = "catches-all"
    without_records = "stays"

    def client_step(self, received, state, train):
        try:
            update = local_update(received, train, lambda g, p, lane: g)
        except:  # noqa: E722
            update = torch.zeros(len(train.clients), len(received["model"]))
        return {"update": update}, state


def test_clients_take_turns_even_if_a_method_catches_everything():
    caught = trained_together(CatchesAll(ServerStep()), [20, 20])["update"]
    plain = trained_together(FedAvg(ServerStep()), [20, 20])["update"]
    assert torch.allclose(caught, plain, atol=1e-3)
    assert float(caught.norm(dim=1).min()) > 0.5


class Impatient(SendsNothingInstead):
    """Fails at once."""

    def client_step(self, received, state, train):
        def fail(gradient, parameters, lane):
            raise ValueError("diverged")

        try:
            moved = local_update(received, train, fail)
        except ValueError:
            moved = torch.zeros(len(train.clients), len(received["model"]))
        return {"update": moved}, state
