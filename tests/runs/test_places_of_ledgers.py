"""Where a ledger may lie: on read-only media, under one name, in a place that can be written."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import udpfl
from tests.small import blobs, linear
from udpfl.accounting.events import PureDP
from udpfl.cli import main
from udpfl.errors import InvalidInput, LedgerError, LedgerUnavailable, Unsupported
from udpfl.federation import setup
from udpfl.ledger import file
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder

AS_NOBODY = """
import contextlib, io, os, sys
from udpfl.cli import main
usual, place, *arguments = sys.argv[1:]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main([word.format(usual) for word in arguments])  # imports all it needs, which may be root's
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
main([word.format(place) for word in arguments])
"""


def settings(out, clients=3, **privacy):
    return {
        "out": str(out), "threads": 1, "data": {"clients": clients}, "training": {"rounds": 1},
        "privacy": {"epsilon": 1.0, "delta": 1e-3, "mechanism": "gaussian", **privacy},
    }  # fmt: skip


def train(out, data=None, block=None, **privacy):
    chosen = settings(out, **privacy)
    chosen["data"] |= {"block": block} if block else {}
    return udpfl.run(chosen, data=data or blobs(), model=linear())


def command(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return stopped.value.code or 0, out, err


# Read-only


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(tmp_path_factory.mktemp("finished") / "run").folder


@pytest.fixture
def medium(finished):
    """A run folder that a process without privileges may read, and nobody may write."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    folder = Path(shutil.copytree(finished, top / "run"))
    for end in ("-wal", "-shm"):
        (folder / f"ledger.sqlite{end}").unlink(missing_ok=True)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(top)


def seal_off(folder):
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.fixture
def as_nobody(finished, medium):
    return lambda *arguments: run_as_nobody(finished, medium, *arguments)


def run_as_nobody(usual, place, *arguments):
    """A command about a folder ({}) by a process without privileges."""
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *map(str, (usual, place, *arguments))],
        capture_output=True, text=True, check=False, cwd="/",
        env={"PYTHONPATH": str(Path(udpfl.__file__).parents[1]), "COLUMNS": "200"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("budget", "show"), "client-2"),
        (("budget", "verify"), "sound: 3 charges of 3 clients"),
        (("audit", "ledger"), "3 charges of 3 clients"),
    ],
)
def test_a_ledger_on_a_read_only_medium_can_be_read(medium, as_nobody, arguments, said):
    seal_off(medium)
    code, out, err = as_nobody(*arguments, "{}")
    assert (code, err) == (0, "")
    assert said in out
    assert not list(medium.glob("ledger.sqlite-*"))


def test_a_run_on_a_read_only_medium_can_be_verified(medium, as_nobody):
    seal_off(medium)
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        code, out, _ = as_nobody("report", "{}", "--json", "--out", f"{place}/page.html")
    assert code == 0
    assert '"state": "verified"' in out


def test_charges_beside_a_read_only_ledger_are_not_left_out(medium, as_nobody):
    """They lie in the file -wal, which cannot be read there: that is no sign of tampering."""
    ledger = medium / "ledger.sqlite"
    other = sqlite3.connect(ledger)
    other.execute("CREATE TABLE more (a)")
    other.commit()
    wal = Path(f"{ledger}-wal").read_bytes()
    other.close()
    Path(f"{ledger}-wal").write_bytes(wal)
    Path(f"{ledger}-shm").unlink(missing_ok=True)
    seal_off(medium)
    for arguments in (("budget", "verify"), ("budget", "show"), ("audit", "ledger")):
        code, out, err = as_nobody(*arguments, "{}")
        assert (code, out) == (2, "")
        assert "cannot" in err
        assert "ledger" in err


@pytest.mark.parametrize(
    ("wal", "shm", "writable", "is_fixed"),
    [
        (None, False, False, True),
        (b"", False, False, True),
        (b"charges", False, False, False),
        (b"", True, False, False),  # somebody has it open, or had it when it was copied
        (None, False, True, False),
    ],
)
def test_only_what_cannot_change_is_read_as_such(
    tmp_path, monkeypatch, wal, shm, writable, is_fixed
):
    path = tmp_path / "site.sqlite"
    path.touch()
    if wal is not None:
        Path(f"{path}-wal").write_bytes(wal)
    if shm:
        Path(f"{path}-shm").touch()
    monkeypatch.setattr(file.os, "access", lambda *_: writable)
    assert ("immutable=1" in file.reading_uri(path)) == is_fixed


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_a_file_out_of_reach_is_no_sign_of_tampering(medium, as_nobody, mode):
    """Exit code 1 is for ledgers that were looked at and are not sound."""
    (medium / "ledger.sqlite").chmod(mode)
    for arguments in (("budget", "verify"), ("audit", "ledger")):
        code, out, err = as_nobody(*arguments, "{}")
        assert (code, "cannot" in err) == ((2, True) if mode == 0 else (0, False))
        assert bool(out) == bool(mode)


