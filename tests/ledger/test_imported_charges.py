"""Spending that others recorded, as charges: the ledger keeps it and counts it."""

from __future__ import annotations

import csv
import json
import math
import re
from contextlib import closing
from sqlite3 import connect

import numpy as np
import pytest

import udpfl
from tests import commands
from tests.accounting.samples import PAST, STEP, gaussian
from udpfl import (
    Budget,
    Composed,
    Gaussian,
    InvalidInput,
    Laplace,
    Ledger,
    PureDP,
    Release,
    Repeated,
    Sensitivity,
    Unsupported,
    account,
)
from udpfl.accounting.serial import event_to_dict
from udpfl.errors import BudgetExceeded
from udpfl.ledger.charges import Charge

DATA = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger(path) as opened:
        yield opened


def test_an_imported_charge_counts_like_any_other(ledger):
    alice = ledger.account("alice", DATA)
    ledger.set_budget(alice, Budget(3.0, 1e-5))
    ledger.begin_run("r", randomness="entropy", accounting="vector", description={})
    ledger.commit([Charge(alice, "r", 0, (STEP,), b"first")])
    ledger.import_charge(alice, PAST, source="opacus", note="in May")
    whole = Repeated(STEP, 201)
    added_up = account(whole, 1e-5, ledger.filter(alice)).epsilon
    assert ledger.statement(alice).epsilon == pytest.approx(added_up, rel=1e-9)
    at_once = ledger.statement(alice, fixed_beforehand=True).epsilon
    assert at_once == pytest.approx(account(whole, 1e-5).epsilon, rel=1e-9)
    own, imported = ledger.history(alice)
    assert (own.imported, own.note) == (False, "")
    assert (imported.imported, imported.note) == (True, "imported from opacus: in May")
    assert (imported.count, imported.event) == (200, STEP)
    assert ledger.rounds_charged("r", alice) == 1
    assert ledger.verify() == []


def test_what_has_happened_is_charged_beyond_the_budget_and_ends_the_training(ledger):
    alice, bob = ledger.account("alice", DATA), ledger.account("bob", "other")
    for one in (alice, bob):
        ledger.set_budget(one, Budget(3.0, 1e-5))
    assert not ledger.would_exceed(alice, Repeated(STEP, 5))  # known to fit, until now
    ledger.import_charge(alice, Repeated(STEP, 5000), source="opacus")
    assert ledger.statement(alice).epsilon > 3.0
    ledger.begin_run("r", randomness="entropy", accounting="vector", description={})
    with pytest.raises(BudgetExceeded):
        ledger.commit([Charge(alice, "r", 0, (STEP,), b"m")])
    ledger.commit([Charge(bob, "r", 0, (STEP,), b"m")])


LAPLACE = Release(Laplace(10.0), Sensitivity(1.0, "l1", 5))


def test_a_budget_at_delta_zero_does_not_refuse_what_has_happened(ledger):
    """Gaussian noise has no largest loss: the cost is infinite, and training ends."""
    alice, bob = ledger.account("alice", DATA), ledger.account("bob", "other")
    for one in (alice, bob):
        ledger.set_budget(one, Budget(1.0, 0.0))
    ledger.import_charge(alice, PAST, source="opacus")
    ledger.import_charge(bob, LAPLACE, source="elsewhere")
    assert ledger.statement(bob).epsilon == pytest.approx(0.1)
    stated = ledger.statement(alice)
    assert (stated.epsilon, stated.vector_epsilon, stated.delta) == (math.inf, math.inf, 0.0)
    assert "gaussian noise has no pure-DP guarantee" in stated.notes[0]
    wanted = account(PAST, 1e-5, ledger.filter(alice)).epsilon
    assert ledger.statement(alice, 1e-5).epsilon == pytest.approx(wanted)
    assert ledger.would_exceed(alice, LAPLACE)
    ledger.begin_run("r", randomness="entropy", accounting="vector", description={})
    with pytest.raises(BudgetExceeded, match="ε = inf, more than its budget"):
        ledger.commit([Charge(alice, "r", 0, (LAPLACE,), b"m")])
    ledger.commit([Charge(bob, "r", 0, (LAPLACE,), b"m")])
    assert ledger.verify() == []


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (Release(Laplace(1.0), Sensitivity(1.0, "l1")), InvalidInput),  # no dimension
        (Release(Gaussian(1.0), Sensitivity(1.0), "client"), Unsupported),
    ],
)
def test_infinity_does_not_hide_what_cannot_be_added_up(ledger, event, kind):
    alice = ledger.account("alice", DATA)
    ledger.set_budget(alice, Budget(1.0, 0.0))
    ledger.import_charge(alice, PAST, source="opacus")
    with pytest.raises(kind):
        ledger.import_charge(alice, event, source="elsewhere")
    assert len(list(ledger.history())) == 1


