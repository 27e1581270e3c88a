"""A report vouches for what it has checked against the ledger, and for nothing else."""

from __future__ import annotations

import html
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import udpfl
from tests.repository import EXAMPLES
from tests.small import blobs, linear
from udpfl.accounting import PrivacyStatement
from udpfl.algorithms.message import tensors_from_bytes, tensors_to_bytes
from udpfl.cli import main
from udpfl.cli.ledgers import contradictions
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import Seals
from udpfl.report import read_run, run_page
from udpfl.report.differences import differences

LEDGER = ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm")


def train(folder, rounds=2, clients=3, observers=(), **privacy):
    settings = {
        "out": str(folder), "threads": 1, "data": {"clients": clients},
        "training": {"rounds": rounds},
        "privacy": {"epsilon": 1.0, "delta": 1e-3, "mechanism": "gaussian", **privacy},
    }  # fmt: skip
    return udpfl.run(settings, data=blobs(), model=linear(), observers=observers).folder


@contextmanager
def sealing_nothing():
    """Runs inside are those of a version that did not know of seals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seals, "begin", lambda *_: None)
        patch.setattr(Seals, "end", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A private run with a ledger of its own, one by an earlier version, and a nominal one."""
    top = tmp_path_factory.mktemp("kept")
    train(top / "private", epsilon=[1.0, 2.0, 4.0])
    train(top / "nominal", accounting="scalar")
    with sealing_nothing():
        train(top / "unsealed", epsilon=[1.0, 2.0, 4.0])
    return top


@pytest.fixture
def run(kept, tmp_path):
    return Path(shutil.copytree(kept / "private", tmp_path / "run"))


@pytest.fixture
def unsealed(kept, tmp_path):
    return Path(shutil.copytree(kept / "unsealed", tmp_path / "unsealed"))


def report(capsys, *folders):
    """Exit code, the JSON objects, and the text of the page of a single run."""
    with pytest.raises(SystemExit) as stopped:
        main(["report", *map(str, folders), "--json", "--out", f"{folders[0]}/page.html"])
    out, err = capsys.readouterr()
    page = (folders[0] / "page.html").read_text()
    return stopped.value.code or 0, [json.loads(line) for line in out.splitlines()], page, err


def outcome(capsys, folder):
    code, (found,), page, _ = report(capsys, folder)
    assert found["run"] == str(folder)
    assert set(found) == {"run", "state", "reasons", "statement"}
    assert (code == 1) == (found["state"] == "contradicted")
    said = html.unescape(re.sub(r"<[^>]+>", " ", page.split("<script")[0].split("</style>")[1]))
    return found["state"], "; ".join(found["reasons"]), " ".join(said.split()), page


def is_green(page):
    """Whether anything on the page is in the colour of a guarantee."""
    return bool(re.search(r'class="[^"]*\bguarantee\b', page)) or '"colour":"guarantee"' in page


def contradicted(capsys, folder, reason):
    state, reasons, said, page = outcome(capsys, folder)
    assert state == "contradicted"
    assert reason in reasons
    assert f"Contradicted: {reasons}" in said
    assert "Contradicted Contradicted:" in said  # in the badge and in the sentence
    assert "ε = " not in said.replace(reasons, "")
    assert not is_green(page)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def restamp(folder, change):
    """Write another header into the model."""
    path = folder / "model.safetensors"
    tensors, stamp = tensors_from_bytes(path.read_bytes())
    change(stamp)
    path.write_bytes(tensors_to_bytes(tensors, stamp))


def replace_ledger(folder, other):
    for name in LEDGER:
        (folder / name).unlink(missing_ok=True)
    shutil.copy(other, folder / "ledger.sqlite")


def tamper(path, statement, *values):
    """Change a ledger behind its triggers' back, and leave no other trace."""
    with sqlite3.connect(path) as db:
        triggers = db.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'charges'"
        ).fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement, values)
        for _, sql in triggers:
            db.execute(sql)
    db.close()


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("name", ["private", "nominal"])
def test_an_untouched_run_is_verified(capsys, kept, tmp_path, name):
    folder = shutil.copytree(kept / name, tmp_path / "run")
    state, reasons, said, page = outcome(capsys, folder)
    assert (state, reasons) == ("verified", "")
    assert "Verified: every client’s ε was recomputed from the ledger" in said
    assert is_green(page)
    assert ">Verified</span>" in (kept / name / "report.html").read_text()


