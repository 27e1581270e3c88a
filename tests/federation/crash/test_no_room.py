"""Whole runs without room on the disk, or without permission to write: nothing is released."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.federation.crash.processes import DELTA, Place, fill, kill, step_down
from udpfl import Budget
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder

# No disk


def test_a_ledger_that_cannot_grow_releases_nothing(place):
    traps = [(Ledger, "commit", 3, fill, "run/ledger.sqlite-wal", 100)]
    place.begin(traps=traps).complains("ledger.sqlite", "no update was released")
    place.check()
    assert (place.seen(), place.saved()) == (2, 2)
    assert max(round_ for _, round_ in place.charged) == 2
    assert place.resume().ended() == 0
    place.check_finished()
    place.check_spending()


@pytest.mark.parametrize(
    ("method", "call", "beside", "more", "blamed"),
    [
        ("write_checkpoint", 4, None, 2000, "checkpoints"),
        ("append_metrics", 4, "run/metrics.jsonl", 20, "metrics.jsonl"),
        ("write_update", 2, None, 1000, "updates"),
        ("write_model", 1, None, 1000, "model.safetensors"),
    ],
)
def test_a_folder_that_cannot_grow_can_be_resumed(place, method, call, beside, more, blamed):
    traps = [(RunFolder, method, call, fill, beside, more)]
    process = place.begin("record_updates=[3]", traps=traps)
    process.complains("cannot write", blamed)
    place.check()
    assert place.resume().ended() == 0
    place.check_finished()
    place.check_spending()


def test_no_room_to_begin(place):
    traps = [(RunFolder, "write_records", 1, fill, None, 500)]
    place.begin(traps=traps).complains("cannot write", "records.npz")
    assert not place.truth()
    assert not place.ledger.exists()


# No permission


@pytest.fixture
def open_place():
    """Where a process without privileges may go, which a test's own folder is not."""
    here = Path(tempfile.mkdtemp())
    here.chmod(0o777)
    yield here
    for path in (here, *here.iterdir()):
        path.chmod(0o777)
    shutil.rmtree(here)


@pytest.mark.parametrize(
    ("file_mode", "folder_mode"),
    [(0o444, 0o555), (0o444, 0o777), (0o666, 0o555)],
    ids=["both", "file", "folder"],
)
def test_a_ledger_that_may_not_be_written_releases_nothing(open_place, file_mode, folder_mode):
    vault = open_place / "vault"
    vault.mkdir()
    place = Place(open_place, vault / "ledger.sqlite")
    with Ledger(place.ledger) as ledger:
        ledger.set_budget(ledger.account("client-0", "some other data"), Budget(5.0, DELTA))
    before = place.ledger.read_bytes()
    place.ledger.chmod(file_mode)
    vault.chmod(folder_mode)
    # Everything is imported by then, and the ledger was seen to be writable.
    traps = [(Ledger, "__init__", 1, step_down)]
    setting = f"privacy.ledger='{place.ledger}'"
    process = place.begin(setting, traps=traps)
    process.complains("ledger.sqlite", "read-only")
    assert not place.truth()
    assert place.ledger.read_bytes() == before

    place.ledger.chmod(0o666)
    vault.chmod(0o777)
    assert place.resume().ended() == 0
    place.check_finished()


def test_a_folder_that_may_not_be_written_is_not_resumed(open_place):
    place = Place(open_place)
    process = place.begin(traps=[(RunFolder, "write_checkpoint", 3, kill)])
    assert process.ended() == -signal.SIGKILL
    place.check()
    before = len(place.truth())
    for path in (place.run, *place.run.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    place.resume(traps=[(RunFolder, "locked", 1, step_down)]).complains("cannot write", ".lock")
    place.check()
    assert len(place.truth()) == before