def test_a_statement_says_what_it_takes_on_trust(path, ledger):
    alice, bob = ledger.account("alice", DATA), ledger.account("bob", "other")
    ledger.begin_run("r", randomness="entropy", accounting="vector", description={})
    ledger.commit([Charge(one, "r", 0, (STEP,), b"m") for one in (alice, bob)])
    assert ledger.statement(alice, 1e-5).remarks == ()
    ledger.import_charge(alice, PAST, source="opacus")
    with Ledger(path, read_only=True) as other:
        for opened in (ledger, other):
            (note,) = opened.statement(alice, 1e-5).assumptions
            assert re.search(r"assumes .*Poisson.*\(add-remove\).*not checked here", note)
            assert str(opened.statement(alice, 1e-5)).endswith(note)
            assert opened.statement(bob, 1e-5).remarks == ()


def test_who_claims_nothing_takes_nothing_on_trust(ledger):
    alice = ledger.account("alice", DATA)
    ledger.import_charge(alice, PAST, source="opacus")
    ledger.begin_run("s", randomness="seeded", accounting="vector", description={})
    ledger.commit([Charge(alice, "s", 0, (STEP,), b"m")])
    assert not any("assumes" in note for note in ledger.statement(alice, 1e-5).remarks)


def test_the_same_charge_is_imported_once(ledger):
    alice, bob = ledger.account("alice", DATA), ledger.account("bob", DATA[::-1])
    first = ledger.import_charge(alice, PAST, source="opacus", note="in May")
    with pytest.raises(InvalidInput, match="already"):
        ledger.import_charge(alice, Composed([PAST]), source="opacus ", note=" in May")
    again = ledger.import_charge(alice, PAST, source="opacus", note="in June")
    other = ledger.import_charge(bob, PAST, source="opacus", note="in May")
    assert len({first, again, other}) == 3
    assert sum(entry.count for entry in ledger.history(alice)) == 400


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (Composed([]), InvalidInput),
        (PureDP(0.1, neighbours="replace-one"), Unsupported),
        (Release(Gaussian(1.0), Sensitivity(1.0), "client"), Unsupported),
        (Release(Laplace(1.0), Sensitivity(1.0, "l1")), InvalidInput),  # no dimension: no epsilon
    ],
)
def test_what_could_not_be_added_up_is_refused_and_not_stored(ledger, event, kind):
    alice = ledger.account("alice", DATA)
    ledger.import_charge(alice, PAST, source="opacus")
    with pytest.raises(kind):
        ledger.import_charge(alice, event, source="elsewhere")
    assert len(list(ledger.history())) == 1
    assert ledger.statement(alice, 1e-5).kind == "guarantee"


def test_what_another_process_charges_meanwhile_is_seen(path, ledger, monkeypatch):
    """The check that decides is made where nobody else can write."""
    alice = ledger.account("alice", DATA)
    check = ledger._limits.require_accountable

    def slowly(*rest):
        check(*rest)
        monkeypatch.setattr(ledger._limits, "require_accountable", check)
        with Ledger(path) as other:
            other.import_charge(
                alice, Release(Gaussian(1.0), Sensitivity(1.0), "client"), source="x"
            )

    monkeypatch.setattr(ledger._limits, "require_accountable", slowly)
    with pytest.raises(Unsupported, match="different units"):
        ledger.import_charge(alice, PAST, source="opacus")
    assert len(list(ledger.history())) == 1


def import_of(tmp_path, event, note=""):
    """The id under which alice's ledger imports this."""
    with Ledger(tmp_path / "other.sqlite") as other:
        return other.import_charge(other.account("alice", DATA), event, source="opacus", note=note)