METHODS = {
    "paced": {"privacy": {"pace": "increasing"}},
    "adaptive clip": {"privacy": {"clip_quantile": 0.5}},
    "trusted server": {"training": {"algorithm": "dp-fedavg"}, "privacy": {"unit": "client"}},
    "shuffled": {"training": {"shuffle": True}},
    "some clients": {"training": {"clients_per_round": 1, "rounds": 2}},
    "seeded": {"privacy": {"randomness": "seeded"}},
    "plain": {"privacy": "none"},
}


@pytest.mark.parametrize("name", METHODS)
def test_runs_of_every_kind_agree_with_their_ledger(capsys, tmp_path, name):
    chosen = {"out": str(tmp_path / "run"), "threads": 1, **METHODS[name]}
    privacy = chosen.pop("privacy", {})
    if privacy != "none":
        privacy = {"epsilon": 4.0, "delta": 1e-3, "mechanism": "gaussian", **privacy}
    training = {"rounds": 3, **chosen.pop("training", {})}
    settings = {"data": {"clients": 3}, "training": training, "privacy": privacy, **chosen}
    folder = udpfl.run(settings, data=blobs(), model=linear()).folder
    state, reasons, said, page = outcome(capsys, folder)
    assert (state, reasons) == ("verified", "")
    private = name not in ("seeded", "plain")
    assert is_green(page) == private
    assert ("Not private" in said) != private


def test_the_statement_is_the_recomputed_one(capsys, run):
    _, (found,), _, _ = report(capsys, run)
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        most = max(ledger.statement(own.id).epsilon for own in ledger.accounts())
    assert PrivacyStatement.from_dict(found["statement"]).epsilon == most


def test_several_runs_are_one_object_each(capsys, run, kept):
    edit(run / "summary.json", lambda s: s["privacy"].update(epsilon=0.01))
    code, found, page, err = report(capsys, run, kept / "nominal")
    assert [own["state"] for own in found] == ["contradicted", "verified"]
    assert code == 1
    assert f"{run} is contradicted by its ledger" in err
    assert "Contradicted" in page


# The summary and the model


@pytest.mark.parametrize("factor", [0.5, 2.0, 1 + 1e-7])
def test_an_edited_epsilon_of_a_client_is_found(capsys, run, factor):
    def change(summary):
        own = summary["clients"]["client-1"]
        own["epsilon"] *= factor

    edit(run / "summary.json", change)
    contradicted(capsys, run, "summary.json for client-1 says ε = ")


def test_the_last_digits_may_differ(capsys, run):
    def change(summary):
        summary["clients"]["client-1"]["epsilon"] *= 1 + 1e-12

    edit(run / "summary.json", change)
    assert outcome(capsys, run)[0] == "verified"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("epsilon", 0.1, "summary.json for the run says ε = 0.1"),
        ("delta", 1e-9, "summary.json for the run says δ = 1e-09"),
        ("unit", "client", "says unit “client”, recomputed it is “record”"),
        ("kind", "nominal", "says kind “nominal”, recomputed it is “guarantee”"),
    ],
)
def test_an_edited_statement_of_the_run_is_found(capsys, run, field, value, reason):
    edit(run / "summary.json", lambda summary: summary["privacy"].update({field: value}))
    contradicted(capsys, run, reason)


def test_a_delta_that_no_budget_has_is_found(capsys, run):
    edit(run / "summary.json", lambda s: s["clients"]["client-0"].update(delta=0.5, epsilon=0.0))
    contradicted(capsys, run, "δ = 0.5 of client-0 in summary.json is not its budget's")


def test_a_nominal_run_is_no_guarantee(capsys, kept, tmp_path):
    folder = shutil.copytree(kept / "nominal", tmp_path / "run")

    def change(summary):
        for own in (summary["privacy"], *summary["clients"].values()):
            own["kind"] = "guarantee"

    edit(folder / "summary.json", change)
    contradicted(capsys, folder, "says kind “guarantee”, recomputed it is “nominal”")


