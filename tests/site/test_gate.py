"""The gate of a site: what it hands out, what that costs, and what survives."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
import stat
import threading
from dataclasses import replace

import pytest
import torch

from tests.site.samples import (
    DIMENSION,
    everything_in,
    gate,
    message_of,
    proposed,
    request,
    with_privacy,
    with_section,
)
from udpfl import Budget, Gaussian, Ledger, PoissonSampled, Release, Repeated, Sensitivity
from udpfl.accounting.events import leaves
from udpfl.errors import InvalidInput
from udpfl.federation.single_client import ClientRun
from udpfl.ledger.chain import Head
from udpfl.site import Gate, SiteRequest
from udpfl.site.reasons import LONGEST, plain

pytestmark = pytest.mark.usefixtures("one_thread")


def log_of(own: Gate):
    return [json.loads(line) for line in (own._state / "site.log").read_text().splitlines()]


def leaf(entry):
    """The release of a charge."""
    (sampled,) = leaves(entry.event)
    return sampled.event


def test_an_answer_is_charged_and_stored(tmp_path):
    own = gate(tmp_path)
    answer = own.answer(request())
    message = message_of(answer)
    assert (message.client, message.round) == ("client-0", 1)
    assert message.tensors["update"].shape == (DIMENSION,)
    assert message.metadata == {"declared_size": 60}
    assert answer.head.number == own.ledger.head()[0] == 1
    (entry,) = own.ledger.history()
    assert (entry.client, entry.run, entry.round, entry.count) == ("client-0", "run-1", 1, 1)
    assert answer.privacy.kind == "guarantee"
    assert 0 < answer.privacy.epsilon <= 4
    assert own.ledger.verify() == []
    assert log_of(own)[-1]["what"] == "answered"


def test_a_repeated_request_gets_the_same_bytes_at_no_cost(tmp_path):
    own = gate(tmp_path)
    first = own.answer(request())
    before = everything_in(own.ledger)
    other = replace(request(), tensors={"model": torch.ones(DIMENSION)}, learning_rate=0.1)
    for sent in (request(), other):
        again = own.answer(sent)
        assert again.message == first.message
        assert again.head == first.head
    assert everything_in(own.ledger) == before


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_fresh_process_for_every_message_goes_on_where_the_last_one_was(tmp_path, algorithm):
    seeded = {"budget": {"runs": "one"}, "server": {"seeded_noise": True}}

    def answers(folder, is_fresh):
        folder.mkdir()
        own = gate(folder, **seeded)
        for round_ in (1, 2, 3):
            sent = request(
                round_, training={"algorithm": algorithm}, privacy={"randomness": "seeded"}
            )
            yield own.answer(sent)
            if is_fresh:
                own.close()
                own = gate(folder, **seeded)

    kept, fresh = (list(answers(tmp_path / name, name == "fresh")) for name in ("kept", "fresh"))
    for one, other in zip(kept, fresh, strict=True):
        assert not one.refused
        assert one.message == other.message
    if algorithm == "scaffold":  # its state counts, so it was found again
        assert kept[1].message != kept[2].message


def test_the_settings_of_a_run_do_not_change(tmp_path):
    own = gate(tmp_path)
    message_of(own.answer(request()))
    before = everything_in(own.ledger)
    for sent in (
        request(2, training={"rounds": 5}),
        with_privacy(request(2), clip=0.5),
        request(2, client=1),
    ):
        for place in (own, gate(tmp_path)):
            assert place.answer(sent).refused == (
                "the settings of a run do not change once it has begun"
            )
    assert everything_in(own.ledger) == before
    message_of(own.answer(request(2)))


def test_a_ledger_that_was_put_back_is_noticed_by_what_the_server_knows(tmp_path):
    own = gate(tmp_path)
    first, before = own.answer(request()), own.ledger.head()
    own.close()
    shutil.copytree(tmp_path / "state-0", tmp_path / "backup")
    own = gate(tmp_path)
    second = own.answer(replace(request(2), head=first.head))
    message_of(second)
    own.close()
    shutil.rmtree(tmp_path / "state-0")
    shutil.copytree(tmp_path / "backup", tmp_path / "state-0")
    own = gate(tmp_path)
    refused = own.answer(replace(request(3), head=second.head))
    assert "lacks charge 2" in refused.refused
    assert own.ledger.head() == before
    # Without the server's word the site cannot know it: all that it has is the backup.
    message_of(own.answer(replace(request(2), head=first.head)))


def test_a_ledger_that_was_put_back_alone_is_noticed_by_the_site(tmp_path):
    own = gate(tmp_path)
    message_of(own.answer(request()))
    own.close()
    file = tmp_path / "state-0" / "ledger.sqlite"
    shutil.copy(file, tmp_path / "backup")
    own = gate(tmp_path)
    message_of(own.answer(request(2)))
    own.close()
    shutil.copy(tmp_path / "backup", file)
    own = gate(tmp_path)
    for sent in (request(3), request(run="another")):
        assert "lacks charge 2" in own.answer(sent).refused


def test_another_chain_is_refused(tmp_path):
    own = gate(tmp_path)
    message_of(own.answer(request()))
    for chain in ("0" * 64, own.ledger.head()[1]):
        forged = replace(request(2), head=Head(1, chain))
        assert "lacks charge 1" in own.answer(forged).refused


def test_nothing_that_leaves_is_computed_from_records_without_noise(tmp_path):
    """The hash of a charge is: whoever knows all records but one could try the last one."""
    own = gate(tmp_path)
    answers = [own.answer(request()), own.answer(replace(request(), cohort=1))]
    said = " ".join(str(each.to_dict()) for each in (*answers, own.describe()))
    (entry,) = own.ledger.history()
    hashes = {own.ledger.head()[1], own.ledger.decided()[1], *own.ledger.data_of("run-1").values()}
    assert len(hashes) == 3
    assert entry.fingerprint in hashes
    for secret in hashes:
        assert len(secret) >= 32
        assert secret not in said
        assert secret.encode() not in answers[0].message
    # The same ledger at a site with another key has another code.
    code, key = answers[0].head.chain, tmp_path / "state-0" / "head.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert gate(tmp_path).describe().head == answers[0].head
    key.unlink()
    other = gate(tmp_path)
    assert other.describe().head.chain != code
    assert "lacks charge 1" in other.answer(replace(request(2), head=answers[0].head)).refused
    key.write_bytes(b"short")
    with pytest.raises(InvalidInput, match="damaged"):
        gate(tmp_path)


def test_a_round_that_the_server_has_is_not_computed_again(tmp_path):
    own = gate(tmp_path)
    message_of(own.answer(request(1)))
    message_of(own.answer(replace(request(2), settled=1)))
    before = everything_in(own.ledger)
    answer = own.answer(request(1))
    assert "not kept here any more" in answer.refused
    assert answer.is_final
    assert everything_in(own.ledger) == before


def test_a_full_disk_releases_nothing_and_charges_nothing(tmp_path):
    own, rounds = gate(tmp_path, releases={"in_all": 400}), {"training": {"rounds": 400}}
    message_of(own.answer(request(**rounds)))
    database = own.ledger._file._db
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    answered = 1
    for round_ in range(2, 400):
        answer = own.answer(request(round_, **rounds))
        if answer.refused:
            break
        answered += 1
    assert answer.refused == "the site could not answer; its log says why"
    assert not answer.is_final
    assert own.ledger.head()[0] == answered
    assert "disk is full" in log_of(own)[-1]["why"]
    database.execute("PRAGMA max_page_count = 1000000")
    message_of(own.answer(request(round_, **rounds)))
    assert own.ledger.head()[0] == answered + 1
    assert own.ledger.verify() == []


def test_a_clock_that_is_set_back_changes_nothing(tmp_path, monkeypatch):
    own = gate(tmp_path)
    message_of(own.answer(request()))
    for module in ("charges", "decisions", "_runs"):
        monkeypatch.setattr(f"udpfl.ledger.{module}.now", lambda: "1999-12-31T23:59:59.000+00:00")
    for round_ in (2, 3):
        message_of(own.answer(request(round_)))
    assert own.ledger.verify() == []
    assert [entry.round for entry in own.ledger.history()] == [1, 2, 3]
    assert list(own.ledger.history())[-1].charged_at.startswith("1999")


@pytest.mark.parametrize("place", ["load", "train"])
def test_what_an_error_says_stays_at_the_site(tmp_path, monkeypatch, place):
    def fail(*args, **kwargs):
        raise ValueError("patient 4711 has a negative age")

    own = gate(tmp_path)
    if place == "load":
        monkeypatch.setattr("tests.site.samples.load", fail)
    else:
        monkeypatch.setattr(ClientRun, "answer", fail)
    answer = own.answer(request())
    assert answer.refused == "the site could not answer; its log says why"
    assert not answer.is_final
    assert "4711" not in str(answer.to_dict())
    assert "4711" in log_of(own)[-1]["why"]
    assert list(own.ledger.history()) == []
    if place == "load":
        about, _ = own.handle({"ask": "describe"})
        assert "4711" not in str(about)
        assert about["refused"]


def test_runs_share_a_budget_and_its_releases(tmp_path):
    own = gate(tmp_path, releases={"in_all": 6, "per_round": 1})
    for run in ("one", "two"):
        for round_ in (1, 2, 3):
            message_of(own.answer(request(round_, run=run, training={"rounds": 3})))
    refused = own.answer(request(run="three", training={"rounds": 1}))
    assert "leaves 0 of 6" in refused.refused
    account = own.ledger.account_of("client-0")
    assert own.ledger.statement(account).epsilon <= 4
    assert len(list(own.ledger.history())) == 6
    first, *_, last = (leaf(entry) for entry in own.ledger.history())
    assert last.mechanism.noise_std == pytest.approx(first.mechanism.noise_std, rel=0.01)


def test_what_a_run_reserved_is_free_once_the_server_ends_it(tmp_path):
    own = gate(tmp_path, releases={"in_all": 4, "per_round": 1})
    message_of(own.answer(request()))
    assert "leaves 0 of 4" in own.answer(request(run="two", training={"rounds": 3})).refused
    assert own.handle({"ask": "finish", "run": "run-1"})[0]["refused"] == ""
    more = with_privacy(request(run="two", training={"rounds": 3}), epsilon=0.5)
    message_of(own.answer(more))
    for place in (own, gate(tmp_path, releases={"in_all": 4, "per_round": 1})):
        # The budget would hold more, but not the releases that the policy allows.
        assert "leaves 0 of 4: what it had reserved was freed" in place.answer(request(2)).refused


def test_a_budget_for_one_run_is_for_one(tmp_path):
    own = gate(tmp_path, budget={"runs": "one"})
    message_of(own.answer(request()))
    assert "for one run" in own.answer(request(run="two")).refused
    message_of(own.answer(request(2)))


def test_a_policy_lowers_the_budget_of_its_ledger_and_never_raises_it(tmp_path, caplog):
    own = gate(tmp_path)
    message_of(own.answer(request()))
    own.close()
    own = gate(tmp_path, budget={"epsilon": 3.0})
    account = own.ledger.account_of("client-0")
    assert own.ledger.budget(account).epsilon == 3.0
    own.close()
    own = gate(tmp_path, budget={"epsilon": 30.0})
    assert own.ledger.budget(account).epsilon == 3.0
    assert "udpfl budget set" in caplog.text
    sent = with_privacy(request(run="two"), epsilon=20.0)
    assert own.answer(sent).refused
    own.close()


def test_the_same_request_in_two_processes_is_charged_once(tmp_path):
    one, other = gate(tmp_path), gate(tmp_path)
    first, second = one.answer(request()), other.answer(request())
    assert first.message == second.message
    assert one.ledger.head()[0] == 1
    assert [own.answer(request(2)).head.number for own in (other, one)] == [2, 2]


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"ask": "evaluate"},
        {"ask": ["train"]},
        {"ask": "train"},
        {"ask": "train", "address": {"client": -1}},
        {"ask": "train", "address": {"client": 0, "head": [1, "x"]}},
        {"ask": "finish", "run": "../../etc"},
        {"ask": "finish"},
    ],
)
def test_what_is_no_request_is_refused(tmp_path, about):
    own = gate(tmp_path)
    body = request().body()
    answer, message = own.handle(about, body)
    assert answer["refused"]
    assert message == b""
    assert list(own.ledger.history()) == []
    assert log_of(own)[-1]["what"] == "refused"


def test_what_is_refused_does_not_fill_the_log(tmp_path):
    own, name = gate(tmp_path), "A\n\x1b[2J" * 500_000
    long = {
        "model": with_section(request(), "model", name=name),
        "settings": with_section(request(), "model", **{name: 1}),
        "algorithm": with_section(request(), "training", algorithm=name),
    }
    for sent in long.values():
        about, _ = own.handle({"ask": "train", "address": sent.address()}, sent.body())
        assert 10 < len(about["refused"]) <= LONGEST
        assert about["refused"].isprintable()
        own.answer(sent)
    assert (own._state / "site.log").stat().st_size < 2 * len(long) * (LONGEST + 500)
    assert all(line["why"].isprintable() for line in log_of(own))


def test_an_error_that_quotes_a_request_is_one_line_in_every_log(tmp_path, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise ValueError("4711\nround 2 was answered\u2028and 3" + "x" * 10**6 + "4712")

    own = gate(tmp_path)
    monkeypatch.setattr(ClientRun, "answer", fail)
    own.answer(request())
    monkeypatch.setattr(Gate, "finish", fail)
    own.handle({"ask": "finish", "run": "run-1"})
    whys = [line["why"] for line in log_of(own)[-2:]]
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 2
    for line in (*whys, *said):
        assert line.isprintable()
        assert "4712" in line
        assert len(line) < LONGEST + 100
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    "text",
    ["", "plain", "a\nb\r\nc\u2028d\x85e\x0bf\tg", "\x1b[31mred\x00", "z" * 10**6, "\n" * 9_000],
    ids=range(6),
)
def test_a_reason_is_one_line_that_is_not_long(text):
    line = plain(text)
    assert line.isprintable()
    assert len(line) <= LONGEST
    assert line.count("z") in (0, LONGEST - len(" [...] "), LONGEST - len(" [...] ") - 1)
    assert plain("a\nb\r\n c") == "a b c"
    assert plain("plain") == "plain"


@pytest.mark.parametrize(
    "body", [b"", b"\x00" * 64, b"\xff" * 4096, b"{}", b"\x08" + b"\x00" * 7 + b"[[[[[[[["]
)
def test_garbage_is_refused(tmp_path, body):
    own = gate(tmp_path)
    answer, _ = own.handle({"ask": "train", "address": request().address()}, body)
    assert "not a request" in answer["refused"]


def test_a_site_describes_itself_in_public_numbers(tmp_path):
    own = gate(tmp_path)
    facts = own.describe()
    assert (facts.site, facts.declared_size, facts.input_shape, facts.outputs) == (
        "client-0", 60, (4,), 2,
    )  # fmt: skip
    assert (facts.epsilon, facts.delta, facts.head.number) == (4.0, 1e-5, 0)


def test_a_folder_of_a_run_that_never_began_is_in_nobodys_way(tmp_path, monkeypatch):
    own = gate(tmp_path)
    monkeypatch.setattr(Ledger, "reserve", lambda *_, **__: 1 / 0)
    assert own.answer(request()).refused
    assert own.ledger.accounts() == []
    monkeypatch.undo()
    folder = tmp_path / "state-0" / "runs" / "run-1"
    assert not folder.exists()
    message_of(own.answer(request()))
    assert (folder / "proposal.json").is_file()


def test_a_ledger_that_was_edited_answers_nothing_new(tmp_path):
    own = gate(tmp_path)
    message_of(own.answer(request()))
    own.close()
    with sqlite3.connect(tmp_path / "state-0" / "ledger.sqlite") as database:
        database.execute("DROP TRIGGER charges_never_update")
        database.execute("UPDATE charges SET count = 2")
    own = gate(tmp_path)
    answer = own.answer(request(2))
    assert answer.refused == "the site could not answer; its log says why"
    assert "not sound" in log_of(own)[-1]["why"]


def test_the_request_of_another_version_is_refused(tmp_path):
    own, sent = gate(tmp_path), request()
    body = sent.body().replace(b'\\"version\\": 1', b'\\"version\\": 2')
    assert body != sent.body()
    about, _ = own.handle({"ask": "train", "address": sent.address()}, body)
    assert "version" in about["refused"]


def test_a_run_id_names_no_other_folder(tmp_path):
    own = gate(tmp_path)
    for run in ("../x", "a/b", "", "x" * 65, ".", ".."):
        with pytest.raises(InvalidInput, match="run"):
            replace(request(), run=run)
        sent = request()
        object.__setattr__(sent, "run", run)
        about, _ = own.handle({"ask": "train", "address": sent.address()}, sent.body())
        assert "run" in about["refused"]
    assert isinstance(SiteRequest.read(request().body(), request().address()), SiteRequest)
    assert proposed()["data"] == {"clients": 3}


def test_no_run_of_a_server_has_the_id_of_an_import(tmp_path):
    """The site would take its own import for charged already, and count too little."""
    event = ten_releases()
    with Ledger(tmp_path / "elsewhere.sqlite") as other:
        run = other.import_charge(other.account("client-0", "0" * 32), event, source="events")
    own, sent = gate(tmp_path), request()
    object.__setattr__(sent, "run", run)  # as a server that does not check it
    for about in ({"ask": "train", "address": sent.address()}, {"ask": "finish", "run": run}):
        said, message = own.handle(about, sent.body())
        assert "must not begin with 'imported-'" in said["refused"]
        assert message == b""
    message_of(own.answer(request()))
    account = own.ledger.account_of("client-0")
    assert own.ledger.import_charge(account, event, source="events") == run
    assert sum(entry.count for entry in own.ledger.history()) == 11


def ten_releases():
    """Ten releases as this site makes them."""
    release = Release(Gaussian(9.0), Sensitivity(1.0, dimension=DIMENSION), "record")
    return Repeated(PoissonSampled(0.5, release), 10)


def test_processes_take_turns(tmp_path, monkeypatch):
    gate(tmp_path).close()
    answers, waits, lock = [], threading.Event(), fcntl.flock

    def noted(file, how):
        waits.set()
        lock(file, how)

    def ask():
        own = gate(tmp_path)
        answers.append(own.answer(request()))
        own.close()

    with (tmp_path / "state-0" / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as another process that answers
        monkeypatch.setattr(fcntl, "flock", noted)
        thread = threading.Thread(target=ask)
        thread.start()
        assert waits.wait(60)
        thread.join(0.5)
        assert answers == []
    thread.join(60)
    message_of(answers[0])


def test_the_account_has_the_budget_of_the_policy(tmp_path):
    """Whatever a run asks for, the account is held to the policy."""
    own = gate(tmp_path)
    message_of(own.answer(with_privacy(request(), epsilon=0.5)))
    assert own.ledger.budget(own.ledger.account_of("client-0")) == Budget(4.0, 1e-5)