def test_only_an_import_has_the_id_of_one(tmp_path, ledger):
    run = import_of(tmp_path, PAST)
    for taken in (run, "imported-", "imported-elsewhere"):
        with pytest.raises(InvalidInput, match="are for what is imported"):
            ledger.begin_run(taken, randomness="entropy", accounting="vector", description={})
    assert ledger.import_charge(ledger.account("alice", DATA), PAST, source="opacus") == run


@pytest.mark.parametrize("round_", [None, 0, 1])
def test_a_run_of_an_earlier_version_does_not_keep_an_import_out(tmp_path, ledger, round_):
    """A server named its run like the import that was to come."""
    run, alice = import_of(tmp_path, PAST), ledger.account("alice", DATA)
    ledger._file.insert("runs", run, "2026-01-01", "entropy", "vector", "{}")
    if round_ is not None:
        ledger.commit([Charge(alice, run, round_, (STEP,), b"m")])
    charged = sum(entry.count for entry in ledger.history())
    first = ledger.import_charge(alice, PAST, source="opacus")
    assert first != run
    assert sum(entry.count for entry in ledger.history()) == charged + 200
    with pytest.raises(InvalidInput, match="already"):
        ledger.import_charge(alice, PAST, source="opacus")
    assert ledger.verify() == []


def test_an_import_that_an_earlier_version_had_only_begun_goes_on(tmp_path, ledger):
    run, alice = import_of(tmp_path, PAST, "in May"), ledger.account("alice", DATA)
    said = json.dumps({"note": "imported from opacus: in May"})
    ledger._file.insert("runs", run, "2026-01-01", "entropy", "vector", said)
    assert ledger.import_charge(alice, PAST, source="opacus", note="in May") == run


def test_an_import_that_is_refused_leaves_nothing(ledger):
    alice = ledger.account("alice", DATA)
    ledger.import_charge(alice, PAST, source="opacus")
    before = ledger._file.rows("SELECT * FROM runs")
    with pytest.raises(Unsupported):
        ledger.import_charge(
            alice, Release(Gaussian(1.0), Sensitivity(1.0), "client"), source="elsewhere"
        )
    assert ledger._file.rows("SELECT * FROM runs") == before


def test_a_source_is_needed_and_an_account(ledger):
    alice = ledger.account("alice", DATA)
    with pytest.raises(InvalidInput, match="source"):
        ledger.import_charge(alice, PAST, source=" ")
    with pytest.raises(InvalidInput, match="account"):
        ledger.import_charge(alice + 1, PAST, source="opacus")


@pytest.mark.parametrize("change", ["note = 'nothing'", "count = 1", "run = 'imported-x'"])
def test_an_edited_import_breaks_the_chain(path, ledger, change):
    ledger.import_charge(ledger.account("alice", DATA), PAST, source="opacus")
    ledger.close()
    with closing(connect(path, isolation_level=None)) as db:
        db.execute("DROP TRIGGER charges_never_update")
        db.execute(f"UPDATE charges SET {change}")
        db.execute(
            "CREATE TRIGGER charges_never_update BEFORE UPDATE ON charges "
            "BEGIN SELECT RAISE(ABORT, 'charges is append-only'); END"
        )
    with Ledger(path, read_only=True) as opened:
        assert any("edited" in problem for problem in opened.verify())


def command(capsys, *arguments):
    code, out, err = commands.command(capsys, *arguments)
    return code, out + err


@pytest.fixture
def filled(path, ledger, tmp_path):
    """Two clients with budgets, and files to import."""
    for name, data in (("alice", DATA), ("bob", "b" * 32)):
        ledger.set_budget(ledger.account(name, data), Budget(3.0, 1e-5))
    ledger.close()
    history = {"history": [[1.1, 0.02, 200]], "mechanism": "rdp"}
    (tmp_path / "history.json").write_text(json.dumps(history))
    (tmp_path / "events.json").write_text(json.dumps([event_to_dict(PAST), event_to_dict(STEP)]))
    (tmp_path / "one.json").write_text(json.dumps(event_to_dict(Repeated(STEP, 5000))))
    return path