def test_a_client_cannot_be_left_out(capsys, unsealed):
    edit(unsealed / "participants.json", lambda people: people.pop(2))
    edit(unsealed / "summary.json", lambda summary: summary["clients"].pop("client-2"))
    contradicted(capsys, unsealed, "client-2 was charged in this run, and is not among its clients")


def test_an_edited_header_of_the_model_is_found(capsys, unsealed):
    restamp(unsealed, lambda stamp: stamp["privacy"].update(epsilon=0.5))
    contradicted(capsys, unsealed, "the header of the model says ε = 0.5")


def test_an_edited_sentence_in_the_model_is_found(capsys, unsealed):
    restamp(unsealed, lambda stamp: stamp.update(statement="(ε = 0.1, δ = 0)-DP"))
    contradicted(capsys, unsealed, "the header of the model has another statement")


def test_a_model_has_to_say_what_it_cost(capsys, unsealed):
    restamp(unsealed, lambda stamp: stamp.pop("privacy"))
    contradicted(capsys, unsealed, "the header of the model has no statement")


def test_model_and_summary_end_with_the_same_charge(capsys, run):
    edit(run / "summary.json", lambda summary: summary.pop("head"))
    contradicted(capsys, run, "end with different charges")


def test_a_damaged_model_is_not_verified(capsys, unsealed):
    (unsealed / "model.safetensors").write_bytes(b"\xff" * 100)
    state, reasons, _, page = outcome(capsys, unsealed)
    assert state == "not verified"
    assert "its header is cut off" in reasons
    assert not is_green(page)


def test_a_summary_from_before_the_run_went_on_is_found(capsys, run):
    """The head of the first round, and what it cost then."""
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        accounts = {own.client: own.id for own in ledger.accounts()}
        (chain,) = ledger._file.rows("SELECT chain FROM charges WHERE id = 3")
        early = {name: ledger.statement(own, up_to=3).to_dict() for name, own in accounts.items()}
    most = max(early.values(), key=lambda own: own["epsilon"])
    earlier = {"head": [3, *chain], "privacy": most}
    edit(run / "summary.json", lambda summary: summary.update(**earlier, clients=early))
    restamp(run, lambda stamp: stamp.update(**earlier))
    contradicted(capsys, run, "the run was charged up to charge 6, and its summary ends with")


# The ledger


def test_an_edited_charge_is_found(capsys, run):
    tamper(run / "ledger.sqlite", "UPDATE charges SET count = count + 1 WHERE id = 2")
    contradicted(capsys, run, "the ledger is not sound: charge 2 was edited")


def test_without_its_ledger_a_run_is_not_verified(capsys, run):
    for name in LEDGER:
        (run / name).unlink(missing_ok=True)
    state, reasons, said, page = outcome(capsys, run)
    assert state == "not verified"
    assert "there is no ledger" in reasons
    assert "Guarantee Not verified" in said
    assert "holds for every client" not in said
    assert not is_green(page)


def test_a_file_that_is_no_ledger_is_not_verified(capsys, run):
    for name in LEDGER:
        (run / name).unlink(missing_ok=True)
    (run / "ledger.sqlite").write_bytes(b"no ledger at all" * 500)
    state, reasons, _, page = outcome(capsys, run)
    assert state == "not verified"
    assert "damaged or not a ledger" in reasons
    assert not is_green(page)


def test_the_ledger_of_another_run_is_found(capsys, run, tmp_path):
    other = train(tmp_path / "other", epsilon=[1.0, 2.0, 4.0])
    replace_ledger(run, other / "ledger.sqlite")
    contradicted(capsys, run, "it is another one: its charge 6 has another hash")


def shared_with_backup(tmp_path):
    """A run on a shared ledger with room for more, and a copy of that from right after it."""
    shared, backup = tmp_path / "shared.sqlite", tmp_path / "backup.sqlite"
    first = train(tmp_path / "first", epsilon=4.0, ledger=str(shared), rounds=1)
    with Ledger(shared) as ledger:
        for own in ledger.accounts():
            ledger.set_budget(own.id, udpfl.Budget(20.0, 1e-3), reason="more runs")
        ledger._file._db.execute("VACUUM INTO ?", (str(backup),))
    return shared, backup, first