def test_damage_is_bad_news(capsys, medium):
    content = bytearray((medium / "ledger.sqlite").read_bytes())
    content[:200] = bytes(200)
    (medium / "ledger.sqlite").write_bytes(content)
    assert command(capsys, "budget", "verify", medium)[0] == 1


# One name


def test_a_ledger_with_two_names_is_refused(capsys, tmp_path):
    path, other = tmp_path / "site.sqlite", tmp_path / "other.sqlite"
    with Ledger(path) as ledger:
        ledger.account("alice", "data")
    os.link(path, other)
    for name in (path, other):
        for read_only in (False, True):
            with pytest.raises(LedgerUnavailable, match="one of 2 hard links to one file"):
                Ledger(name, read_only=read_only)
    code, out, err = command(capsys, "budget", "verify", other)
    assert (code, out) == (2, "")
    assert f"sqlite3 {other} '.backup COPY'" in err
    with pytest.raises(LedgerError, match="hard links"):
        train(tmp_path / "run", ledger=str(path))
    assert not (tmp_path / "run").exists()
    other.unlink()
    with Ledger(path) as ledger:
        assert [own.client for own in ledger.accounts()] == ["alice"]


def test_another_name_by_a_symbolic_link_is_the_same_ledger(tmp_path):
    path, link = tmp_path / "site.sqlite", tmp_path / "elsewhere" / "link.sqlite"
    link.parent.mkdir()
    link.symlink_to(path)
    with Ledger(path) as first, Ledger(link) as second:
        first.account("alice", "data")
        assert [own.client for own in second.accounts()] == ["alice"]


# A place that can be written


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("folder", "'folder' is a folder: give the name of a file"),
        ("/dev/null", "'/dev/null' is not a regular file: give the name of a file"),
        ("missing/site.sqlite", "there is no folder 'missing'"),
    ],
)
def test_a_place_without_a_ledger_is_noticed_before_anything(tmp_path, monkeypatch, place, said):
    def planned(*_):
        raise AssertionError("the data was loaded")

    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setup, "load_dataset", planned)
    with pytest.raises(InvalidInput, match=re.escape(f"privacy.ledger: {said}")):
        train("run", ledger=place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]
    if place != "missing/site.sqlite":
        with pytest.raises(InvalidInput, match="give the name of a file"):
            Ledger(Path(place))


@pytest.mark.parametrize("read_only", ["site.sqlite", "."])
def test_a_ledger_that_cannot_be_written_is_noticed_before_anything(
    tmp_path, monkeypatch, read_only
):
    monkeypatch.chdir(tmp_path)
    Ledger(Path("site.sqlite")).close()
    target = (tmp_path / read_only).resolve()
    monkeypatch.setattr(file.os, "access", lambda path, _: Path(path).resolve() != target)
    with pytest.raises(InvalidInput, match=r"cannot write ledger site.sqlite: .* is read-only"):
        train("run", ledger="site.sqlite")
    assert not Path("run").exists()


def test_a_new_ledger_is_said_to_be_new(tmp_path, monkeypatch, capsys, caplog):
    """A relative name means another file in another folder, and that has no budgets yet."""
    monkeypatch.setenv("COLUMNS", "300")
    toml = tmp_path / "my.toml"
    toml.write_text(
        'model.name = "logistic"\nthreads = 1\ndata.clients = 3\ntraining.rounds = 1\n'
        'privacy = { ledger = "site.sqlite", mechanism = "gaussian" }\n'
    )
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        code, out, _ = command(capsys, "run", toml, "--out", "first")
        assert code == 0
        assert "site.sqlite (shared between runs, new)" in out
        assert f"the new ledger {tmp_path / place / 'site.sqlite'}:" in caplog.text
        caplog.clear()
    with Ledger(Path("site.sqlite")) as ledger:
        ledger.set_budgets([1, 2, 3], udpfl.Budget(100.0, 1e-5), reason="more")
    code, out, _ = command(capsys, "run", toml, "--out", "second")
    assert code == 0
    assert "site.sqlite (shared between runs)" in out
    assert "the new ledger" not in caplog.text
    assert not Ledger(Path("site.sqlite")).is_new