def test_the_command_imports_and_every_other_shows_it(capsys, filled, tmp_path):
    code, said = command(
        capsys, "budget", "import", filled, "alice", "--opacus", tmp_path / "history.json",
        "--note", "in May",
    )  # fmt: skip
    assert (code, "alice: imported 200 releases; now (ε = " in said) == (0, True), said
    assert "Poisson-sampled as recorded" in said
    assert "not checked here" in said
    assert "trains no more" not in said

    code, said = command(capsys, "budget", "show", filled, "--json")
    alice, bob = json.loads(said)
    assert (alice["releases"], alice["imported"], alice["runs"]) == (200, 200, [])
    assert (bob["releases"], bob["imported"]) == (0, 0)
    assert any("not checked here" in note for note in alice["statement"]["assumptions"])
    with Ledger(filled, read_only=True) as opened:
        rule = opened.filter(opened.account_of("alice"))
    assert alice["statement"]["epsilon"] == pytest.approx(account(PAST, 1e-5, rule).epsilon)
    code, said = command(capsys, "budget", "show", filled)
    assert "alice: 200 of the releases were made outside of this package" in said
    assert "alice: assumes that the imported releases" in said
    assert "bob: assumes" not in said
    code, said = command(capsys, "budget", "history", filled)
    assert "imported from opacus, assuming Poisson sampling: in May" in " ".join(said.split())
    code, said = command(capsys, "budget", "export", filled, tmp_path / "out.csv")
    (row,) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert row["note"] == "imported from opacus, assuming Poisson sampling: in May"
    assert command(capsys, "budget", "verify", filled) == (0, "sound: 1 charge of 2 clients\n")


def test_the_command_takes_events_beyond_the_budget(capsys, filled, tmp_path):
    code, said = command(
        capsys, "budget", "import", filled, "bob", "--events", tmp_path / "events.json"
    )
    assert (code, "bob: imported 201 releases" in said) == (0, True), said
    code, said = command(
        capsys, "budget", "import", filled, "bob", "--events", tmp_path / "one.json"
    )
    assert code == 0
    assert "exceeds its budget ε = 3; it trains no more" in said


