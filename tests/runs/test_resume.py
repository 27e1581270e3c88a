"""A run goes on with the records and the ledger that it was begun with, or not at all."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import udpfl
from tests.small import blobs, linear
from udpfl.accounting.budget import Budget
from udpfl.errors import InvalidInput, LedgerError
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import Sealed
from udpfl.runs.folder import RunFolder


class Stop(udpfl.Observer):
    """Breaks a run off after a round."""

    def __init__(self, after, act=lambda: None):
        self.after, self.act = after, act

    def on_round(self, row):
        if row["round"] == self.after:
            self.act()
            raise RuntimeError("broken off")


def begun(tmp_path, data, rounds=4, after=2, act=lambda: None, clients_per_round=3, **privacy):
    """The folder of a run that was broken off."""
    settings = {
        "out": str(tmp_path / "run"), "data": {"clients": 3},
        "training": {"rounds": rounds, "clients_per_round": clients_per_round},
        "privacy": {"epsilon": 1.0, "delta": 1e-3, "mechanism": "gaussian", **privacy},
    }  # fmt: skip
    with pytest.raises(RuntimeError, match="broken off"):
        udpfl.run(settings, data=data, model=linear(), observers=[Stop(after, act)])
    return tmp_path / "run"


def edited(data, record=7):
    """The same data with one record corrected."""
    inputs, targets = (np.array(part) for part in data)
    inputs[record] += 0.25
    return inputs, targets


def test_a_run_goes_on_with_the_same_records(tmp_path):
    folder = begun(tmp_path, blobs())
    assert udpfl.run(resume=folder, data=blobs(), model=linear()).privacy.kind == "guarantee"


@pytest.mark.parametrize("shared", [False, True])
def test_one_edited_record_is_enough_to_refuse(tmp_path, shared):
    """Even before the first round was answered by the client that has it."""
    ledger = {"ledger": str(tmp_path / "shared.sqlite")} if shared else {}
    folder = begun(tmp_path, blobs(), after=1, clients_per_round=1, **ledger)
    for own in range(3):
        with pytest.raises(InvalidInput, match=r"are not those that the run began with"):
            udpfl.run(resume=folder, data=edited(blobs(), 7 + own), model=linear())
    assert udpfl.run(resume=folder, data=blobs(), model=linear()).privacy.kind == "guarantee"


def test_a_ledger_from_a_backup_is_refused(tmp_path):
    backup = tmp_path / "backup.sqlite"

    def back_up():
        with Ledger(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
            ledger._file._db.execute("VACUUM INTO ?", (str(backup),))

    folder = begun(tmp_path, blobs(), rounds=6, after=2, act=back_up)
    with pytest.raises(RuntimeError, match="broken off"):
        udpfl.run(resume=folder, data=blobs(), model=linear(), observers=[Stop(4)])
    for name in ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"):
        (folder / name).unlink(missing_ok=True)
    shutil.copy(backup, folder / "ledger.sqlite")
    with pytest.raises(LedgerError, match="restored from a backup"):
        udpfl.run(resume=folder, data=blobs(), model=linear())


@pytest.mark.parametrize("shared", [False, True])
def test_the_ledger_of_another_run_is_refused(tmp_path, shared):
    (tmp_path / "other").mkdir()
    kept = [tmp_path / place / "run" / "ledger.sqlite" for place in (".", "other")]
    if shared:
        kept = [tmp_path / "shared.sqlite", tmp_path / "other" / "shared.sqlite"]
    own, of_other = [{"ledger": str(path)} if shared else {} for path in kept]
    folder = begun(tmp_path, blobs(), **own)
    begun(tmp_path / "other", blobs(), **of_other)
    with Ledger(kept[1]) as ledger:  # there is room for more, so this is not what it fails for
        for account in ledger.accounts():
            ledger.set_budget(account.id, Budget(20.0, 1e-3), reason="a test")
        before = ledger.head(), ledger.decisions()
    for end in ("", "-wal", "-shm"):
        kept[0].with_name(kept[0].name + end).unlink(missing_ok=True)
    shutil.copy(kept[1], kept[0])
    with pytest.raises(LedgerError, match="another ledger"):
        udpfl.run(resume=folder, data=blobs(), model=linear())
    with Ledger(kept[0], read_only=True) as ledger:
        assert (ledger.head(), ledger.decisions()) == before  # nothing is reserved there either


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("back", ["to the start", "to nothing"])
def test_a_ledger_that_lacks_rounds_since_the_checkpoint_is_refused(tmp_path, shared, back):
    """They were charged, seen and would be trained again with fresh noise."""
    ledger = tmp_path / ("shared.sqlite" if shared else "run/ledger.sqlite")
    own = {"ledger": str(ledger)} if shared else {}
    copies = []

    class BackUp(udpfl.Observer):
        def on_start(self, config, folder):
            with Ledger(ledger) as opened:
                opened._file._db.execute(f"VACUUM INTO '{tmp_path / 'copy.sqlite'}'")
            copies.append(tmp_path / "copy.sqlite")

    settings = {
        "out": str(tmp_path / "run"), "data": {"clients": 3},
        "training": {"rounds": 6, "checkpoint_every": 10},
        "privacy": {"epsilon": 1.0, "delta": 1e-3, "mechanism": "gaussian", **own},
    }  # fmt: skip
    with pytest.raises(RuntimeError, match="broken off"):
        udpfl.run(settings, data=blobs(), model=linear(), observers=[BackUp(), Stop(3)])
    kept = ledger.read_bytes()
    for end in ("", "-wal", "-shm"):
        ledger.with_name(ledger.name + end).unlink(missing_ok=True)
    if back == "to the start":
        shutil.copy(copies[0], ledger)
    with pytest.raises(LedgerError, match=r"restored from a backup|is missing"):
        udpfl.run(resume=tmp_path / "run", data=blobs(), model=linear())
    ledger.write_bytes(kept)
    again = udpfl.run(resume=tmp_path / "run", data=blobs(), model=linear())
    assert [row["round"] for row in again.metrics] == list(range(1, 7))


def test_a_line_that_a_crash_cut_short_is_no_charge(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.last_charge() == (0, "")
    folder.note_charge(7, "a" * 64)
    with (tmp_path / "charged.log").open("a") as file:
        file.write("8 " + "b" * 20)
    assert folder.last_charge() == (7, "a" * 64)


def test_a_finished_run_is_not_made_longer(tmp_path, monkeypatch):
    """Whoever does that has seen its result, and its total was planned as a whole."""
    settings = {
        "out": str(tmp_path / "run"), "data": {"clients": 3}, "training": {"rounds": 2},
        "privacy": {"epsilon": 1.0, "delta": 1e-3, "mechanism": "gaussian"},
    }  # fmt: skip
    done = udpfl.run(settings, data=blobs(), model=linear())
    with Ledger(done.ledger_path) as ledger:
        for account in ledger.accounts():
            ledger.set_budget(account.id, Budget(20.0, 1e-3), reason="not good enough")
    config = (done.folder / "config.toml").read_text()
    (done.folder / "config.toml").write_text(config.replace("rounds = 2", "rounds = 9"))
    with pytest.raises(InvalidInput, match=r"config\.toml is not the file that the run began with"):
        udpfl.run(resume=done.folder, data=blobs(), model=linear())
    monkeypatch.setattr(Ledger, "sealed", lambda *_: Sealed(None, None))
    again = udpfl.run(resume=done.folder, data=blobs(), model=linear())
    assert "the run has not reserved this release" in again.stopped
    with Ledger(done.ledger_path) as ledger:
        assert ledger.rounds_charged(ledger.history().__next__().run, 1) == 2


def test_a_ledger_that_was_tampered_with_ends_a_run(tmp_path):
    folder = begun(tmp_path, blobs())
    with Ledger(folder / "ledger.sqlite") as ledger:
        ledger._file._db.execute("DROP TRIGGER charges_never_update")
        ledger._file._db.execute("UPDATE charges SET count = 9 WHERE id = 1")
    with pytest.raises(LedgerError, match="not sound"):
        udpfl.run(resume=folder, data=blobs(), model=linear())


def test_the_ledger_knows_the_records_that_were_charged(tmp_path, monkeypatch):
    """Also where somebody took the fingerprints out of the folder."""
    folder = begun(tmp_path, blobs())
    identity = json.loads((folder / "run.json").read_text())
    del identity["fingerprints"]
    (folder / "run.json").write_text(json.dumps(identity))
    monkeypatch.setattr(Ledger, "sealed", lambda *_: Sealed(None, None))
    with pytest.raises(InvalidInput, match="are not those for which the run was charged"):
        udpfl.run(resume=folder, data=edited(blobs()), model=linear())


def test_a_checkpoint_ends_with_the_last_charge(tmp_path):
    folder = begun(tmp_path, blobs())
    checkpoint = RunFolder(folder).read_checkpoint()
    with Ledger(folder / "ledger.sqlite", read_only=True) as ledger:
        assert checkpoint.head == ledger.head()
        assert ledger.holds(*checkpoint.head)
        number, chain = checkpoint.head
        assert number == 3 * checkpoint.round
        assert not ledger.holds(number - 1, chain)
        assert not ledger.holds(number + 1, chain)
        assert not ledger.holds(0, chain)
        assert ledger.holds(0, "")


def test_a_refused_run_writes_nothing_to_a_shared_ledger(tmp_path):
    path = tmp_path / "shared.sqlite"
    settings = {
        "training": {"rounds": 1},
        "privacy": {"delta": 1e-3, "mechanism": "gaussian", "ledger": str(path)},
    }
    parts = np.array_split(np.arange(240), 3)
    inputs, targets = blobs(240)
    sites = [(inputs[part], targets[part]) for part in parts]
    own = {"test": blobs(30), "model": linear()}
    udpfl.run({**settings, "out": str(tmp_path / "a")}, data=sites, **own)
    with Ledger(path, read_only=True) as ledger:
        before = ledger.accounts(), ledger.head(), ledger._file.rows("SELECT id FROM runs")
    fresh = (inputs[parts[0]] + 9, targets[parts[0]])
    with pytest.raises(InvalidInput, match="known there as client-0"):
        udpfl.run(
            {**settings, "out": str(tmp_path / "b")},
            data=[fresh, sites[0], sites[2]],
            **own,
        )
    with Ledger(path, read_only=True) as ledger:
        after = ledger.accounts(), ledger.head(), ledger._file.rows("SELECT id FROM runs")
    assert after == before
