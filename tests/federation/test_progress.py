"""Simulations that store the server's state in place of messages: the same runs and charges."""

from __future__ import annotations

import pytest
import torch

import udpfl
from tests.golden_cases import CASES, Sent, settings
from tests.golden_cases import blobs as golden_blobs
from tests.golden_cases import network as golden_network
from tests.small import PowerCut, Seen, blobs, linear
from udpfl.errors import BudgetExceeded
from udpfl.federation._progress import needs_messages
from udpfl.federation.server import Server
from udpfl.federation.watchers import CheckpointWriter, MetricsWriter
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder

SETTINGS = {
    "data": {"clients": 3},
    "privacy": {"mechanism": "gaussian", "randomness": "seeded"},
    "training": {"rounds": 6, "local_steps": 2},
    "threads": 1,
}


def run(folder, changes=None, observers=(), resume=False):
    given = {"resume": folder} if resume else {"config": {**SETTINGS, "out": str(folder)}}
    own = {} if resume else changes or {}
    return udpfl.run(**given, model=linear(), data=blobs(), observers=observers, **own)


def weights(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def rows_of(result):
    left_out = {"seconds": 0}
    return [{**row, **left_out} for row in RunFolder(result.folder).read_metrics()]


def stored(result):
    """How many messages the ledger of a run has."""
    with Ledger(result.ledger_path, read_only=True) as ledger:
        assert ledger.verify() == []
        found = [
            ledger.message(entry.run, account.id, entry.round)
            for account in ledger.accounts()
            for entry in ledger.history(account.id)
        ]
    return sum(message is not None for message in found)


def charges(result):
    with Ledger(result.ledger_path, read_only=True) as ledger:
        return sorted((e.client, e.round, e.count, e.event_json, e.note) for e in ledger.history())


@pytest.mark.parametrize(
    "case",
    [
        "fedavg, record", "scaffold, record", "fedadam, record", "bezier, record",
        "mode-connectivity, record", "nbafl, client", "scaffold, client", "median, record",
        "dp-fedavg, client", "penalty", "adaptive clip", "shuffler", "some clients",
        "no averaging, cosine", "shuffler, scalar",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("one_thread")
def test_runs_are_the_same_whatever_they_store(case, tmp_path):
    """To the bit: model, metrics and charges."""
    results = [
        udpfl.run(
            settings(case, tmp_path / name),
            data=golden_blobs(), model=golden_network(), observers=observers,
        )
        for name, observers in (("messages", [Sent()]), ("state", []))
    ]  # fmt: skip
    assert torch.equal(*map(weights, results))
    assert rows_of(results[0]) == rows_of(results[1])
    assert charges(results[0]) == charges(results[1])
    kept = [stored(result) for result in results]
    trusted = case.startswith("dp-fedavg")  # whose messages are dropped when a run ends
    assert kept[1] == 0
    assert (kept[0] == 0) == trusted


def test_only_those_who_see_messages_have_them_stored(tmp_path):
    class Rows(udpfl.Observer):
        def on_round(self, row): ...

    class Duck:
        def on_round(self, row): ...

    config = udpfl.config.load({})
    fedavg, trusted = udpfl.algorithms.FedAvg, udpfl.algorithms.BUILT_IN["dp-fedavg"]

    class Own(fedavg):
        pass

    plain = fedavg(udpfl.algorithms.ServerStep())
    assert not needs_messages(config, plain, [])
    assert not needs_messages(config, plain, [Rows(), Duck()])
    assert needs_messages(config, plain, [Rows(), Seen()])
    assert needs_messages(config, Own(udpfl.algorithms.ServerStep()), [])
    server = trusted(udpfl.algorithms.ServerStep())
    assert server.trusts_server
    assert needs_messages(config, server, [])
    for changes in ({"record_updates": [1]}, {"training": {"stages": ["somewhere:Own"]}}):
        assert needs_messages(udpfl.config.load(changes), plain, [])


# Broken off

MOMENTS = {
    "before it is charged": (Ledger, "commit"),
    "once it is charged": (MetricsWriter, "after_round"),
    "before the checkpoint": (CheckpointWriter, "save"),
    "inside the checkpoint": (RunFolder, "write_checkpoint"),
}


def break_off(monkeypatch, owner, name, call):
    """Cut the power just before the given call of a method."""
    original, calls = getattr(owner, name), iter(range(1, 1000))

    def caught(*args, **kwargs):
        if next(calls) == call:
            raise PowerCut
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, caught)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.usefixtures("one_thread")
def test_a_run_that_is_broken_off_ends_as_it_would_have(moment, every, tmp_path, monkeypatch):
    changes = {
        "training": {
            **SETTINGS["training"], "algorithm": "scaffold", "averaging": 0.9,
            "checkpoint_every": every, "evaluate_every": 2,
        }
    }  # fmt: skip
    whole = run(tmp_path / "whole", changes)
    with monkeypatch.context() as patched:
        # The first checkpoint is that of round 0; with `every` 4 the second comes after round 4.
        break_off(patched, *MOMENTS[moment], 3 if moment != "before the checkpoint" else 2)
        with pytest.raises(PowerCut):
            run(tmp_path / "run", changes)
    resumed = run(tmp_path / "run", resume=True)
    assert torch.equal(weights(whole), weights(resumed))
    assert rows_of(whole) == rows_of(resumed)
    assert charges(whole) == charges(resumed)  # nothing twice, nothing lost
    assert stored(resumed) == 0
    assert RunFolder(resumed.folder).read_checkpoint().round == 6


@pytest.mark.usefixtures("one_thread")
def test_a_run_may_go_on_with_or_without_those_who_see_messages(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    for name, first, then in (("gone", [Seen()], []), ("new", [], [Seen()])):
        with monkeypatch.context() as patched:
            break_off(patched, MetricsWriter, "after_round", 3)
            with pytest.raises(PowerCut):
                run(tmp_path / name, observers=first)
        resumed = run(tmp_path / name, observers=then, resume=True)
        assert torch.equal(weights(whole), weights(resumed))
        assert charges(whole) == charges(resumed)
        # The round whose messages were stored is received from them.
        rounds = {message.round for observer in then for message in observer.messages}
        assert rounds == ({4, 5, 6} if then else set())


@pytest.mark.usefixtures("one_thread")
def test_without_any_checkpoint_the_ledger_has_the_state(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    with monkeypatch.context() as patched:
        break_off(patched, MetricsWriter, "after_round", 3)
        with pytest.raises(PowerCut):
            run(tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.unlink()
    assert torch.equal(weights(whole), weights(run(tmp_path / "run", resume=True)))


def test_nobody_is_charged_where_aggregation_fails(tmp_path, monkeypatch):
    def failing(self, state, messages):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(udpfl.algorithms.FedAvg, "aggregate", failing)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path / "run")
    with Ledger(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.head()[0] == 0
    assert run(tmp_path / "run", resume=True).stopped is None


@pytest.mark.usefixtures("one_thread")
def test_where_a_budget_was_lowered_meanwhile_the_others_answer(tmp_path, monkeypatch):
    """In the middle of round 3 client-1 can no longer pay; messages are stored for that round."""
    results = {}
    for name, observers in (("messages", [Seen()]), ("state", [])):
        original, calls = Ledger.commit, iter(range(1, 1000))

        def commit(self, charges, *args, original=original, calls=calls, **kwargs):
            known = {account.client: account.id for account in self.accounts()}
            third = any(charge.round == 3 for charge in charges)
            if third and known["client-1"] in {charge.account for charge in charges}:
                raise BudgetExceeded("client client-1: lowered")
            return original(self, charges, *args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "commit", commit)
            results[name] = run(tmp_path / name, observers=observers)
    one, other = results.values()
    assert torch.equal(weights(one), weights(other))
    assert rows_of(one) == rows_of(other)
    assert charges(one) == charges(other)
    assert [row["participants"] for row in rows_of(other)] == [3, 3, 2, 3, 3, 3]


# What is received provisionally


@pytest.mark.parametrize("case", [name for name in CASES if "client" not in name])
def test_what_a_server_took_back_left_nothing(case, tmp_path, monkeypatch):
    """Every method and stage: after an error the state is that from before, to the bit."""
    original, seen = Server.receive, []

    def receive(self, round_, messages):
        if round_ == 2 and not seen:
            before = {name: tensor.clone() for name, tensor in self.state().items()}
            with pytest.raises(PowerCut), self.provisionally():  # noqa: PT012
                original(self, round_, messages)
                raise PowerCut
            after = self.state()
            assert before.keys() == after.keys()
            assert all(torch.equal(before[name], after[name]) for name in before)
            assert self.round == 1
            seen.append(round_)
        return original(self, round_, messages)

    monkeypatch.setattr(Server, "receive", receive)
    given = settings(case, tmp_path / "run")
    udpfl.run(given, data=golden_blobs(), model=golden_network(), observers=[Seen()])
    assert seen == [2]


def test_what_is_settled_is_not_moved_by_a_round_taken_back():
    """Clients may forget what is in the older of two checkpoints, whatever was tried since."""
    server = Server(udpfl.algorithms.FedAvg(udpfl.algorithms.ServerStep()), torch.zeros(2))
    answer = udpfl.ClientMessage("a", 0, {"update": torch.ones(2)}, (), {"declared_size": 9})
    for round_ in (1, 2, 3):
        server.receive(round_, [answer])
        if round_ == 1:
            server.note_saved()
    with pytest.raises(PowerCut), server.provisionally():  # noqa: PT012
        server.receive(4, [answer])
        raise PowerCut
    server.note_saved()
    assert server.settled == 1  # and not 3, of which there is no checkpoint


@pytest.mark.usefixtures("one_thread")
def test_stored_messages_and_new_ones_are_one_round(tmp_path, monkeypatch):
    """Before the crash one client of three was charged alone, because the others had to wait."""
    original, calls = Ledger.commit, iter(range(1, 1000))

    def commit(self, charges, *args, **kwargs):
        number = next(calls)
        if number in (3, 4):  # all together in round 3, by the server's state and by messages
            raise BudgetExceeded("lowered")
        if number == 6:  # after client-0 was charged by itself
            raise PowerCut
        return original(self, charges, *args, **kwargs)

    whole = run(tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", commit)
        with pytest.raises(PowerCut):
            run(tmp_path / "run")
    resumed = run(tmp_path / "run", resume=True)
    assert torch.equal(weights(whole), weights(resumed))
    assert charges(whole) == charges(resumed)