def test_a_ledger_that_was_rolled_back_is_found(capsys, tmp_path):
    shared, backup, first = shared_with_backup(tmp_path)
    second = train(tmp_path / "second", epsilon=4.0, ledger=str(shared), rounds=1)
    assert outcome(capsys, second)[0] == "verified"
    for end in ("", "-wal", "-shm"):
        Path(f"{shared}{end}").unlink(missing_ok=True)
    shutil.copy(backup, shared)
    assert outcome(capsys, first)[0] == "verified"
    contradicted(capsys, second, "an older copy, or another one: it ends with charge 3")


def test_what_other_runs_charge_later_is_no_contradiction(capsys, tmp_path):
    shared, _, first = shared_with_backup(tmp_path)
    before = read_run(first).statement
    second = train(tmp_path / "second", epsilon=4.0, ledger=str(shared), rounds=1)
    with Ledger(shared) as ledger:
        for own in ledger.accounts():
            ledger.set_budget(
                own.id, udpfl.Budget(ledger.budget(own.id).epsilon + 1, 1e-3), reason="more"
            )
    for folder in (first, second):
        state, reasons, _, page = outcome(capsys, folder)
        assert (state, reasons) == ("verified", "")
        assert is_green(page)
    assert read_run(first).statement.epsilon == before.epsilon < read_run(second).statement.epsilon
    assert "the ledger was charged with more since this run ended" in run_page(read_run(first))


def test_an_unfinished_run_is_not_verified(capsys, run):
    (run / "summary.json").unlink()
    state, reasons, _, page = outcome(capsys, run)
    assert (state, reasons) == ("not verified", "the run is not finished")
    assert not is_green(page)
    tamper(run / "ledger.sqlite", "UPDATE charges SET count = count + 1 WHERE id = 2")
    contradicted(capsys, run, "charge 2 was edited")


