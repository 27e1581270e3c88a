"""The shuffler as a party of its own: what the server gets, and what it cannot find out."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace

import pytest
import torch

from tests.deploy.faults import long
from tests.deploy.memory import Memory, federation, ledgers
from tests.deploy.one_process import in_one_process, seeded, weights
from tests.site.samples import policy
from udpfl import InvalidInput
from udpfl.algorithms import ClientMessage
from udpfl.deploy import RunPaused, run_federation
from udpfl.deploy.keys import make_seal
from udpfl.deploy.shuffling import ShufflerConfig, ShufflerParty, pack, unpack
from udpfl.deploy.transport import Node, Reply
from udpfl.errors import Refused, WrongKey
from udpfl.site import sealing
from udpfl.site.sealing import Letter, read_key, seal

pytestmark = pytest.mark.usefixtures("one_thread")
ROUNDS = 3


class WithShuffler(Memory):
    """Sites that seal, and a node that mixes."""

    party: ShufflerParty
    sealed: list

    def nodes(self):
        return [*super().nodes(), Node(99)]

    def ask(self, node, about, body, timeout, stop):
        if node == 99:
            return Reply(*self.party.handle(about, body))
        reply = super().ask(node, about, body, timeout, stop)
        if about["ask"] == "train":
            self.sealed.append((self.sites[node].name, reply.body))
        return reply


def sites(folder, minimum=3, **changes):
    opened_by, public = make_seal(folder, "shuffler")
    known, policies = {}, {}
    for number in range(3):
        path, known[f"client-{number}"] = make_seal(folder, f"client-{number}")
        own = {"public_key": public, "signing_key": str(path)}
        policies[number + 10] = policy(folder, number, shuffler=own, **changes)
    made = WithShuffler(policies)
    config = {"key": str(opened_by), "state": str(folder / "mixed"), "minimum": minimum}
    made.party = ShufflerParty(ShufflerConfig.of({**config, "sites": known}))
    made.sealed = []
    return made


DEPLOY = {"shuffler": "node"}
SHUFFLE = {"training": {"rounds": ROUNDS, "shuffle": True}}


def test_the_server_gets_messages_without_names(tmp_path):
    own = sites(tmp_path)
    served = run_federation(federation(DEPLOY, **SHUFFLE), own, out=tmp_path / "run")
    assert [row["participants"] for row in served.metrics] == [3] * ROUNDS
    with ledgers(own) as found:
        assert [ledger.head()[0] for ledger in found] == [ROUNDS] * 3
        secrets = [ledger.message(entry.run, 1, entry.round) or b"" for ledger in found
                   for entry in ledger.history()]  # fmt: skip
    assert len({len(data) for _, data in own.sealed}) == 1, "all messages have one length"
    for _, data in own.sealed:
        assert b"client" not in data
        assert all(secret[-40:] not in data for secret in secrets if secret)


def test_the_model_is_that_of_a_run_without_a_hop(tmp_path):
    changes = seeded(training={"shuffle": True})
    limits = {
        "budget": {"runs": "one", "epsilon": 8.0},
        "releases": {"in_all": 3, "per_round": 1},
        "server": {"seeded_noise": True},
    }
    own = sites(tmp_path, **limits)
    served = run_federation(federation(DEPLOY, **changes), own, out=tmp_path / "run")
    expected = in_one_process(tmp_path / "one", **changes)
    assert (weights(served.model) - weights(expected.model)).abs().max() <= 1e-6


def test_orders_are_drawn_anew(tmp_path):
    party = sites(tmp_path).party
    letters = _letters(tmp_path, "r", 1)
    found = Counter()
    for _ in range(120):
        mixed = [ClientMessage.from_bytes(own) for own in party.mix("r", 1, letters)]
        found[tuple(float(message.tensors["update"][0]) for message in mixed)] += 1
    assert len(found) == 6, "every order of three messages comes up"
    assert min(found.values()) >= 5


def _letters(folder, run, round_, count=3, value=0.0, requests=("a", "a", "a")):
    _, public = make_seal(folder, "shuffler")
    sealed = []
    for n in range(count):
        update = {"update": torch.full((4,), float(n) + value)}
        message = ClientMessage(f"client-{n}", round_, update, ("{}",), {"declared_size": 60})
        path, _ = make_seal(folder, f"client-{n}")
        letter = Letter(f"client-{n}", run, round_, requests[n], message.to_bytes())
        sealed.append(seal(letter, read_key(path), public))
    return sealed


def test_what_would_tell_who_sent_what_is_refused(tmp_path):
    party = sites(tmp_path).party

    def asked(run, round_, sealed):
        about, body = party.handle({"ask": "shuffle", "run": run, "round": round_}, pack(sealed))
        return about["refused"], body

    good = _letters(tmp_path, "r", 1)
    assert "too few" in asked("r", 1, good[:2])[0]
    assert "too few" in asked("r", 1, [good[0]] * 3)[0], "one site counts once"
    assert "too few" in asked("r", 2, good)[0], "messages of another round"
    assert "too few" in asked("s", 1, good)[0], "messages of another run"
    forged = [*good[:2], b"x" * len(good[0])]
    assert "too few" in asked("r", 1, forged)[0]
    each = _letters(tmp_path, "r", 1, requests=("a", "b", "c"))
    assert "too few" in asked("r", 1, each)[0], "everybody was asked for something else"
    assert "too few" in asked("r", 1, _letters(tmp_path, "r", 1, requests=("a", "b", "a")))[0]
    refused, body = asked("r", 1, good)
    assert refused == ""
    assert [ClientMessage.from_bytes(own).client for own in unpack(body)] == ["", "", ""]
    assert [ClientMessage.from_bytes(own).events for own in unpack(body)] == [(), (), ()]
    # The same messages, sealed again, may be mixed again; others may not.
    assert asked("r", 1, _letters(tmp_path, "r", 1))[0] == ""
    assert "with other messages" in asked("r", 1, _letters(tmp_path, "r", 1, value=0.5))[0]
    assert "cannot be asked" in party.handle({"ask": "train"}, b"")[0]["refused"]


@pytest.mark.parametrize(
    "round_",
    ["1\nround 7 of run-1: mixed", "1", 0, -1, 1.0, 1.5, True, None, [1], {"a\n": 1}, 2**60],
    ids=str,
)
def test_a_round_is_a_number_before_anything_is_logged_or_mixed(tmp_path, caplog, round_):
    party = sites(tmp_path).party
    sealed = [*_letters(tmp_path, "r", 1), b"x" * 200]
    about, body = party.handle({"ask": "shuffle", "run": "r", "round": round_}, pack(sealed))
    assert "round: must be a whole number from 1" in about["refused"]
    assert body == b""
    assert [record.getMessage() for record in caplog.records] == [f"refused: {about['refused']}"]
    assert list((tmp_path / "mixed").iterdir()) == []


def test_what_a_server_sends_is_no_line_of_the_shufflers_log(tmp_path, caplog, monkeypatch):
    party = sites(tmp_path).party
    line = "x\nround 7 of run-1: mixed 5 messages"
    for about in (
        {"ask": line},
        {"ask": "shuffle", "run": line, "round": 1},
        {"ask": "shuffle", "run": "r", "round": 1},
    ):
        said, _ = party.handle(about, pack([line.encode()]))
        assert said["refused"].isprintable()

    for kind in (Refused, ValueError):

        def fail(*_, kind=kind):
            raise kind(line * 10_000)

        monkeypatch.setattr(ShufflerParty, "mix", fail)
        said, _ = party.handle({"ask": "shuffle", "run": "r", "round": 1}, pack([b"x"]))
        assert said["refused"].isprintable()
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 6
    assert all(own.isprintable() and len(own) < 2_100 for own in logged)
    assert not any(record.exc_info for record in caplog.records)


def test_a_server_that_died_after_mixing_goes_on(tmp_path, monkeypatch):
    own = sites(tmp_path, minimum=2)

    class Killed(BaseException): ...

    def dies(*_):
        raise Killed

    monkeypatch.setattr("udpfl.runs.folder.RunFolder.append_metrics", dies)
    with pytest.raises(Killed):
        run_federation(federation(DEPLOY, **SHUFFLE), own, out=tmp_path / "run")
    monkeypatch.undo()
    served = run_federation(federation(DEPLOY, **SHUFFLE), own, resume=tmp_path / "run")
    assert [row["round"] for row in served.metrics] == [1, 2, 3]
    with ledgers(own) as found:
        assert [ledger.head()[0] for ledger in found] == [ROUNDS] * 3


def test_messages_that_are_not_sealed_are_left_out_and_the_other_way_round(tmp_path):
    own = sites(tmp_path)
    deploy = {"pause_after": 1, "attempts": 1}
    with pytest.raises(RunPaused):  # a server that would take the names off itself
        run_federation(federation(deploy, **SHUFFLE), own, out=tmp_path / "plain")
    open_ = sites(tmp_path / "open")
    for node, known in open_.sites.items():
        open_.sites[node] = known.model_copy(update={"shuffler": type(known.shuffler)()})
    with pytest.raises(RunPaused):
        run_federation(federation({**DEPLOY, **deploy}, **SHUFFLE), open_, out=tmp_path / "sealed")


def test_sites_with_a_shuffler_take_no_part_in_a_run_without_one(tmp_path):
    own = sites(tmp_path)
    plain = {"training": {"rounds": ROUNDS}}
    with contextlib.suppress(RunPaused):
        run_federation(federation({"attempts": 1}, **plain), own, out=tmp_path / "plain")
    with ledgers(own) as found:
        assert [ledger.head()[0] for ledger in found] == [0] * 3


def test_a_sealed_message_that_is_far_too_long_does_not_reach_the_shuffler(tmp_path):
    own = sites(tmp_path, minimum=2)
    own.faults = [long]
    served = run_federation(federation(DEPLOY, **SHUFFLE), own, out=tmp_path / "run")
    assert [row["participants"] for row in served.metrics] == [2, 3, 3]
    assert [row.get("ignored") for row in served.metrics] == [1, None, None]


def test_a_shuffler_that_is_not_there_is_waited_for(tmp_path):
    own = sites(tmp_path)
    own.nodes = lambda: Memory.nodes(own)
    with pytest.raises(RunPaused, match="the shuffler missing"):
        run_federation(
            federation({**DEPLOY, "start_timeout": 0.3}, **SHUFFLE), own, out=tmp_path / "run"
        )
    with pytest.raises(InvalidInput, match="shuffle"):
        federation(DEPLOY)


@pytest.mark.parametrize(
    "text", ["public key that deploy keys --seal printed", "…", "AAAA", "!" * 44]
)
def test_what_is_no_public_key_is_refused_before_any_round(tmp_path, text):
    path, _ = make_seal(tmp_path, "shuffler")
    _, good = make_seal(tmp_path, "client-0")
    config = {"key": str(path), "state": str(tmp_path / "mixed")}
    with pytest.raises(WrongKey, match=r"^sites\.client-1: must be what") as error:
        ShufflerParty(ShufflerConfig.of({**config, "sites": {"client-0": good, "client-1": text}}))
    assert [key for key, _ in error.value.problems] == ["sites.client-1"]


def test_a_key_of_two_sites_and_a_missing_private_one_are_refused(tmp_path):
    path, _ = make_seal(tmp_path, "shuffler")
    _, good = make_seal(tmp_path, "client-0")
    config = {"key": str(path), "state": str(tmp_path / "mixed")}
    with pytest.raises(WrongKey, match=r"^sites\.b: is the key of a"):
        ShufflerParty(ShufflerConfig.of({**config, "sites": {"a": good, "b": good}}))
    with pytest.raises(WrongKey, match=r"^key: cannot read"):
        ShufflerParty(ShufflerConfig.of({"key": str(tmp_path / "none"), "sites": {"a": good}}))


def test_a_shuffler_that_could_never_mix_is_refused(tmp_path):
    path, _ = make_seal(tmp_path, "shuffler")
    _, good = make_seal(tmp_path, "client-0")
    config = {"key": str(path), "state": str(tmp_path / "mixed"), "sites": {"a": good}}
    with pytest.raises(WrongKey, match=r"^minimum: must be at most the number of \[sites\]"):
        ShufflerParty(ShufflerConfig.of({**config, "minimum": 2}))
    with pytest.raises(WrongKey, match=r"^minimum: must be 2 or more, got 1"):
        ShufflerParty(ShufflerConfig.of({**config, "minimum": 1}))


def _signed(message):
    """What one site signs in the place of its message."""

    def seal_it(letter, signed_by, sealed_for):
        return seal(replace(letter, message=message(letter.message)), signed_by, sealed_for)

    return seal_it


def _without_size(data):
    return replace(ClientMessage.from_bytes(data), metadata={}).to_bytes()


def _nested(letter, signed_by, sealed_for):
    """What anybody can seal: its head is not to be read."""
    with pytest.MonkeyPatch.context() as patch:
        head = b"[" * 200_000
        patch.setattr(sealing, "_inner", lambda _: len(head).to_bytes(4, "little") + head)
        return seal(letter, signed_by, sealed_for)


@pytest.mark.parametrize("bad", [_signed(lambda _: b"?"), _signed(_without_size), _nested])
def test_a_site_that_signs_no_message_does_not_keep_the_others_from_being_mixed(tmp_path, bad):
    own = sites(tmp_path, minimum=2)
    keys = {n: read_key(site.shuffler.signing_key) for n, site in own.sites.items()}
    public = own.sites[10].shuffler.public_key
    known = dict(own.party._config.sites)
    message = ClientMessage("", 1, {"update": torch.zeros(3)}, (), {"declared_size": 60}).to_bytes()
    letters = [Letter(name, "run-1", 1, "work", message) for name in sorted(known)]
    sealed = [seal(letter, keys[10 + n], public) for n, letter in enumerate(letters)]
    sealed[0] = bad(letters[0], keys[10], public)
    assert len(own.party.mix("run-1", 1, sealed)) == 2