def test_all_data_of_a_client_is_charged_to_its_one_account(capsys, filled, tmp_path):
    def charge(client, *options):
        return command(
            capsys, "budget", "import", filled, client, "--opacus", tmp_path / "history.json",
            *options,
        )  # fmt: skip

    fresh, new = "f" * 32, "c" * 32
    for client, part in (("alice", fresh[:31]), ("alice", DATA[:5]), ("carol", new[:31])):
        code, said = charge(client, "--fingerprint", part)
        assert (code, "must be 32 hexadecimal digits" in said) == (2, True), said
    for client in ("alice", "carol"):
        code, said = charge(client, "--fingerprint", "b" * 32)
        assert (code, "knows this data as bob" in said) == (2, True), said
    with Ledger(filled, read_only=True) as opened:  # nothing was opened or noted by mistake
        assert [found.client for found in opened.accounts()] == ["alice", "bob"]
        assert opened.versions(opened.account_of("alice")) == [DATA]
        assert list(opened.history()) == []

    assert charge("alice", "--fingerprint", fresh)[0] == 0
    assert charge("alice", "--note", "once more")[0] == 0
    assert charge("carol", "--fingerprint", new)[0] == 0
    with Ledger(filled, read_only=True) as opened:
        charged = [(entry.client, entry.fingerprint) for entry in opened.history()]
        assert charged == [("alice", fresh), ("alice", ""), ("carol", new)]
        assert [found.client for found in opened.accounts()] == ["alice", "bob", "carol"]
        alice = opened.account_of("alice")
        assert opened.versions(alice) == [DATA, fresh]
        both = account(Repeated(PAST, 2), 1e-5, opened.filter(alice)).epsilon
        assert opened.statement(alice).epsilon == pytest.approx(both)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("alice",), "exactly one of --opacus and --events"),
        (("alice", "--opacus", "history.json", "--events", "one.json"), "exactly one"),
        (("carol", "--opacus", "history.json"), "'carol' is not in this ledger"),
        (("alice", "--opacus", "nowhere.json"), "--opacus: cannot read"),
        (("alice", "--opacus", "text.json"), "is not JSON"),
        (("alice", "--opacus", "events.json"), "noise multiplier"),
        (("alice", "--events", "history.json"), "event.type"),
        (("alice", "--events", "empty.json"), "nothing to import"),
    ],
)
def test_the_command_refuses_in_one_sentence(
    capsys, filled, tmp_path, monkeypatch, arguments, reason
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("not json")
    (tmp_path / "empty.json").write_text("[]")
    code, said = command(capsys, "budget", "import", filled, *arguments)
    assert (code, reason in said) == (2, True), said
    assert "Traceback" not in said
    with Ledger(filled, read_only=True) as opened:
        assert list(opened.history()) == []


def test_the_command_charges_a_budget_at_delta_zero(capsys, filled, tmp_path):
    command(capsys, "budget", "set", filled, "alice", "--epsilon", "1", "--delta", "0")
    start = ("budget", "import", filled, "alice", "--opacus", tmp_path / "history.json")
    code, said = command(capsys, *start)
    assert (code, "now (ε = inf, δ = 0)" in said) == (0, True), said
    assert "exceeds its budget ε = 1; it trains no more" in said
    code, said = command(capsys, "budget", "show", filled, "--client", "alice")
    assert (code, "no pure-DP guarantee" in said) == (0, True), said


def test_a_ledger_that_is_not_sound_is_not_charged(capsys, filled, tmp_path):
    with closing(connect(filled, isolation_level=None)) as db:
        db.execute("DROP TRIGGER decisions_never_delete")
    code, said = command(
        capsys, "budget", "import", filled, "alice", "--opacus", tmp_path / "history.json"
    )
    assert (code, "not sound" in said) == (2, True), said
    with Ledger(filled, read_only=True) as opened:
        assert list(opened.history()) == []


def test_a_client_that_spent_its_budget_elsewhere_does_not_train(tmp_path):
    """End to end: two clients, one of which comes with a history."""
    rng = np.random.default_rng(0)
    data = [
        (rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2),
        (rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2),
    ]

    def train(name, exhausted="refuse"):
        privacy = {"ledger": str(tmp_path / "shared.sqlite"), "exhausted": exhausted}
        return udpfl.run(
            {"data": {"clients": 2}, "privacy": privacy, "training": {"rounds": 1}},
            model="logistic",
            data=data,
            out=str(tmp_path / name),
        )

    once = train("a")
    with Ledger(tmp_path / "shared.sqlite") as ledger:
        first, second = ledger.accounts()
        for one in (first, second):
            ledger.set_budget(one.id, Budget(30.0, 1e-5), reason="for two runs")
        ledger.import_charge(first.id, Repeated(gaussian(0.5), 100), source="elsewhere")
    with pytest.raises(BudgetExceeded, match=f"^{first.client}: the budget .* no part of this run"):
        train("refused")
    assert not (tmp_path / "refused").exists()
    again = train("b", "skip")
    assert once.metrics[0]["participants"] == 2
    assert again.metrics[0]["participants"] == 1
    run = json.loads((again.folder / "run.json").read_text())["id"]
    with again.ledger as ledger:
        assert ledger.rounds_charged(run, first.id) == 0
        assert ledger.rounds_charged(run, second.id) == 1
    assert again.clients[first.client].epsilon > 30 > again.clients[second.client].epsilon
    assert "not checked here" in str(again.privacy)
    assert "not checked here" not in str(again.clients[second.client])


def test_a_nominal_run_keeps_what_its_guarantee_takes_on_trust(tmp_path):
    data = [(np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2)]
    shared = str(tmp_path / "shared.sqlite")
    settings = {"data": {"clients": 1}, "model": {"name": "logistic"}, "training": {"rounds": 1}}
    settings["privacy"] = {"ledger": shared, "accounting": "scalar", "mechanism": "gaussian"}
    udpfl.run(settings, data=data, out=str(tmp_path / "a"))
    with Ledger(shared) as ledger:
        (only,) = ledger.accounts()
        ledger.set_budget(only.id, Budget(1e6, 1e-5))
        ledger.import_charge(only.id, PAST, source="opacus")
    run = udpfl.run(settings, data=data, out=str(tmp_path / "b"))
    assert run.privacy.kind == "nominal"
    assert any("not checked here" in note for note in run.privacy.assumptions)
