"""Sites that fail: the round goes on or is asked again, and no ledger counts too little."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.deploy.faults import BAD, GONE, died, late, lost, silent
from tests.deploy.memory import Call, federation, ledgers, memory
from udpfl.algorithms import ClientMessage
from udpfl.deploy import RunPaused, run_federation
from udpfl.deploy._journal import Journal
from udpfl.deploy.transport import NoReply

pytestmark = pytest.mark.usefixtures("one_thread")
ROUNDS = 2
SHORT = {"round_timeout": 3.0}


def run(folder, sites, deploy=None, training=None, **options):
    own = federation({"enough": 2, **(deploy or {})}, training=training or {"rounds": ROUNDS})
    return run_federation(own, sites, **({"out": folder / "run"} | options))


def warmed(folder, **changes):
    """Sites whose gates are open, so that a short round is long enough."""
    sites = memory(folder, **changes)
    for node in sites.sites:
        sites.ask(node, {"ask": "describe"}, b"", 60.0, threading.Event())
    return sites


def charged(sites):
    """The messages that each site was charged for, whoever saw them."""
    with ledgers(sites) as found:
        for ledger in found:
            assert ledger.verify() == []
        return [ledger.head()[0] for ledger in found]


def notes(folder, what):
    return [own for own in Journal(folder / "run").notes() if own.what == what]


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_bad_reply_is_left_out_and_said(tmp_path, name, caplog):
    sites = warmed(tmp_path)
    sites.faults = [BAD[name]]
    served = run(tmp_path, sites)
    assert [row["participants"] for row in served.metrics] == [2, 3]
    assert [row.get("ignored") for row in served.metrics] == [1, None]
    assert charged(sites) == [ROUNDS] * 3
    (note,) = notes(tmp_path, "ignored")
    assert note.round == 1
    assert f"round 1 goes on without {note.site}: a bad reply" in caplog.text
    for own in served.model.parameters():
        assert torch.isfinite(own).all()


@pytest.mark.parametrize("name", ["lost", "died"])
def test_a_site_that_failed_is_asked_again_and_pays_once(tmp_path, name):
    sites = warmed(tmp_path)
    sites.faults = [GONE[name]] * 4
    served = run(tmp_path, sites)
    assert [row["participants"] for row in served.metrics] == [3, 3]
    assert charged(sites) == [ROUNDS] * 3


@pytest.mark.parametrize("fault", [silent, late])
def test_a_round_goes_on_without_a_site_that_does_not_answer_in_time(tmp_path, fault):
    sites = warmed(tmp_path)
    run(tmp_path / "first", sites)  # the models of all sites are built now
    sites.faults = [fault]
    served = run(tmp_path, sites, SHORT)
    assert sorted(row["participants"] for row in served.metrics) == [2, 3]
    (note,) = notes(tmp_path, "ignored")
    assert "within 3 seconds" in note.why
    assert min(charged(sites)) >= 2 * ROUNDS - 1


def test_a_site_that_answers_twice_counts_once(tmp_path):
    """The first answer is late, the site is asked again, and both come."""
    sites = warmed(tmp_path)

    def twice(call):
        call.answer()
        return call.answer()

    sites.faults = [died, twice, twice]
    served = run(tmp_path, sites)
    assert [row["participants"] for row in served.metrics] == [3, 3]
    assert charged(sites) == [ROUNDS] * 3
    messages = [ClientMessage.from_bytes(reply.body) for _, reply in sites.seen]
    assert len({(own.client, own.round) for own in messages}) == 3 * ROUNDS


def test_a_run_without_enough_sites_stops_and_goes_on_later(tmp_path):
    sites = warmed(tmp_path)
    sites.faults = [lost] * 100
    deploy = {"attempts": 2, "pause_after": 2, "round_timeout": 2.0}
    with pytest.raises(RunPaused, match=r"0 answers of 3, and 2 are needed"):
        run(tmp_path, sites, deploy)
    assert charged_or_none(sites) == 0
    sites.faults = []
    served = run(tmp_path, sites, resume=tmp_path / "run", out=None)
    assert [row["round"] for row in served.metrics] == [1, 2]
    assert charged(sites) == [ROUNDS] * 3


def charged_or_none(sites):
    with ledgers(sites) as found:
        return sum(ledger.head()[0] for ledger in found)


class Killed(BaseException):
    """The server dies."""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_server_that_dies_goes_on_with_what_sites_have_stored(tmp_path, monkeypatch, moment):
    sites = warmed(tmp_path)
    monkeypatch.setattr("udpfl.runs.folder.RunFolder.append_metrics", _dies(moment))
    with pytest.raises(Killed):
        run(tmp_path, sites)
    monkeypatch.undo()
    assert charged(sites) == [1] * 3
    before = {(s, ClientMessage.from_bytes(r.body).round): r.body for s, r in sites.seen}
    sites.seen.clear()
    served = run(tmp_path, sites, resume=tmp_path / "run", out=None)
    assert [row["round"] for row in served.metrics] == [1, 2]
    assert charged(sites) == [ROUNDS] * 3
    for site, reply in sites.seen:
        round_ = ClientMessage.from_bytes(reply.body).round
        assert before.get((site, round_), reply.body) == reply.body


def _dies(moment):
    from udpfl.runs.folder import RunFolder

    real = RunFolder.append_metrics

    def append(self, row):
        if moment == "after":
            real(self, row)
        raise Killed

    return append


def test_a_site_whose_ledger_was_put_back_refuses(tmp_path):
    """All that the site has comes from a backup: only the server knows of the charge since."""
    sites, kept = warmed(tmp_path), {}

    def back_up(call):
        kept[call.policy.name] = shutil.copytree(call.policy.state, tmp_path / "backup")
        return call.answer()

    def restore(call):
        if (backup := kept.pop(call.policy.name, None)) is not None:
            node = next(n for n, own in sites.sites.items() if own is call.policy)
            sites.restart(node)
            shutil.rmtree(call.policy.state)
            shutil.copytree(backup, call.policy.state)
            raise NoReply("the node was set up anew")
        return call.answer()

    plain = Call.answer
    sites.faults = [plain, plain, plain, back_up, plain, plain, restore, restore, restore]
    served = run(tmp_path, sites, training={"rounds": 4})
    assert [row["participants"] for row in served.metrics] == [3, 3, 2, 2]
    assert [row["refused"] for row in served.metrics] == [0, 0, 1, 1]
    refused = notes(tmp_path, "refused")
    assert len({note.site for note in refused}) == 1
    assert all("lacks charge 2, which was made" in note.why for note in refused)
    assert sorted(charged(sites)) == [1, 4, 4]


@settings(max_examples=6)
@given(
    chosen=st.lists(st.sampled_from(sorted({**BAD, "died": died, "lost": lost})), max_size=6),
)
def test_whatever_fails_no_ledger_counts_too_little(tmp_path_factory, chosen):
    folder = tmp_path_factory.mktemp("faults")
    sites = warmed(folder)
    known = {**BAD, "died": died, "lost": lost}
    sites.faults = [known[name] for name in chosen]
    with contextlib.suppress(RunPaused):
        run(folder, sites, {"attempts": 2, "pause_after": 2})
    seen: dict[str, set[bytes]] = {}
    for site, reply in sites.seen:
        if reply.body:
            seen.setdefault(site, set()).add(reply.body)
    with ledgers(sites) as found:
        for number, ledger in enumerate(found):
            assert ledger.verify() == []
            rounds = {entry.round for entry in ledger.history()}
            answered = {
                round_of(body) for body in seen.get(f"client-{number}", ()) if round_of(body)
            }
            assert answered - {r + 1 for r in rounds} <= rounds
            for account in ledger.accounts():
                assert ledger.statement(account.id).epsilon <= ledger.budget(account.id).epsilon


def round_of(body):
    try:
        return ClientMessage.from_bytes(body).round
    except Exception:
        return None


def test_a_node_that_claims_to_be_another_site_is_left_out(tmp_path, caplog):
    sites = memory(tmp_path)
    sites.names = {10: "client-0", 11: "client-1", 12: "client-1"}
    own = federation({"sites": ["client-0", "client-1"]}, data={"clients": 2})
    sites.sites[12] = sites.sites[10]
    served = run_federation(own, sites, out=tmp_path / "run")
    assert "registered as client-1 and says that it is client-0" in caplog.text
    assert len(served.metrics) == 4
    assert charged(sites)[0] == 4


def test_sites_that_do_not_come_are_waited_for_and_named(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("udpfl.deploy.sites._SAID_EVERY", 0.4)
    own = federation({"sites": ["client-0", "client-1", "client-7"], "start_timeout": 1.5})
    with pytest.raises(RunPaused, match="client-7 missing"):
        run_federation(own, memory(tmp_path), out=tmp_path / "run")
    said = "waiting for 3 sites, 2 are there (client-0, client-1); client-7 missing"
    assert caplog.text.count(said) >= 1
    assert not (tmp_path / "run").exists()


def test_a_transport_that_breaks_is_no_end_of_the_run(tmp_path):
    sites = warmed(tmp_path)

    def broken(call):
        raise RuntimeError("the link is down")

    sites.faults = [broken, broken]
    served = run(tmp_path, sites)
    assert [row["participants"] for row in served.metrics] == [3, 3]