@pytest.mark.slow
def test_a_mechanism_that_is_not_trusted_is_not_verified(tmp_path, monkeypatch):
    """In a process that has not imported it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    folder = train(tmp_path / "run", rounds=1, mechanism="own_mechanism:Secant", accountant="rdp")
    command = [sys.executable, "-c", "from udpfl.cli import main; main()", "report", str(folder)]
    environment = {"PYTHONPATH": f"{Path(udpfl.__file__).parents[1]}:{EXAMPLES}", "PATH": ""}
    for trust, state in (((), "not verified"), (("--trust", "own_mechanism:Secant"), "verified")):
        done = subprocess.run(
            [*command, "--json", *trust], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["state"] == state
        assert bool(trust) or "own_mechanism:Secant" in found["reasons"][0]


# Folders


def test_a_run_in_which_nobody_trained_leaves_no_model(capsys, tmp_path):
    class Lowers(udpfl.Observer):
        """The budget is lowered before the first round."""

        def on_start(self, config, folder):
            with Ledger(config.privacy.ledger) as ledger:
                for own in ledger.accounts():
                    ledger.set_budget(own.id, udpfl.Budget(4.0, 1e-3))

    shared, _, _ = shared_with_backup(tmp_path)
    second = train(tmp_path / "second", rounds=1, ledger=str(shared), observers=[Lowers()])
    assert not read_run(second).metrics
    assert not (second / "model.safetensors").exists()
    state, reasons, said, page = outcome(capsys, second)
    assert (state, reasons) == (
        "not verified", "nobody has trained in this run, so there is no model to speak of",
    )  # fmt: skip
    assert "Nothing was trained, so there is no model." in said
    assert not is_green(page)


def test_notes_of_all_clients_are_on_the_page(run):
    record, clients = read_run(run), []
    for client in record.clients:
        notes = ("what everybody assumes", f"own to {client.name}")
        notes += ("what two assume",) if client.name != "client-2" else ()
        clients.append(replace(client, statement=replace(client.statement, notes=notes)))
    privacy = {**record.summary["privacy"], "notes": list(clients[2].statement.notes)}
    page = run_page(
        replace(record, clients=clients, summary={**record.summary, "privacy": privacy})
    )
    assert "own to client-2 (client-2)" in page
    assert "own to client-0 (client-0)" in page
    assert page.count("<li>what everybody assumes</li>") == 1
    assert page.count("what two assume") == 1
    assert "what two assume (client-0, client-1)" in page


def test_a_mailed_folder_finds_the_ledger_beside_it(capsys, tmp_path, monkeypatch):
    home, mailed = tmp_path / "home", tmp_path / "mailed"
    home.mkdir()
    monkeypatch.chdir(home)
    train("runs/one", rounds=1, ledger="site.sqlite")
    home.rename(mailed)
    monkeypatch.chdir(tmp_path)
    assert outcome(capsys, mailed / "runs" / "one")[0] == "verified"
    with pytest.raises(SystemExit) as stopped:
        main(["budget", "verify", str(mailed / "runs" / "one")])
    assert stopped.value.code in (0, None)
    capsys.readouterr()
    (mailed / "site.sqlite").unlink()
    assert outcome(capsys, mailed / "runs" / "one")[0] == "not verified"


def test_the_ledger_that_was_named_goes_first(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    folder = train(home / "run", rounds=1, ledger=str(home / "site.sqlite"))
    copy = Path(shutil.copytree(home, tmp_path / "copy")) / "run"
    assert read_run(copy).ledger == home / "site.sqlite"
    assert read_run(folder).ledger == home / "site.sqlite"


def older(folder):
    """A folder without seals, as a version before heads wrote it."""
    edit(folder / "summary.json", lambda summary: (summary.pop("head"), summary.pop("decided")))
    restamp(folder, lambda stamp: stamp.pop("head"))
    edit(folder / "run.json", lambda identity: identity.pop("ledger_from_here"))


def test_a_folder_without_seals_is_not_verified(capsys, unsealed):
    for _ in range(2):
        state, reasons, said, page = outcome(capsys, unsealed)
        assert state == "not verified"
        assert "an earlier version of udpfl wrote this folder and sealed none of" in reasons
        assert "ε = " in said
        assert not is_green(page)
        if "head" in summary_of(unsealed):
            older(unsealed)
    edit(unsealed / "summary.json", lambda s: s["clients"]["client-1"].update(epsilon=0.5))
    contradicted(capsys, unsealed, "summary.json for client-1 says ε = 0.5")


def test_an_older_folder_on_a_shared_ledger(capsys, tmp_path):
    with sealing_nothing():
        shared, _, first = shared_with_backup(tmp_path)
        train(tmp_path / "second", epsilon=4.0, ledger=str(shared), rounds=1)
    older(first)
    state, reasons, _, _ = outcome(capsys, first)
    assert state == "not verified"
    assert "does not say with which charge" not in reasons

    def larger(summary):  # as if another run had charged before this one ended
        for own in (summary["privacy"], *summary["clients"].values()):
            own["epsilon"] = own["vector_epsilon"] = own["epsilon"] * 1.5
        summary["statement"] = str(PrivacyStatement.from_dict(summary["privacy"]))

    edit(first / "summary.json", larger)
    said = {key: summary_of(first)[key] for key in ("privacy", "statement")}
    restamp(first, lambda stamp: stamp.update(said))
    state, reasons, _, page = outcome(capsys, first)
    assert state == "not verified"
    assert "does not say with which charge of the shared ledger the run ended" in reasons
    assert not is_green(page)


# The head, and `budget verify --against`


def test_the_head_is_kept_beside_the_ledger(run):
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        number, chain = ledger.head()
    assert summary_of(run)["head"] == [number, chain]
    assert tensors_from_bytes((run / "model.safetensors").read_bytes())[1]["head"] == [
        number,
        chain,
    ]
    assert f"{number}: {chain}" in run_page(read_run(run))


def verify(capsys, ledger, *runs):
    against = [word for run in runs for word in ("--against", str(run))]
    with pytest.raises(SystemExit) as stopped:
        main(["budget", "verify", str(ledger), *against])
    return stopped.value.code or 0, capsys.readouterr().out


def test_against_tells_a_ledger_that_was_rolled_back(capsys, tmp_path):
    shared, backup, first = shared_with_backup(tmp_path)
    second = train(tmp_path / "second", epsilon=4.0, ledger=str(shared), rounds=1)
    code, said = verify(capsys, shared, first, second)
    assert (code, said.strip()) == (
        0,
        "sound: 6 charges of 3 clients; holds what 2 runs ended with",
    )
    assert verify(capsys, backup)[0] == 0
    assert verify(capsys, backup, first)[0] == 0
    code, said = verify(capsys, backup, first, second)
    assert code == 1
    assert f"{second}: the ledger does not hold charge 6, the last of this run" in said
    assert str(first) not in said


def test_against_wants_runs_that_say_how_they_ended(capsys, run, unsealed):
    assert verify(capsys, unsealed, unsealed)[0] == 0
    for folder in (run, unsealed):
        restamp(folder, lambda stamp: stamp.update(head=[6, "0" * 64]))
        code, said = verify(capsys, folder, folder)
        assert code == 1  # the model was made with another ledger
        assert "and the header of the model end with different charges" in said
    older(unsealed)
    code, said = verify(capsys, unsealed, unsealed)
    assert (code, "does not say with which charge it ended" in said) == (1, True)
    (run / "summary.json").unlink()
    code, said = verify(capsys, run, run)
    assert (code, "is not finished" in said) == (1, True)


def test_a_statement_up_to_a_charge_leaves_out_what_came_later(run):
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        own = ledger.accounts()[0].id
        costs = [
            ledger.statement(own, up_to=number, fixed_beforehand=True).epsilon
            for number in (0, 3, 6)
        ]
        assert costs[0] == 0 < costs[1] < costs[2] == ledger.statement(own).epsilon
        # Whoever stops a run has seen its results: from the first charge on the plan counts.
        planned = [ledger.statement(own, up_to=number).epsilon for number in (0, 3, 6)]
        assert planned == [0, costs[2], costs[2]]


def test_on_a_shared_ledger_a_statement_up_to_a_charge_grows(tmp_path):
    shared, _, _ = shared_with_backup(tmp_path)
    train(tmp_path / "second", epsilon=4.0, ledger=str(shared), rounds=1)
    with Ledger(shared, read_only=True) as ledger:
        own = ledger.accounts()[0].id
        costs = [ledger.statement(own, up_to=number).epsilon for number in (0, 3, 6)]
        assert costs[0] == 0 < costs[1] < costs[2] == ledger.statement(own).epsilon


def test_a_trusted_server_cannot_be_left_out():
    from udpfl.ledger.charges import TRUST

    said = PrivacyStatement(1.0, 0.0, "guarantee", "pure", vector_epsilon=1.0)
    found = PrivacyStatement(1.0, 0.0, "guarantee", "pure", vector_epsilon=1.0, notes=(TRUST,))
    (difference,) = differences("it", said, found)
    assert "leaves out the note “assumes a server that adds the noise" in difference.said
    assert not list(differences("it", found, said, all_notes=False))
    assert list(differences("it", found, said))


def test_a_decision_that_was_taken_back_is_found(capsys, tmp_path):
    """The last one before a run ended: no charge came after it, and the sequence was put back."""
    shared = tmp_path / "site.sqlite"
    folder = train(tmp_path / "run", epsilon=2.0, ledger=str(shared), rounds=1)
    assert outcome(capsys, folder)[0] == "verified"
    with closing(sqlite3.connect(shared, isolation_level=None)) as db:
        (sql,) = db.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'decisions_never_delete'"
        ).fetchone()
        db.execute("DROP TRIGGER decisions_never_delete")
        db.execute("DELETE FROM decisions WHERE id = (SELECT max(id) FROM decisions)")
        db.execute("UPDATE sqlite_sequence SET seq = seq - 1 WHERE name = 'decisions'")
        db.execute(sql)
    with Ledger(shared) as ledger:
        assert ledger.verify() == []
        assert any("decision" in said for said in contradictions(ledger, folder))
    contradicted(capsys, folder, "the last before this run ended")
