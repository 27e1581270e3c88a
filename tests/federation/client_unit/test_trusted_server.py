"""The trusted server of DP-FedAvg: one noisy mean, secret coins, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import udpfl
from tests.federation.client_unit.samples import trusted
from tests.small import Wide, people_of
from udpfl.accounting import PoissonSampled, Release, Repeated
from udpfl.algorithms import ClientMessage
from udpfl.engine import Keyed
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.stage_builder import sum_noise
from udpfl.federation.stages.trusted_server import TrustedServer
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder

# A trusted server


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


def test_the_noise_of_a_round_is_what_clients_planned_for_it():
    release = Release(udpfl.Gaussian(3.0), udpfl.Sensitivity(1.0, "l2", 5), "client")
    plan = ReleasePlan(
        "a", 10, 1.0, 3, 1, release, factors=(4.0, 2.0, 1.0), asked=(1, 2, 3), participation=0.5
    )
    noise = sum_noise([plan, replace(plan, name="b")])
    assert [noise.at(round_) for round_ in (1, 2, 3)] == [plan.at(r).release for r in (1, 2, 3)]
    assert [noise.at(round_).mechanism.std for round_ in (1, 2, 3)] == [12.0, 6.0, 3.0]
    assert (noise.clients, noise.participation) == (2, 0.5)


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
            folder.write_checkpoint(round_, model)
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


def test_nothing_tells_how_many_took_part(federate):
    result, _ = trusted(federate, 0.5)
    for row in result.metrics:
        assert set(row["simulation_only"].values()) == {None}
        assert row["participants"] == 6
    assert len({row["bytes_up"] for row in result.metrics}) == 1


def test_the_first_words_of_a_report_say_who_is_trusted(federate):
    result, _ = trusted(federate, 1.0)
    page = (result.folder / "report.html").read_text()
    assert "against everyone but the server, which is trusted to add the noise" in page
    assert "whole clients" in page
    plain, _ = federate({"epsilon": 2.0})
    assert "everyone but the server" not in (plain.folder / "report.html").read_text()