def test_a_run_with_a_ledger_of_its_own_says_nothing_of_it(tmp_path, caplog):
    assert train(tmp_path / "run").ledger_is_new
    assert "the new ledger" not in caplog.text


# What accounts have, and a run cannot change


def test_records_of_another_block_are_named_with_it(tmp_path):
    shared = str(tmp_path / "site.sqlite")
    train(tmp_path / "first", ledger=shared)
    with Ledger(shared) as ledger:
        for own in ledger.accounts():
            ledger.declare_block(own.client, "Q3", reason="they say")
        known = ledger.accounts()[0]
        (data,) = ledger.versions(known.id)
        name = known.client
        with pytest.raises(
            InvalidInput,
            match=rf"the data of {name} \(block Q3\) is known there as {name} \(no block\): it "
            "gets no new budget under another name or block",
        ):
            ledger.open_accounts({name: data}, block="Q3")
        ledger.account(name, "other data", block="Q3")
        with pytest.raises(InvalidInput, match=rf"of {name} is known there as {name} \(block Q3\)"):
            ledger.open_accounts({name: "other data"})
        with pytest.raises(InvalidInput, match=rf"data of bob is known there as {name}: it gets"):
            ledger.open_accounts({"bob": data})


@pytest.fixture
def roomy(tmp_path):
    """A ledger that was charged for single records and has room for more."""
    shared = tmp_path / "site.sqlite"
    train(tmp_path / "first", ledger=str(shared))
    with Ledger(shared) as ledger:
        ledger.set_budgets([1, 2, 3], udpfl.Budget(20.0, 1e-3), reason="more")
    return str(shared)


@pytest.mark.parametrize("exhausted", ["refuse", "skip", "fit"])
def test_a_run_of_another_unit_is_told_whose_unit_it_is(tmp_path, roomy, exhausted):
    with pytest.raises(InvalidInput) as refused:
        train(tmp_path / "second", ledger=roomy, unit="client", exhausted=exhausted)
    assert str(refused.value) == (
        f"privacy.unit: the account of client-0 in {roomy} was charged for single records, but "
        "this run hides whole clients: the two cannot be added up. Set privacy.unit = "
        '"record", or use another ledger'
    )
    assert not (tmp_path / "second").exists()


def test_a_run_after_other_neighbours_is_told_whose_they_are(tmp_path):
    shared = str(tmp_path / "site.sqlite")
    with Ledger(shared) as ledger:
        own = ledger.account("client-1", "data of before")
        event = PureDP(0.1, neighbours="replace-one")
        ledger.import_charge(own, event, source="elsewhere")
    with pytest.raises(
        InvalidInput, match=r"client-\d in .* charged for a record that is replaced"
    ):
        train(tmp_path / "run", ledger=shared)


def test_a_run_at_another_delta_is_told_whose_delta_counts(tmp_path, roomy, caplog):
    assert train(tmp_path / "second", ledger=roomy, delta=1e-6).privacy.delta == 1e-3
    assert f"client-2 in {roomy} is at δ = 0.001: this δ counts" in caplog.text
    caplog.clear()
    train(tmp_path / "third", ledger=roomy)
    assert "this δ counts" not in caplog.text


def test_noise_that_cannot_keep_the_delta_of_an_account(tmp_path):
    shared = str(tmp_path / "site.sqlite")
    train(tmp_path / "first", ledger=shared, mechanism="laplace", delta=0.0)
    with pytest.raises(Unsupported) as refused:
        train(tmp_path / "second", ledger=shared)
    assert "client-0: gaussian noise has no pure-DP guarantee" in str(refused.value)
    assert "Its budget in the ledger is at δ = 0, and privacy.delta does not" in str(refused.value)
    assert "another ledger" in str(refused.value)


# Names of clients in names of files


def test_every_client_has_its_own_file(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    names = ["a/b", "a-b", "a b", "a%2Fb", "a//b", "../a", "é", "a=1", "a.b", "[x]", "a\n"]
    for number, name in enumerate(names):
        folder.write_update(1, name, bytes([number]))
    written = list((tmp_path / "run" / "updates").iterdir())
    assert sorted(path.read_bytes()[0] for path in written) == list(range(len(names)))
    assert f"round-000001-{'a-b'}.safetensors" in {path.name for path in written}
    assert all(path.is_file() for path in written)
